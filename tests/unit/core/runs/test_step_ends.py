"""When steps of frames that are read back ended, and that a report draws them there."""

from __future__ import annotations

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.runs.own_time import AGE_MAX_NS, CLOCK_BEHIND_MAX_NS, StepEnds
from governor.core.runs.state import RANKS_MAX
from governor.reports.run.series import RunSeries

S = NS_PER_S


def test_steps_of_one_look_ended_one_after_the_other_and_none_goes_back() -> None:
    ends = StepEnds()
    told = (S, S + 50, S + 20, 2 * S - 1)
    assert [ends.of(0, one, MonoNs(2 * S)) for one in told] == [S, S + 50, S + 50, 2 * S - 1]


def test_a_clock_that_is_not_ours_is_not_believed_and_a_new_process_is_asked_anew() -> None:
    ends, at = StepEnds(), MonoNs(2 * AGE_MAX_NS)
    assert ends.of(0, at + 1, at) == at, "a step that has not ended yet"
    assert ends.of(0, at - 9, at) == at, "once ahead, it is another clock"
    ends.begin(0)
    later = MonoNs(at + S)
    assert ends.of(0, later - 9, later) == later - 9
    assert ends.of(1, later - CLOCK_BEHIND_MAX_NS - 1, later) == later
    assert ends.of(2, None, later) == later


def test_so_many_ranks_as_a_node_has_are_kept() -> None:
    ends = StepEnds()
    assert [ends.of(rank, S, MonoNs(S + 1)) for rank in range(RANKS_MAX + 1)] == [S] * RANKS_MAX + [S + 1]


def test_a_report_draws_the_steps_of_one_look_apart() -> None:
    series = RunSeries(began=MonoNs(0))
    for number in range(1, 5):
        ended = MonoNs(S + number * 50_000_000)
        series.see(Step(MonoNs(2 * S), ConnectionId(1), "run", 0, number, loss=2.0, ended=ended))
    drawn = [column.at for column in series.lines["loss"].columns]
    assert drawn == [1.05, 1.1, 1.15, 1.2]
