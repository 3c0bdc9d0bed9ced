"""What a halt asks for, how long it may take, and what it stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Verdict
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S, TICK_NS, DurationNs, MonoNs, format_duration
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, NodeFacts
from governor.core.halt.table import HaltPlan, StopTarget
from governor.core.rules.condition import evidence_of
from governor.core.rules.triggers.budget import TOKENS_REACHED
from governor.core.runs.state import Run


def checkpoint_obstacle(managed: ManagedRun, verdict: Verdict, at: MonoNs) -> str | None:
    """Why no checkpoint can come, in words. Waiting for it would cost the grace and save nothing.

    None if asking may help, or if the verdict wants no checkpoint.
    """
    if verdict.checkpoint == "none":
        return None
    if managed.is_unattached:
        return "no rank has attached: nobody can be asked for a checkpoint"
    hang = evidence_of(verdict, "hang")
    return _rank_without_beats(managed, hang, at) if hang is not None else None


def _rank_without_beats(managed: ManagedRun, hang: Mapping[str, Any], at: MonoNs) -> str | None:
    """Why a hanging run cannot agree on a step: one rank has sent no beat for the verdict's whole limit.

    Every rank agrees to a checkpoint's step (ADR 0003). A rank's listener answers also while its training hangs. A rank
    without beats (stopped, or the interpreter's lock is never given up) does not vote either.
    """
    limit_s = hang.get("limit_s")
    if not isinstance(limit_s, (int, float)):
        return None
    for rank in managed.run.connected_ranks():
        if rank.beat_at is not None and not rank.said_bye and at - rank.beat_at >= limit_s * NS_PER_S:
            silent = format_duration(at - rank.beat_at)
            return f"rank {rank.rank} has sent no beat for {silent}: no step can be agreed without it"
    return None


# The highest rung of the provider ladder without a setting. Destroying needs the policy's `destroy`.
RUNG_FORCE = 1
RUNG_DESTROY = 2
UNSAVED_MIN_NS = NS_PER_S  # Time for one answer, even right after a checkpoint.
# The verdict's tick, and the ends of grace, SIGTERM and SIGKILL: each is met at the next tick.
TICKS_OF_A_HALT = 4
# The clouds' own time-outs, for credentials and call together, are shorter.
STOP_REPLY_NS = DurationNs(30 * NS_PER_S)
# For a provider that declares no bound: EC2's, the slowest that we know.
VERIFY_NS = DurationNs(240 * NS_PER_S)


def grace_now(policy: Policy, run: Run, at: MonoNs) -> DurationNs:
    """How long a halt now waits for a checkpoint: no longer than the time of the work that a kill would lose."""
    return DurationNs(min(policy.halt.grace_ns, max(UNSAVED_MIN_NS, run.unsaved_ns(at))))


def bounds_ns(facts: NodeFacts, policy: Policy) -> DurationNs:
    """How long a halt may take beyond its grace: the bounds of ending processes, of the provider, and of its bill."""
    ending = policy.halt.term_grace_ns + policy.halt.kill_grace_ns
    return DurationNs(ending + facts.stop_bound_ns + facts.granularity_ns + TICKS_OF_A_HALT * TICK_NS)


def plan_for(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs, *, in_vain: bool) -> HaltPlan:
    """The plan of this halt. See grace_now() for its grace. `in_vain`: asking for a checkpoint cannot help."""
    settings = managed.policy.halt
    grace = grace_now(managed.policy, managed.run, at)
    someone = not in_vain and any("ask" in rank.capabilities for rank in managed.run.connected_ranks())
    return HaltPlan(
        checkpoint=verdict.checkpoint if someone else "none",
        grace_ns=grace,
        save_grace_ns=grace,
        term_grace_ns=settings.term_grace_ns,
        kill_grace_ns=settings.kill_grace_ns,
        stop=_stop_target(node, managed, verdict),
        stop_reply_ns=STOP_REPLY_NS,
        verify_ns=node.facts.stop_bound_ns or VERIFY_NS,
        rung_max=RUNG_DESTROY if settings.destroy else RUNG_FORCE,
    )


def _stop_target(node: Node, managed: ManagedRun, verdict: Verdict) -> StopTarget:
    if managed.is_strangers:  # The machine is the command's.
        return StopTarget.PROCESSES
    wanted = managed.policy.halt.stop
    if verdict.finding.reason == TOKENS_REACHED:
        # The run is complete: `on_finish` decides about the machine, as when a run ends by itself.
        wanted = "auto" if managed.policy.run_on_finish == "stop" else "processes"
    # "job": no scheduler is supported yet. Its author wants to keep the machine, and a job ends with its processes.
    if wanted in ("processes", "job") or node.facts.cloud == "none":
        return StopTarget.PROCESSES
    if wanted == "instance":
        return StopTarget.INSTANCE
    # auto: stop only a machine that no one else uses, and only if the checkpoint survives the stop.
    held = (*node.holders(), *(name for name, other in node.runs.items() if other.is_strangers and other.run.alive))
    others = [name for name in held if name != managed.run.run]
    if others or node.foreign_gpu_pids() or not node.facts.can_stop or node.facts.survives_stop is False:
        return StopTarget.PROCESSES
    return StopTarget.INSTANCE


def node_plan(facts: NodeFacts) -> HaltPlan:
    """The plan for stopping a node that nobody uses: nothing to save, no process to end, never destroyed."""
    return HaltPlan(
        checkpoint="none",
        grace_ns=DurationNs(0),
        save_grace_ns=DurationNs(0),
        term_grace_ns=DurationNs(0),
        kill_grace_ns=DurationNs(TICK_NS),  # Never used.
        stop=StopTarget.INSTANCE,
        stop_reply_ns=STOP_REPLY_NS,
        verify_ns=facts.stop_bound_ns or VERIFY_NS,
        rung_max=RUNG_FORCE,
    )
