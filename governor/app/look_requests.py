"""The request `evidence` of the control socket: begin a look at a run's ranks, or read what they have shown so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from governor.app.request_fields import Refused, whole
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.shown import RankShowed
from governor.core.halt.left_launch import process_row
from governor.core.runs.state import Rank
from governor.daemon.loop import Daemon
from governor.daemon.rank_looks import Look
from governor.ports import ControlRequest
from trainer_shim.wire import PROFILE_STEPS_MAX

RANKS_MAX: Final = 64
_KINDS: Final = ("collectives", "profile")

MayControl = Callable[[Daemon, ControlRequest, str], bool]


def look_at(daemon: Daemon, request: ControlRequest, may_control: MayControl) -> dict[str, Any]:
    """Refused, or the run's ranks with what each has answered. `what` begins a look, `look` reads one."""
    body, at = request.body, daemon.performer.clock.mono()
    run = body.get("run")
    managed = daemon.node.runs.get(run) if isinstance(run, str) else None
    if managed is None or not isinstance(run, str):
        known = ", ".join(list(daemon.node.runs)[:5]) or "none"
        raise Refused("no_such_run", f"no run {str(run)[:60]!r} here; known: {known}")
    if not may_control(daemon, request, run):
        raise Refused("denied", f"uid {request.uid} neither owns run {run} nor may control this governor")
    if not managed.run.alive:
        raise Refused("no_such_run", f"run {run} has ended: costgov incident show has what was seen at a halt")
    look = _read(daemon, run, body.get("look"), at) if "look" in body else _begin(daemon, managed, body, at)
    ranks = sorted(managed.run.ranks.values(), key=lambda rank: rank.rank)
    return {
        "run": run,
        "look": look.look_id if look is not None else None,
        "is_halting": managed.incident is not None and not managed.incident.is_closed,
        "usual_step_s": managed.run.step_times.median(),
        "ranks": [_row(rank, look, at) for rank in ranks[:RANKS_MAX]],
        "ranks_total": len(ranks),
    }


def _begin(daemon: Daemon, managed: ManagedRun, body: Any, at: MonoNs) -> Look | None:
    what = body.get("what")
    if what is None:
        return None  # The processes alone.
    if what not in _KINDS:
        raise Refused("bad_request", f"what is one of {', '.join(_KINDS)}")
    told = f"a profile is of 1 to {PROFILE_STEPS_MAX} steps"
    steps = whole(body, "steps", 1, PROFILE_STEPS_MAX, told) if what == "profile" else 0
    only = None
    if body.get("rank") is not None:
        told = f"run {managed.run.run} has no rank {str(body['rank'])[:20]} here"
        only = whole(body, "rank", 0, 2**31, told)
        if only not in managed.run.ranks:
            raise Refused("bad_request", told)
    look = daemon.performer.rank_looks.begin(managed, what, at, steps, only)
    if look is None:
        raise Refused("unavailable", "this run was asked a moment ago; try again")
    return look


def _read(daemon: Daemon, run: str, look_id: Any, at: MonoNs) -> Look:
    look = daemon.performer.rank_looks.of(look_id, at) if isinstance(look_id, str) else None
    if look is None or look.run != run:
        raise Refused("bad_request", "no such look, or it is forgotten")
    return look


def _row(rank: Rank, look: Look | None, at: MonoNs) -> dict[str, Any]:
    answer = look.answers.get(rank.rank) if look is not None else None
    return {
        "rank": rank.rank,
        "process": process_row(rank.peer.process),
        "uid": rank.peer.uid,
        "connected": rank.connected,
        "step": rank.step,
        "phase": rank.phase,
        "still_s": round((at - rank.progress_at) / NS_PER_S, 1) if rank.progress_at else None,
        "stack": list(rank.stack),
        "is_waited_for": look is not None and rank.rank in look.waiting,
        "is_unable": look is not None and rank.rank in look.unable,
        "answer": None if answer is None else _answer(answer, at),
    }


def _answer(showed: RankShowed, at: MonoNs) -> dict[str, Any]:
    return {
        "entries": list(showed.entries), "path": showed.path, "step": showed.step, "problem": showed.problem,
        "age_s": round((at - showed.at) / NS_PER_S, 1),
    }  # fmt: skip
