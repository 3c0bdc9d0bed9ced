"""The drawing of a replayed log: bounded, no extreme lost, and nothing in it that a log could smuggle in."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Mode, Policy, Rule
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from governor.replay.output.page import MARKS_MAX, page, section
from governor.replay.play import Replay
from governor.replay.trace import Trace
from governor.text.binned import COLUMNS_MAX, Line


def nan_policy(mode: Mode = Mode.ENFORCE) -> Policy:
    params = defaults(load()["nonfinite"].KEYS)
    rule = Rule("nan", "nonfinite", params, AT_ONCE, Response.HALT, mode, "suspect")
    return Policy("mine", mode, rules=(rule,))


def replayed(*losses: object, timed: bool = True, policy: Policy | None = None) -> tuple[Replay, Trace]:
    trace = Trace()
    replay = Replay([policy or nan_policy()], trace=trace)
    for step, loss in enumerate(losses, start=1):
        replay.read({"step": step, "loss": loss, **({"t": float(step)} if timed else {})})
    replay.end()
    return replay, trace


@pytest.mark.parametrize("count", [4, COLUMNS_MAX, COLUMNS_MAX + 1, 10 * COLUMNS_MAX + 7])
def test_a_line_is_bounded_and_keeps_every_extreme_in_its_place(count: int) -> None:
    line = Line()
    for at in range(count):
        line.add(float(at), {count // 2: 99.0, count // 3: -7.0}.get(at, 1.0))
    assert len(line.columns) <= COLUMNS_MAX
    highest = max(line.columns, key=lambda column: column.high)
    assert highest.high == 99.0
    assert abs(highest.at - count // 2) <= math.ceil(count / COLUMNS_MAX) * 2
    assert [column.at for column in line.columns] == sorted(column.at for column in line.columns)
    assert min(column.low for column in line.columns) == -7.0


def test_a_broken_value_is_marked_and_bends_no_line() -> None:
    line = Line()
    for at, value in enumerate([2.0, math.nan, 3.0, math.inf]):
        line.add(float(at), value)
    assert [column.is_broken for column in line.columns] == [False, True, False, True]
    assert max(column.high for column in line.columns) == 3.0


def test_a_line_for_many_steps_is_drawn_with_the_speed_of_each() -> None:
    trace = Trace()
    for step in (10, 20, 30):
        trace.see(Step(MonoNs(0), None, "log", 0, step, tokens=10_000, line_steps=10, step_s=0.5), step / 2)
    assert {column.high for column in trace.tokens_per_s.columns} == {2000.0}


def test_a_line_that_does_not_say_how_many_steps_it_is_for_is_drawn_with_those_since_the_line_before() -> None:
    trace = Trace()
    for step in range(1, 61):
        tokens = None if step % 10 else 10_000
        trace.see(Step(MonoNs(0), None, "log", 0, step, tokens=tokens, step_s=0.5), step / 2)
    assert [column.high for column in trace.tokens_per_s.columns][1:] == [2000.0] * 5


def test_each_log_is_drawn_with_its_findings() -> None:
    replay, trace = replayed(3.0, 2.5, 2.0, float("nan"))
    text = section("a.jsonl", replay, trace)
    assert "loss nan at step 4" in text
    assert 'stroke="#d1242f"><title>nan:' in text, "a solid mark: the rule enforces"
    observed, trace = replayed(3.0, float("nan"), policy=nan_policy(Mode.OBSERVE))
    assert 'stroke-dasharray="4 3"><title>nan:' in section("a.jsonl", observed, trace)


def test_a_log_without_times_is_drawn_over_its_steps() -> None:
    replay, trace = replayed(3.0, 2.5, float("nan"), timed=False)
    text = section("a.jsonl", replay, trace)
    assert ">step 1<" in text
    assert ">step 3<" in text
    assert "<title>nan:" in text


@pytest.mark.parametrize("losses", [(), (None,), (float("nan"),), (1e308, -1e308, 1e-308), (0.0, 0.0), (5e-324, 1e308)])
def test_whatever_a_log_holds_the_drawings_are_well_formed_and_without_nan(losses: tuple[object, ...]) -> None:
    text = section("<script>alert(1)</script>&.jsonl", *replayed(*losses))
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawing)
        assert not re.search(r"[\s,](nan|inf|-inf)", re.sub(r"<title>.*?</title>", "", drawing))
    assert "<script>" not in text
    assert "src=" not in page([text]), "nothing is fetched"
    assert "href=" not in page([text])


def test_a_rule_that_never_ends_fills_no_page() -> None:
    replay, trace = replayed(*[loss for _ in range(MARKS_MAX + 50) for loss in (1.0, float("nan"))])
    assert len(replay.verdicts) > MARKS_MAX
    text = section("a.jsonl", replay, trace)
    assert text.count("<title>") <= 2 * MARKS_MAX
    assert f"{len(replay.verdicts) - MARKS_MAX:,} more are not shown" in text


def test_an_attempt_that_goes_back_to_an_earlier_step_begins_a_line_of_its_own() -> None:
    trace = Trace()
    replay = Replay([nan_policy()], trace=trace)
    for step in (*range(1, 201), *range(101, 151)):
        replay.read({"step": step, "loss": 2.0 if step > 1 else 3.0})
    replay.end()
    assert [(own[0].at, own[-1].at) for own in trace.loss.pieces()] == [(1, 200), (101, 150)]
    assert trace.span([]) == (1, 200)
    drawing = section("a.jsonl", replay, trace).partition("</svg>")[0]
    for points in re.findall(r'<polygon points="([^"]*)"', drawing):
        across = [float(point.split(",")[0]) for point in points.split()]
        upper = across[: len(across) // 2]
        assert upper == sorted(upper), "no line leads back"
    assert drawing.count("<polygon") == 2


@pytest.mark.parametrize("length", [1, 2, 3, 700])
def test_a_log_of_many_attempts_is_bounded_as_well(length: int) -> None:
    line = Line()
    for number in range(10 * COLUMNS_MAX):
        line.add(float(number % length), float(number), piece=number // length)
        assert len(line.columns) <= COLUMNS_MAX
    assert (min(own.low for own in line.columns), max(own.high for own in line.columns)) == (0, 10 * COLUMNS_MAX - 1)
