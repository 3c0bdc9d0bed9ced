"""From readings to responses: what a verdict leads to, and what may prevent it (hold, latch, breaker)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from governor.core.base.findings import Finding, Response, Verdict
from governor.core.base.policy import PROMISES, FallBack
from governor.core.base.units import MonoNs
from governor.core.engine import budgeting, incidents
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Ask, Effect, Record
from governor.core.events.inputs import Ack, Step
from governor.core.events.machine import HaltMarksRead

_DIGITS: Final = re.compile(r"[0-9]+")


def judge(node: Node, managed: ManagedRun, at: MonoNs, event: Step | None) -> list[Effect]:
    effects: list[Effect] = []
    for verdict in managed.rules.judge(at, event):
        effects.extend(on_verdict(node, managed, verdict, at))
    for remark in managed.rules.remarks:
        effects.append(Alarm(remark.reason, managed.run.run, remark.text))
    return effects


def on_verdict(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> list[Effect]:
    data = {
        "rule": verdict.rule,
        "trigger": verdict.trigger,
        "response": verdict.response.value,
        "enforced": verdict.enforced,
        "reason": verdict.finding.reason,
        "text": verdict.finding.text,
        "step": verdict.step,
        "evidence": dict(verdict.finding.evidence),
    }
    effects: list[Effect] = [Record("verdict", verdict.run, None, data)]
    if verdict.response is Response.WARN or (verdict.response is not Response.WATCH and not verdict.enforced):
        would = "" if verdict.response is Response.WARN else f" (observe mode: would {verdict.response.value})"
        effects.append(Alarm(f"rule_{verdict.rule}", verdict.run, f"{verdict.finding.text}{would}"))
    if verdict.enforced and verdict.response is Response.HALT:
        effects.extend(on_halt_verdict(node, managed, verdict, at))
    elif verdict.enforced and verdict.response is Response.CHECKPOINT:
        effects.append(ask_for_checkpoint(managed, verdict, at))
    return effects


def on_halt_verdict(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> list[Effect]:
    incident = managed.incident
    if incident is not None:
        # One halt per attempt: a closed halt leaves its latch until the run is launched anew.
        return [] if incident.is_closed else incidents.merge(node, managed, verdict, at)
    obstacle = _obstacle(node, managed, verdict, at)
    managed.is_held_back = obstacle is not None
    if obstacle is not None:
        return [obstacle, Record("held", verdict.run, None, {"rule": verdict.rule, "by": obstacle.name})]
    return incidents.open_incident(node, managed, verdict, at)


def _obstacle(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> Alarm | None:
    """What prevents a halt: the operator's hold, or the breaker."""
    held = managed.history.held(at)
    if held is not None:
        why = f', whose reason is "{held[1]}"' if held[1] else ""
        text = f"the halt for {verdict.finding.reason} is held back by the operator{why}"
        return Alarm("halt_held", verdict.run, text)
    if _is_breaker_open(node, managed, verdict, at):
        text = (
            f"{_halts_today(node, managed, at)} halts of run {verdict.run} in a day: the breaker is open, "
            f"{verdict.finding.reason} is not acted on; look at `costgov incident list`"
        )
        return Alarm("breaker_open", verdict.run, text)
    return None


