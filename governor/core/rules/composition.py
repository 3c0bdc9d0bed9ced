"""What a rule asks: one trigger, or several that must all fire (`all = [...]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from governor.core.base.findings import Finding, Reading, Verdict, unknown
from governor.core.base.policy import ALL, Policy, Rule
from governor.core.base.units import MonoNs
from governor.core.events.events import Event
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Condition, Trigger, defaults, listens
from governor.core.runs.run_state import Run


def condition_of(rule: Rule, policy: Policy) -> Condition:
    """Make the rule's condition, with nothing seen yet."""
    if not rule.members:
        return _trigger(rule.trigger, rule.params, policy)
    return All([(member.trigger, _trigger(member.trigger, member.params, policy)) for member in rule.members])


def carried_on(condition: Condition, rule: Rule, policy: Policy) -> Condition:
    """The condition of a rule that asks as before, under another policy: it goes on with all that it has seen.

    A snapshot would not do: it is for a restart, and leaves out what nobody watched meanwhile.
    """
    if not isinstance(condition, All):
        return _carried_on(condition, rule.trigger, rule.params, policy)
    pairs = zip(condition.members, rule.members, strict=True)
    return All([(kind, _carried_on(trigger, kind, member.params, policy)) for (kind, trigger), member in pairs])


def _carried_on(condition: Condition, kind: str, params: Mapping[str, Any], policy: Policy) -> Condition:
    if not getattr(condition, "PLANNED", False):
        return condition
    planned = _trigger(kind, params, policy)
    planned.restore(condition.snapshot())
    return planned


def _trigger(kind: str, params: Mapping[str, Any], policy: Policy) -> Trigger:
    trigger = load()[kind]
    return trigger({**defaults(trigger.KEYS), **params, "budget": policy.budget, "expected": policy.expected})


def evidence_of(verdict: Verdict, kind: str) -> Mapping[str, Any] | None:
    """The evidence of that trigger, be it the rule's own or one of several; None where it has no part in it."""
    if verdict.trigger == kind:
        return verdict.finding.evidence
    if verdict.trigger != ALL:
        return None
    members = verdict.finding.evidence.get("all", ())
    return next((member for member in members if member["trigger"] == kind), None)


class All:
    """FIRING when all members fire, QUIET as soon as one is quiet, else UNKNOWN.

    So what is not known of one member neither ends an episode nor makes one: a quiet member answers for all of them.
    """

    def __init__(self, members: Sequence[tuple[str, Condition]]) -> None:
        assert members, "a rule without a condition would fire on everything"
        self.members = tuple(members)

    def observe(self, event: Event, run: Run) -> bool:
        """False when none of them says that it may fire: what is FIRING of all was made so by the last of them."""
        shown = [trigger.observe(event, run) for _, trigger in self.members if listens(trigger, type(event))]
        return any(may_fire is not False for may_fire in shown)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        findings = [(kind, trigger.judge(at, run)) for kind, trigger in self.members]  # Each: windows stay warm.
        for _, finding in findings:
            if finding.reading is Reading.QUIET:
                return finding
        for kind, finding in findings:
            if finding.reading is Reading.UNKNOWN:
                return unknown(f"{kind}_{finding.reason}" if finding.reason else kind)
        return _together(findings)

    def new_attempt(self, run: Run) -> None:
        for _, trigger in self.members:
            trigger.new_attempt(run)

    def snapshot(self) -> Mapping[str, Any]:
        return {"members": [{"trigger": kind, "state": dict(trigger.snapshot())} for kind, trigger in self.members]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        saved = snapshot["members"]
        if [member["trigger"] for member in saved] != [kind for kind, _ in self.members]:
            raise ValueError("the state is of other triggers")
        for (_, trigger), member in zip(self.members, saved, strict=True):
            trigger.restore(member["state"])


def _together(findings: Sequence[tuple[str, Finding]]) -> Finding:
    evidence: dict[str, Any] = {
        "all": [{"trigger": kind, "reason": finding.reason, **finding.evidence} for kind, finding in findings]
    }
    steps = [step for _, finding in findings if isinstance(step := finding.evidence.get("step"), int)]
    if steps:
        # A `for` in steps counts the step that the evidence is about: what all of them say is as old as the oldest.
        evidence["step"] = min(steps)
    return Finding(
        Reading.FIRING,
        "_and_".join(finding.reason for _, finding in findings),
        "; and ".join(finding.text for _, finding in findings),
        evidence,
    )
