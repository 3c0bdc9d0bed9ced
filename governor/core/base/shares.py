"""Fair shares of a bounded table. Who holds most gives way first, so one user's excess costs no other user anything."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

K = TypeVar("K", bound=Hashable)

NOTHING: Final = 0  # An entry of this worth is lost to nobody.
NOBODY: Final = -1  # The owner is not known.


@dataclass(frozen=True, slots=True)
class UidRange:
    """Uids that one user may give to processes of its own (/etc/subuid): they share that user's place."""

    first: int
    count: int
    owner: int


def user_of(ranges: Sequence[UidRange], uid: int) -> int:
    """The uid whose share this one uses: the owner of its range, or itself. `ranges`: by `first`."""
    at = bisect_right(ranges, uid, key=lambda one: one.first) - 1
    return ranges[at].owner if at >= 0 and uid < ranges[at].first + ranges[at].count else uid


@dataclass(frozen=True, slots=True)
class Claim:
    """One entry of the table: the uid that caused it, and what would be lost with it."""

    uid: int = NOBODY
    worth: int = NOTHING


def first_to_go(claims: Mapping[K, Claim]) -> K:
    """The entry that makes room. `claims`: oldest first, not empty.

    Entries of no worth go before all others. Of what is left, the uid that holds most gives one: the one of least
    worth, and of those the oldest.
    """
    worthless = [key for key, claim in claims.items() if claim.worth == NOTHING]
    among = worthless or list(claims)
    held = Counter(claims[key].uid for key in among)
    most = max(held.values())
    uid = next(claims[key].uid for key in among if held[claims[key].uid] == most)
    return min((key for key in among if claims[key].uid == uid), key=lambda key: claims[key].worth)


def beyond(claims: Mapping[K, Claim], limit: int) -> list[K]:
    """The entries that go until `limit` are left, first to go first: what `first_to_go` would choose, ties apart."""
    places: Counter[tuple[bool, int]] = Counter()
    ranked: list[tuple[bool, int, int, K]] = []
    for age, (key, claim) in reversed(list(enumerate(sorted(claims.items(), key=lambda one: one[1].worth)))):
        share = claim.worth != NOTHING, claim.uid
        places[share] += 1
        ranked.append((share[0], -places[share], age, key))
    return [key for *_, key in sorted(ranked, key=lambda one: one[:3])[: max(0, len(claims) - limit)]]


def fair_shares(held: Mapping[K, int], limit: int) -> dict[K, int]:
    """How many of its entries each holder keeps, so that `limit` are left: nobody loses one while another has more."""
    shares: dict[K, int] = {}
    left = limit
    for place, (holder, count) in enumerate(sorted(held.items(), key=lambda one: one[1])):
        shares[holder] = min(count, left // (len(held) - place))
        left -= shares[holder]
    return shares


def halt_claim(snapshot: Mapping[str, Any]) -> Claim:
    """An incident's claim. One after which something stays billed is worth more than others of its uid."""
    return Claim(int(snapshot.get("uid", NOBODY)), 2 if snapshot.get("stays_billed") else 1)
