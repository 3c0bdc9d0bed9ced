"""Who speaks for a run: its user, its ranks or its log, and what they call it."""

from __future__ import annotations

from collections.abc import Mapping

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.runs.rank_tokens import RankTokens
from governor.core.runs.state import Run


def stand_in(run: Run, uid: int) -> None:
    """Let the run stand in for a launched command. No frames are missed, because no rank has spoken."""
    run.uid = uid  # A halt now ends this user's processes.
    run.jsonl_only = False
    run.last_frame_at = None


def forget_frames(run: Run) -> None:
    """No rank has ever spoken for it: its silence says nothing."""
    run.last_frame_at = None


def drop_ranks(run: Run) -> None:
    """Let the run go on without ranks. What the attempt has trained stays, and no rank is left that can save."""
    run.completed = run.ended_well
    forget_ranks(run)
    run.tokens_per_s = None
    # A halt does not wait for a save, and no ceiling reserves for one.
    run.working_since = None


def forget_ranks(run: Run) -> None:
    run.ranks.clear()
    run.rank_tokens = RankTokens()
    run.ranks_before = frozenset()


def drop_process(run: Run, process: ProcessId) -> list[ConnectionId]:
    """Forget the ranks that this process was. Returns their connections: the process is of another run."""
    its = [rank for rank in run.ranks.values() if rank.peer.process == process]
    for rank in its:
        del run.ranks[rank.rank]
    return [rank.connection for rank in its if rank.connection is not None]


def set_uid(run: Run, uid: int) -> None:
    """Set the run's user: that of its ranks, or of the processes that a log's owner named."""
    run.uid = uid


def relabel(run: Run, stage: str | None, labels: Mapping[str, str]) -> None:
    """Set stage and labels. An absent stage or empty labels keep the previous ones."""
    run.stage = stage if stage is not None else run.stage
    run.labels = labels or run.labels


def set_jsonl_only(run: Run, *, only: bool) -> None:
    """Follow the run's log. `only`: the run has a log and no ranks."""
    run.jsonl_only = only
