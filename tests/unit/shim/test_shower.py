"""Which entries of a flight recorder a rank shows, where it has more than fit."""

from __future__ import annotations

from typing import Any

from trainer_shim.evidence.shower import chosen


def entry(number: int, group: str = "0", p2p: bool = False) -> dict[str, Any]:
    return {"process_group": [group, "pg"], "collective_seq_id": number, "is_p2p": p2p}


def numbers(entries: list[dict[str, Any]]) -> list[int]:
    return [one["collective_seq_id"] for one in entries]


def test_the_newest_are_kept_in_their_order() -> None:
    assert numbers(chosen([entry(number) for number in range(10)], 4)) == [6, 7, 8, 9]


def test_each_group_keeps_its_newest_however_long_ago_that_was() -> None:
    entries = [entry(1, "a"), entry(2, "a"), entry(3, "b"), *(entry(number, "c") for number in range(10, 20))]
    assert numbers(chosen(entries, 4)) == [2, 3, 18, 19]


def test_messages_of_pairs_are_a_group_of_their_own() -> None:
    assert numbers(chosen([entry(1, p2p=True), *(entry(number) for number in range(2, 9))], 2)) == [1, 8]


def test_of_more_groups_than_fit_the_newest_are_kept() -> None:
    assert numbers(chosen([entry(number, str(number)) for number in range(6)], 3)) == [3, 4, 5]


def test_an_entry_without_a_group_is_kept_like_any_other() -> None:
    odd: list[dict[str, Any]] = [{"collective_seq_id": 1}, {"collective_seq_id": 2, "process_group": None}]
    assert numbers(chosen([*odd, entry(3)], 2)) == [2, 3]
    assert chosen([], 2) == []
