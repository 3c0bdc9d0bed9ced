"""When a window of the account ends, and what it knows of waits where it ends too soon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import HardwareTime
from governor.core.attribution.rank_line import RankLine
from governor.core.attribution.rows import time_row, whole_of
from governor.core.attribution.told import is_due, told_by
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step
from tests.unit.core.engine.test_step import a_step

Told = tuple[int, int, int, dict[str, Any]]  # The second in which it ended, rank, number, seconds.
OF_WAITS = {Cause.STRAGGLER, Cause.COMMUNICATION}


def meeting(every: int, fast_s: int, slow_s: int, meets: int) -> Iterable[Told]:
    """Rank 0 is ahead until it waits, in each so many-th step, for all that rank 1 has lost since the last one."""
    for number in range(1, meets * every + 1):
        since = number % every
        wait_s = 0 if since else every * (slow_s - fast_s)
        ended = number * slow_s - since * (slow_s - fast_s)
        parts = {"step_s": fast_s + wait_s, "forward_s": fast_s / 2, "backward_s": fast_s / 2 + wait_s}
        yield ended, 0, number, {**parts, "comm_s": wait_s}
        parts = {"step_s": slow_s, "forward_s": slow_s / 2, "backward_s": slow_s / 2}
        yield number * slow_s, 1, number, {**parts, "comm_s": 0}


def played(told: Iterable[Told], end_s: int) -> TimeAccount:
    account, ended = TimeAccount(), dict[int, list[Told]]()
    for one in told:
        ended.setdefault(one[0], []).append(one)
    for rank in (0, 1):
        account.rank_begins(rank, MonoNs(0))
    for second in range(1, end_s + 1):
        now = MonoNs(second * NS_PER_S)
        for _, rank, number, seconds in ended.get(second, ()):
            account.step(rank, Step(now, ConnectionId(rank + 1), "run", rank, number, **seconds), now)
        account.tick(now, BootNs(now), BootNs(0), 0, holds=True)
    account.over(MonoNs(end_s * NS_PER_S), ended_well=True)
    assert sum(amount.ns for amount in account.by_cause.values()) == end_s * NS_PER_S
    return account


@pytest.mark.parametrize(("every", "fast_s", "slow_s"), [(5, 2, 3), (8, 2, 3), (8, 4, 6), (5, 9, 12), (8, 4, 14)])
def test_where_ranks_meet_in_few_steps_no_wait_is_lost_at_a_windows_edge(every: int, fast_s: int, slow_s: int) -> None:
    end_s = 10 * every * slow_s
    account = played(meeting(every, fast_s, slow_s, 10), end_s)
    found = {cause: amount.ns / NS_PER_S / end_s for cause, amount in account.by_cause.items()}
    assert found == pytest.approx({Cause.STRAGGLER: 1 - fast_s / slow_s, Cause.PRODUCTIVE: fast_s / slow_s}, abs=0.01)
    assert not whole_of(account).weak


@pytest.mark.parametrize(
    ("every", "fast_s", "slow_s"),
    [
        (150, 2, 3),
        (100, 4, 6),
        (1, 160, 200),  # No two steps in five minutes.
    ],
)
def test_where_ranks_meet_too_seldom_for_any_window_waits_are_weak(every: int, fast_s: int, slow_s: int) -> None:
    """Each window begins or ends between two meetings: waits are told in another one than what was waited for."""
    account = played(meeting(every, fast_s, slow_s, 8), 8 * every * slow_s)
    whole = whole_of(account)
    assert whole.weak == {cause for cause in OF_WAITS if account.told_ns.get(cause)}
    assert {row["confidence"] for row in time_row(whole)["causes"] if Cause(row["cause"]) in OF_WAITS} == {"low"}


def line_of(last: int, steps: int, ended_s: float, step_s: float = 1.0) -> RankLine:
    """So many steps of a window up to the number `last`, which ended then."""
    line = RankLine(MonoNs(0), has_stepped=True)
    for number in range(last - steps + 1, last + 1):
        ended = MonoNs(round((ended_s - (last - number) * step_s) * NS_PER_S))
        line.step(a_step(number, step_s=step_s, forward_s=step_s), ended, is_repeated=False)
    return line


@pytest.mark.parametrize(
    ("one", "other", "since_s", "due"),
    [
        ((20, 20, 20.0), (20, 20, 20.0), 9.9, False),
        ((20, 20, 20.0), (20, 20, 20.0), 10.0, True),
        ((20, 20, 20.0), (20, 2, 20.0), 20.0, False),  # Two steps in common.
        ((20, 20, 20.0), (20, 3, 20.0), 20.0, True),
        ((21, 20, 20.0), (20, 20, 20.0), 20.0, True),  # One ahead, of twenty.
        ((23, 20, 20.0), (20, 20, 20.0), 20.0, False),
        ((20, 20, 20.0), (20, 20, 19.0), 20.0, True),  # One second apart, of twenty.
        ((20, 20, 20.0), (20, 20, 17.0), 20.0, False),
        ((23, 20, 20.0), (20, 20, 20.0), 299.0, False),
        ((23, 20, 20.0), (20, 20, 20.0), 300.0, True),
        ((20, 20, 20.0), (0, 0, 0.0), 20.0, False),  # The other rank is in a step as long.
        ((70, 70, 70.0), (0, 0, 0.0), 70.0, True),  # Nothing is told of it.
    ],
)
def test_a_window_ends_where_its_edge_is_small(
    one: tuple[int, int, float], other: tuple[int, int, float], since_s: float, due: bool
) -> None:
    lines = [line_of(*one), line_of(*other)]
    assert is_due(lines, round(since_s * NS_PER_S)) is due
    assert is_due(reversed(lines), round(since_s * NS_PER_S)) is due


def test_one_rank_alone_waits_for_nobody() -> None:
    assert is_due([line_of(1, 1, 20.0)], 20 * NS_PER_S)


@pytest.mark.parametrize(
    ("last", "silent_s", "step_s", "due"),
    [
        (20, 61.0, 1.0, True),
        (20, 60.0, 1.0, False),
        (20, 61.0, 25.0, False),  # No three steps of its own.
        (20, 80.0, 25.0, True),
        (100, 80.0, 1.0, False),  # It is ahead, and waits for the others.
    ],
)
def test_who_was_passed_and_is_silent_for_long_is_not_waited_for(
    last: int, silent_s: float, step_s: float, due: bool
) -> None:
    others = [line_of(90, 90, 200.0), line_of(90, 90, 200.0)]
    assert is_due([*others, line_of(last, 4, 200.0 - silent_s, step_s)], 200 * NS_PER_S) is due


def test_behind_a_window_that_ended_apart_the_next_one_with_steps_of_a_rank_is_weak() -> None:
    """Rank 0 goes through two windows in its wait, and tells of it in the fourth one."""
    lines = {rank: RankLine(MonoNs(0), has_stepped=True) for rank in (0, 1, 2)}
    parts = {"step_s": 1.0, "forward_s": 0.5, "backward_s": 0.5, "comm_s": 0.25}
    weak = list[bool]()
    for window, ranks in enumerate(((0, 1, 2), (1, 2), (1, 2), (0, 1, 2), (0, 1, 2))):
        for number in range(10 * window, 10 * window + 10):
            for rank in ranks:
                lines[rank].step(a_step(number, **parts), MonoNs((number + 1) * NS_PER_S), is_repeated=False)
        told_by(lines, {}, HardwareTime(), taken=False)  # A view changes nothing.
        found = told_by(lines, {}, HardwareTime(), taken=True, is_short=window == 0)
        assert found.weak in ({}, {Cause.COMMUNICATION: found.by_cause[Cause.COMMUNICATION]})
        weak.append(bool(found.weak))
    assert weak == [True, True, False, True, False]
