"""What a window's division leaves for the next one: nothing of what it has taken."""

from __future__ import annotations

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import HardwareTime
from governor.core.attribution.open_end import Still
from governor.core.attribution.rank_line import RankLine
from governor.core.attribution.told import stood_still, told_by
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from tests.unit.core.engine.test_step import a_step

ONE = {"step_s": 1.0, "forward_s": 1.0}


def at(seconds: float) -> MonoNs:
    return MonoNs(round(seconds * NS_PER_S))


def test_a_step_that_was_cut_is_as_its_like_once() -> None:
    """Three steps of a second, and half a second of one that nobody tells of."""
    line = RankLine(MonoNs(0))
    for number in range(1, 4):
        line.step(a_step(number, **ONE), at(number), is_repeated=False)
    line.end(at(3.5))
    told = [told_by({0: line}, {}, HardwareTime(), taken=True).by_cause for _ in range(2)]
    assert [sum(one.values()) for one in told] == [3.5 * NS_PER_S, 0]


@pytest.mark.parametrize(
    ("lost_s", "cause"),
    [
        (1.5, Cause.PRODUCTIVE),  # The rest of a step.
        (4.5, Cause.UNKNOWN),  # More than two.
    ],
)
def test_time_of_which_no_rank_tells_is_of_a_step_for_as_long_as_steps_take(lost_s: float, cause: Cause) -> None:
    """The node sleeps behind the tenth step: its meter goes on, and the clock of the ranks stands still."""
    account = TimeAccount()
    account.rank_begins(0, MonoNs(0))
    account.tick(MonoNs(0), BootNs(0), BootNs(0), 0, holds=True)
    for number in range(1, 11):
        account.step(0, a_step(number, **ONE), at(number))
        account.tick(at(number), BootNs(at(number)), BootNs(0), 0, holds=True)
    before = {cause: amount.ns for cause, amount in account.by_cause.items()}
    account.tick(at(10), BootNs(at(10 + lost_s)), BootNs(0), 0, holds=True)
    account.rank_ends(0, at(10))
    more = {cause: amount.ns - before.get(cause, 0) for cause, amount in account.by_cause.items()}
    assert {cause: ns for cause, ns in more.items() if ns} == {cause: at(lost_s)}


def test_the_evidence_of_a_hang_says_that_its_seconds_are_a_mean() -> None:
    """One rank of two stood still: the cause has half of its seconds."""
    long = Still(40 * NS_PER_S)
    one, both = ({0: RankLine(at(0), still=first), 1: RankLine(at(0), still=long)} for first in (Still(0), long))
    assert stood_still(both) == long.words([0, 1])
    said = stood_still(one)
    assert said is not None
    assert said.startswith(long.words([1]))
    assert "2 ranks" in said


def hung(*own_s: float, suspect: int | None = None) -> str | None:
    """What is said of ranks that a rule halts alike, by the time since each one's own last hook."""
    stood = (Still(20 * NS_PER_S, "in compilation", own_ns=at(own), is_suspect=rank == suspect) for rank, own in
             enumerate(own_s))  # fmt: skip
    return stood_still({rank: RankLine(at(0), still=still) for rank, still in enumerate(stood)})


@pytest.mark.parametrize(
    ("own_s", "suspect", "who"),
    [
        ((25.0, 21.0), None, [0]),  # The first one to stand.
        ((25.0, 24.5), None, [0, 1]),  # Nearer to each other than two beats.
        ((25.0, 24.5), 1, [1]),  # The other one waits for it in a collective.
        ((25.0, 21.0), 1, [1]),
        ((25.0,) * 8, None, list(range(8))),
    ],
)
def test_of_ranks_that_hung_the_one_for_which_others_wait_is_named(
    own_s: tuple[float, ...], suspect: int | None, who: list[int]
) -> None:
    assert hung(*own_s, suspect=suspect) == Still(20 * NS_PER_S, "in compilation").words(who)


def test_of_many_ranks_a_few_are_named() -> None:
    named = Still(20 * NS_PER_S).words(range(64))
    assert " 3 " in named
    assert " 4" not in named
    assert "60 more" in named
