"""What is kept of a recording: bounded, exact where it is summed, and honest about what was lost."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import random
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import PhaseChange, Step
from governor.reports.run.document import run_document
from governor.reports.run.series import MARKS_MAX, RunSeries
from governor.reports.run.stability import SPIKES_MAX, Spikes, Spread, Stability
from governor.reports.run.windows import PARTS, WINDOWS_MAX, StepFigures, Windows, interval
from governor.text.binned import Column
from governor.wire import recording
from tests.golden.run_report_cases import at, bare_run, hello, step, trained
from trainer_shim.wire import head


def figures(number: int, step_s: float = 1.0) -> StepFigures:
    return StepFigures(number, step_s, 100, (0.25, None, 0.5, None, None, None, None, None), None, 2.0, None)


def test_windows_stay_bounded_and_lose_no_step() -> None:
    windows = Windows()
    for number in range(10_000):
        windows.add(figures(number))
    assert len(windows.kept) <= WINDOWS_MAX
    assert sum(one.steps for one in windows.kept) == 10_000
    assert sum(one.tokens or 0 for one in windows.kept) == 1_000_000
    assert windows.told == {"data", "forward"}
    data = windows.part_s("data")
    assert data is not None
    assert data.middle == 0.25
    assert windows.part_s("loop") is None


def test_too_few_values_have_a_median_and_no_interval() -> None:
    assert interval([]) is None
    assert interval([3.0, 1.0, 2.0]) == (2.0, None, None, 3)


def test_the_interval_holds_the_median_of_the_distribution_nineteen_times_of_twenty() -> None:
    draw, held = random.Random(3), 0
    for _ in range(400):
        found = interval([draw.expovariate(1.0) for _ in range(60)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.log(2) <= found.high
    assert held >= 375


def test_quantiles_are_exact_to_one_per_cent() -> None:
    spread, draw = Spread(), random.Random(1)
    values = sorted(draw.lognormvariate(0, 2) for _ in range(5_000))
    for value in values:
        spread.add(value)
    for share in (0.5, 0.95, 0.99):
        assert spread.quantile(share) == pytest.approx(values[round(share * 4_999)], rel=0.012)
    assert spread.row() is not None


def test_one_spike_is_one_however_many_steps_it_lasts() -> None:
    spikes, draw = Spikes(), random.Random(2)
    for number in range(1_000):
        high = 3.0 if 500 <= number < 505 else 0.0
        spikes.see(number, 2.0 + draw.gauss(0, 0.02) + high)
    assert spikes.count == 1
    assert spikes.largest[0].step == 500


def test_spikes_that_are_too_many_are_counted() -> None:
    spikes = Spikes()
    for number in range(20_000):
        spikes.see(number, 50.0 if number % 100 == 99 else 1.0)
    assert spikes.count > SPIKES_MAX
    assert len(spikes.largest) == SPIKES_MAX


def test_skipped_steps_of_each_attempt_are_added_up() -> None:
    stability = Stability()
    for skipped in (0, 1, 3):
        stability.see(step(0, 1, skipped_steps=skipped))
    stability.new_attempt()
    stability.see(step(0, 4, skipped_steps=2))
    assert stability.row()["skipped_steps"] == 5


def test_a_loss_that_is_no_number_counts_of_any_rank_and_once_a_step() -> None:
    series = RunSeries()
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, 4):
        series.see_other({"rank": 1, "step": number, "step_s": 1.0, "loss": "nan" if number >= 2 else 2.0})
        series.see(step(number, number, loss=math.nan if number == 3 else 2.0))
    row = series.stability.row()
    assert (row["nonfinite_loss_steps"], row["first_nonfinite_step"]) == (2, 2)


def told(rank: int, number: int, loss: float | str, **over: Any) -> dict[str, Any]:
    """A line of the recording, as `step` is its event."""
    read_at = at(number + 0.5)
    frame = head("step", rank, at(number)) | {"step": number, "attempt_step": number, "step_s": 1.0, "loss": loss}
    return frame | {"at_ns": read_at, "conn": 1 + rank} | over


def halted_at(seconds: float) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(recording.halted(at(seconds), "llama.n.1"))
    return note


def halted_run(lines: list[dict[str, Any]], halt_s: float) -> RunSeries:
    """Two ranks' steps until 30 but the last ones, which another than the lead tells alone."""
    series = RunSeries()
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, 31):
        series.see(step(number, number, attempt_step=number, loss=2.0, step_s=1.0))
        series.see_other(told(1, number, 2.0))
    for line in lines:
        series.see_other(line)
    series.note(halted_at(halt_s), at(halt_s))
    return series


