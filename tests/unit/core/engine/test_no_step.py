"""Forward passes go on and no optimizer step comes: it is said, and rules judge what is not finite in all of them."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect
from governor.core.events.forwards import BROKEN_MIN, Forwards
from governor.core.events.inputs import Beat
from governor.core.halt.table import HaltState
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick

LAST = 100.0  # When step 100 came.


def a_beat(when: float, forwards: Forwards | None, phase: str = "train") -> Beat:
    return Beat(at(when), ConnectionId(1), "llama", 0, int(when * 20), phase, at(0), step=100, forwards=forwards)


def trained(steps: int = 100) -> Node:
    node = make_node()
    play(node, hello(0, world_size=1))
    for number in range(1, steps + 1):
        play(node, a_step(number, when=float(number)), tick(number))
    return node


def said(node: Node, since: float, until: float, *, seen: bool = True, phase: str = "train") -> list[Alarm]:
    """Beat for beat, twenty forward passes a second; what is said of the steps that do not come."""
    effects: list[Effect] = []
    for second in range(int(since) + 1, int(until) + 1):
        looked = int(second - since) if seen else 0
        forwards = Forwards(20 * int(second - since), looked)
        effects += play(node, a_beat(second, forwards, phase), tick(second))
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "no_step"]


def test_it_is_said_once_within_a_minute_and_names_the_cause() -> None:
    node = trained()
    (alarm,) = said(node, LAST, LAST + 600, seen=False)
    assert alarm.text == (
        "600 forward passes since step 100 and no optimizer step for 30.0s: the loop drops its loss, probably because "
        "that is not finite, or it steps an optimizer that attach() was not given; run llama is paid for "
        "and does not train"
    )
    assert node.runs["llama"].incident is None, "nobody has seen a number that is not finite"
    play(node, a_step(101, when=LAST + 601), tick(LAST + 601))
    assert len(said(node, LAST + 601, LAST + 700)) == 1, "it is said again of another step"


def test_what_is_not_finite_in_all_passes_is_judged_at_the_step_that_does_not_come() -> None:
    node = trained()
    play(node, *(a_beat(LAST + second, Forwards(20 * second, second, second)) for second in range(1, BROKEN_MIN)))
    assert node.runs["llama"].incident is None
    play(node, a_beat(LAST + BROKEN_MIN, Forwards(20 * BROKEN_MIN, BROKEN_MIN, BROKEN_MIN)))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.halt.stage is HaltState.ASKED
    assert "rank 0 has loss nan at step 101; it was" in incident.text
    assert node.runs["llama"].run.step == 100


@pytest.mark.parametrize("finite", [1, 9])
def test_a_finite_one_among_them_is_no_reason_to_halt(finite: int) -> None:
    node = trained()
    for second in range(1, 60):
        play(node, a_beat(LAST + second, Forwards(20 * second, 10 + second, 10 + second - finite)), tick(LAST + second))
    assert node.runs["llama"].incident is None


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "init"])
def test_what_is_not_finite_in_a_phase_without_steps_is_no_missing_step(phase: str) -> None:
    node = trained()
    many = range(1, 2 * BROKEN_MIN)
    play(node, *(a_beat(LAST + second, Forwards(20 * second, second, second), phase) for second in many))
    assert node.runs["llama"].incident is None


def test_before_the_first_step_five_minutes_are_given() -> None:
    node = trained(0)
    assert said(node, 0, 299) == []
    assert len(said(node, 0, 301)) == 1


def test_a_phase_without_steps_and_a_shim_that_tells_nothing_are_left_alone() -> None:
    node = trained()
    assert said(node, LAST, LAST + 120, phase="eval") == []
    for second in range(121, 240):
        effects = play(node, a_beat(LAST + second, None), tick(LAST + second))
        assert not any(isinstance(effect, Alarm) for effect in effects)


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (None, None),
        ({}, Forwards(0)),
        ({"count": 40, "seen": 3, "nonfinite": 2}, Forwards(40, 3, 2)),
        ({"count": -1}, None),
        ({"count": 1.5}, None),
        ({"count": True}, None),
        ({"count": "40"}, None),
    ],
)
def test_what_a_beat_says_is_read_or_is_nothing(record: dict[str, object] | None, read: Forwards | None) -> None:
    assert Forwards.read(record) == read
