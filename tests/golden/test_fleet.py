"""`costgov fleet` at 80 columns, as text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from governor.app.fleet_rows import Failure
from governor.app.fleet_view import document, look
from governor.cli.fleet.command import drawn
from governor.core.base.units import NS_PER_HOUR
from governor.core.events.fleet_orders import Act, Order
from governor.core.events.fleet_store import Transaction
from governor.core.fleet.orders import order_key, order_text
from governor.core.fleet.presence import RunRow
from governor.text.screen import Screen, width
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.app.test_fleet_view import NOW, RUN, put

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
    text = drawn(document(seen), Screen(80, False), **CASES[case])
    assert all(width(line) <= 80 for line in text.splitlines())
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.write_text(text)
    assert text == path.read_text()


def test_a_fleet_without_governors_says_who_writes_rows() -> None:
    seen = look(FakeFleetStore(), NOW)
    assert not isinstance(seen, Failure)
    assert len(drawn(document(seen), Screen(80, False)).splitlines()) == 2