def losses(series: RunSeries) -> list[Column]:
    return series.lines["loss"].columns


def test_the_steps_that_another_rank_alone_told_before_its_halt_are_drawn_and_judged() -> None:
    """Ranks send a broken step at once, and others four times a second: behind a verdict nothing is recorded."""
    broken = [told(1, 31, 9.0), told(1, 32, "nan"), told(1, 33, "nan")]
    series = halted_run(broken, 33.5)
    assert [(one.high, one.is_broken) for one in losses(series)[30:-2]] == [(9.0, False)]
    assert [one.is_broken for one in losses(series)[-2:]] == [True, True]
    assert [one.at for one in losses(series)[-3:]] == [31.0, 32.0, 33.0], "by their rank's clock"
    row = series.stability.row()
    assert (row["steps"], row["nonfinite_loss_steps"], row["first_nonfinite_step"]) == (33, 2, 32)
    assert row["loss_spikes"]["count"] == 1
    assert series.marks[-1].step == 33
    assert series.tokens == 33 * 65_536
    assert series.ranks[0].steps == 29, "what the lead's own time went to has the lead's steps alone"


def test_what_the_lead_tells_behind_a_halt_that_went_on_is_drawn_once() -> None:
    series = halted_run([told(1, 31, 9.0)], 31.5)
    for number in (31, 32):
        series.see(step(number + 5, number, attempt_step=number, loss=2.0))
    assert [one.high for one in losses(series)[-2:]] == [9.0, 2.0]
    assert series.stability.steps == 32


@pytest.mark.parametrize(
    ("lines", "halt_s"),
    [
        ([told(1, 31, 2.0)], 90.0),  # Of a halt that no step is the reason for.
        ([told(1, 30, "nan")], 30.5),  # The lead has told it.
        ([told(1, 31, 2.0, mono_ns="x")], 31.5),  # No frame.
        ([], 90.0),
    ],
)
def test_of_any_other_halt_the_series_is_the_leads(lines: list[dict[str, Any]], halt_s: float) -> None:
    assert len(losses(halted_run(lines, halt_s))) == 30


def test_a_figure_that_cannot_be_is_left_out_of_a_step_ahead_and_counted_once() -> None:
    series = halted_run([told(1, 31, 1e300, data_s=1e9)], 31.5)
    assert series.left_out.values == {"data_s": 1, "loss": 1}
    assert len(losses(series)) == 30
    assert series.stability.steps == 31


def test_the_loss_scale_keeps_its_first_and_its_last_changes() -> None:
    stability = Stability()
    for number in range(1, 1_001):
        stability.see(step(0, number, loss_scale=float(2 ** (number % 7))))
    scale = stability.row()["loss_scale"]
    assert scale["raised"] + scale["lowered"] == 999
    assert scale["changes"][0] == [1, 2.0]
    assert scale["changes"][-1] == [1_000, float(2 ** (1_000 % 7))]
    assert len(scale["changes"]) <= 200


def test_a_thousand_saves_do_not_push_a_halt_off_the_time_line() -> None:
    series = RunSeries()
    series.see(hello(0))
    for number in range(1, 3_001, 3):
        series.see(step(number, number, checkpoint_s=1.0))
    series.note({"v": 1, "kind": "note", "note": "halted", "incident": "x.1"}, MonoNs(10**13))
    assert series.marks[-1].kind == "halt"
    assert len(series.marks) == MARKS_MAX + 1
    assert series.marks_left_out == 1_001 - MARKS_MAX  # 1,000 saves beside the attempt's begin.
    assert series.saves == 1_000


