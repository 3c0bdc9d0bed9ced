"""The last collectives of several ranks, joined: who has entered which one, and who is behind, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.wire.shown import Collective

LINES_MAX: Final = 16
_RANKS_NAMED_MAX: Final = 8

ByRank = Mapping[int, Sequence[Collective]]


@dataclass(frozen=True, slots=True)
class Standing:
    """One group of ranks at one moment: the newest collective that each has entered."""

    group: str
    newest: Mapping[int, Collective]  # By rank.
    differing: Mapping[int, Collective] | None = None  # Ranks that entered different operations under one number.

    @property
    def front(self) -> Collective:
        return max(self.newest.values(), key=lambda one: one.number)

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that have not entered the collective which another has."""
        number = self.front.number
        return tuple(sorted(rank for rank, one in self.newest.items() if one.number < number))

    def row(self) -> dict[str, Any]:
        ranks = {
            str(rank): {"number": one.number, "operation": one.operation, "state": one.state, "over": one.is_over}
            for rank, one in sorted(self.newest.items())
        }
        return {"group": self.group, "behind": list(self.behind), "ranks": ranks, "text": line(self)}


def standings(ranks: ByRank) -> tuple[Standing, ...]:
    """Each group that ranks have told of; those with a rank behind, or with different operations, first."""
    groups: dict[str, dict[int, dict[int, Collective]]] = {}
    for rank, entries in ranks.items():
        for one in entries:
            if not one.is_p2p:  # These are numbered by pairs of ranks.
                groups.setdefault(one.group, {}).setdefault(rank, {})[one.number] = one
    found = [_standing(group, members) for group, members in groups.items()]
    return tuple(sorted(found, key=lambda one: (not one.behind and one.differing is None, one.group)))[:LINES_MAX]


def _standing(group: str, members: Mapping[int, Mapping[int, Collective]]) -> Standing:
    newest = {rank: entered[max(entered)] for rank, entered in members.items()}
    # Sizes may differ under one number: a rank scatters or gathers.
    shared = set[int].intersection(*(set(entered) for entered in members.values()))
    for number in sorted(shared):
        entered = {rank: of_rank[number] for rank, of_rank in members.items()}
        if len({one.operation for one in entered.values()}) > 1:
            return Standing(group, newest, entered)
    return Standing(group, newest)


def line(standing: Standing) -> str:
    """One sentence, for people. It says what was entered: a recorder of gloo does not say what was left."""
    group = standing.group.rpartition("/")[2] or standing.group or "?"
    if standing.differing is not None:
        told = "; ".join(f"{named([rank])} {_name(one)}" for rank, one in sorted(standing.differing.items())[:4])
        return f"{group}: ranks entered different collectives under one number: {told}"
    front, behind = standing.front, standing.behind
    ahead = [rank for rank in standing.newest if rank not in behind]
    if not behind:
        return f"{group}: {named(ahead)} entered {_name(front)} last"
    last = ", ".join(f"{named([rank])}: {_name(standing.newest[rank])}" for rank in behind[:4])
    verb = "has" if len(behind) == 1 else "have"
    return f"{group}: {named(ahead)} entered {_name(front)}; {named(behind)} {verb} not (last, {last})"


def _name(one: Collective) -> str:
    return f"{one.operation.rpartition(':')[2] or '?'} seq {one.number}"


def named(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1, 2"."""
    found = sorted(ranks)
    more = f" and {len(found) - _RANKS_NAMED_MAX} more" if len(found) > _RANKS_NAMED_MAX else ""
    word = "rank" if len(found) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in found[:_RANKS_NAMED_MAX])}{more}"
