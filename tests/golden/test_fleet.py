"""`costgov fleet` at 80 columns, as text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from governor.app.fleet_rows import Failure, budgets
from governor.app.fleet_view import document, look
from governor.cli.fleet.budgets import drawn as drawn_budgets
from governor.cli.fleet.command import drawn
from governor.core.base.units import NS_PER_HOUR
from governor.core.events.fleet_orders import Act, Order
from governor.core.events.fleet_store import Transaction
from governor.core.fleet.orders import order_key, order_text
from governor.core.fleet.presence import RunRow
from governor.core.fleet.scopes import GrantRow, Holder, ScopeRow, grant_key, scope_key, text_of
from governor.text.screen import Screen, width
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.app.test_fleet_view import NOW, RUN, put

TEAM = "label:team=nlp"
GOLDEN = Path(__file__).parent / "fleet"
CASES: Final = {"runs": {}, "nodes": {"of_nodes": True}}


def fleet() -> FakeFleetStore:
    made = FakeFleetStore()
    put(made, "gpu-a-0001", RUN)
    late = replace(RUN, spend_usd_micros=20_000_000)
    put(made, "gpu-a-0002", late, live=False, said_wall_ns=NOW - NS_PER_HOUR)
    put(made, "gpu-a-0003", idle_s=900, health=("the machine's price is unknown",), rate_usd_micros_per_hour=None)
    put(made, "gpu-b-17", RunRow("sft-7b-a-name", 2000, "halting", False, halt_stage="KILLED", incident_id="sft.1"))
    order = Order("halt-3f9a1c", Act.HALT, "label:team=vision", "the data are wrong", "ann@ops", NOW)
    made.transact(Transaction((), ((order_key(order.order_id), order_text(order)),)))
    return made


@pytest.mark.parametrize("case", CASES)
def test_the_fleet_reads_as_agreed(case: str) -> None:
    """`make golden-update` rewrites the files; read the diff."""
    seen = look(fleet(), NOW)
    assert not isinstance(seen, Failure)
    agreed(case, drawn(document(seen), Screen(80, False), **CASES[case]))


def agreed(case: str, text: str) -> None:
    assert all(width(line) <= 80 for line in text.splitlines())
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.write_text(text)
    assert text == path.read_text()


def granted() -> FakeFleetStore:
    """Two grants that node, scope and run do not tell apart, one of a longer name, and a scope whose row is damaged."""
    made = FakeFleetStore()
    rows = {
        scope_key(TEAM): text_of(ScopeRow(1_010_000_000, 6_500_000, 310_250_000, holders=3)),
        scope_key("day:2026-11-30"): "no row",
    }
    for boot, node, run in (("one", "gpu-1", "llama"), ("two", "gpu-1", "llama"), ("one", "gpu-2", "sft-7b-a-name")):
        key = grant_key(Holder(node, f"boot-{boot}", "0d9f3a61c5e84c02b1c4f0f0a7be3c55"), TEAM, run)
        rows[key] = text_of(GrantRow(2_000_000, spent_usd_micros=1_280_000, seen_wall_ns=NOW))
    made.transact(Transaction((), tuple(rows.items())))
    return made


def test_shared_budgets_read_as_agreed() -> None:
    data = budgets(granted())
    assert not isinstance(data, Failure)
    agreed("budgets", drawn_budgets(data, Screen(80, False)))


def test_a_grant_is_shown_though_its_scope_has_lost_its_row() -> None:
    store = granted()
    store.transact(Transaction((), (), (scope_key(TEAM), scope_key("day:2026-11-30"))))
    data = budgets(store)
    assert not isinstance(data, Failure)
    assert "gpu-2/label:team=nlp/sft-7b-a-name" in "".join(drawn_budgets(data, Screen(None, False)).split())


def test_a_fleet_without_governors_says_who_writes_rows() -> None:
    seen = look(FakeFleetStore(), NOW)
    assert not isinstance(seen, Failure)
    assert len(drawn(document(seen), Screen(80, False)).splitlines()) == 2
