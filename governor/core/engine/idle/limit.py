"""What stops a node that nobody uses, and when: `idle_stop`, and `on_finish` of a run that has ended well."""

from __future__ import annotations

from typing import Final, NamedTuple

from governor.core.base.policy import Mode, Policy
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.engine.idle.messages import cannot_stop, finish_promise, not_stopped_text, promise
from governor.core.engine.idle.occupancy import Occupant
from governor.core.engine.idle_state import NODE, Finish
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import CommandExited

# The wait of on_finish: a script may start the next run.
FINISH_NS: Final = DurationNs(60 * NS_PER_S)
# A run's leftovers on the GPUs are gone by then. What is still there counts as somebody.
SETTLE_NS: Final = DurationNs(60 * NS_PER_S)
# The wait for a sampler to come back. `costgov run` waits meanwhile.
PATIENCE_NS: Final = DurationNs(10 * NS_PER_MINUTE)
# The warning before a stop: a person needs time to read an alarm and to answer it.
WARN_NS: Final = DurationNs(5 * NS_PER_MINUTE)


class Limit(NamedTuple):
    """After how long without use the node is stopped, why, and which setting says so."""

    after_ns: DurationNs
    reason: str  # node_idle | run_finished
    source: str
    policy: str
    observed: bool  # Only reported, not done.


def on_ended(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """A run has ended by itself. Under `costgov run`, the command's end and its exit code count instead."""
    if node.facts.exclusive or not managed.run.ended_well or managed.incident is not None:
        return []
    effects = _finish(node, managed.run.run, managed.policy, at)
    finish = node.idle.finish
    # As in finish_left(): the run's end is seen only now.
    is_left = not managed.was_announced and node.away_ns >= PATIENCE_NS
    if finish is None or finish.run != managed.run.run or not is_left:
        return effects
    return _give_up_finish(node, finish, f"no governor was here for {format_duration(node.away_ns)}")


def on_command_exited(node: Node, event: CommandExited) -> list[Effect]:
    idle = node.idle
    idle.command = None
    strangers = [name for name, managed in node.runs.items() if managed.is_strangers]
    last = [name for name in idle.last_runs if name not in strangers]
    runs = [node.runs[name] for name in last or (event.run,) if name in node.runs]
    is_well = event.exit_code == 0 and all(managed.incident is None for managed in runs)
    if is_well and runs and all(managed.policy.run_on_finish == "stop" for managed in runs):
        return _finish(node, runs[0].run.run, runs[0].policy, event.at)
    return []


def _finish(node: Node, run: str, policy: Policy, at: MonoNs) -> list[Effect]:
    if policy.run_on_finish != "stop":
        return []
    finish = Finish(run, policy.name, policy.mode is Mode.OBSERVE or node.facts.observe, at)
    obstacle = cannot_stop(node.facts) or ("observe mode: it would be" if finish.observed else None)
    # Reported at once: nobody has to wait for a stop that will not come.
    if obstacle is not None:
        return [Alarm("node_stays_billed", NODE, not_stopped_text(node.facts, _source(finish), obstacle))]
    node.idle.finish = finish
    node.request_persist()  # A restarted governor goes on with it.
    return []


def finish_over(node: Node, here: list[Occupant], why: str | None, at: MonoNs) -> list[Effect]:
    """Give up a finished run's stop once somebody else is here. Its leftovers on the GPUs have SETTLE_NS to go."""
    finish = node.idle.finish
    if finish is None:
        return []
    staying = [one.text for one in here if one.kind in ("run", "hold", "command") or at - finish.at >= SETTLE_NS]
    if not staying and (why is None or at - finish.at < PATIENCE_NS):
        return []
    return _give_up_finish(node, finish, f"{staying[0]} is here" if staying else f"nobody can tell who is here ({why})")


def finish_left(node: Node, at: MonoNs) -> list[Effect]:
    """Give up the previous governor's stop if that was PATIENCE_NS ago.

    A person who restarts the governor so late is repairing something, and the node must not stop meanwhile.
    """
    finish = node.idle.finish
    if finish is None or at - finish.at < PATIENCE_NS:
        return []
    return _give_up_finish(node, finish, f"no governor was here for most of {format_duration(at - finish.at)} since")


def _give_up_finish(node: Node, finish: Finish, reason: str) -> list[Effect]:
    node.idle.finish = node.idle.warned_at = None  # The warning was about that stop.
    node.request_persist()
    return [Alarm("node_kept", NODE, f"{_source(finish)}, but {reason}: the node goes on")]


def limit(node: Node) -> Limit | None:
    """The limit that stops this node when nobody uses it: the sooner of two. None: nothing stops it."""
    found = [one for one in (_after_finish(node), standing(node)) if one is not None]
    return min(found, key=lambda one: (one.observed, one.after_ns), default=None)


def _after_finish(node: Node) -> Limit | None:
    finish = node.idle.finish
    if finish is None:
        return None
    return Limit(FINISH_NS, "run_finished", _source(finish), finish.policy, finish.observed)


def _source(finish: Finish) -> str:
    return f'run {finish.run} ended well, and policy {finish.policy} says on_finish = "stop"'


def standing(node: Node) -> Limit | None:
    """The idle_stop of costgov.toml, else of the last runs' policies, else of the policy that matches every run."""
    if node.facts.exclusive:
        # Under `costgov run` the command's end counts, and the governor ends with it.
        return None
    said = node.facts.idle_stop_ns
    if said is not None:
        return Limit(said, "node_idle", "idle_stop of costgov.toml", "", node.facts.observe) if said else None
    last = [node.runs[name].policy for name in node.idle.last_runs if name in node.runs]
    found = last or [node.policies.for_run({}, None)]
    waits = [policy.node_idle_stop_ns for policy in found if policy.node_idle_stop_ns is not None]
    if len(waits) < len(found):
        return None  # Runs that ended together disagree: the most careful one counts.
    longest = max(found, key=lambda policy: policy.node_idle_stop_ns or 0)
    observed = node.facts.observe or any(policy.mode is Mode.OBSERVE for policy in found)
    source = f"idle_stop of policy {longest.name}"
    return Limit(DurationNs(max(waits)), "node_idle", source, longest.name, observed)


def due_at(node: Node, wanted: Limit) -> MonoNs | None:
    """When the node is stopped if nobody comes; None while somebody is here or this is unknown."""
    idle = node.idle
    if idle.since is None:
        return None
    lead = warn_ns(wanted)
    warned_at = idle.warned_at if idle.warned_at is not None else idle.since + wanted.after_ns - lead
    return MonoNs(max(idle.since + wanted.after_ns, warned_at + lead))


def warn_ns(wanted: Limit) -> DurationNs:
    """How long before the stop the warning is given. After a run has just ended, this is the whole time."""
    whole = wanted.reason == "run_finished"
    return wanted.after_ns if whole else DurationNs(min(WARN_NS, wanted.after_ns // 2))


def promises(node: Node) -> list[str]:
    """What start-up reports. Under `costgov run` only the command's end counts, as the governor ends with it."""
    facts, lines = node.facts, []
    wanted = standing(node)
    if wanted is not None:
        lines += promise(facts, wanted.after_ns, wanted.source, observed=wanted.observed)
    names = [policy.name for policy in node.policies.policies if policy.run_on_finish == "stop"]
    return [*lines, *(finish_promise(facts, names, FINISH_NS, exclusive=facts.exclusive) if names else [])]
