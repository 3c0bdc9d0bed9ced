"""What all ranks of a run have told since it was last divided, as one sum by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from governor.core.attribution.causes import Cause, Shares, apportion
from governor.core.attribution.hardware_time import HardwareTime
from governor.core.attribution.lateness import STEPS_MIN
from governor.core.attribution.open_end import STILL_TIMES, Still
from governor.core.attribution.rank_line import Piece, RankLine
from governor.core.attribution.split import split
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration

# A window has enough steps for a straggler to show, and a price change falls into few.
WINDOW_NS: Final = 10 * NS_PER_S
# Three steps of a large model are told by then. Where ranks meet less often, waits are weak.
WINDOW_MAX_NS: Final = 300 * NS_PER_S
# So much longer than the edge at which not all ranks have told their steps is the window.
EDGE_TIMES: Final = 10
# Who tells nothing for so long, and for several of its steps, while others step on: its window ends without it.
SILENT_NS: Final = 60 * NS_PER_S
# Told by what ranks wait for each other, or less that.
OF_WAITS: Final = (Cause.STRAGGLER, Cause.IMBALANCE, Cause.COMMUNICATION)
UNDER_WAY: Final = (Cause.NOT_TOLD, Cause.HANG, Cause.UNKNOWN)  # In a view: what a step yet to come may tell otherwise.


class Told(NamedTuple):
    by_cause: dict[Cause, int]
    slow_rank: int | None  # For which the others waited.
    weak: Shares
    usual: dict[Cause, int]  # How the steps were divided: these, or the last ones.


def is_due(lines: Iterable[RankLine], since_ns: int) -> bool:
    """Whether the window ends. `since_ns`: since it began.

    It waits for as many steps in common as tell who is slow. Where ranks meet in few of their steps it waits for them
    to meet: who is ahead has not waited yet for what the others lose, and steps at an edge are not compared.
    """
    if since_ns < WINDOW_NS or since_ns >= WINDOW_MAX_NS:
        return since_ns >= WINDOW_NS
    return not is_too_short(lines, since_ns)


def is_too_short(ranks: Iterable[RankLine], since_ns: int) -> bool:
    """Whether a window of ranks that live, taken now, does not tell who waits for whom.

    By numbers alone, and not by each step that is kept: this is asked at every tick.
    """
    lines = _waited_for(list(ranks))
    told = [line for line in lines if line.sums.steps]
    if len(lines) < 2 or not told:
        return False
    if any(not line.sums.steps and not line.is_finished for line in lines):
        return True  # One is in a step as long as the window, and the others may step on until they meet it.
    lasts, ends = [line.last_step or 0 for line in told], [line.stepped_to for line in told]
    common, ahead, apart_ns = min(line.sums.steps for line in told), max(lasts) - min(lasts), max(ends) - min(ends)
    return common < STEPS_MIN or common < EDGE_TIMES * ahead or since_ns < EDGE_TIMES * apart_ns


def _waited_for(lines: list[RankLine]) -> list[RankLine]:
    """Without those that fell silent while others stepped on past them. Who waits for the others is ahead of them."""
    furthest = max((line.last_step or 0 for line in lines), default=0)
    newest = max((line.stepped_to for line in lines), default=MonoNs(0))
    return [line for line in lines if line.last_step == furthest or not _is_silent(line, newest - line.stepped_to)]


def _is_silent(line: RankLine, ns: int) -> bool:
    return ns > SILENT_NS and ns > STILL_TIMES * (line.ordinary_ns or 0)


def told_by(
    lines: Mapping[int, RankLine], usual: Shares, hardware: HardwareTime, *, taken: bool, is_short: bool = False
) -> Told:
    """`taken`: the next window begins. Else it is a view. `usual`: of the steps before these.

    `is_short`: see is_too_short(). What ranks wait is then weak, here and in the next window with steps of theirs.
    """
    sums, told, weak, like_ns = {}, dict[Cause, int](), dict[Cause, int](), 0
    is_weak = is_short or any(line.is_behind_short for line in lines.values() if line.sums.steps)
    for rank, line in lines.items():
        mine, direct, unsure = line.take() if taken else (line.sums, line.direct, line.weak)
        if mine.steps:
            sums[rank] = mine
            line.is_behind_short = is_short if taken else line.is_behind_short
        sum_into(told, direct.items())
        sum_into(weak, unsure.items())
        like_ns += line.like_ns
        if taken:
            line.like_ns = 0
    found = split(sums, hardware.take(sums) if taken else hardware.losses(sums))
    usual = found.by_cause if sum(found.by_cause.values()) else usual
    sum_into(told, found.by_cause.items())
    sum_into(weak, found.weak.items())
    if is_weak:
        weak |= {cause: ns for cause in OF_WAITS if (ns := found.by_cause.get(cause))}
    if like_ns:
        sum_into(told, apportion(like_ns, usual).items())
    return Told(told, found.slow_rank, weak, dict(usual))


def shown_by(
    living: Mapping[int, RankLine], gone: Mapping[int, RankLine], usual: Shares, hardware: HardwareTime, at: MonoNs
) -> dict[Cause, int]:
    """As told_by(), for a view: with what the living have not told yet, as if they ended at `at`."""
    weights = told_by({**gone, **living}, usual, hardware, taken=False).by_cause
    for line in living.values():
        healthy_to = max(line.told_to, hardware.until_fault(at))
        sum_into(weights, [(Cause.NOT_TOLD, line.pending_ns), *_pairs(line.tail(healthy_to))])
        if at > healthy_to:
            sum_into(weights, [(Cause.HARDWARE, at - healthy_to)])
    return weights


def _pairs(pieces: Iterable[Piece]) -> Iterable[tuple[Cause, int]]:
    return ((piece.cause, piece.ns) for piece in pieces)


def ordinary_of(lines: Iterable[RankLine]) -> int | None:
    """An ordinary step of the run, as the rank with the longest ones has it."""
    return max((ns for line in lines if (ns := line.ordinary_ns) is not None), default=None)


def stood_still(lines: Mapping[int, RankLine]) -> str | None:
    """Of ranks that were cut: which one had not spoken for longest."""
    return _longest({rank: line.still for rank, line in lines.items()}, len(lines))


def stands_still(lines: Mapping[int, RankLine], at: MonoNs) -> tuple[str, bool] | None:
    """Of ranks that live: which one stands still for longest, and whether in a phase."""
    found = {rank: still for rank, line in lines.items() if (still := line.stands(at, is_cut=False)) is not None}
    text = _longest(found, len(lines))
    return (text, all(still.what for still in found.values())) if text is not None else None


def _longest(found: Mapping[int, Still], ranks: int) -> str | None:
    """`ranks`: so many lived. Where they differ, the reader learns why the cause has fewer seconds than the longest.

    The one for which the others wait is named, else the first one to stand, with those that nobody can tell from it.
    """
    key = {rank: (still.ns > 0 and still.is_suspect, still.ns, still.own_ns, -rank) for rank, still in found.items()}
    rank = max(found, key=lambda rank: key[rank], default=None)
    if rank is None or not found[rank].ns:
        return None
    alike = [one for one in sorted(found) if key[one][0] == key[rank][0] and found[one].is_like(found[rank])]
    mean_ns = sum(still.ns for still in found.values()) // ranks
    is_mean = format_duration(DurationNs(mean_ns)) != format_duration(DurationNs(found[rank].ns))
    return found[rank].words(alike) + (f"; the cause's seconds are the mean of {ranks} ranks" if is_mean else "")


def told_row(told: Shares, weak: Shares) -> dict[str, list[int]]:
    """Of every cause: a part that is weak is one of all that was told."""
    return {cause.value: [ns, weak.get(cause, 0)] for cause, ns in told.items()}


def restored_told(row: Mapping[str, Any]) -> tuple[dict[Cause, int], dict[Cause, int]]:
    """From a journal: rank-time by cause, and what of it is weak. An older journal has only what is weak."""
    kept = row["told"] if "told" in row else row.get("weak", {})
    told = {Cause(name): (int(ns), int(weak)) for name, (ns, weak) in kept.items()}
    return {cause: ns for cause, (ns, _) in told.items()}, {cause: weak for cause, (_, weak) in told.items() if weak}


def restored_shown(row: Mapping[str, Any]) -> tuple[Shares, Shares]:
    """From a journal: how its pool was shown, and what of that was under way: that is NOT_TOLD in the first.

    An older journal does not say: all of it is under way.
    """
    shown = {Cause(name): int(ns) for name, ns in row.get("shown", {}).items()}
    kept: Shares = {cause: shown.pop(cause) for cause in UNDER_WAY if cause in shown}
    return {**shown, Cause.NOT_TOLD: sum(kept.values()) if shown or kept else 1}, kept


def sum_into(told: dict[Cause, int], more: Iterable[tuple[Cause, int]]) -> None:
    for cause, ns in more:
        told[cause] = told.get(cause, 0) + ns
