"""The condition of a rule: one trigger or several (`all`), and for how long (`for`).

A condition reads the run, and its PersistenceTimer counts the readings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.findings import Finding, Reading, Verdict, firing, unknown
from governor.core.base.policy import ALL, Persistence, PersistenceKind, Policy, Rule
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event, Step
from governor.core.rules.trigger import Condition, Trigger, defaults, listens
from governor.core.rules.triggers import load
from governor.core.runs.state import Run


def condition_of(rule: Rule, policy: Policy) -> Condition:
    """Make the rule's condition, with empty state."""
    if not rule.members:
        return _trigger(rule.trigger, rule.params, policy)
    return All([(member.trigger, _trigger(member.trigger, member.params, policy)) for member in rule.members])


def carried_on(condition: Condition, rule: Rule, policy: Policy) -> Condition:
    """Carry a condition over to an equal rule of another policy, with its full state.

    A snapshot would not do: it is for a restart, and leaves out state that does not survive downtime.
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
    """The evidence of this trigger, alone or as one of several; None when the rule has no such trigger."""
    if verdict.trigger == kind:
        return verdict.finding.evidence
    if verdict.trigger != ALL:
        return None
    members = verdict.finding.evidence.get("all", ())
    return next((member for member in members if member["trigger"] == kind), None)


class All:
    """FIRING when all members fire, QUIET as soon as one is quiet, otherwise UNKNOWN.

    An UNKNOWN member neither starts nor ends an episode. One quiet member decides for all.
    """

    def __init__(self, members: Sequence[tuple[str, Condition]]) -> None:
        assert members, "a rule without a condition would fire on everything"
        self.members = tuple(members)

    def observe(self, event: Event, run: Run) -> bool:
        """False when no member may fire: the last member to fire makes the whole fire."""
        shown = [trigger.observe(event, run) for _, trigger in self.members if listens(trigger, type(event))]
        return any(may_fire is not False for may_fire in shown)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        # Each is judged, so that its window stays current.
        findings = [(kind, trigger.judge(at, run)) for kind, trigger in self.members]
        for _, finding in findings:
            if finding.reading is Reading.QUIET:
                return finding
        for kind, finding in findings:
            if finding.reading is Reading.UNKNOWN:
                return unknown(f"{kind}_{finding.reason}" if finding.reason else kind)
        return _together(findings)

    def fires_at(self, at: MonoNs, run: Run) -> MonoNs | None:
        return None

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        return min(trigger.steady_until(at, run) for _, trigger in self.members)

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
        # Persistence in steps counts the step that the evidence is about. The joint evidence is as old as the oldest.
        evidence["step"] = min(steps)
    return firing(
        "_and_".join(finding.reason for _, finding in findings),
        "; and ".join(finding.text for _, finding in findings),
        evidence,
    )


# --- for ---


@dataclass(slots=True)
class _WindowStep:
    fired: bool = False  # For any rank.
    ranks: set[int] = field(default_factory=set)  # Those that have reported it.


class StepWindow:
    """The last `of` steps with a known reading, from the first one that fired.

    The quiet steps before that one decide nothing, and a rule that is not asked would not know them. A step counts
    once, however many ranks report it. A rank that comes back to a step trains it again: then it is the newest step,
    and only its new readings count.
    """

    __slots__ = ("_last", "_of", "_steps", "fired")

    def __init__(self, of: int) -> None:
        self._of = of
        self._steps: OrderedDict[int, _WindowStep] = OrderedDict()
        self._last: dict[int, int] = {}  # The step that each rank reported last, while there is a window.
        self.fired = 0

    def report(self, finding: Finding, event: Step) -> None:
        """Enter a reading of the step, or of the step that its evidence names.

        Another rank's frame of the next step still finds the first rank broken; the next step is not broken by that.
        """
        fired = finding.reading is Reading.FIRING
        if not fired and not self._steps:
            return
        rank, step = event.rank, event.step
        if finding.reading is not Reading.UNKNOWN:
            about = finding.evidence.get("step", step) if fired else step
            known = self._steps.get(about)
            if known is not None and about == step and rank in known.ranks and self._last.get(rank) != step:
                self._drop(step)
            entered = self.enter(about, fired)
            if entered is not None and about == step:
                entered.ranks.add(rank)
        if self._steps:
            self._last[rank] = step

    def enter(self, step: int, fired: bool) -> _WindowStep | None:
        """Enter one reading; None when no step is left in the window."""
        known = self._steps.get(step)
        if known is None:
            known = self._steps[step] = _WindowStep()
        if fired and not known.fired:
            known.fired = True
            self.fired += 1
        if len(self._steps) > self._of:
            self._drop(next(iter(self._steps)))
        while self._steps and not (oldest := next(iter(self._steps.items())))[1].fired:
            del self._steps[oldest[0]]
        if not self._steps:
            self._last.clear()
        return self._steps.get(step)

    def _drop(self, step: int) -> None:
        self.fired -= self._steps.pop(step).fired

    def clear(self) -> None:
        self._steps.clear()
        self._last.clear()
        self.fired = 0

    def snapshot(self) -> list[list[Any]]:
        return [[step, known.fired] for step, known in self._steps.items()]


class PersistenceTimer:
    """Counts how long a rule's trigger has been firing.

    UNKNOWN neither counts nor resets. Time and tokens are added only between two neighbouring FIRING readings. A step
    without a known reading is not a step of the window.
    """

    __slots__ = ("_counted", "_hold", "_last_at", "_last_tokens", "_window")

    def __init__(self, hold: Persistence) -> None:
        self._hold = hold
        self._window = StepWindow(hold.of)
        self._counted = 0  # Nanoseconds or tokens.
        self._last_at: MonoNs | None = None  # The time of the newest reading, if it was FIRING.
        self._last_tokens: int | None = None

    def add(self, finding: Finding, at: MonoNs, event: Event | None, run: Run) -> bool:
        """Add one finding; return whether the condition has now lasted long enough."""
        reading = finding.reading
        if self._hold.kind is PersistenceKind.STEPS:
            if isinstance(event, Step):
                self._window.report(finding, event)
            return self._window.fired >= self._hold.need
        if reading is Reading.QUIET:
            if self._counted or self._last_at is not None or self._last_tokens is not None:
                # Rarely needed: most readings of most rules are quiet, and so were those before.
                self.reset()
            return False
        if reading is Reading.UNKNOWN:
            # The count stays: missing data is neither recovery nor evidence.
            self._last_at = self._last_tokens = None
            return False
        self._count(at, run)
        return self._counted >= self._hold.need

    @property
    def is_empty(self) -> bool:
        """Nothing is counted: a reading that does not fire would change nothing."""
        return not self._window.fired and not self._counted and self._last_at is None and self._last_tokens is None

    def _count(self, at: MonoNs, run: Run) -> None:
        if self._hold.kind is PersistenceKind.DURATION:
            if self._last_at is not None:
                # A frame's time may be earlier than a tick that was judged before it.
                self._counted += max(0, at - self._last_at)
            self._last_at = at if self._last_at is None else max(at, self._last_at)
            return
        tokens = run.tokens_total
        if tokens is not None:
            if self._last_tokens is not None:
                self._counted += max(0, tokens - self._last_tokens)
            self._last_tokens = tokens

    def reset(self) -> None:
        self._window.clear()
        self._counted = 0
        self._last_at = self._last_tokens = None

    def snapshot(self) -> Mapping[str, Any]:
        return {"counted": self._counted, "steps": self._window.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue the count. Downtime of the governor is not added."""
        self.reset()
        self._counted = int(snapshot["counted"])
        for step, fired in snapshot["steps"]:
            self._window.enter(int(step), bool(fired))
