"""Who sleeps in its data and who waits, from ranks as a run shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.fetch import Fetch
from governor.core.rules.stillness import STARTS_MIN, data_sleep, describe, say_data_sleep, say_where, sleeps_in_data
from governor.core.runs.state import Rank

SINCE, AT = MonoNs(100 * NS_PER_S), MonoNs(170 * NS_PER_S)


def rank(number: int, **shown: Any) -> Rank:
    made = Rank(
        number, number, Peer(ProcessId(1000 + number, 1, "boot"), 1000), ConnectionId(number), 10, frozenset(),
        MonoNs(0), SINCE, progress_at=SINCE, beat_at=AT, phase="train",
    )  # fmt: skip
    return replace(made, **shown)


ASLEEP = rank(1, fetch=Fetch(SINCE, 5), stack=("data.py:__getitem__:7", "fetch.py:fetch:52"))
WAITING = rank(0, in_step=True, last_hook="forward", stack=("graph.py:_engine_run_backward:9",))


def test_both_facts_are_in_one_sentence() -> None:
    sleep = data_sleep([WAITING, ASLEEP, rank(2, in_step=True)])
    assert sleep is not None
    assert sleep.longest_ns == 5
    said = say_data_sleep(sleep, AT)
    facts = ("rank 1 ", "1m 10s", "(data.py:__getitem__:7)", "rank 0 ", "(graph.py:_engine_run_backward:9)", "1 more")
    assert all(fact in said for fact in facts), said
    assert describe(ASLEEP, AT)["fetching_s"] == 70.0
    assert "fetching_s" not in describe(WAITING, AT)


@pytest.mark.parametrize(
    "other",
    [
        rank(1),  # Between two steps: it may save, log or upload.
        rank(1, fetch=Fetch(None, 5)),  # Its fetch has ended.
        replace(ASLEEP, progress_at=AT),  # It was seen to move since that beat.
        replace(ASLEEP, beat_at=None),
        replace(ASLEEP, device_wait="wait"),  # The fetch is a collective of its own.
        replace(ASLEEP, collective={"op": "broadcast", "done": False}),
        replace(ASLEEP, fetch=Fetch(SINCE, 5, starts=STARTS_MIN - 1)),
    ],
)
def test_without_one_of_the_facts_nobody_sleeps_in_data(other: Rank) -> None:
    assert data_sleep([WAITING, other]) is None


@pytest.mark.parametrize("other", [rank(0, device_wait="item"), rank(0, collective={"op": "barrier", "done": False})])
def test_who_waits_outside_of_a_step_waits_too(other: Rank) -> None:
    sleep = data_sleep([other, ASLEEP])
    assert sleep is not None
    assert sleep.waiting == (other,)


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_fetch_is_one_wherever_in_the_step_it_is(is_in_step: bool) -> None:
    fetching = replace(ASLEEP, in_step=is_in_step)
    assert sleeps_in_data(fetching)
    assert not sleeps_in_data(replace(fetching, device_wait="item"))
    sleep = data_sleep([WAITING, fetching])
    assert sleep is not None
    assert (sleep.asleep, sleep.waiting) == ((fetching,), (WAITING,))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([replace(ASLEEP, rank=0)], ": it has waited for data for 1m 10s (data.py:__getitem__:7)"),
        ([WAITING], ": it is in graph.py:_engine_run_backward:9"),
        ([replace(WAITING, beat_at=SINCE)], ": it was last seen in graph.py:_engine_run_backward:9"),
        ([replace(ASLEEP, progress_at=MonoNs(0), beat_at=SINCE)], ": it was last seen in data.py:__getitem__:7"),
        ([rank(0)], ""),
        ([rank(0), ASLEEP], ": rank 1 has waited for data for 1m 10s (data.py:__getitem__:7)"),
        ([ASLEEP, ASLEEP], ": rank 1 and 1 more have waited for data for 1m 10s (data.py:__getitem__:7)"),
        ([rank(0), WAITING], ""),
    ],
)
def test_of_ranks_that_stand_still_it_is_said_where_the_data_or_the_only_one_is(ranks: list[Rank], said: str) -> None:
    assert say_where(ranks, [], AT, 5 * NS_PER_S) == said
    assert say_where(ranks, [1, 2], AT, 5 * NS_PER_S) == f"{said}; look at rank 1, 2"


@pytest.mark.parametrize("ranks", [[], [ASLEEP], [ASLEEP, replace(ASLEEP, rank=0)], [WAITING]])
def test_it_takes_one_who_sleeps_and_one_who_waits(ranks: list[Rank]) -> None:
    assert data_sleep(ranks) is None


def test_the_last_to_ask_for_a_batch_and_the_longest_of_all_fetches_count() -> None:
    later = MonoNs(SINCE + NS_PER_S)
    sleep = data_sleep([rank(0, in_step=True, fetch=Fetch(None, 9)), ASLEEP, rank(2, fetch=Fetch(later, 3))])
    assert sleep is not None
    assert (sleep.since, sleep.longest_ns) == (later, 9)


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (None, None),
        ({"longest_ns": 7}, Fetch(None, 7)),
        ({"longest_ns": 7, "since_ns": 3, "starts": 2}, Fetch(MonoNs(3), 7, 2)),
        ({"longest_ns": 7, "since_ns": AT + 1}, Fetch(AT, 7)),  # No time to come.
        ({"longest_ns": 0, "since_ns": 3, "starts": -1}, Fetch(MonoNs(3), 0, 0)),
        ({"longest_ns": "long"}, None),
        ({"longest_ns": -1}, None),
        ({"longest_ns": 7, "since_ns": 2.5}, None),
        ({"longest_ns": 7, "since_ns": True}, None),
    ],
)
def test_what_a_beat_reports_is_read_or_unknown(record: dict[str, Any] | None, read: Fetch | None) -> None:
    assert Fetch.read(record, AT) == read
