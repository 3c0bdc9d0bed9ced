"""A run's report and its export show the same steps, whoever told them and whatever became of the ranks meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.main import cli
from governor.core.base.identity import ConnectionId
from governor.core.events.step_parts import rest_s
from governor.wire import recording
from governor.wire.recording import ReceivedFrame
from tests.unit.exports.exported import RUN, at, hello, leave_recording, read_lines, step

WORK = {"step_s": 1.0, "data_s": 0.1, "forward_s": 0.4, "backward_s": 0.5, "comm_s": 0.1}
Lines = list[ReceivedFrame | bytes]


def trained(first: int, last: int, ranks: Sequence[int], attempt_from: int = 1, **over: Any) -> Lines:
    """A step ends with the second of its number."""
    return [
        step(number, number, rank, **(WORK | {"attempt_step": number - attempt_from + 1} | over))
        for number in range(first, last + 1)
        for rank in ranks
    ]


def lost(second: float, rank: int) -> bytes:
    return recording.lost(at(second), ConnectionId(7 + rank))


BEGUN: Lines = [hello(0), hello(0, rank=1)]
# Its lines, which ranks spoke, and which of its steps are their attempt's or their rank's first.
RUNS: dict[str, tuple[Lines, list[int], int]] = {
    "whole": ([*BEGUN, *trained(1, 90, (0, 1))], [0], 1),
    "renumbered": (
        [
            *BEGUN, *trained(1, 30, (0, 1)), lost(30.2, 0), lost(30.3, 1),
            hello(30.5, 2, "a2", 4), hello(30.5, 3, "a2", 4), *trained(31, 90, (2, 3), 31),
        ], [0, 2], 2,
    ),
    "renumbered, and no loss was noted": (
        [*BEGUN, *trained(1, 30, (0, 1)), hello(30.5, 3, "a2", 4), *trained(31, 90, (3,), 31)], [0, 3], 2,
    ),
    "the lead lost": ([*BEGUN, *trained(1, 30, (0, 1)), lost(30.5, 0), *trained(31, 90, (1,))], [0, 1], 1),
    "the lead lost behind the others": (
        [*BEGUN, *trained(1, 30, (0, 1)), *trained(31, 34, (1,)), lost(34.5, 0), *trained(35, 90, (1,))], [0, 1], 1,
    ),
    "the lead lost and back": (
        [
            *BEGUN, *trained(1, 30, (0, 1)), lost(30.5, 0), *trained(31, 40, (1,)), hello(40.5),
            *trained(41, 90, (0, 1)),
        ], [0, 1], 1,
    ),
    "the lead lost in a gap": (
        [
            *BEGUN, *trained(1, 30, (0, 1)), recording.gap(at(30.5), 3), hello(30.6, rank=1),
            *trained(31, 90, (1,)),
        ], [0, 1], 1,
    ),
    "the lead lost in a halt that went on": (
        [
            *BEGUN, *trained(1, 30, (0, 1)), recording.halted(at(30.5), "llama.n.1"), hello(30.6, rank=1),
            *trained(31, 90, (1,)),
        ], [0, 1], 1,
    ),
    "all lost, the lead behind": (
        [*BEGUN, *trained(1, 88, (0, 1)), *trained(89, 90, (1,)), lost(90.5, 1), lost(90.6, 0)], [0, 1], 1,
    ),
}  # fmt: skip


def told(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, (*words, "--json"), standalone_mode=False)
    assert result.exception is None, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_no_step_is_lost_and_none_is_told_twice(name: str, state: Path, tmp_path: Path) -> None:
    lines, spoke, firsts = RUNS[name]
    leave_recording(state, lines)
    report = told("report", RUN)
    assert report["throughput"]["steps_recorded"] == report["throughput"]["step_s"]["count"] == 90
    assert report["throughput"]["step_s_windows"]["windows"] == 90 - firsts
    assert report["parts_of_ranks"] == spoke
    assert sum(one["s_per_step"] for one in report["parts"] if not one["of_which"]) == pytest.approx(1.0)
    told("export", RUN, "--jsonl", str(tmp_path / "logs"))
    steps = [line["step"] for line in read_lines(tmp_path / "logs" / "training_metrics.jsonl")]
    assert steps == list(range(1, 91))


def test_saves_of_every_rank_that_spoke_are_counted(state: Path) -> None:
    saving = {"step_s": 1.0, "checkpoint_s": 0.25, "forward_s": 0.75}
    lines = [
        *BEGUN, *trained(1, 9, (0, 1)), *trained(10, 10, (0, 1), **saving), lost(10.5, 0),
        *trained(11, 19, (1,)), *trained(20, 20, (1,), **saving), hello(20.5, 4, "a2", 8),
        *trained(21, 29, (4,), 21), *trained(30, 30, (4,), 21, **saving),
    ]  # fmt: skip
    leave_recording(state, lines)
    report = told("report", RUN)
    assert report["saves"] == {"count": 3, "s": pytest.approx(0.75)}
    assert [one["step"] for one in report["time_line"] if one["kind"] == "save"] == [10, 20, 30]
    assert report["parts_of_rank"] is None


def test_parts_that_fill_a_step_leave_nothing(state: Path) -> None:
    leave_recording(state, RUNS["whole"][0])
    other = next(one for one in told("report", RUN)["parts"] if one["part"] == "other")
    assert other["s"] == other["share"] == 0.0


def test_what_sums_of_floats_leave_of_a_step_is_none() -> None:
    assert 0.1 + 0.2 > 0.3
    assert rest_s(0.3, (0.1, 0.2)) == rest_s(1.0, (0.1,) * 10) == 0.0
    assert rest_s(2.0, (2.0 - 3e-9,), 2) > 0.0
    assert rest_s(2.0, (2.0 - 1e-9,), 2) == 0.0
    assert rest_s(1.0, (1.5,)) == -0.5


@pytest.mark.parametrize("end", [recording.exited(at(30.2)), recording.halted(at(30.2), "i-1")])
@pytest.mark.parametrize("lines", [0, 3])
def test_a_pause_between_two_launches_is_a_gap_in_neither(state: Path, tmp_path: Path, end: bytes, lines: int) -> None:
    told_lines = [*BEGUN, *trained(1, 30, (0, 1)), end, recording.gap(at(31), lines), hello(60, 0, "a2", 9)]
    leave_recording(state, [*told_lines, *trained(61, 70, (0,), 61)])
    report = told("report", RUN)
    assert CliRunner().invoke(cli, ("export", RUN, "--jsonl", str(tmp_path / "logs"))).exit_code == 0
    gaps = [line for line in read_lines(tmp_path / "logs" / "events.jsonl") if line["event"] == "recording_gap"]
    shown = [one for one in report["time_line"] if one["kind"] == "gap"]
    assert len(gaps) == len(shown) == (1 if lines else 0)
