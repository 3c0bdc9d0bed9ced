"""What a halt asks for, how long it may take, and what it stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from governor.core.base.findings import Response, Verdict
from governor.core.base.identity import JOB_LABEL, JOB_NAME, SchedulerJob, job_parts
from governor.core.base.policy import Mode, Policy
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, TICK_NS, DurationNs, MonoNs, UsdMicros, format_duration
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, NodeFacts
from governor.core.fleet.members import SILENT_NS
from governor.core.halt.table import HaltPlan, StopTarget
from governor.core.money.ceiling_forecast import ReserveGrowth
from governor.core.money.ledger import reserve
from governor.core.rules.condition import evidence_of
from governor.core.rules.triggers.budget import TOKENS_REACHED
from governor.core.rules.triggers.gpu_fault import GpuFault
from governor.core.runs.other_nodes import silent
from governor.core.runs.state import Run


def checkpoint_obstacle(managed: ManagedRun, verdict: Verdict, at: MonoNs) -> str | None:
    """Why no checkpoint can come, in words. Waiting for it would cost the grace and save nothing.

    None if asking may help, or if the verdict wants no checkpoint.
    """
    if verdict.checkpoint == "none":
        return None
    if managed.is_unattached:
        return "no rank has attached: nobody can be asked for a checkpoint"
    if quiet := silent(managed.run.other_nodes):
        return f"nothing is heard of node {', '.join(quiet[:3])}: no step can be agreed without its ranks"
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


# What a halt may take of the time that the whole ceiling lasts at the present rate. Otherwise half of a ceiling of some
# minutes would stay unused, for a save and for deaf processes that may never come.
SAVE_PERCENT = 10
ENDING_PERCENT = 6
ENDING_MIN_NS = NS_PER_S  # For each of SIGTERM and SIGKILL.
FIXED_POINT_MAX = 12  # A larger ceiling gives its halt more time. Each round leaves a sixth of the error.
# A save that has not come by so much of the run's usual time between two is no longer foreseen.
OVERDUE_PERCENT = 125
SAVES_TO_ALLOW = 2  # A save may take twice what the longest one took.


@dataclass(frozen=True, slots=True)
class HaltTimes:
    """How long each part of a halt may take. The reserve of a ceiling pays for all of it, and the halt keeps to it."""

    grace_ns: DurationNs  # The checkpoint.
    term_ns: DurationNs
    kill_ns: DurationNs
    beyond_ns: DurationNs  # The provider's bound, its bill's granularity, and our own ticks.

    @property
    def whole_ns(self) -> DurationNs:
        return DurationNs(self.grace_ns + self.term_ns + self.kill_ns + self.beyond_ns)


def lasts_ns(ceiling_usd_micros: int | None, rate_usd_micros_per_hour: int | None) -> int | None:
    """How long the whole ceiling lasts at this rate. None without a ceiling, and while nothing is spent."""
    if ceiling_usd_micros is None or not rate_usd_micros_per_hour:
        return None
    return ceiling_usd_micros * NS_PER_HOUR // rate_usd_micros_per_hour


def shortest_ns(managed: ManagedRun, *more: int | None) -> int | None:
    """How long the ceiling of the run lasts that lasts least, of its own, of its groups' and of `more`."""
    run = managed.run
    own = lasts_ns(own_ceiling(managed.policy), run.spend_rate_usd_micros_per_hour)
    if not run.caps and not more:  # Nearly every tick.
        return own
    wholes = ((cap.whole_usd_micros or cap.ceiling_usd_micros, cap.rate_usd_micros_per_hour) for cap in run.caps)
    groups = (lasts_ns(ceiling, rate) for ceiling, rate in wholes)
    return min((lasts for lasts in (own, *groups, *more) if lasts is not None), default=None)


def own_ceiling(policy: Policy) -> int | None:
    """The ceiling at which the policy halts; None for one that it only observes or warns of.

    The rule decides: that of `--ceiling` is enforced under a policy that else observes.
    """
    if policy.budget.ceiling_usd_micros is None:
        return None
    halts = (
        rule.mode is Mode.ENFORCE and rule.response is Response.HALT
        for rule in policy.rules
        if rule.trigger == "budget" and not rule.params.get("caps_only")
    )
    return policy.budget.ceiling_usd_micros if any(halts) else None


