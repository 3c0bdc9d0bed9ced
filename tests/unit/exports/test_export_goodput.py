"""An export, read by goodput, tells what the recording tells: each form, of a run whose steps are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.core.attribution.causes import Cause
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S
from governor.exports.forms.wandb import run_id
from governor.replay.goodput import goodput_of
from governor.replay.logs import records
from governor.replay.readers.text import ANY
from governor.wire.jsonl import DEFAULT_FIELDS
from governor.wire.recording import ReceivedFrame
from tests.unit.exports.exported import RUN, at, gpus, hello, leave_recording, read_lines
from tests.unit.exports.test_export import document
from trainer_shim.wire import encode, head

READ_S = 0.25  # So often a governor reads, and all that a rank has told since then has that moment's stamp.
STEP = {"data_s": 0.002, "loop_s": 0.0, "forward_s": 0.02, "backward_s": 0.02, "optimizer_s": 0.008}
SLOW, EVALUATES, PAUSES = range(60, 80), (100, 160), 140
BEFORE_S = 1_700_000_000  # By this clock the run was: it was before its export, as any.
READS = {
    "jsonl": ("--jsonl", "performance_metrics.jsonl"),
    "tensorboard": ("--to=tensorboard", RUN),
    "wandb": ("--to=wandb", f"offline-run-{RUN}/run-{run_id(RUN)}.wandb"),
}


def received(second: float, kind: str, **fields: object) -> ReceivedFrame:
    """A frame of that time on the rank's clock, read at the governor's next look."""
    read_s = -(-second // READ_S) * READ_S
    return ReceivedFrame(at(read_s), ConnectionId(7), encode({**head(kind, 0, at(second)), **fields}))


def told() -> Iterator[ReceivedFrame | bytes]:
    """Steps of 50 ms: behind a start of three seconds, with slow data, two evaluations, a pause, and a last one."""
    yield hello(0)
    now, sampled = 3.0, 0.1
    for number in range(1, 201):
        parts = {
            **STEP,
            **({"data_s": 0.102} if number in SLOW else {}),
            **({"eval_s": 0.41} if number in EVALUATES else {}),
            **({"loop_s": 1.4} if number == PAUSES else {}),
        }
        now += sum(parts.values())
        yield received(
            now, "step", step=number, attempt_step=number, loss=2.0, tokens=10, step_s=sum(parts.values()), **parts
        )
        while sampled < now - READ_S:
            sampled += 0.9
            yield gpus(-(-now // READ_S) * READ_S)
    yield received(now, "phase", phase="eval")
    yield received(now + 0.6, "bye", seq=3, completed=True, step=200, reason="end")


@pytest.mark.parametrize("form", READS)
def test_goodput_of_an_export_is_that_of_the_recording(state: Path, tmp_path: Path, form: str) -> None:
    recorded = leave_recording(state, list(told()), wall_s=BEFORE_S).parent
    of_recording = goodput_of(recorded, None, DEFAULT_FIELDS, ANY)
    option, name = READS[form]
    document(RUN, option, str(tmp_path / "to"))
    of_export = goodput_of(tmp_path / "to" / name, None, DEFAULT_FIELDS, ANY)
    assert of_export.problem is None
    has, had = (
        {cause: amount.ns / NS_PER_S for cause, amount in one.whole.by_cause.items()}
        for one in (of_export, of_recording)
    )
    assert (of_export.steps, of_recording.steps) == (200, 200)
    assert of_export.whole.wall_ns / NS_PER_S == pytest.approx(of_recording.whole.wall_ns / NS_PER_S, abs=0.3)
    assert has[Cause.PRODUCTIVE] == pytest.approx(had[Cause.PRODUCTIVE], rel=0.03)
    assert has[Cause.EVALUATION] == pytest.approx(had[Cause.EVALUATION], rel=0.1)
    assert has[Cause.DATA] == pytest.approx(had[Cause.DATA], rel=0.05)
    assert has[Cause.START_UP] == pytest.approx(had[Cause.START_UP], rel=0.05)
    assert has.get(Cause.UNKNOWN, 0.0) < 0.02 * sum(has.values())


def test_steps_are_stamped_when_they_ended_and_nothing_goes_back(state: Path, tmp_path: Path) -> None:
    leave_recording(state, list(told()))
    document(RUN, "--to", "tensorboard", str(tmp_path))
    ended = [one["t"] for _, one in records(tmp_path / RUN) if isinstance(one, dict) and "train/loss" in one]
    assert ended == sorted(ended)
    assert len(set(ended)) == len(ended) == 200
    assert ended[1] - ended[0] == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize("ahead_s", [1e6, 0.5, -60.0])
def test_a_rank_of_another_clock_is_stamped_as_it_is_read(state: Path, tmp_path: Path, ahead_s: float) -> None:
    def frame(read_s: float, number: int) -> ReceivedFrame:
        fields = {"step": number, "attempt_step": number, "loss": 2.0}
        mono = at(max(0.0, read_s + ahead_s))
        return ReceivedFrame(at(read_s), ConnectionId(7), encode({**head("step", 0, mono), **fields}))

    leave_recording(state, [hello(0), *(frame(100 + number, number) for number in range(1, 4))])
    document(RUN, "--jsonl", str(tmp_path))
    seconds = [one["timestamp"][17:] for one in read_lines(tmp_path / "training_metrics.jsonl")]
    assert seconds == ["41.000000Z", "42.000000Z", "43.000000Z"]
