"""The rules of one policy, evaluated on one run: findings become verdicts.

Every trigger sees every event that it uses, also while another rule fires, so that each window stays current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from governor.core.base.findings import Finding, Reading, Verdict, unknown
from governor.core.base.policy import Mode, PersistenceKind, Policy, Rule, WarmUp
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Beat, Event, Step, Tick, steps_of_line
from governor.core.rules.condition import PersistenceTimer, carried_on, condition_of
from governor.core.rules.trigger import FOREVER, Condition, listens
from governor.core.rules.triggers import load
from governor.core.runs.intake import is_paused
from governor.core.runs.state import Run

NOT_JUDGED = unknown("not_judged_yet")
NOT_NEWS: Final = unknown("log_unreadable")
Observe = Callable[[Event, Run], bool | None]
# The attempt's key in a snapshot. No rule's name begins with "@".
ATTEMPT: Final = "@attempt"


class _WatchedRule:
    """One rule with its trigger, its timer and whether this episode has been reported."""

    __slots__ = (
        "calm",
        "condition",
        "finding",
        "is_moved_by_time",
        "is_of_last_step",
        "is_stepped",
        "meaning",
        "remarked",
        "reported_at",
        "rule",
        "standing",
        "timer",
    )  # fmt: skip

    def __init__(self, rule: Rule, condition: Condition) -> None:
        self.rule = rule
        self.condition = condition
        triggers = [load()[one.trigger] for one in rule.conditions]
        of_last_step = [trigger for trigger in triggers if trigger.STEPPED and not listens(trigger, Tick)]
        self.is_stepped = any(trigger.STEPPED for trigger in triggers)
        self.is_of_last_step = bool(of_last_step)
        self.is_moved_by_time = len(of_last_step) < len(triggers)  # Its reading may change without an event.
        self.meaning = _meaning_of(rule)
        self.timer = PersistenceTimer(rule.persistence)
        self.finding: Finding = NOT_JUDGED
        self.remarked = ""
        self.standing: Verdict | None = None  # Set at the verdict, cleared when the trigger is QUIET again.
        self.reported_at: MonoNs | None = None  # The time of its last verdict, in any attempt.
        # Nothing fires, nothing is counted and no verdict stands. A calm rule is evaluated only when it may fire.
        self.calm = False

    def may_report(self, at: MonoNs) -> bool:
        """Allow no second verdict within the cool-down. A condition that outlasts it is reported at its end."""
        return self.reported_at is None or at - self.reported_at >= self.rule.cooldown_ns

    def put_aside(self) -> None:
        """Reset the rule: it does not match this run. It may have matched before a reload or a change of labels."""
        if not self.calm:
            self.timer.reset()
            self.finding, self.standing, self.calm = NOT_JUDGED, None, True


def _meaning_of(rule: Rule) -> list[Any]:
    """What a reported episode is about. When this changes, the rule must be able to report again."""
    hold = rule.persistence
    meaning = [hold.kind.value, hold.need, hold.of, rule.response.value, rule.mode.value]
    members = [[member.trigger for member in rule.members]] if rule.members else []
    return [rule.trigger, *meaning, *members]


class Attempt:
    """Steps, time and tokens of the attempt. They only grow: a log that begins again does not disarm its rules.

    A line of a log stands for every step since the line before. After a restart of the governor, time continues from
    the attempt's start, steps and tokens from their counts.
    """

    __slots__ = ("_last", "_since", "_steps", "_tokens", "_tokens_before")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._since: MonoNs | None = None  # None: the run's own `attempt_at` holds.
        self._steps = 0
        self._last: int | None = None  # The step seen last.
        self._tokens = 0
        # The run's total when the attempt began; None: no count seen yet.
        self._tokens_before: int | None = None

    def observe(self, event: Event, run: Run) -> None:
        """Observe an event that has already been applied to the run."""
        if not isinstance(event, Step):
            return
        if event.attempt_step is None and run.step is not None and run.step != self._last:
            self._steps += steps_of_line(run.step, self._last)
            self._last = run.step
        if run.attempt_step > self._steps:
            self._steps = run.attempt_step
        total = run.tokens_total
        if total is None:
            return
        if self._tokens_before is None:
            self._tokens_before = total - (run.step_tokens or 0)
        self._tokens = max(self._tokens, total - self._tokens_before)

    def is_past(self, warmup: WarmUp, at: MonoNs, run: Run) -> bool:
        """The last step of a warm-up still belongs to it. A duration is over when it has passed."""
        match warmup.kind:
            case PersistenceKind.STEPS:
                return self._steps > warmup.need
            case PersistenceKind.TOKENS:
                return self._tokens > warmup.need
            case PersistenceKind.DURATION:
                return at - self._began(run) >= warmup.need

    def _began(self, run: Run) -> MonoNs:
        return run.attempt_at if self._since is None else self._since

    def snapshot(self, run: Run) -> dict[str, Any]:
        return {
            "since": self._began(run),
            "steps": self._steps,
            "tokens": self._tokens,
            "tokens_before": self._tokens_before,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        since, before = snapshot["since"], snapshot["tokens_before"]
        self._since = None if since is None else MonoNs(int(since))
        self._steps = int(snapshot["steps"])
        self._tokens = int(snapshot["tokens"])
        self._tokens_before = None if before is None else int(before)


class Rules:
    """Judges one run by one policy. Pass every event to `observe`, then call `judge` after step frames and ticks."""

    def __init__(self, policy: Policy, run: Run) -> None:
        self.policy = policy
        self._run = run
        self._attempt = Attempt()
        self._watched = {rule.name: _WatchedRule(rule, condition_of(rule, policy)) for rule in policy.rules}
        self._shown: dict[type, list[tuple[_WatchedRule, Observe]]] = {}  # By type of event.
        self._due: list[_WatchedRule] = []  # The rules that the last step concerns.
        self._restless = True  # A rule may not be calm.
        self._timed = [one for one in self._watched.values() if one.is_moved_by_time]
        # Since the last tick only steps and heartbeats have come. Any other event may end an UNKNOWN reading.
        self._only_steps_since_tick = False
        self._tick_at = MonoNs(0)
        # Of the last judge(): findings that do not fire and say something. Each text comes once.
        self.remarks: list[Finding] = []

    def observe(self, event: Event) -> bool:
        """Show an event that has already been applied to the run. False: the event is a step that concerns no rule."""
        run, kind = self._run, type(event)
        shown = self._shown.get(kind)
        if shown is None:
            watched = [one for one in self._watched.values() if listens(one.condition, kind)]
            shown = self._shown[kind] = [(one, one.condition.observe) for one in watched]
        if kind is not Step:
            for _, observe in shown:
                observe(event, run)
            self._only_steps_since_tick = self._only_steps_since_tick and (kind is Tick or kind is Beat)
            return True
        self._attempt.observe(event, run)
        self._due = [one for one, observe in shown if observe(event, run) is not False]
        if self._restless:
            self._due = [one for one in self._watched.values() if one in self._due or not one.calm]
        return bool(self._due)

    def judge(self, at: MonoNs, event: Event | None = None) -> list[Verdict]:
        """Return the verdicts reached now, one per episode; `event` is the step frame just observed, if any.

        An episode ends with the first QUIET reading (for persistence in steps: when too few of its steps fired). Calm
        rules are evaluated only when they may fire: after a step, if their trigger says so; at a tick, if time moves
        them. `findings` evaluates the others on demand.
        """
        self.remarks.clear()
        if event is not None and not self._due:
            return []
        verdicts: list[Verdict] = []
        run, restless = self._run, False
        for watched in self._due if event is not None else self._due_at_tick(at):
            if watched.rule.match and not self._applies(watched):
                watched.put_aside()
                continue
            finding = watched.finding = watched.condition.judge(at, run)
            if finding.is_firing:
                watched.calm = False
            else:
                self._remark(watched, finding)
                if watched.calm:
                    continue
            restless = True
            warmup = watched.rule.warmup
            if warmup is not None and not self._attempt.is_past(warmup, at, run):
                # The finding is shown, but it is no evidence during the warm-up.
                if finding.is_firing:
                    watched.finding = replace(finding, reading=Reading.UNKNOWN, reason="warming_up")
                continue
            lasted = watched.timer.add(finding if self._is_news(watched, event) else NOT_NEWS, at, event, run)
            if not lasted:
                if finding.reading is Reading.QUIET:
                    watched.standing = None
            elif finding.is_firing:
                verdict = self._verdict(watched.rule, finding, event)
                if watched.standing is None:
                    if not watched.may_report(at):
                        continue
                    verdicts.append(verdict)
                    watched.reported_at = at
                watched.standing = verdict
            if not finding.is_firing and watched.standing is None and watched.timer.is_empty:
                watched.timer.reset()  # A window in which no step fired holds nothing to remember.
                watched.calm = True
        self._restless = restless  # Every rule that is not calm was evaluated above.
        return verdicts

    def _remark(self, watched: _WatchedRule, finding: Finding) -> None:
        """Note what a finding says that does not fire."""
        if finding.text and finding.text != watched.remarked:
            watched.remarked = finding.text
            self.remarks.append(finding)

    def steady_until(self, at: MonoNs) -> MonoNs:
        """Until when ticks may be left out, asked after `judge(at)` at a tick: they would reach no verdict.

        This holds while nothing else happens to the run and its money stays. A later tick must say that it is unbroken.
        """
        until = FOREVER
        for watched in self._watched.values() if self._restless else self._timed:
            if watched.rule.match and not self._applies(watched):
                continue
            if not watched.calm and not self._is_settled(watched, at):
                return at
            until = min(until, watched.condition.steady_until(at, self._run))
        return until

    def _is_settled(self, watched: _WatchedRule, at: MonoNs) -> bool:
        """Whether only another reading makes or ends an episode, and no time that passes (a `for`, a cool-down)."""
        warmup = watched.rule.warmup
        is_armed = warmup is None or self._attempt.is_past(warmup, at, self._run)
        return is_armed and (watched.standing is not None or not watched.finding.is_firing)

    def _due_at_tick(self, at: MonoNs) -> Iterable[_WatchedRule]:
        is_quiet = self._only_steps_since_tick and not self._restless
        self._only_steps_since_tick, self._tick_at = True, at
        return self._timed if is_quiet else self._watched.values()

    def _applies(self, watched: _WatchedRule) -> bool:
        return watched.rule.applies_to(self._run.labels, self._run.stage)

    def _is_news(self, watched: _WatchedRule, event: Event | None) -> bool:
        """Whether the reading is news. A reading of the last step is none in a pause, or while the log cannot be read.

        Triggers that ticks move too (costs, expressions) may be about the pause itself.
        """
        if event is not None or not watched.is_stepped:
            return True
        if self._run.jsonl_only and self._run.stream.lost_at is not None:
            return False
        return not (watched.is_of_last_step and is_paused(self._run))

    def _verdict(self, rule: Rule, finding: Finding, event: Event | None) -> Verdict:
        return Verdict(
            run=self._run.run,
            policy=self.policy.name,
            rule=rule.name,
            trigger=rule.trigger,
            response=rule.response,
            enforced=rule.mode is Mode.ENFORCE,
            finding=_with_advice(finding, rule.resume_with),
            step=event.step if isinstance(event, Step) else self._run.step,
            checkpoint=rule.checkpoint,
        )

    @property
    def findings(self) -> dict[str, Finding]:
        """The newest finding of every rule that applies to this run, by rule name."""
        found = {}
        for name, watched in self._watched.items():
            if not self._applies(watched):
                continue
            if watched.calm and not watched.is_moved_by_time:
                watched.finding = watched.condition.judge(self._tick_at, self._run)
            found[name] = watched.finding
        return found

    def fires_at(self, rule: Rule, at: MonoNs) -> MonoNs | None:
        return self._watched[rule.name].condition.fires_at(at, self._run) if rule.name in self._watched else None

    def reported(self) -> tuple[Verdict, ...]:
        """Verdicts whose episode has not ended, also while their condition is UNKNOWN."""
        return tuple(watched.standing for watched in self._watched.values() if watched.standing is not None)

    def standing(self) -> tuple[Verdict, ...]:
        """Verdicts whose condition still fires: these act when an operator's hold ends."""
        return tuple(
            watched.standing
            for watched in self._watched.values()
            if watched.standing is not None and watched.finding.is_firing
        )

    def new_attempt(self) -> None:
        """Start a new attempt: reset timers, episodes and warm-ups. Triggers keep the state that holds across attempts.

        A cool-down continues: a run that is launched every few minutes must not report the same each time.
        """
        self._attempt.begin()
        for watched in self._watched.values():
            watched.condition.new_attempt(self._run)
            watched.timer.reset()
            watched.finding = NOT_JUDGED
            watched.standing = None
            watched.calm = False
            watched.remarked = ""
        self._restless = True

    def with_policy(self, policy: Policy) -> Rules:
        """Return the rules of a reloaded policy. Each rule whose meaning is unchanged keeps its state."""
        book = Rules(policy, self._run)
        book._attempt = self._attempt
        for name, new in book._watched.items():
            old = self._watched.get(name)
            if old is None or (old.rule.trigger, old.rule.conditions) != (new.rule.trigger, new.rule.conditions):
                continue
            new.condition = carried_on(old.condition, new.rule, policy)
            new.reported_at = old.reported_at
            if old.rule.persistence == new.rule.persistence:
                new.timer = old.timer
            if old.meaning == new.meaning and policy.budget == self.policy.budget:
                new.standing = old.standing
                new.finding = old.finding
        return book

    def snapshot(self) -> dict[str, Any]:
        """The state that must survive a restart of the governor, JSON-serialisable."""
        rules = {
            name: {
                "trigger": watched.rule.trigger,
                "state": dict(watched.condition.snapshot()),
                "timer": dict(watched.timer.snapshot()),
                "meaning": list(watched.meaning),
                "reported": watched.standing is not None,
                "told_at": watched.reported_at,
            }
            for name, watched in self._watched.items()
        }
        return {**rules, ATTEMPT: self._attempt.snapshot(self._run)}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore a snapshot; rules that were renamed or changed since start fresh.

        Rules whose state another version wrote in another form start fresh too: an upgrade must not stop the governor
        from starting.
        """
        self._only_steps_since_tick = False
        attempt = snapshot.get(ATTEMPT)  # Old snapshots have no attempt and no `told_at`.
        if attempt is not None:
            self._attempt.restore(attempt)
        for name, watched in self._watched.items():
            saved = snapshot.get(name)
            if saved is None or saved["trigger"] != watched.rule.trigger:
                continue
            reported_at = saved.get("told_at")
            watched.reported_at = None if reported_at is None else MonoNs(int(reported_at))
            try:
                watched.condition.restore(saved["state"])
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                watched.condition = condition_of(watched.rule, self.policy)
                self._shown.clear()  # The new condition must observe the events, not the old one.
                continue
            if saved["meaning"] == watched.meaning:
                watched.timer.restore(saved["timer"])
                if saved["reported"]:
                    watched.standing = self._verdict(watched.rule, Finding(Reading.FIRING, "restored"), None)


def _with_advice(finding: Finding, resume_with: str) -> Finding:
    """Add the rule's `resume_with` to the finding's text: every alarm and report shows that text, not the policy's."""
    if not resume_with:
        return finding
    advice = f"resume with {resume_with}"
    text = f"{finding.text}; {advice}" if finding.text else advice
    return replace(finding, text=text, evidence={**finding.evidence, "resume_with": resume_with})
