"""Lines that tell the tokens of one step and stand for many, as the engine counts them live and in a replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import pytest

from governor.core.base.units import COUNT_MAX, MTOK
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.inputs import LINE_STEPS_MAX, Step
from governor.core.events.streams import StreamOpened
from governor.core.runs import intake
from governor.core.runs.line_steps import of_all_its_steps
from governor.core.runs.state import Run
from governor.policies.parse import load_policies
from governor.replay.play import Replay
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from governor.wire.records import RecordReader
from tests.unit.core.engine.test_step import at, make_node, play, tick

EACH, STEP_S = 8192, 0.25
Record = dict[str, Any]
Fields = Mapping[str, Sequence[str]]


class Counted(Protocol):
    def __call__(self, records: Iterable[Record], fields: Fields = DEFAULT_FIELDS) -> Run: ...


# "ntok" is a name that only the user knows.
NAMED: Final = field_map({"tokens": ("ntok", *DEFAULT_FIELDS["tokens"])})
SPEEDS: Final = f"""
[policy]
name = "p"
[expected]
tokens_per_s = {EACH / STEP_S}
[[rule]]
name = "slow"
trigger = "slower_than_planned"
warmup_time = "1s"
response = "warn"
[[rule]]
name = "collapse"
trigger = "throughput_collapse"
warmup_time = "1s"
response = "halt"
[[rule]]
name = "rate"
trigger = "expression"
when = "tokens_per_s < {EACH / STEP_S / 2} || tokens_per_s > {EACH / STEP_S * 2}"
response = "warn"
"""


def live(records: Iterable[Record], fields: Fields = DEFAULT_FIELDS) -> Run:
    node, reader = make_node(), RecordReader("log", fields)
    play(node, tick(0), StreamOpened(at(0), "log", 1000))
    for record in records:
        events = reader.read(record, at(record["t"]))
        assert isinstance(events, tuple)
        play(node, *events)
    return node.runs["log"].run


def of_replay(records: Iterable[Record], fields: Fields = DEFAULT_FIELDS) -> Run:
    replay = replayed(records, fields)
    return replay._judges[0].node.runs["log"].run


def replayed(records: Iterable[Record], fields: Fields = DEFAULT_FIELDS) -> Replay:
    policies, problems = load_policies([("p.toml", SPEEDS)])
    assert policies is not None, problems
    replay = Replay(policies.policies, fields=fields)
    for record in records:
        replay.read(record)
    replay.end(0)
    return replay


BOTH: Final = pytest.mark.parametrize("counted", [live, of_replay])


def lines(steps: Iterable[int], **said: Any) -> list[Record]:
    return [{"t": step * STEP_S, "step": step, "loss": 2.5, **said} for step in steps]


@BOTH
@pytest.mark.parametrize("stride", [1, 10, 500])
@pytest.mark.parametrize(
    "said",
    [
        {"tokens_per_step": EACH, "step_s": STEP_S},
        {"step_tokens": EACH},
        {"batch_tokens": EACH},
        {"tokens_per_second": EACH / STEP_S, "step_s": STEP_S},
        {"tokens": EACH, "line_steps": 1, "step_s": STEP_S},
    ],
)
def test_each_step_of_a_line_counts(counted: Counted, stride: int, said: Record) -> None:
    """How many steps the first line stands for nobody knows."""
    run = counted(lines(range(stride, 61 * stride, stride), **said))
    assert run.tokens_total == (1 + 59 * stride) * EACH
    assert run.tokens_per_s == pytest.approx(EACH / STEP_S)


@BOTH
def test_tokens_of_all_steps_of_a_line_count_once(counted: Counted) -> None:
    for said in ({"tokens": 10 * EACH}, {"step_tokens": 10 * EACH, "line_steps": 10}):
        assert counted(lines(range(10, 610, 10), **said)).tokens_total == 600 * EACH


@BOTH
@pytest.mark.parametrize("name", ["tokens", "ntok"])
@pytest.mark.parametrize("said", [{}, {"step_s": STEP_S}])
def test_a_lines_tokens_are_of_all_its_steps_for_its_speed_too(counted: Counted, said: Record, name: str) -> None:
    steps = [*range(10, 610, 10), *range(601, 661)]
    records = [line | {name: EACH * (10 if line["step"] <= 600 else 1)} for line in lines(steps, **said)]
    for before in (300, 600, 605, 612, 660):
        run = counted([line for line in records if line["step"] <= before], NAMED)
        assert run.tokens_total == before * EACH
        assert run.tokens_per_s == pytest.approx(EACH / STEP_S)


@pytest.mark.parametrize("said", [{}, {"step_s": STEP_S}])
@pytest.mark.parametrize(
    ("name", "is_each"), [("tokens", False), ("ntok", False), ("tokens_per_step", True), ("tokens_total", None)]
)
def test_a_run_whose_lines_come_more_often_has_not_slowed_down(said: Record, name: str, is_each: bool | None) -> None:
    """Whatever its lines tell of tokens, and whether they tell step times."""
    records = lines([*range(10, 3010, 10), *range(3001, 3301), *range(3310, 6310, 10)], **said)
    for line, stride in zip(records, [10] * 300 + [1] * 300 + [10] * 300, strict=True):
        line[name] = line["step"] * EACH if is_each is None else EACH if is_each else EACH * stride
    assert replayed(records, NAMED).verdicts == []


@pytest.mark.parametrize("said", [{}, {"step_s": 10 * STEP_S}])
@pytest.mark.parametrize("stride", [1, 10])
def test_a_slow_run_is_told_of_whatever_its_lines_stand_for(said: Record, stride: int) -> None:
    records = lines(range(stride, 301 * stride, stride), tokens=EACH * stride, **said)
    for line in records:
        line["t"] *= 10
    verdict = next(one for one in replayed(records, NAMED).verdicts if one.rule == "slow")
    assert verdict.evidence["recent"] == pytest.approx(EACH / STEP_S / 10)


@BOTH
def test_records_without_tokens_come_in_between(counted: Counted) -> None:
    """Each step has a record, and each tenth of them says what a step has."""
    records = lines(range(1, 601), step_s=STEP_S)
    for record in records[9::10]:
        record["tokens_per_step"] = EACH
    twice = [one for record in records for one in ({"t": record["t"], "step": record["step"], "lr": 0.1}, record)]
    assert counted(records).tokens_total == counted(twice).tokens_total == 600 * EACH - 9 * EACH


@BOTH
def test_steps_that_are_trained_again_have_their_total(counted: Counted) -> None:
    said = {"tokens_per_step": EACH, "step_s": STEP_S}
    records = lines(range(10, 510, 10), **said) + lines(range(305, 605, 10), **said)
    for number, record in enumerate(records):
        record["t"] = number * 2.5
    assert counted(records).tokens_total == (1 + 490 + 95) * EACH


@BOTH
def test_a_step_far_ahead_counts_as_one(counted: Counted) -> None:
    for ahead in (500 + LINE_STEPS_MAX + 1, COUNT_MAX):
        assert counted(lines([*range(10, 510, 10), ahead], tokens_per_step=EACH)).tokens_total == (1 + 490 + 1) * EACH


def a_line(number: int, tokens: int = EACH) -> Step:
    return Step(at(number), None, "log", 0, number, tokens=tokens, line_steps=1)


def test_a_restarted_governor_goes_on_with_the_lines() -> None:
    node, reader = make_node(), RecordReader("log", field_map({}))
    play(node, tick(0), StreamOpened(at(0), "log", 1000))
    for record in lines(range(10, 110, 10), tokens_per_step=EACH):
        events = reader.read(record, at(record["t"]))
        assert isinstance(events, tuple)
        play(node, *events)
    snapshot = json.loads(json.dumps(run_snapshot(node, node.runs["log"], at(30))))
    run = intake.restored(snapshot, at(40), same_boot=True)
    intake.apply_step(run, None, of_all_its_steps(run, a_line(110)))
    assert run.tokens_total == (1 + 100) * EACH


def test_a_line_that_is_held_is_counted_with_its_own_steps() -> None:
    """A batch that is far larger than any before is believed with the line behind it."""
    run = live(lines(range(10, 110, 10), tokens_per_step=EACH))
    large = 300_000 * MTOK
    for number in (110, 120):
        intake.apply_step(run, None, of_all_its_steps(run, a_line(number, large)))
    assert run.tokens_total == (1 + 90) * EACH + 20 * large
