"""For what the ranks of one window wait for each other, step by step. Figures are nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution import parts as part
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.by_step import KEPT_MAX, ByStep, shared
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import NO_LOSSES, Losses
from governor.core.attribution.lateness import GROUPS_MAX
from governor.core.attribution.parts import APART, PARTS, RankSums
from governor.core.attribution.split import Split, split
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step


def rank_of(steps: Iterable[tuple[int, dict[str, int]]]) -> RankSums:
    """Of steps with their parts by name; `comm` is inside the backward pass."""
    sums = RankSums()
    for number, named in steps:
        told = [0] * PARTS
        for name, ns in named.items():
            if name != "comm":
                told[getattr(part, name.upper())] = ns
        sums.add_parts(told, (named.get("comm", 0) + 0.5) / 1e9, None)  # Floats round down.
        assert sums.by_step is not None
        sums.by_step.add(number, [told[index] for index in APART])
    return sums


def window(own: list[list[dict[str, int]]], wire: int = 0) -> dict[int, RankSums]:
    """Ranks that meet in each step's backward pass: who is there early waits in it. `own`: by rank, of each step."""
    ranks: list[list[tuple[int, dict[str, int]]]] = [[] for _ in own]
    for number, step in enumerate(zip(*own, strict=True), 1):
        last = max(sum(parts.values()) for parts in step)
        for rank, parts in enumerate(step):
            comm = last - sum(parts.values()) + wire
            ranks[rank].append((number, {**parts, "backward": comm, "comm": comm}))
    return {rank: rank_of(steps) for rank, steps in enumerate(ranks)}


def cut(ranks: dict[int, RankSums], losses: Losses = NO_LOSSES) -> Split:
    found = split(ranks, losses)
    assert sum(found.by_cause.values()) == sum(one.total_ns for one in ranks.values())
    return found


def test_a_slow_rank_and_another_ones_save_do_not_cancel() -> None:
    """Rank 1 computes 80 longer in each of ten steps; before one of them rank 0 alone saves for 800."""
    saver, slow = [{"forward": 250} for _ in range(10)], [{"forward": 330} for _ in range(10)]
    saver[4] = {"checkpoint": 800, "forward": 250}
    found = cut(window([saver, slow], wire=5))
    assert found.slow_rank == 1
    assert found.by_cause == {
        Cause.STRAGGLER: 2 * 9 * 80,  # In the step with the save nobody waits for it.
        Cause.CHECKPOINT: 800 + 800 - 80,
        Cause.COMMUNICATION: 2 * 10 * 5,
        Cause.PRODUCTIVE: 2 * 10 * 250 + 80,
    }


def test_fetches_that_are_slow_on_one_rank_and_then_on_the_other_do_not_cancel() -> None:
    one, other = [{"forward": 250} for _ in range(10)], [{"forward": 250} for _ in range(10)]
    one[2], other[6] = {"data": 900, "forward": 250}, {"data": 700, "forward": 250}
    assert cut(window([one, other])).by_cause == {Cause.DATA: 2 * 1600, Cause.PRODUCTIVE: 20 * 250}


def test_what_comes_in_each_step_cancels_in_each_step() -> None:
    """Rank 0's data takes 100 in each step, and rank 1 computes 60 longer: rank 0 has it 40 late, and no more."""
    found = cut(window([[{"data": 100, "forward": 250}] * 10, [{"forward": 310}] * 10]))
    assert found.by_cause == {Cause.DATA: 1400, Cause.PRODUCTIVE: 10 * (250 + 310)}


def test_who_waits_less_for_a_slow_rank_loses_less() -> None:
    """Rank 0 has its own data for 50 of the 80 which rank 1 computes longer."""
    found = cut(window([[{"data": 50, "forward": 250}] * 10, [{"forward": 330}] * 10]))
    assert found.by_cause == {Cause.DATA: 500, Cause.STRAGGLER: 10 * (80 + 30), Cause.PRODUCTIVE: 20 * 250}


def test_who_waits_for_a_save_in_one_long_step_waits_for_it() -> None:
    """Who is slow, one step does not tell: rank 1 computes 100 longer in it."""
    found = cut(window([[{"checkpoint": 5000, "forward": 900}], [{"forward": 1000}]]))
    assert found.by_cause == {Cause.CHECKPOINT: 5000 + 4900, Cause.PRODUCTIVE: 1900}


def test_no_wait_is_longer_than_the_collectives_were() -> None:
    """Ranks meet in the last step alone. Rank 0 saves in one step, rank 1 fetches for nearly as long in another one."""
    one = [(number, {"forward": 250}) for number in range(1, 11)]
    other = list(one)
    one[2] = (3, {"checkpoint": 900, "forward": 250})
    other[6] = (7, {"data": 800, "forward": 250})
    other[9] = (10, {"forward": 250, "backward": 100, "comm": 100})
    found = cut({0: rank_of(one), 1: rank_of(other)})
    assert found.by_cause == {Cause.CHECKPOINT: 900 + 100, Cause.DATA: 800, Cause.PRODUCTIVE: 20 * 250}


