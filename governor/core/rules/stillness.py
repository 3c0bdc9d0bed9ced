"""What ranks show that stand still: who sleeps in its data, who waits for others, and the evidence of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.events.fetch import Fetch
from governor.core.runs.state import Rank, Run

STACK_FRAMES_SHOWN: Final = 12
# A loader's start has workers to start and buffers to fill, an epoch's order to draw. How long that takes is known once
# it has been started twice: the first start of an attempt is often quicker, because less has been read by then.
STARTS_MIN: Final = 2
# For other nodes. A rule of theirs may take more of them for a start.
FIRST_STEPS: Final = 20
BEAT_FRESH_NS: Final = 5 * NS_PER_S
QUIET_NS: Final = 120 * NS_PER_S  # A native call may hold the interpreter's lock for so long.
FRAME_CHARS_MAX: Final = 100  # In a sentence.


def judged(run: Run) -> list[Rank]:
    """The ranks whose progress counts: they are connected, and have not said that they end."""
    return [rank for rank in run.ranks.values() if rank.connected and not rank.said_bye]


def moved_at(ranks: Sequence[Rank]) -> MonoNs:
    """When the last one of them moved. A rank that moves excuses all others, which may wait for it."""
    return max(rank.progress_at for rank in ranks)


def still_since(run: Run) -> MonoNs | None:
    """From when on none of its ranks moves, as the rule `hang` counts it. None: it has none."""
    ranks = judged(run)
    return moved_at(ranks) if ranks else None


def is_excused(run: Run, at: MonoNs) -> bool:
    """Whether one of its ranks does what may take long, so that the others wait for it: anything but computing."""
    if run.attempt_step < FIRST_STEPS:
        return True
    return any(not computes(rank) or is_first_step(rank) or _is_quiet(rank, at) for rank in judged(run))


def _is_quiet(rank: Rank, at: MonoNs) -> bool:
    """Whether it sends no beats, and not for so long that something must be wrong."""
    return _is_silent(rank, at, BEAT_FRESH_NS) and at - rank.progress_at < QUIET_NS


def is_first_step(rank: Rank) -> bool:
    """Whether no step of it has ended since its phase changed: what follows an evaluation compiles again."""
    return rank.step_at is None or rank.phase_at > rank.step_at


def computes(rank: Rank) -> bool:
    """Whether it is inside a step, or waits there for a device or for other ranks."""
    return rank.phase == "train" and ((rank.in_step and not sleeps_in_data(rank)) or rank.device_wait is not None)


class DataSleep(NamedTuple):
    """Some ranks are inside a fetch of data, and every other rank waits for them."""

    asleep: tuple[Rank, ...]
    waiting: tuple[Rank, ...]
    since: MonoNs  # When the last of them asked for its batch.
    longest_ns: int  # Of the fetches of all ranks that have ended.


def data_sleep(ranks: Sequence[Rank]) -> DataSleep | None:
    """Return who sleeps and who waits. None unless each rank does one of both, and each sleeper's loader is known."""
    asleep, waiting, last_since = [], [], MonoNs(0)
    for rank in ranks:
        since = rank.fetching_since
        if since is not None and sleeps_in_data(rank):
            if _is_start(rank.fetch):
                return None
            asleep.append(rank)
            last_since = max(last_since, since)
        elif rank.in_step or _waits_for_others(rank):
            waiting.append(rank)
        else:
            return None
    if not asleep or not waiting:
        return None
    longest_ns = max(rank.fetch.longest_ns for rank in ranks if rank.fetch is not None)
    return DataSleep(tuple(asleep), tuple(waiting), last_since, longest_ns)


def _is_start(fetch: Fetch | None) -> bool:
    """Whether it is the first batch of a loader that has been started too seldom to know how long that takes."""
    return fetch is not None and fetch.starts is not None and fetch.starts < STARTS_MIN


def sleeps_in_data(rank: Rank) -> bool:
    """Whether it is inside a fetch of data, wherever in its step, and not in a call that waits for others."""
    return rank.fetching_since is not None and not _waits_for_others(rank)


def _waits_for_others(rank: Rank) -> bool:
    return rank.device_wait is not None or (rank.collective or {}).get("done") is False


