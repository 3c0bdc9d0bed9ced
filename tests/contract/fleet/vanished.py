"""The rows of a governor that vanished with a run: its lease has ended, and so its row of that is gone."""

from __future__ import annotations

from typing import Final

from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.presence import NodeRow, RunRow, node_key, row_text, run_key
from governor.core.fleet.scopes import (
    GrantRow,
    Holder,
    ScopeRow,
    ceiling_change,
    compares,
    grant_key,
    granted,
    scope_key,
    scope_row,
    text_of,
)
from governor.remote_ports import FleetStore

GONE: Final = Holder("gpu-2", "boot", "ledger")
WALL: Final = 10**18  # Its last word.
RATE: Final = 6_000_000
GRANT: Final = GrantRow(10_000_000, 0, 4_000_000, RATE, WALL)  # At half the rate it is used up after two hours.
RUN: Final = RunRow("llama", 1000, "training", True, rate_usd_micros_per_hour=RATE, may_stop=True)


def node_of(instance_id: str, region: str | None) -> NodeRow:
    return NodeRow("gpu-2", WALL, "aws", instance_id, region, can_stop=True, rate_usd_micros_per_hour=RATE)


def scope_of(store: FleetStore) -> ScopeRow:
    row = scope_row(store.read([scope_key("fleet")]).rows[0])
    assert row is not None
    return row


def vanish(store: FleetStore, instance_id: str, region: str | None) -> None:
    change = ceiling_change(Kept(scope_key("fleet")), 100_000_000)
    assert change is not None
    assert store.transact(change).answer is Answer.APPLIED
    rows = ((node_key(GONE), row_text(node_of(instance_id, region))), (run_key(GONE, "llama"), row_text(RUN)))
    assert store.transact(Transaction((), rows)).answer is Answer.APPLIED
    before = store.read([scope_key("fleet"), grant_key(GONE, "fleet", "llama")]).rows
    puts = ((before[0].key, text_of(granted(scope_of(store), None, GRANT))), (before[1].key, text_of(GRANT)))
    assert store.transact(Transaction(compares(*before), puts)).answer is Answer.APPLIED
