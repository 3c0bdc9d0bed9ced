"""Whether a halt's checkpoint can be had at all: waiting for one that cannot come costs the grace and saves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Verdict
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S, TICK_NS, DurationNs, MonoNs, format_duration
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, NodeFacts
from governor.core.events.effects import Alarm, Ask, Effect
from governor.core.events.inputs import Ack
from governor.core.halt.table import HaltPlan, StopTarget
from governor.core.rules.condition import evidence_of
from governor.core.rules.triggers.budget import TOKENS_REACHED
from governor.core.runs.state import Run


def checkpoint_obstacle(managed: ManagedRun, verdict: Verdict, at: MonoNs) -> str | None:
    """Why nobody need be asked, in words; None where asking may help, or where the verdict wants no checkpoint."""
    if verdict.checkpoint == "none":
        return None
    if managed.is_unattached:
        return "no rank has attached: nobody can be asked for a checkpoint"
    hang = evidence_of(verdict, "hang")
    return _deaf(managed, hang, at) if hang is not None else None


def _deaf(managed: ManagedRun, hang: Mapping[str, Any], at: MonoNs) -> str | None:
    """A step is agreed by every rank (ADR 0003), and its listener speaks for a rank also while its training hangs. One
    that has sent no beat for the whole limit of the verdict (stopped, or the interpreter's lock is never given up) will
    not vote either."""
    limit_s = hang.get("limit_s")
    if not isinstance(limit_s, (int, float)):
        return None
    for rank in managed.run.connected_ranks():
        if rank.beat_at is not None and not rank.said_bye and at - rank.beat_at >= limit_s * NS_PER_S:
            silent = format_duration(at - rank.beat_at)
            return f"rank {rank.rank} has sent no beat for {silent}: no step can be agreed without it"
    return None


# Checkpoints that a rule asks for while the run trains on. No incident is opened, so nothing escalates from one.


FAILURES = frozenset({"failed", "aborted", "declined"})


def ask_for_checkpoint(managed: ManagedRun, verdict: Verdict, at: MonoNs) -> Ask:
    """A checkpoint without a halt: the run trains on. Not an incident, so nothing escalates when it fails."""
    return Ask(
        incident_id=f"{_names_of(managed)}{verdict.rule}.{at}",
        run=managed.run.run,
        checkpoint=verdict.checkpoint if verdict.checkpoint != "none" else "good",
        deadline=MonoNs(at + managed.policy.halt.grace_ns),
        exit_after=False,
        reason=verdict.finding.reason,
    )


def is_merged(managed: ManagedRun, ack: Ack) -> bool:
    """A checkpoint that a rule had asked for was open when the halt's letter came: the rank folded that one into it
    and goes on under its name, to exit. One that is not to exit has not heard of the halt yet."""
    return bool(ack.exit_after) and is_asked(managed, ack)


def is_asked(managed: ManagedRun, ack: Ack) -> bool:
    return ack.incident_id.startswith(_names_of(managed))


def tell_failed(managed: ManagedRun, ack: Ack) -> list[Effect]:
    """A checkpoint without a halt is not asked for again before its rule is quiet: somebody should know. One rank's
    word is the run's."""
    if ack.rank != min(managed.run.ranks):
        return []
    rule = ack.incident_id.removeprefix(_names_of(managed)).rpartition(".")[0]
    why = ack.reason or ack.what
    text = f'the checkpoint of run {managed.run.run} that rule "{rule}" asked for has not been saved: {why}'
    return [Alarm("checkpoint_failed", managed.run.run, text)]


def _names_of(managed: ManagedRun) -> str:
    return f"{managed.run.run}.checkpoint."


# What a halt may take and what it stops: its plan at the verdict, and the bounds that a ceiling reserves for.


# Rung of the provider ladder up to which we climb by ourselves; destroying needs the policy's word.
RUNG_FORCE = 1
RUNG_DESTROY = 2
UNSAVED_MIN_NS = NS_PER_S  # Even a checkpoint a moment old leaves time for one answer.
TICKS_OF_A_HALT = 4  # The verdict's own, and the ends of grace, SIGTERM and SIGKILL: each is met at the next tick.
STOP_REPLY_NS = DurationNs(30 * NS_PER_S)  # The clouds' own time-outs, credentials and call together, end below it.
VERIFY_NS = DurationNs(240 * NS_PER_S)  # Where the provider declares no bound: EC2's, the slowest that we know.


def grace_now(policy: Policy, run: Run, at: MonoNs) -> DurationNs:
    """How long a halt now would wait for a checkpoint: no longer than the work that a kill would lose took."""
    return DurationNs(min(policy.halt.grace_ns, max(UNSAVED_MIN_NS, run.unsaved_ns(at))))


def bounds_ns(facts: NodeFacts, policy: Policy) -> DurationNs:
    """What a halt may take beyond its grace: the declared bounds of ending processes, of the provider, of its bill."""
    ending = policy.halt.term_grace_ns + policy.halt.kill_grace_ns
    return DurationNs(ending + facts.stop_bound_ns + facts.granularity_ns + TICKS_OF_A_HALT * TICK_NS)


def plan_for(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> HaltPlan:
    """What this halt may take. Grace: never longer than the work that a kill would lose is worth."""
    settings = managed.policy.halt
    grace = grace_now(managed.policy, managed.run, at)
    someone = any("ask" in rank.capabilities for rank in managed.run.connected_ranks())
    someone = someone and checkpoint_obstacle(managed, verdict, at) is None
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
    wanted = managed.policy.halt.stop
    if verdict.finding.reason == TOKENS_REACHED:
        # The run is complete: as when it ends by itself, what becomes of the machine is `on_finish`.
        wanted = "auto" if managed.policy.run_on_finish == "stop" else "processes"
    # "job": no scheduler is spoken to yet, and whoever wrote it wants the machine kept. A job ends with its processes.
    if wanted in ("processes", "job") or node.facts.cloud == "none":
        return StopTarget.PROCESSES
    if wanted == "instance":
        return StopTarget.INSTANCE
    # auto: only what is ours alone, and only when the checkpoint survives it.
    others = [name for name in node.holders() if name != managed.run.run]
    if others or node.strangers() or not node.facts.can_stop or node.facts.survives_stop is False:
        return StopTarget.PROCESSES
    return StopTarget.INSTANCE


def node_plan(facts: NodeFacts) -> HaltPlan:
    """Of the stop of a node that nobody uses: nothing to save, nobody to end, and never destroyed."""
    return HaltPlan(
        checkpoint="none",
        grace_ns=DurationNs(0),
        save_grace_ns=DurationNs(0),
        term_grace_ns=DurationNs(0),
        kill_grace_ns=DurationNs(TICK_NS),  # Never begun.
        stop=StopTarget.INSTANCE,
        stop_reply_ns=STOP_REPLY_NS,
        verify_ns=facts.stop_bound_ns or VERIFY_NS,
        rung_max=RUNG_FORCE,
    )
