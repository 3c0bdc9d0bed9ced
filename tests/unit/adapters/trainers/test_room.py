"""Whose connection is closed for a newcomer's, and when the newcomer is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from governor.adapters.trainers.inbox import CONNECTIONS_MAX, CONNECTIONS_PER_UID_MAX, SILENT_S, Held, makes_room

NOW = 100.0


def some(uid: int, count: int, *, since: float = NOW, is_known: bool = True) -> list[Held]:
    return [Held(uid, since, is_known)] * count


def room(held: list[Held], uid: int) -> int | str | None:
    return makes_room(dict(enumerate(held)), uid, NOW)


def test_with_room_nobody_is_closed() -> None:
    assert room(some(1, CONNECTIONS_PER_UID_MAX - 1), 1) is None
    assert room(some(1, 100) + some(2, 100, since=0.0, is_known=False), 3) is None


def test_the_oldest_silent_one_goes_first_whosever_it_is() -> None:
    silent = some(2, 2, since=NOW - SILENT_S, is_known=False)
    assert room(some(1, 128) + silent + some(3, CONNECTIONS_MAX - 130), 4) == 128


def test_a_uid_at_its_limit_gives_a_silent_one_of_its_own_or_is_refused() -> None:
    others = some(2, 1, since=0.0, is_known=False)
    assert room(others + some(1, 127) + some(1, 1, since=0.0, is_known=False), 1) == 128
    refused = room(others + some(1, 128), 1)
    assert refused == "uid 1 has 128 connections open already"


def test_else_the_newest_of_whoever_has_most_gives_way_first_one_that_said_no_hello() -> None:
    established = some(1, 100)
    assert room(established + some(2, 128) + some(3, 28), 4) == 227
    assert room(established + some(2, 100) + some(2, 1, is_known=False) + some(2, 27) + some(3, 28), 4) == 200


@pytest.mark.parametrize("uids", [2, 3, 16, 64, 256])
def test_every_uid_reaches_its_share_whatever_the_others_hold(uids: int) -> None:
    """The others have taken all that they can. A newcomer connects as often as it is let."""
    held = dict(enumerate(Held(n % (uids - 1), 0.0, True) for n in range(CONNECTIONS_MAX)))
    if uids == 2:
        held = dict(list(held.items())[:CONNECTIONS_PER_UID_MAX])
    for new in range(CONNECTIONS_MAX, 2 * CONNECTIONS_MAX):
        found = makes_room(held, 999, NOW)
        if isinstance(found, str):
            break
        if found is not None:
            del held[found]
        held[new] = Held(999, NOW, True)
    by_uid = Counter(one.uid for one in held.values())
    assert by_uid[999] >= CONNECTIONS_MAX // uids - 1
    assert by_uid[999] >= 1 or uids > CONNECTIONS_MAX
