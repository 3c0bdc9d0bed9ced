"""The rules of one policy at work on one run: readings become verdicts.

Every trigger sees every event and is asked every time, also while another rule fires, so that no window stands still.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from governor.core.events import Event, Step
from governor.core.findings import Finding, Reading, Verdict, unknown
from governor.core.policy import Hold, HoldKind, Mode, Policy, Rule
from governor.core.run_state import Run
from governor.core.triggers import load
from governor.core.triggers.base import Trigger, defaults
from governor.core.units import MonoNs

NOT_JUDGED = unknown("not_judged_yet")


class HoldTimer:
    """Counts how long a rule's trigger has been firing.

    UNKNOWN neither counts nor resets: time and tokens are added only between two neighbouring FIRING readings, and a
    step without a known reading is not a step of the window.
    """

    __slots__ = ("_counted", "_fired", "_hold", "_last_at", "_last_tokens", "_steps")

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        # The last `of` steps with a known reading, and whether any rank's fired; how many of them did.
        self._steps: OrderedDict[int, bool] = OrderedDict()
        self._fired = 0
        self._counted = 0  # Nanoseconds or tokens.
        self._last_at: MonoNs | None = None  # Of the newest reading, if that was FIRING.
        self._last_tokens: int | None = None

    def add(self, finding: Finding, at: MonoNs, event: Event | None, run: Run) -> bool:
        """Take one finding; return whether the condition has now lasted long enough.

        A finding whose evidence names its "step" counts for that one: another rank's frame of the next step finds the
        first rank still broken, which makes the next step no broken one.
        """
        reading = finding.reading
        if self._hold.kind is HoldKind.STEPS:
            if isinstance(event, Step) and reading is not Reading.UNKNOWN:
                fired = reading is Reading.FIRING
                self._add_step(finding.evidence.get("step", event.step) if fired else event.step, fired)
            return self._fired >= self._hold.need
        if reading is Reading.QUIET:
            if self._counted or self._last_at is not None or self._last_tokens is not None:
                self.reset()  # Seldom: most readings of most rules are quiet, and so were those before.
            return False
        if reading is Reading.UNKNOWN:
            # What was counted stays: missing data is no recovery, and no evidence either.
            self._last_at = self._last_tokens = None
            return False
        self._count(at, run)
        return self._counted >= self._hold.need

    def _add_step(self, step: int, fired: bool) -> None:
        known = self._steps.get(step)
        if known is None:
            if len(self._steps) == self._hold.of:
                self._fired -= self._steps.popitem(last=False)[1]
            self._steps[step] = fired
            self._fired += fired
        elif fired and not known:
            self._steps[step] = True
            self._fired += 1

    def _count(self, at: MonoNs, run: Run) -> None:
        if self._hold.kind is HoldKind.DURATION:
            if self._last_at is not None:
                self._counted += max(0, at - self._last_at)  # A frame may have been stamped before a tick judged first.
            self._last_at = at if self._last_at is None else max(at, self._last_at)
            return
        tokens = run.tokens_total
        if tokens is not None:
            if self._last_tokens is not None:
                self._counted += max(0, tokens - self._last_tokens)
            self._last_tokens = tokens

    def reset(self) -> None:
        self._steps.clear()
        self._fired = 0
        self._counted = 0
        self._last_at = self._last_tokens = None

    def snapshot(self) -> Mapping[str, Any]:
        return {"counted": self._counted, "steps": [[step, fired] for step, fired in self._steps.items()]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on counting. The time in which nobody watched is not added."""
        self.reset()
        self._counted = int(snapshot["counted"])
        for step, fired in snapshot["steps"]:
            self._add_step(int(step), bool(fired))


class _Watched:
    """One rule with its trigger, its timer and whether this episode has already been reported."""

    __slots__ = ("finding", "rule", "standing", "timer", "trigger")

    def __init__(self, rule: Rule, trigger: Trigger) -> None:
        self.rule = rule
        self.trigger = trigger
        self.timer = HoldTimer(rule.hold)
        self.finding: Finding = NOT_JUDGED
        self.standing: Verdict | None = None  # Set from the verdict until the trigger is QUIET again.

    @property
    def meaning(self) -> list[Any]:
        """What a reported episode was about: when this changes, the rule must be able to report again."""
        hold = self.rule.hold
        return [self.rule.trigger, hold.kind.value, hold.need, hold.of, self.rule.response.value, self.rule.mode.value]