def say_data_sleep(sleep: DataSleep, at: MonoNs) -> str:
    """Name both facts in a sentence: who sleeps where, and who waits for it in what."""
    asleep, others = sleep.asleep[0], len(sleep.asleep) - 1
    more = f" and {others} more" if others else ""
    waiting, rest = sleep.waiting[0], len(sleep.waiting) - 1
    also = f", as do {rest} more" if rest else ""
    return (
        f"rank {asleep.rank}{more} has waited for data for {format_duration(at - sleep.since)}{_place(asleep)}, "
        f"and rank {waiting.rank} waits for it in {_wait_of(waiting)}{_place(waiting)}{also}"
    )


def _wait_of(rank: Rank) -> str:
    if rank.last_hook is not None and rank.last_hook.startswith("comm:"):
        return rank.last_hook.removeprefix("comm:")[:FRAME_CHARS_MAX]
    return rank.device_wait or "its step"


def _place(rank: Rank) -> str:
    return f" ({rank.stack[0][:FRAME_CHARS_MAX]})" if rank.stack else ""


def say_stillness(ranks: Sequence[Rank], still_ns: int) -> str:
    who = f"none of {len(ranks)} ranks has" if len(ranks) > 1 else "the run has not"
    return f"{who} made progress for {format_duration(still_ns)}"


def say_where(ranks: Sequence[Rank], suspected: Sequence[int], at: MonoNs, beat_fresh_ns: int) -> str:
    """Go on about ranks that all stand still: who waits for data, where a run's only rank is, at whom to look."""
    look = f"; look at rank {', '.join(map(str, suspected))}" if suspected else ""
    beating = [rank for rank in ranks if not _is_silent(rank, at, beat_fresh_ns)]
    asleep = [rank for rank in beating if sleeps_in_data(rank)]
    if asleep:
        since = min(rank.fetching_since or at for rank in asleep)
        who = f"rank {asleep[0].rank}" if len(ranks) > 1 else "it"
        who, has = (f"{who} and {len(asleep) - 1} more", "have") if len(asleep) > 1 else (who, "has")
        return f": {who} {has} waited for data for {format_duration(at - since)}{_place(asleep[0])}{look}"
    if len(ranks) == 1 and ranks[0].stack:
        return f": it {'is' if beating else 'was last seen'} in {ranks[0].stack[0][:FRAME_CHARS_MAX]}{look}"
    return look


def _is_silent(rank: Rank, at: MonoNs, beat_fresh_ns: int) -> bool:
    return rank.beat_at is not None and at - rank.beat_at >= beat_fresh_ns


def suspects(ranks: Sequence[Rank], at: MonoNs, beat_fresh_ns: int) -> list[int]:
    """Ranks that the others probably wait for: the silent ones, else those that entered fewer collectives."""
    silent = [rank.rank for rank in ranks if _is_silent(rank, at, beat_fresh_ns)]
    if silent and len(silent) < len(ranks):
        return silent
    counts = {rank.rank: (rank.collective or {}).get("count") for rank in ranks}
    known = [count for count in counts.values() if isinstance(count, int)]
    if len(known) < len(ranks) or not known or min(known) == max(known):
        return []
    return [rank for rank, count in counts.items() if count == min(known)]


def describe(rank: Rank, at: MonoNs) -> dict[str, Any]:
    since = rank.fetching_since
    return {
        "rank": rank.rank,
        "pid": rank.peer.process.pid,
        "step": rank.step,
        "phase": rank.phase,
        "phase_s": round((at - rank.phase_at) / NS_PER_S, 3),
        "still_s": round((at - rank.progress_at) / NS_PER_S, 3),
        "beat_age_s": round((at - rank.beat_at) / NS_PER_S, 3) if rank.beat_at is not None else None,
        "in_step": rank.in_step,
        "last_hook": rank.last_hook,
        **({"fetching_s": round((at - since) / NS_PER_S, 3)} if since is not None else {}),
        "device_wait": rank.device_wait,
        "collective": dict(rank.collective) if rank.collective is not None else None,
        "stack": list(rank.stack[:STACK_FRAMES_SHOWN]),
    }
