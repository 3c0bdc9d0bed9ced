"""Whether a halt's checkpoint can be had at all: waiting for one that cannot come costs the grace and saves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Verdict
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.engine.node import Tracked
from governor.core.rules.composition import evidence_of


def obstacle(tracked: Tracked, verdict: Verdict, at: MonoNs) -> str | None:
    """Why nobody need be asked, in words; None where asking may help, or where the verdict wants no checkpoint."""
    if verdict.checkpoint == "none":
        return None
    if tracked.is_unattached:
        return "no rank has attached: nobody can be asked for a checkpoint"
    hang = evidence_of(verdict, "hang")
    return _deaf(tracked, hang, at) if hang is not None else None


def _deaf(tracked: Tracked, hang: Mapping[str, Any], at: MonoNs) -> str | None:
    """A step is agreed by every rank (ADR 0003), and its listener speaks for a rank also while its training hangs. One
    that has sent no beat for the whole limit of the verdict (stopped, or the interpreter's lock is never given up) will
    not vote either."""
    limit_s = hang.get("limit_s")
    if not isinstance(limit_s, (int, float)):
        return None
    for rank in tracked.run.connected_ranks():
        if rank.beat_at is not None and not rank.said_bye and at - rank.beat_at >= limit_s * NS_PER_S:
            silent = format_duration(at - rank.beat_at)
            return f"rank {rank.rank} has sent no beat for {silent}: no step can be agreed without it"
    return None