def _spare_ns(managed: ManagedRun) -> int:
    """How long its own ceiling pays for beyond what is reserved for its halt. What a group has left is others' too."""
    run, ceiling = managed.run, own_ceiling(managed.policy)
    rate = run.spend_rate_usd_micros_per_hour
    if ceiling is None or run.caps or not rate:
        return 0
    room = ceiling - run.spend_usd_micros - (run.reserve_usd_micros or 0)
    return max(0, room * NS_PER_HOUR // rate - TICK_NS)  # A frame's verdict comes after the last tick.


def longest_save_ns(run: Run) -> int:
    """Of the saves that a halt asked for, and of the run's own."""
    return max(run.save_longest_ns or 0, round((run.saves.took_s.median() or 0.0) * NS_PER_S))


def save_bound_ns(policy: Policy, longest_save_ns: int, lasts: int | None) -> DurationNs:
    """The longest that a halt may wait for a checkpoint. `lasts`: of the shortest ceiling; None without one."""
    if lasts is None:
        return policy.halt.grace_ns
    share = max(UNSAVED_MIN_NS, lasts * SAVE_PERCENT // 100, SAVES_TO_ALLOW * longest_save_ns)
    return DurationNs(min(policy.halt.grace_ns, share))


def reserve_growth(managed: ManagedRun, at: MonoNs, *more: int | None) -> ReserveGrowth:
    """How a halt becomes longer as more work is unsaved: until the bound, or until the run saves.

    Only a rank can tell of a save: of a log all work counts as unsaved.

    Before the first step it may become all of it: nearly every ceiling lasts longer than the start. `more`: how long
    other ceilings last, as for `shortest_ns`.
    """
    run = managed.run
    if run.working_since is None and (managed.is_unattached or run.first_step_at is not None):
        return ReserveGrowth()  # Nobody trains.
    lasts, unsaved = shortest_ns(managed, *more), run.unsaved_ns(at)
    bound = save_bound_ns(managed.policy, longest_save_ns(run), lasts)
    held = min(bound, max(UNSAVED_MIN_NS, unsaved))
    cycle = round(run.saves.rhythm_ns.median() or 0.0)
    save_in = max(0, cycle - unsaved) if unsaved * 100 < cycle * OVERDUE_PERCENT else None
    least = None if run.jsonl_only else min(bound, UNSAVED_MIN_NS)
    return ReserveGrowth(bound - held, held, save_in, cycle, least_ns=least)


def halt_times(facts: NodeFacts, policy: Policy, lasts: int | None, run: Run | None, at: MonoNs) -> HaltTimes:
    """The bounds of a halt now. `run` None: of the shortest halt, right after a checkpoint.

    It waits for a checkpoint no longer than the time of the work that a kill would lose.
    """
    unsaved = run.unsaved_ns(at) if run is not None else 0
    longest = longest_save_ns(run) if run is not None and lasts is not None else 0  # Only a ceiling shortens a save.
    grace = min(save_bound_ns(policy, longest, lasts), max(UNSAVED_MIN_NS, unsaved))
    term, kill = policy.halt.term_grace_ns, policy.halt.kill_grace_ns
    if lasts is not None and term + kill > (share := lasts * ENDING_PERCENT // 100):
        whole = term + kill
        term, kill = (DurationNs(min(own, max(ENDING_MIN_NS, own * share // whole))) for own in (term, kill))
    bound = max(facts.stop_bound_ns, facts.scheduler.bound_ns)
    # The node of rank 0 may wait for the others: see `others_ns`.
    waits = SILENT_NS + term + kill if run is not None and run.other_nodes and 0 in run.known_ranks() else 0
    beyond = DurationNs(bound + facts.granularity_ns + TICKS_OF_A_HALT * TICK_NS + waits)
    return HaltTimes(DurationNs(grace), term, kill, beyond)


def least_ceiling(facts: NodeFacts, policy: Policy, ceiling_usd_micros: UsdMicros) -> UsdMicros:
    """What a halt under this ceiling costs at least; under a smaller one that is too small, what one must be above."""
    rate, needed = facts.usd_micros_per_hour or 0, ceiling_usd_micros
    for _ in range(FIXED_POINT_MAX):
        lasts = lasts_ns(needed, rate)
        needed = reserve(rate, halt_times(facts, policy, lasts, None, MonoNs(0)).whole_ns)
        if needed <= ceiling_usd_micros:
            break
    return needed


def plan_for(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs, *, in_vain: bool) -> HaltPlan:
    """The plan of this halt. `in_vain`: asking for a checkpoint cannot help.

    It is as long as what was reserved for it. A halt that comes before the ceiling has more: what is left of that.
    """
    settings, spare = managed.policy.halt, _spare_ns(managed)
    times = halt_times(node.facts, managed.policy, shortest_ns(managed), managed.run, at)
    longest = halt_times(node.facts, managed.policy, None, managed.run, at)
    if spare >= longest.whole_ns - times.whole_ns:
        times = longest
    else:
        times = replace(times, grace_ns=DurationNs(min(longest.grace_ns, times.grace_ns + spare)))
    someone = (
        not in_vain and managed.run.alive and any("ask" in rank.capabilities for rank in managed.run.connected_ranks())
    )
    stop = stop_target(node, managed, verdict.finding.reason)
    bound_ns = node.facts.scheduler.bound_ns if stop is StopTarget.JOB else node.facts.stop_bound_ns
    return HaltPlan(
        checkpoint=verdict.checkpoint if someone else "none",
        grace_ns=times.grace_ns,
        save_grace_ns=times.grace_ns,
        term_grace_ns=times.term_ns,
        kill_grace_ns=times.kill_ns,
        stop=stop,
        stop_reply_ns=STOP_REPLY_NS,
        verify_ns=bound_ns or VERIFY_NS,
        rung_max=RUNG_DESTROY if settings.destroy and stop is not StopTarget.JOB else RUNG_FORCE,
        others_ns=others_ns(managed, times, has_peers=node.facts.has_peers),
    )


def others_ns(managed: ManagedRun, times: HaltTimes, *, has_peers: bool) -> DurationNs:
    """How long this node waits for the run's other nodes: that of rank 0 goes last, because it hosts their store.

    They were told of the halt a moment later, and have to end their processes as we have.
    """
    run = managed.run
    if not has_peers or 0 not in run.known_ranks() or not run.has_ranks_elsewhere or not run.job:
        return DurationNs(0)
    return DurationNs(SILENT_NS + times.term_ns + times.kill_ns)


def stop_target(node: Node, managed: ManagedRun, reason: str = "") -> StopTarget:
    """What a halt of the run for this reason would stop now."""
    if managed.is_strangers:  # The machine is the command's.
        return StopTarget.PROCESSES
    wanted = managed.policy.halt.stop
    if reason == TOKENS_REACHED:
        # The run is complete: `on_finish` decides about the machine, as when a run ends by itself.
        wanted = "auto" if managed.policy.run_on_finish == "stop" else "processes"
    is_in_job = node.facts.scheduler.job != "" or job_of(node.facts, managed.run) is not None
    if wanted == "job" or (wanted == "auto" and is_in_job):
        return _job_target(node, managed, wanted)
    if wanted == "processes" or node.facts.cloud == "none":
        return StopTarget.PROCESSES
    if wanted == "instance":
        return StopTarget.INSTANCE
    # auto: stop only a machine that no one else uses, and only if the checkpoint survives the stop.
    held = (*node.holders(), *(name for name, other in node.runs.items() if other.is_strangers and other.run.alive))
    others = [name for name in held if name != managed.run.run]
    if others or node.foreign_gpu_pids() or not node.facts.can_stop or node.facts.survives_stop is False:
        return StopTarget.PROCESSES
    return StopTarget.INSTANCE


def _job_target(node: Node, managed: ManagedRun, wanted: str) -> StopTarget:
    """The job, where one is known; never the machine, which is the scheduler's and its next jobs'."""
    job = job_of(node.facts, managed.run)
    if job is None:
        return StopTarget.PROCESSES
    beside = (t.run for t in node.runs.values() if t is not managed and t.run.alive and not t.is_unattached)
    is_shared = any(job_of(node.facts, run) == job for run in beside)
    return StopTarget.PROCESSES if wanted == "auto" and is_shared else StopTarget.JOB


def job_of(facts: NodeFacts, run: Run) -> SchedulerJob | None:
    """The scheduler's job in which the run is: as our own launch says, else as the run does. None without a scheduler.

    A run may say anything. Its scheduler is asked before a stop whether the job is of this user and on this node.
    """
    named = facts.scheduler.job or run.labels.get(JOB_LABEL, "")
    scheduler, name = job_parts(named)
    if scheduler != facts.scheduler.name or JOB_NAME.fullmatch(named) is None or not name:
        return None  # Of a scheduler that is not asked here, or no name at all.
    return SchedulerJob(name, run.uid, scheduler=scheduler)


def job_ended_by(plan: HaltPlan, facts: NodeFacts, run: Run) -> str:
    """The full name of the job that a halt with this plan ends; empty if it ends none."""
    job = job_of(facts, run) if plan.stop is StopTarget.JOB else None
    return job.full_name if job is not None else ""


def bad_node(facts: NodeFacts, verdict: Verdict) -> str:
    """The scheduler and its name of this node, if its hardware failed: "slurm:n1". Empty where no scheduler is."""
    known = facts.scheduler
    if not known.name or not known.node or evidence_of(verdict, GpuFault.KIND) is None:
        return ""
    return f"{known.name}:{known.node}"


def machine_of(facts: NodeFacts) -> str:
    """The machine as its provider bills it. One that is stopped by a command has no id there."""
    if facts.cloud == "none" or facts.instance_id is None:
        return f"this machine ({facts.node})"
    return f"{facts.cloud} instance {facts.instance_id}"


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
