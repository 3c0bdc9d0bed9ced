"""Where the ranks of a run's other nodes stand, as their governors tell: for rules that ask whether anybody moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from governor.core.base.units import MonoNs


@dataclass(frozen=True, slots=True)
class OtherNode:
    """One other node of the launch that has not ended its part."""

    node: str
    ranks: int
    moved_at: MonoNs | None  # When the last of its ranks moved. None: none is connected there.
    is_excused: bool  # A rank there does what may take long: it starts, evaluates, saves, waits for its data.
    is_silent: bool  # Its governor has not spoken for five seconds: what it told before is no news.
    spoke_at: MonoNs = MonoNs(0)


def last_moved(own: MonoNs, others: Sequence[OtherNode]) -> MonoNs:
    """When the last rank of the run moved, so far as governors speak."""
    told = (one.moved_at for one in others if not one.is_silent and one.moved_at is not None)
    return max((own, *told))


def ranks_of(others: Sequence[OtherNode]) -> int:
    return sum(one.ranks for one in others)


def excused(others: Sequence[OtherNode]) -> bool:
    """Whether a rank elsewhere, of which its governor speaks, does what may take long."""
    return any(one.is_excused and not one.is_silent for one in others)


def silent(others: Sequence[OtherNode]) -> list[str]:
    """The nodes whose governors are silent. Whether their ranks move, nobody knows."""
    return [one.node for one in others if one.is_silent]


def silent_since(others: Sequence[OtherNode]) -> MonoNs:
    """When the last of the silent governors spoke. Until then its ranks stood where it has told."""
    return max((one.spoke_at for one in others if one.is_silent), default=MonoNs(0))


def say_silent(others: Sequence[OtherNode]) -> str:
    """Go on about ranks that stand still: whose governor is silent."""
    names = silent(others)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"; nothing is heard of node {', '.join(names[:3])}{more}" if names else ""
