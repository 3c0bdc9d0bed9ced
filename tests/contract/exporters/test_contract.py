"""What every exporter keeps to: it shows what it is told, refuses nothing, keeps nothing, and fails alone."""

from __future__ import annotations

import copy
import gc
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from governor.adapters import exporters
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.daemon.observers import Observers
from tests.contract.exporters.rigs import RIGS, Rig
from tests.tidy import gates
from tests.unit.core.engine.test_step import at, hello, make_node, play, tick, training

GOLDEN: Final = Path(__file__).resolve().parents[2] / "golden" / "report" / "nan_halt.json"
HOSTILE: Final = (
    "",
    ".",
    "..",
    "../../outside",
    "/etc/passwd",
    'a"} 1\nevil{x="',
    "line\nbreak\r\x1b[2J",
    "half \ud800 pair",
    "nothing \0 after",
    "x" * 10_000,
    "\N{SNOWMAN}",
)
MANY: Final = 100  # More than any exporter may hold.


def snapshot(**changes: Any) -> dict[str, Any]:
    return {**json.loads(GOLDEN.read_text()), **changes}


def a_node(**facts: object) -> Node:
    node = make_node(**facts)
    training(node, 3)
    return node


class Noting:
    """Who is told after the exporter."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tick(self, node: Any, at: Any) -> None:
        self.told.append("tick")

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        self.told.append("incident")

    def alarm(self, name: str, run: str | None, text: str) -> None:
        self.told.append("alarm")


def reached(start: object) -> dict[int, object]:
    """Everything that this object keeps alive, but for code."""
    found: dict[int, object] = {}
    todo = [start]
    while todo:
        one = todo.pop()
        if id(one) not in found and not isinstance(one, type | types.ModuleType | types.FunctionType):
            found[id(one)] = one
            todo.extend(gc.get_referents(one))
    return found


def test_every_exporter_is_in_this_suite() -> None:
    found = gates.observers_in(exporters)
    gates.nothing_missing(
        gates.without_a_rig("exporter", found, RIGS, "tests/contract/exporters/rigs.py RIGS"),
        gates.without_a_call(found),
        gates.never_built(exporters.__name__, found, gates.imported_outside(exporters.__name__)),
    )


def test_it_shows_what_it_is_told(rig: Rig) -> None:
    rig.observer.tick(make_node(node="node-under-test"), at(0))
    rig.observer.incident(snapshot(node="node-under-test"))
    rig.observer.alarm("price_stale", None, "the price is of last year")
    assert "node-under-test" in rig.shows()


def test_it_can_refuse_nothing(rig: Rig) -> None:
    calls: list[Any] = [
        rig.observer.tick(a_node(), at(3)),
        rig.observer.incident(snapshot()),
        rig.observer.alarm("price_stale", "llama", "text"),
    ]
    assert calls == [None, None, None], "an answer would be read by somebody"


def test_it_changes_nothing_of_what_it_is_shown(rig: Rig) -> None:
    node, incident = a_node(), snapshot()
    before = [run_snapshot(node, managed, at(3)) for managed in node.runs.values()]
    as_told = copy.deepcopy(incident)
    rig.observer.tick(node, at(3))
    rig.observer.incident(incident)
    assert [run_snapshot(node, managed, at(3)) for managed in node.runs.values()] == before
    assert incident == as_told


def test_it_keeps_nothing_of_the_node(rig: Rig) -> None:
    node = a_node()
    rig.observer.tick(node, at(3))
    kept = reached(rig.observer)
    assert id(node) not in kept
    assert not [name for name, managed in node.runs.items() if id(managed) in kept or id(managed.run) in kept]


@pytest.mark.parametrize("text", HOSTILE, ids=[ascii(text[:12]) for text in HOSTILE])
def test_a_hostile_name_costs_nothing(rig: Rig, text: str) -> None:
    """Names come from trainers, labels from users, texts from libraries. The good halt is shown all the same."""
    node = a_node(node=text, instance_id=text)
    play(node, hello(0, 4, run="other", attempt=text, stage=text, labels={"team": text}), tick(4))
    rig.observer.tick(node, at(4))
    rig.observer.incident(snapshot(incident_id=text, run=text, node=text, reason=text, stage=text, resume=text))
    rig.observer.alarm(text, text, text)
    rig.observer.incident(snapshot(node="node-under-test"))
    rig.observer.tick(make_node(node="node-under-test"), at(5))
    assert "node-under-test" in rig.shows()


@pytest.mark.parametrize("when", ["before it told anything", "later", "twice"])
def test_a_world_that_lets_nothing_through_is_its_own_loss(rig: Rig, when: str) -> None:
    noting = Noting()
    observers = Observers([rig.observer, noting])
    if when != "before it told anything":
        observers.incident(snapshot())
        noting.told.clear()
    rig.breaks()
    for second in range(2 if when == "twice" else 1):
        observers.tick(a_node(), at(second))
        observers.incident(snapshot(halt_stage=f"STAGE{second}"))
        observers.alarm("price_stale", None, "text")
        assert noting.told == ["tick", "incident", "alarm"] * (second + 1)
    assert observers.errors_total == 0, "what the world may do is expected; only a fault of ours is an error"


def test_what_it_cannot_understand_reaches_nobody_else(rig: Rig) -> None:
    noting = Noting()
    observers = Observers([rig.observer, noting])
    observers.tick(None, at(0))
    observers.incident({})
    assert noting.told == ["tick", "incident"]
    observers.incident(snapshot(node="node-under-test"))
    observers.tick(make_node(node="node-under-test"), at(1))
    assert "node-under-test" in rig.shows()


def test_nobody_who_looks_away_holds_it_up(rig: Rig) -> None:
    """Were it to wait for them, this test would never end."""
    for second in range(20):
        rig.neglect()
        rig.observer.tick(a_node(), at(second))
        rig.observer.incident(snapshot(incident_id=str(second), node="node-under-test"))
    rig.observer.tick(make_node(node="node-under-test"), at(20))
    assert "node-under-test" in rig.shows()


def test_it_may_be_told_after_its_end(rig: Rig) -> None:
    rig.close()
    rig.observer.tick(a_node(), at(3))
    rig.observer.incident(snapshot())
    rig.observer.alarm("price_stale", None, "text")


def test_what_it_holds_is_bounded(rig: Rig) -> None:
    def tell(first: int) -> int:
        node = make_node()
        for number in range(first, first + MANY):
            play(node, tick(number), hello(0, number, run=f"run-{number}"))
            rig.observer.incident(snapshot(incident_id=f"run-{number}.node.1"))
            rig.observer.alarm(f"alarm-{number}", f"run-{number}", "text")
            rig.observer.tick(node, at(number))
        gc.collect()
        return len(reached(rig.observer))

    tell(0)
    full = tell(MANY)
    assert tell(2 * MANY) <= full * 1.1, "it grows with every run, incident or alarm that it hears of"