def _is_breaker_open(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> bool:
    """The breaker never holds back a ceiling's halt, nor a gate's: people launch until the run is cheap enough."""
    return verdict.trigger not in PROMISES and _halts_today(node, managed, at) >= managed.policy.halts_per_day_max


def _halts_today(node: Node, managed: ManagedRun, at: MonoNs) -> int:
    since = node.wall(at) - incidents.DAY_NS
    return sum([wall > since for wall in managed.history.halts_wall])


def retry_held_back(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Act on a halt verdict that still stands once nothing prevents it. A verdict itself comes only once."""
    if managed.history.hold_until is not None and at >= managed.history.hold_until:
        managed.history.hold_until = None
    if not managed.is_held_back:
        return []
    managed.is_held_back = any(v.enforced and v.response is Response.HALT for v in managed.rules.reported())
    if managed.history.held(at) is not None:
        return []
    standing = [v for v in managed.rules.standing() if v.enforced and v.response is Response.HALT]
    free = next((v for v in standing if not _is_breaker_open(node, managed, v, at)), None)
    return on_halt_verdict(node, managed, free, at) if free is not None else []


def next_retry_at(node: Node, managed: ManagedRun, at: MonoNs) -> MonoNs | None:
    """When what holds back a halt ends at the earliest, asked after a retry at `at`. None: no halt is held back."""
    if not managed.is_held_back:
        return None
    held = managed.history.held(at)
    if held is not None:
        return held[0]
    since = node.wall(at) - incidents.DAY_NS
    ages_ns = (wall - since for wall in managed.history.halts_wall if wall > since)
    return MonoNs(at + min(ages_ns, default=0))


def verdict_by_hand(
    managed: ManagedRun, finding: Finding, rule: str, checkpoint: str, *, trigger: str = ""
) -> Verdict:  # fmt: skip
    """A halt that no rule of ours has decided. `trigger`: of another node's rule."""
    return Verdict(
        run=managed.run.run,
        policy=managed.policy.name,
        rule=rule,
        trigger=trigger or rule,
        response=Response.HALT,
        enforced=True,
        finding=finding,
        step=managed.run.step,
        checkpoint=checkpoint,
    )


# --- rules that were wrong too often ----------------------------------------------------------------------------


def on_halt_marks(node: Node, read: HaltMarksRead) -> list[Effect]:
    """People have said more of halts. Rules fall back or enforce again for what is decided from now on.

    A halt under way goes on. A rule that enforces again and still fires decides anew.
    """
    if read.wrong == node.policies.wrong:
        return []
    before = node.policies
    node.policies = replace(before, wrong=read.wrong)
    for managed in node.runs.values():
        budgeting.refit(node, managed)
    return tell_fall_backs(node, before.fallen())


def tell_fall_backs(node: Node, before: Collection[FallBack]) -> list[Effect]:
    """Tell each rule that has fallen back since `before`, and each that enforces again."""
    now = node.policies.fallen()
    ids = {_fallen_key(one) for one in before}
    effects: list[Effect] = []
    for one in now:
        if _fallen_key(one) not in ids:
            effects += [_fall_back_row("fell_back", one), Alarm("fell_back", None, f"{one.text}; {REVERSE}")]
    gone = {_fallen_key(one) for one in now}
    for one in before:
        if _fallen_key(one) not in gone and _enforces(node, one):
            text = f'rule "{one.rule}" of policy "{one.policy}" enforces again{one.whose}'
            effects += [_fall_back_row("enforces_again", one), Alarm("enforces_again", None, text)]
    return effects


REVERSE: Final = "to reverse it: `costgov incident mark ID --right`, or --clear, or `costgov incident rearm RULE`"


def _fallen_key(one: FallBack) -> tuple[str, str, int | None]:
    return one.policy, one.rule, one.owner


def _enforces(node: Node, one: FallBack) -> bool:
    of_name = (policy for policy in node.policies.policies if policy.name == one.policy)
    return any(rule.name == one.rule and policy.may_fall_back(rule) for policy in of_name for rule in policy.rules)


def _fall_back_row(kind: str, one: FallBack) -> Record:
    return Record(kind, None, None, one.row(), durable=True)


# --- checkpoints that a rule asks for while the run trains on --------------------------------------------------


def ask_for_checkpoint(managed: ManagedRun, verdict: Verdict, at: MonoNs) -> Ask:
    """Ask for a checkpoint without a halt: the run trains on. No incident is opened, so a failure does not escalate."""
    return Ask(
        incident_id=f"{_request_prefix(managed)}{verdict.rule}.{at}",
        run=managed.run.run,
        checkpoint=verdict.checkpoint if verdict.checkpoint != "none" else "good",
        deadline=MonoNs(at + managed.policy.halt.grace_ns),
        exit_after=False,
        reason=verdict.finding.reason,
    )


def is_merged(managed: ManagedRun, ack: Ack) -> bool:
    """Whether the rank merged the halt's checkpoint request into an open one of a rule.

    The rank then goes on under the rule's request, and exits after it. An ack without exit precedes the halt's request.
    """
    return bool(ack.exit_after) and is_asked(managed, ack)


def is_asked(managed: ManagedRun, ack: Ack) -> bool:
    return ack.incident_id.startswith(_request_prefix(managed))


def is_scripts_own(ack: Ack) -> bool:
    """Whether it answers a shim.checkpoint() of the training script."""
    return ack.incident_id.startswith("own.")


def asker(managed: ManagedRun, ack: Ack) -> str:
    """Name who asked for the checkpoint that the rank speaks of."""
    if is_scripts_own(ack):
        return "the training script"
    if not is_asked(managed, ack):
        return f"incident {ack.incident_id}"
    return f'rule "{ack.incident_id.removeprefix(_request_prefix(managed)).rpartition(".")[0]}"'


def failed_checkpoint_alarms(managed: ManagedRun, ack: Ack) -> list[Effect]:
    """Report that a checkpoint was not saved: a rule does not ask again before it is quiet, a script does not know.

    One rank's ack counts for the run. After the last step it is too late each time: no alarm. Nor is there a second
    one for the same reason, whatever step and name it has, until a checkpoint is saved.
    """
    why = ack.reason or ack.what
    if ack.rank != min(managed.run.ranks) or (is_scripts_own(ack) and ": training has finished" in why):
        return []
    who = asker(managed, ack)
    about = (managed.run.attempt, who, _DIGITS.sub("", why))
    if managed.reported.failed_checkpoint == about:
        return []
    managed.reported.failed_checkpoint = about
    text = f"the checkpoint of run {managed.run.run} that {who} asked for has not been saved: {why}"
    return [Alarm("checkpoint_failed", managed.run.run, text)]


def _request_prefix(managed: ManagedRun) -> str:
    return f"{managed.run.run}.checkpoint."
