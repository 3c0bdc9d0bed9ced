"""What would stop a node that nobody uses, and when: `idle_stop`, and `on_finish` of a run that has ended well."""

from __future__ import annotations

from typing import Final, NamedTuple

from governor.core.base.policy import Mode, Policy
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.engine.idle.messages import cannot_stop, finish_promise, not_stopped_text, promise
from governor.core.engine.idle.occupancy import Occupant
from governor.core.engine.idle.state import NODE, Finish
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import CommandExited

FINISH_NS: Final = DurationNs(60 * NS_PER_S)  # Of on_finish: for whoever starts the next run from a script.
SETTLE_NS: Final = DurationNs(60 * NS_PER_S)  # What a run leaves behind on the GPUs has gone by then, or is somebody.
PATIENCE_NS: Final = DurationNs(10 * NS_PER_MINUTE)  # For a sampler that comes back: `costgov run` waits meanwhile.
WARN_NS: Final = DurationNs(5 * NS_PER_MINUTE)  # Before a stop: time for a person to read an alarm and to answer it.


class Limit(NamedTuple):
    """After how long without anybody the node is stopped, why, and where that stands."""

    after_ns: DurationNs
    reason: str  # node_idle | run_finished
    source: str
    policy: str
    observed: bool  # Said, and not done.


def on_ended(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """A run has ended by itself. Beside a command of ours, the command's end counts, and its exit code."""
    if node.facts.exclusive or not managed.run.ended_well or managed.incident is not None:
        return []
    effects = _finish(node, managed.run.run, managed.policy, at)
    finish = node.idle.finish
    is_left = not managed.was_announced and node.away_ns >= PATIENCE_NS  # As finish_left(): its end is seen only now.
    if finish is None or finish.run != managed.run.run or not is_left:
        return effects
    return _kept(node, finish, f"no governor was here for {format_duration(node.away_ns)}")


def on_command_exited(node: Node, event: CommandExited) -> list[Effect]:
    idle = node.idle
    idle.command = None
    runs = [node.runs[name] for name in idle.last_runs or (event.run,) if name in node.runs]
    is_well = event.exit_code == 0 and all(managed.incident is None for managed in runs)
    if is_well and runs and all(managed.policy.run_on_finish == "stop" for managed in runs):
        return _finish(node, runs[0].run.run, runs[0].policy, event.at)
    return []


def _finish(node: Node, run: str, policy: Policy, at: MonoNs) -> list[Effect]:
    if policy.run_on_finish != "stop":
        return []
    finish = Finish(run, policy.name, policy.mode is Mode.OBSERVE or node.facts.observe, at)
    obstacle = cannot_stop(node.facts) or ("observe mode: it would be" if finish.observed else None)
    if obstacle is not None:  # Said at once: nobody has to wait for what will not come.
        return [Alarm("node_stays_billed", NODE, not_stopped_text(node.facts, _source(finish), obstacle))]
    node.idle.finish = finish
    node.request_persist()  # With the next tick: a governor after us goes on with it.
    return []


def finish_over(node: Node, here: list[Occupant], why: str | None, at: MonoNs) -> list[Effect]:
    """A finished run's stop is given up once somebody else is here; what it left on the GPUs has a while to go."""
    finish = node.idle.finish
    if finish is None:
        return []
    staying = [one.text for one in here if one.kind in ("run", "hold", "command") or at - finish.at >= SETTLE_NS]
    if not staying and (why is None or at - finish.at < PATIENCE_NS):
        return []
    return _kept(node, finish, f"{staying[0]} is here" if staying else f"nobody can tell who is here ({why})")


def finish_left(node: Node, at: MonoNs) -> list[Effect]:
    """Of a governor before us. Who brings one back after a while mends something, and is not to be stopped under it."""
    finish = node.idle.finish
    if finish is None or at - finish.at < PATIENCE_NS:
        return []
    return _kept(node, finish, f"no governor was here for most of {format_duration(at - finish.at)} since")


def _kept(node: Node, finish: Finish, reason: str) -> list[Effect]:
    node.idle.finish = node.idle.warned_at = None  # What was said was of that stop.
    node.request_persist()
    return [Alarm("node_kept", NODE, f"{_source(finish)}, but {reason}: the node goes on")]


def limit(node: Node) -> Limit | None:
    """What would stop this node when nobody uses it, the sooner of two; None: nothing would."""
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
    """idle_stop: costgov.toml's, else of the node's last runs, else of the policy that takes every run."""
    if node.facts.exclusive:
        return None  # Beside one command its end counts, and with it the governor ends.
    said = node.facts.idle_stop_ns
    if said is not None:
        return Limit(said, "node_idle", "idle_stop of costgov.toml", "", node.facts.observe) if said else None
    last = [node.runs[name].policy for name in node.idle.last_runs if name in node.runs]
    found = last or [node.policies.for_run({}, None)]
    waits = [policy.node_idle_stop_ns for policy in found if policy.node_idle_stop_ns is not None]
    if len(waits) < len(found):
        return None  # Runs that ended together and disagree: the most careful of them counts.
    longest = max(found, key=lambda policy: policy.node_idle_stop_ns or 0)
    observed = node.facts.observe or any(policy.mode is Mode.OBSERVE for policy in found)
    source = f"idle_stop of policy {longest.name}"
    return Limit(DurationNs(max(waits)), "node_idle", source, longest.name, observed)


def due_at(node: Node, wanted: Limit) -> MonoNs | None:
    """When the node is stopped if nobody comes; None while somebody is here, or nobody can tell."""
    idle = node.idle
    if idle.since is None:
        return None
    lead = warn_ns(wanted)
    warned_at = idle.warned_at if idle.warned_at is not None else idle.since + wanted.after_ns - lead
    return MonoNs(max(idle.since + wanted.after_ns, warned_at + lead))


def warn_ns(wanted: Limit) -> DurationNs:
    """How long before the stop it is warned: all of the time where a run has just ended."""
    whole = wanted.reason == "run_finished"
    return wanted.after_ns if whole else DurationNs(min(WARN_NS, wanted.after_ns // 2))


def promises(node: Node) -> list[str]:
    """What start-up says: beside one command only its end counts, for the governor ends with it."""
    facts, lines = node.facts, []
    wanted = standing(node)
    if wanted is not None:
        lines += promise(facts, wanted.after_ns, wanted.source, observed=wanted.observed)
    names = [policy.name for policy in node.policies.policies if policy.run_on_finish == "stop"]
    return [*lines, *(finish_promise(facts, names, FINISH_NS, exclusive=facts.exclusive) if names else [])]
