"""Who speaks for a run: each step is shown once, whoever can tell it, and none is lost where ranks come and go."""

from __future__ import annotations

import pickle

import pytest

from governor.core.runs.state import RANKS_MAX
from governor.wire.recordings.speaker import AHEAD_MAX, Speaker


class Run:
    """Steps are told as (rank, number). `shown`: in the order in which they were."""

    def __init__(self, *ranks: int) -> None:
        self.speaker = Speaker[tuple[int, int]]()
        self.shown: list[tuple[int, int]] = []
        self.hello("a1", *ranks)

    def hello(self, attempt: str, *ranks: int) -> None:
        for rank in ranks:
            self.shown += self.speaker.hello(attempt, rank, 7 + rank)

    def step(self, rank: int, *numbers: int) -> None:
        for number in numbers:
            if self.speaker.step(rank, number, 100 + number, (rank, number)):
                self.shown.append((rank, number))

    def lost(self, *ranks: int) -> None:
        for rank in ranks:
            self.shown += self.speaker.lost(7 + rank)


def test_the_lowest_connected_rank_speaks_in_whatever_order_they_come() -> None:
    run = Run(2, 0, 1)
    for rank in (1, 0, 2):
        run.step(rank, 1)
    assert run.shown == [(0, 1)]
    assert [rank for rank in range(3) if run.speaker.leads(rank)] == [0]
    assert run.speaker.leads(None)


def test_a_restart_with_higher_numbers_has_a_lead_of_its_own() -> None:
    run = Run(0, 1)
    run.step(0, 1, 2)
    run.hello("a2", 3, 2)
    for rank in (2, 3):
        run.step(rank, 1, 2)
    assert run.shown == [(0, 1), (0, 2), (2, 1), (2, 2)]


def test_the_next_rank_goes_on_where_the_lost_one_ended() -> None:
    run = Run(0, 1, 2)
    run.step(0, 1)
    run.step(2, 1, 2, 3, 4)
    run.step(1, 1, 2, 3)
    run.lost(0)
    assert run.shown == [(0, 1), (1, 2), (1, 3)], "what it had told ahead is its own"
    run.step(1, 4)
    run.hello("a1", 0)  # It is back, and sends again what was not acknowledged.
    run.step(0, 3, 4, 5)
    run.step(1, 5)
    assert run.shown[3:] == [(1, 4), (0, 5)]


def test_the_loss_of_another_rank_changes_nothing() -> None:
    run = Run(0, 1)
    run.step(1, 1, 2)
    run.lost(1)
    run.speaker.lost(99)
    run.step(0, 1)
    assert run.shown == [(0, 1)]


def test_what_the_others_told_is_theirs_once_nobody_is_connected() -> None:
    run = Run(0, 1, 2)
    run.step(0, 1)
    run.step(2, 2, 3)
    run.step(1, 1, 2)
    run.lost(1, 2, 0)
    assert run.shown == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("ending", ["attempt", "gap"])
def test_the_last_steps_before_a_break_are_shown_and_no_number_reaches_over_it(ending: str) -> None:
    run = Run(0, 1)
    run.step(0, 1)
    run.step(1, 1, 2, 3)
    if ending == "attempt":
        run.hello("a2", 0, 1)
    else:
        run.shown += run.speaker.break_off()
        run.hello("a1", 0, 1)
    assert run.shown == [(0, 1), (1, 2), (1, 3)]
    run.step(0, 1)
    run.lost(0)
    assert run.shown[3:] == ([(0, 1)] if ending == "attempt" else []), "an attempt counts anew"


def test_between_a_gap_and_the_next_hello_each_rank_speaks_and_a_step_is_told_once() -> None:
    run = Run(0, 1)
    run.step(0, 1)
    run.speaker.break_off()
    for rank in (1, 0):
        run.step(rank, 2)
    assert run.shown == [(0, 1), (1, 2)]


def test_steps_of_several_ranks_are_shown_in_their_order() -> None:
    run = Run(0, 1, 2)
    run.step(0, 1)
    run.step(1, 3, 4)
    run.step(2, 2, 3)
    run.shown += run.speaker.break_off()
    assert run.shown == [(0, 1), (2, 2), (1, 3), (1, 4)]


def test_a_connection_that_has_another_rank_now_does_not_hold_the_old_one() -> None:
    run = Run(0, 1)
    run.step(1, 1)
    run.shown += run.speaker.hello("a1", 5, 7)
    assert run.shown == [(1, 1)]
    run.step(5, 1, 2)
    run.step(1, 2)
    assert run.shown == [(1, 1), (1, 2)]


def test_a_rank_that_came_back_before_its_loss_was_seen_still_speaks() -> None:
    run = Run(0, 1)
    run.shown += run.speaker.hello("a1", 0, 50)
    run.lost(0)
    run.step(1, 1)
    run.step(0, 1)
    assert run.shown == [(0, 1)]


def test_of_a_halt_the_steps_until_its_reason_are_shown_once_and_the_others_ahead_never() -> None:
    run = Run(0, 1, 2)
    run.step(0, 1)
    run.step(2, 1, 2, 3, 4)
    run.step(1, 1, 2, 3)
    assert run.speaker.verdict(100 + 3) == [(1, 2), (1, 3)]
    run.hello("a1", 1, 2)
    run.step(1, 3, 4)
    run.lost(1)
    run.lost(2)
    assert run.shown == [(0, 1), (1, 4)], "behind a halt nobody is connected until it is heard again"


def test_of_a_halt_at_another_time_or_before_any_step_none_is_the_reason() -> None:
    run = Run(0, 1)
    assert run.speaker.verdict(0) == []
    run.hello("a1", 0, 1)
    run.step(0, 1)
    run.step(1, 1, 2)
    assert run.speaker.verdict(100 + 3) == []


def test_a_step_of_the_lead_is_the_newest_one_too() -> None:
    """Where the lead's own step is the reason, what another rank told at a time before is not."""
    run = Run(0, 1)
    run.step(1, 2)
    run.speaker.step(0, 1, 102, (0, 1))  # Read in the same moment, behind it.
    assert run.speaker.verdict(102) == []


def test_whatever_a_file_has_as_ranks_it_takes_no_more_room() -> None:
    def room(ranks: int, steps: int) -> int:
        run = Run(*range(1_000, 1_000 + ranks))
        for rank in range(1_001, 1_000 + ranks):
            run.step(rank, *range(1_000, 1_000 + steps))
        assert run.shown == []
        return len(pickle.dumps(run.speaker))

    assert room(2 * RANKS_MAX, AHEAD_MAX) == room(3 * RANKS_MAX, AHEAD_MAX)
    assert room(2, AHEAD_MAX) == room(2, 2 * AHEAD_MAX)


def test_of_ranks_beyond_a_nodes_the_hellos_and_the_steps_of_the_first_ones_count() -> None:
    run = Run(*range(RANKS_MAX, 0, -1), 0)
    assert run.speaker.lead == 1