class RuleBook:
    """Judges one run by one policy. Feed every event to `observe`, then ask `judge` after step frames and ticks."""

    def __init__(self, policy: Policy, run: Run) -> None:
        self.policy = policy
        self._run = run
        self._watched = {rule.name: _Watched(rule, self._trigger(rule)) for rule in policy.rules}

    def _trigger(self, rule: Rule) -> Trigger:
        kind = load()[rule.trigger]
        return kind({**defaults(kind.KEYS), **rule.params, "budget": self.policy.budget})

    def observe(self, event: Event) -> None:
        """Show an event that has already been applied to the run."""
        for watched in self._watched.values():
            watched.trigger.observe(event, self._run)

    def judge(self, at: MonoNs, event: Event | None = None) -> list[Verdict]:
        """Return the verdicts reached now, each once per episode; `event` is the step frame just observed, if any.

        An episode ends with the first QUIET reading (for a hold in steps: when too few of its steps fired).
        """
        verdicts = []
        for watched in self._watched.values():
            finding = watched.finding = watched.trigger.judge(at, self._run)
            lasted = watched.timer.add(finding, at, event, self._run)
            if not lasted:
                if finding.reading is Reading.QUIET:
                    watched.standing = None
            elif finding.reading is Reading.FIRING:
                verdict = self._verdict(watched.rule, finding, event)
                if watched.standing is None:
                    verdicts.append(verdict)
                watched.standing = verdict
        return verdicts

    def _verdict(self, rule: Rule, finding: Finding, event: Event | None) -> Verdict:
        return Verdict(
            run=self._run.run,
            policy=self.policy.name,
            rule=rule.name,
            trigger=rule.trigger,
            response=rule.response,
            enforced=rule.mode is Mode.ENFORCE,
            finding=finding,
            step=event.step if isinstance(event, Step) else self._run.step,
            checkpoint=rule.checkpoint,
        )

    @property
    def findings(self) -> dict[str, Finding]:
        """The newest finding of every rule, by rule name."""
        return {name: watched.finding for name, watched in self._watched.items()}

    def reported(self) -> tuple[Verdict, ...]:
        """Verdicts whose episode has not ended, also while nothing is known of their condition."""
        return tuple(watched.standing for watched in self._watched.values() if watched.standing is not None)

    def standing(self) -> tuple[Verdict, ...]:
        """Verdicts whose condition still fires: what to act on when an operator's hold ends."""
        return tuple(
            watched.standing
            for watched in self._watched.values()
            if watched.standing is not None and watched.finding.reading is Reading.FIRING
        )

    def new_attempt(self) -> None:
        """The run was launched again: timers and episodes start anew, triggers keep what holds across attempts."""
        for watched in self._watched.values():
            watched.trigger.new_attempt(self._run)
            watched.timer.reset()
            watched.finding = NOT_JUDGED
            watched.standing = None

    def with_policy(self, policy: Policy) -> RuleBook:
        """Return the book of a reloaded policy, taking over the state of every rule whose meaning is unchanged."""
        book = RuleBook(policy, self._run)
        for name, new in book._watched.items():
            old = self._watched.get(name)
            if old is None or old.rule.trigger != new.rule.trigger or old.rule.params != new.rule.params:
                continue
            new.trigger.restore(old.trigger.snapshot())
            if old.rule.hold == new.rule.hold:
                new.timer = old.timer
            if old.meaning == new.meaning and policy.budget == self.policy.budget:
                new.standing = old.standing
                new.finding = old.finding
        return book

    def snapshot(self) -> dict[str, Any]:
        """What must survive a restart of the governor, JSON-serialisable."""
        return {
            name: {
                "trigger": watched.rule.trigger,
                "state": dict(watched.trigger.snapshot()),
                "timer": dict(watched.timer.snapshot()),
                "meaning": watched.meaning,
                "reported": watched.standing is not None,
            }
            for name, watched in self._watched.items()
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take back a snapshot; rules that were renamed or changed since start fresh.

        So do rules whose state was written by a version that kept something else: an upgrade must not keep the
        governor from starting.
        """
        for name, watched in self._watched.items():
            saved = snapshot.get(name)
            if saved is None or saved["trigger"] != watched.rule.trigger:
                continue
            try:
                watched.trigger.restore(saved["state"])
            except (KeyError, TypeError, ValueError):
                watched.trigger = self._trigger(watched.rule)
                continue
            if saved["meaning"] == watched.meaning:
                watched.timer.restore(saved["timer"])
                if saved["reported"]:
                    watched.standing = self._verdict(watched.rule, Finding(Reading.FIRING, "restored"), None)
