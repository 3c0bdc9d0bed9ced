"""A run that does not step says so: when it is halted, and what its time and money went to so far."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import MonoNs
from governor.core.engine.node import Node
from governor.core.events.inputs import CommandLaunched, PhaseChange
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from governor.core.views.status import run_status
from governor.reports.causes import cause_rows
from governor.reports.run.document import run_document
from governor.reports.run.facts import RunFacts
from governor.reports.terminal import stands_still_text, wasted_text
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick
from tests.unit.core.money.test_waste import a_world, until


def shown(node: Node, when: float, run: str = "llama") -> dict[str, Any]:
    return run_status(node.runs[run], at(when))


def stood() -> Node:
    node = make_node(rule("hang", params=defaults(load()["hang"].KEYS)))
    play(node, hello(0, world_size=1), PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    for number in range(1, 41):
        play(node, a_step(number, when=float(number), step_s=1.0), tick(number))
    for second in range(41, 101):
        play(node, tick(second))
    return node


def test_a_run_that_stands_still_says_when_it_is_halted_and_how_to_look() -> None:
    node = stood()
    row = shown(node, 100.0)
    assert row["stepless_s"] == 60.0
    assert row["halts_in_s"] is not None
    text = stands_still_text(row)
    assert text is not None
    assert text.startswith("no step for 1m 0s: halts in ")
    assert text.endswith("; costgov evidence llama")
    later = shown(node, 110.0)
    assert later["halts_in_s"] == row["halts_in_s"] - 10.0, "nothing moved"
    assert "hang so far" in [one.cause for one in cause_rows(row, 9)]


def test_a_run_that_steps_says_nothing_of_it() -> None:
    node = stood()
    play(node, a_step(41, when=100.0, step_s=1.0), tick(100.25))
    row = shown(node, 100.5)
    assert (row["halts_in_s"], stands_still_text(row)) == (None, None)
    assert "hang" not in [one["cause"] for one in row["time"]["causes"]]


@pytest.mark.parametrize("left_s", [None, 1_440.0])
def test_without_a_rule_that_halts_it_no_halt_is_announced(left_s: float | None) -> None:
    row = {"run": "llama", "stepless_s": 669.0, "halts_in_s": left_s, "ranks_connected": 2, "halt": None}
    halts = ": halts in 24m 0s if none comes" if left_s else ""
    assert stands_still_text(row) == f"no step for 11m 9s{halts}; costgov evidence llama"


def test_a_command_that_nobody_has_heard_of_yet_has_its_time_and_money_in_one_cause() -> None:
    world = a_world()
    world.play(CommandLaunched(MonoNs(world.mono), "qwen", 1000, (ProcessId(4321, 1, "boot-1"),)))
    until(world, 30)
    row = run_status(world.node.runs["qwen"], MonoNs(world.mono))
    assert (row["time"]["wall_s"], row["time"]["causes"][0]["cause"]) == (30.0, "unknown")
    assert row["time"]["usd"] == row["spend_usd"] > 0


def test_a_report_of_a_run_that_stands_still_says_so_as_the_other_views_do() -> None:
    row = shown(stood(), 100.0)
    document = run_document(RunFacts("llama", row, ended=None))
    assert document["stands_still"] == stands_still_text(row)
    assert run_document(RunFacts("llama", told=row, ended="halted"))["stands_still"] is None


def test_what_a_live_run_wasted_is_told_to_be_without_its_standstill() -> None:
    row = shown(stood(), 100.0) | {"spend_usd": 3.0, "wasted_usd": 1.0, "spend_rate_usd_per_hour": 1.0}
    (standing,), (stepping,) = wasted_text(row), wasted_text(row | {"stepless_s": None})
    assert standing.startswith(stepping)
    assert standing != stepping


def test_a_hang_before_the_first_step_names_no_step() -> None:
    node = make_node(rule("hang", params=defaults(load()["hang"].KEYS)))
    play(node, hello(0, world_size=1), *(tick(second) for second in range(1, 11_000)))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert "None" not in incident.text