def test_who_steps_on_beside_a_rank_that_hangs_is_no_straggler() -> None:
    ahead = rank_of((number, {"forward": 100, "backward": 150}) for number in range(1, 40))
    hangs = rank_of((number, {"forward": 100, "backward": 150}) for number in range(1, 22))
    found = cut({0: ahead, 1: hangs})
    assert found.by_cause == {Cause.PRODUCTIVE: (39 + 21) * 250}
    assert found.slow_rank is None


def test_a_rank_that_hangs_has_been_slow_only_while_it_stepped() -> None:
    ahead = rank_of((number, {"forward": 100, "backward": 150, "comm": 150}) for number in range(1, 40))
    hangs = rank_of((number, {"forward": 200, "backward": 50, "comm": 50}) for number in range(1, 22))
    found = cut({0: ahead, 1: hangs})
    assert found.slow_rank == 1
    assert found.by_cause[Cause.STRAGGLER] == 2 * 21 * 100


def test_what_a_rank_ahead_lost_from_outside_is_of_all_its_steps() -> None:
    """Both lose a fifth of what they compute to their clock. Rank 0 has told twice as many steps."""
    ranks = {rank: rank_of((number, {"forward": 100}) for number in range(steps)) for rank, steps in ((0, 40), (1, 20))}
    found = cut(ranks, {0: {Cause.THROTTLING: 800}, 1: {Cause.THROTTLING: 400}})
    assert found.by_cause == {Cause.THROTTLING: 1200, Cause.PRODUCTIVE: 4800}


def test_ranks_without_a_step_in_common_are_not_compared() -> None:
    one = rank_of((number, {"forward": 100}) for number in range(10))
    other = rank_of((number, {"forward": 200}) for number in range(20, 30))
    assert cut({0: one, 1: other}).by_cause == {Cause.PRODUCTIVE: 3000}


def test_noise_beside_pauses_is_no_straggler() -> None:
    """Rank 1 computes 4 % longer, fetches take a little, and rank 0 saves for as long as half the window."""
    one = [{"data": number % 3, "forward": 250} for number in range(10)]
    other = [{"data": (number + 1) % 3, "forward": 260} for number in range(10)]
    one[5] = {"checkpoint": 2500, "forward": 250}
    found = cut(window([one, other]))
    assert found.slow_rank is None
    assert Cause.STRAGGLER not in found.by_cause
    assert found.by_cause[Cause.CHECKPOINT] > 4900


@pytest.mark.parametrize("pausing", [0, 1])
@pytest.mark.parametrize("pause", ["checkpoint", "evaluation", "data", "loop"])
def test_a_slow_rank_beside_a_pause_of_half_the_window_is_the_straggler(pause: str, pausing: int) -> None:
    """Rank 1 computes a tenth longer. Whoever pauses, both have the pause in their steps."""
    ranks = [[{"forward": 250} for _ in range(10)], [{"forward": 275} for _ in range(10)]]
    ranks[pausing][5][pause] = 2500
    found = cut(window(ranks))
    assert found.slow_rank == 1
    assert found.by_cause[Cause.STRAGGLER] == pytest.approx(2 * 10 * 25, abs=2 * 25)


def test_data_that_comes_in_each_step_is_no_pause() -> None:
    """Rank 1 computes 15 longer, of steps of a thousand: most of each is the fetch."""
    found = cut(window([[{"data": 800, "forward": 200}] * 10, [{"data": 800, "forward": 215}] * 10]))
    assert found.slow_rank is None


def test_data_that_comes_in_most_steps_is_no_pause() -> None:
    """As above; the first batch was there."""
    fetches = [{"data": 0 if number == 0 else 800} for number in range(10)]
    found = cut(window([[{**one, "forward": own} for one in fetches] for own in (200, 215)]))
    assert found.slow_rank is None


@pytest.mark.parametrize("pause", ["checkpoint", "evaluation"])
def test_a_pause_that_comes_in_each_step_is_one(pause: str) -> None:
    """Rank 1 computes a tenth longer. Both pause before each step, for twice as long."""
    found = cut(window([[{pause: 500, "forward": own}] * 10 for own in (250, 275)]))
    assert found.slow_rank == 1
    assert found.by_cause[Cause.STRAGGLER] == 2 * 10 * 25


def test_for_a_save_that_nobody_waits_for_no_rank_is_held_to_less() -> None:
    """Ranks meet in no step. Rank 1 computes 4 % longer: that is noise, beside whatever save."""
    one = [(number, {"forward": 250, "comm": 0}) for number in range(10)]
    other = [(number, {"forward": 260, "comm": 0}) for number in range(10)]
    one[5] = (5, {"checkpoint": 2000, "forward": 250, "comm": 0})
    assert cut({0: rank_of(one), 1: rank_of(other)}).slow_rank is None