def test_figures_that_are_none_of_another_rank_are_left_out() -> None:
    series = RunSeries()
    series.see(hello(0))
    assert not series.see_other({"rank": 0, "step": 1})
    assert not series.see_other({"rank": True, "step": 1})
    for _ in range(2):
        assert series.see_other({"rank": 1, "step": 2, "step_s": math.nan, "data_s": -1, "forward_s": "x"})
    assert series.ranks[1].seconds == 0


def test_a_step_without_its_time_is_in_no_window() -> None:
    series = RunSeries()
    series.see(hello(0))
    series.see(Step(MonoNs(1), None, "llama", 0, 1, loss=2.0))
    assert series.windows.kept == []
    assert series.stability.steps == 1
    assert len(PARTS) == 8


def test_tokens_of_a_hello_stand_for_steps_that_do_not_tell_them() -> None:
    series = trained(steps=10)
    assert series.tokens == 655_360
    assert series.tokens_per_s == pytest.approx(32_768)


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_whose_communication_was_not_read_is_like_those_that_were(every: int) -> None:
    """Two runs of the same steps, one of which tells its communication now and then, say the same of it."""
    parts = {"step_s": 0.010, "data_s": 0.001, "forward_s": 0.002, "backward_s": 0.006, "optimizer_s": 0.001}
    series = RunSeries()
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, 401):
        told = parts | ({"comm_s": 0.004} if number % every == 0 else {"comm_s": None})
        series.see(step(number * 0.01, number, **told))
        series.see_other({"rank": 1, "step": number, **told})
    row = run_document(dataclasses.replace(bare_run(), series=series))
    for one in row["ranks"]:
        assert (one["communication_s"], one["own_s"]) == (pytest.approx(0.004), pytest.approx(0.005))
    (part,) = (one for one in row["parts"] if one["part"] == "communication")
    assert part["share"] == pytest.approx(0.4)
    assert part["windows"]["median"] == pytest.approx(0.004)


def test_a_window_in_which_no_step_was_read_says_nothing_of_communication() -> None:
    windows = Windows()
    for number in range(10):
        windows.add(figures(number)._replace(comm_s=0.25 if number == 5 else None))
    found = windows.part_s("communication")
    assert found is not None
    assert (found.middle, found.windows) == (0.25, 1)
    assert windows.part_total_s("communication") == pytest.approx(2.5)


def test_of_few_steps_the_longest_one_is_in_the_last_percentile() -> None:
    spread = Spread()
    for length in [0.1] * 49 + [0.953]:
        spread.add(length)
    assert spread.quantile(0.99) == pytest.approx(0.953, rel=0.01)
    assert spread.quantile(0.5) == pytest.approx(0.1, rel=0.01)


def phase(seconds: float, name: str, number: int) -> PhaseChange:
    return PhaseChange(MonoNs(round(seconds * NS_PER_S)), None, "llama", 0, name, number)


def test_saves_have_the_step_that_they_are_of_and_the_last_one_counts() -> None:
    series = RunSeries()
    series.see(hello(0))
    for number in range(1, 51):
        series.see(step(number, number, checkpoint_s=0.5 if number == 26 else 0.0))
        if number in (25, 50):
            series.see(phase(number + 0.1, "checkpoint", number))
            series.see(phase(number + 0.7, "train", number))
    assert [(mark.step, mark.kind) for mark in series.marks if mark.kind == "save"] == [(25, "save"), (50, "save")]
    assert series.saves == 2
    assert series.save_s == pytest.approx(0.5 + 0.6)


def test_a_file_with_any_number_as_a_rank_takes_no_more_room() -> None:
    def room(ranks: int) -> int:
        series = trained(steps=1)
        for rank in range(2, ranks):
            series.see_other({"rank": rank, "step": 2, "step_s": 1.0})
        return len(pickle.dumps(series))

    assert room(5_000) == room(500)


def test_the_breakdown_names_the_rank_whose_steps_it_has() -> None:
    series = RunSeries()
    series.see(hello(0, rank=3))
    for number in range(1, 4):
        series.see(dataclasses.replace(step(2.0 * number, number), rank=3))
    document = run_document(dataclasses.replace(bare_run(), series=series))
    assert document["parts"]
    assert document["parts_of_rank"] == 3
    assert run_document(bare_run())["parts_of_rank"] is None