def test_a_save_of_a_rank_ahead_is_in_no_bound_of_the_steps_in_common() -> None:
    """Rank 1 computes a tenth longer. It saves in a step that rank 0 has not told yet."""
    ahead = [(number, {"forward": 275, "comm": 0}) for number in range(11)]
    ahead[10] = (10, {"checkpoint": 2500, "forward": 275, "comm": 0})
    assert cut({0: rank_of((n, {"forward": 250, "comm": 0}) for n in range(10)), 1: rank_of(ahead)}).slow_rank == 1


def test_a_step_that_is_apart_by_less_than_noise_stays_with_the_others() -> None:
    """Rank 1 computes 2 % longer. In three steps rank 0 fetches, and is last by 5: that is no wait for its data."""
    fetches = [{"data": 10 if number in (2, 5, 8) else 0, "forward": 250} for number in range(10)]
    found = cut(window([fetches, [{"forward": 255}] * 10]))
    assert found.by_cause[Cause.DATA] == 3 * 10


def test_where_many_ranks_are_last_in_turn_the_longest_waits_are_told_in_full() -> None:
    """Each of twelve ranks has one slow fetch. Of the five shortest, taken as one, the longest one counts."""
    own = [
        [{"data": 100 * (rank + 1) if number == rank else 0, "forward": 250} for number in range(12)]
        for rank in range(12)
    ]
    found = cut(window(own))
    in_full = sum(100 * (rank + 1) for rank in range(12 - (GROUPS_MAX - 1), 12))
    assert found.by_cause[Cause.DATA] == 12 * (in_full + 100 * (12 - (GROUPS_MAX - 1)))


def test_of_several_steps_taken_as_one_each_rank_has_told_all() -> None:
    """Rank 1 begins with the second one of the first two, and has not told the last one."""
    one, other = ByStep(width=2), ByStep()
    for number in range(10):
        one.add(number, [1, 0, 0, 0])
    for number in range(1, 9):
        other.add(number, [1, 0, 0, 0])
    assert [piece.named for piece in shared({0: one, 1: other})] == [{0: [2, 0, 0, 0], 1: [2, 0, 0, 0]}] * 3


def test_of_many_short_steps_several_are_one_and_the_bound_holds() -> None:
    told = ByStep()
    for number in range(10 * KEPT_MAX):
        told.add(number, [1, 2, 3, 4])
    assert len(told.kept) <= KEPT_MAX
    assert [sum(one[place] for one in told.kept.values()) for place in range(5)] == [
        10 * KEPT_MAX * times for times in (1, 1, 2, 3, 4)
    ]


def test_ranks_with_unlike_widths_share_the_wider_one() -> None:
    fine, coarse = ByStep(), ByStep(width=4)
    for number in range(10):
        fine.add(number, [1, 0, 0, 0])
        coarse.add(number, [0, 0, 5, 0])
    pieces = shared({0: fine, 1: coarse})
    assert [piece.steps for piece in pieces] == [4, 4, 2]
    assert pieces[0].named[0][0] == 4
    assert pieces[0].named[1][2] == 20


@given(st.lists(st.integers(-(2**63), 2**63), max_size=2 * KEPT_MAX))
def test_whatever_numbers_steps_have_none_is_lost(numbers: list[int]) -> None:
    told, half = ByStep(), ByStep()
    for place, number in enumerate(numbers):
        (told if place % 2 else half).add(number, [1, 0, 0, 0])
    told.take(half)
    assert len(told.kept) <= KEPT_MAX
    assert sum(one[0] for one in told.kept.values()) == len(numbers)


PART = st.integers(0, 10**9)
STEP = st.fixed_dictionaries(
    dict.fromkeys(("data", "loop", "checkpoint", "evaluation", "forward", "backward", "optimizer", "bubble"), PART)
    | {"comm": PART}
)


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), STEP), min_size=1, max_size=12), min_size=1, max_size=4))
def test_whatever_steps_tell_is_attributed_once(told: list[list[tuple[int, dict[str, int]]]]) -> None:
    found = cut({rank: rank_of(steps) for rank, steps in enumerate(told)})
    assert all(ns > 0 for ns in found.by_cause.values())


def test_of_steps_that_are_longer_than_a_window_the_slow_rank_is_told() -> None:
    """As of a large model: twelve seconds a step, of which rank 1 computes three more than rank 0."""
    account = TimeAccount()
    for rank in (0, 1):
        account.rank_begins(rank, MonoNs(0))
    for second in range(1, 12 * 20 + 1):
        now = MonoNs(second * NS_PER_S)
        account.tick(now, BootNs(now), BootNs(0), 0, holds=True)
        if second % 12 == 0:
            for rank, own in ((0, 8.0), (1, 11.0)):
                passes = {"forward_s": own / 2, "backward_s": own / 2 + 12 - own, "comm_s": 12 - own}
                step = Step(now, ConnectionId(rank + 1), "run", rank, second // 12, step_s=12.0, **passes)
                account.step(rank, step, now)
    account.over(MonoNs(240 * NS_PER_S))
    assert set(account.straggler_ns) == {1}
    assert account.by_cause[Cause.STRAGGLER].ns >= 19 * 3 * NS_PER_S  # The first step is not compared.
