"""A policy in its parsed form: what is watched, how long a condition must last, and what follows.

Frozen values. governor.policies.parse makes them from text and checks each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from governor.core.base.findings import Response
from governor.core.base.units import MTOK, NS_PER_S, DurationNs, UsdMicros


class Mode(Enum):
    ENFORCE = "enforce"
    OBSERVE = "observe"  # Decide and record, without effect.


class PersistenceKind(Enum):
    """What a rule's `for` counts. UNKNOWN readings neither count nor reset."""

    STEPS = "steps"  # `need` steps of the last `of` (equal: in a row).
    DURATION = "duration"  # Firing without a QUIET reading for `need` nanoseconds.
    # Firing without a QUIET reading while `need` tokens were trained.
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Persistence:
    """How long a trigger must fire before its rule decides: "3 steps", "3 of 5 steps", "90s", "2M tokens"."""

    kind: PersistenceKind
    need: int
    of: int = 0  # STEPS only: the window, at least `need`.

    def __post_init__(self) -> None:
        assert self.need >= 0
        assert self.kind is not PersistenceKind.STEPS or self.of >= self.need >= 1


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What an attempt must have passed before a rule may decide: "200 steps", "10m", "5M tokens"."""

    kind: PersistenceKind
    need: int

    def __post_init__(self) -> None:
        assert self.need >= 0


# The breaker: with more halts of a run than this per day, costgov is at fault until a person has looked.
HALTS_PER_DAY_MAX = 3
AT_ONCE = Persistence(PersistenceKind.DURATION, 0)
# So many halts of a rule that people call false, and it falls back to observe mode.
WRONG_MAX = 2
INCIDENTS_SHOWN = 4  # An alarm names so many. `costgov incident marks` has all.
# A ceiling and a gate are promises: their halts never fall back, and the breaker never holds them back.
PROMISES = ("budget", "gate")
COMMAND_LINE = "command line"  # Source of rules from the command line.
ALL = "all"  # The trigger's name in a rule with several triggers.


def first_trigger(incident: Mapping[str, Any]) -> str:
    """The trigger of an incident's snapshot; of several that fired together the first. Empty: it is not told."""
    trigger = incident.get("trigger")
    if trigger == ALL:
        evidence = incident.get("evidence")
        members = evidence.get(ALL) if isinstance(evidence, Mapping) else None
        first = members[0] if isinstance(members, list) and members else None
        trigger = first.get("trigger") if isinstance(first, Mapping) else None
    return "" if trigger is None else str(trigger)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the triggers that must fire together."""

    trigger: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One trigger with its limits (or `all` of several), and the response once it has fired for `persistence`."""

    name: str  # Unique within its policy.
    # KIND of a file in governor/core/rules/triggers; ALL for a rule with members.
    trigger: str
    # Every key of the trigger, parsed; see rules.trigger. Empty for a rule with members.
    params: Mapping[str, Any]
    persistence: Persistence
    response: Response
    mode: Mode
    # good | suspect | none: the checkpoint to request when this rule checkpoints or halts.
    checkpoint: str
    source: str = ""  # "file:line".
    members: tuple[Member, ...] = ()
    # As a policy's `match`: the rule does not judge other runs.
    match: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # In each attempt: no verdict before it has passed, and nothing counts for the persistence.
    warmup: WarmUp | None = None
    # The time after a verdict in which there is no other. Always 0 for a rule that halts.
    cooldown_ns: DurationNs = DurationNs(0)
    # For a rule that halts: what to resume with, for people (a configuration, a recipe).
    resume_with: str = ""

    @property
    def conditions(self) -> tuple[Member, ...]:
        """The triggers with their limits: one, or those that must fire together."""
        return self.members or (Member(self.trigger, self.params),)

    def applies_to(self, labels: Mapping[str, str], stage: str | None) -> bool:
        return not self.match or labels_match(self.match, labels, stage)


@dataclass(frozen=True, slots=True)
class Budget:
    ceiling_usd_micros: UsdMicros | None = None  # Never exceeded, the cost of the halt included.
    tokens: int | None = None  # The run is complete at the last one.
    # Fractions of the ceiling; the loader makes a warning rule of each.
    alert_at: tuple[float, ...] = ()
    window_tokens: int = MTOK  # The size of the token windows that spend is reported for.


@dataclass(frozen=True, slots=True)
class Expected:
    """The cost and speed that the plan expects, for the whole run. None: not stated."""

    usd_micros_per_mtok: int | None = None  # While it trains.
    tokens_per_s: float | None = None
    usd_micros_per_mtok_all_in: int | None = None  # With starts, pauses and halts.

    @property
    def has_price(self) -> bool:
        return self.usd_micros_per_mtok is not None or self.usd_micros_per_mtok_all_in is not None


@dataclass(frozen=True, slots=True)
class HaltSettings:
    """What a halt may take and do: the defaults of every rule in the policy."""

    checkpoint: str = "good"  # good | suspect | none
    grace_ns: DurationNs = DurationNs(600 * NS_PER_S)  # A 70B checkpoint to shared storage takes minutes.
    # SIGTERM handlers flush logs; a CUDA teardown takes seconds.
    term_grace_ns: DurationNs = DurationNs(10 * NS_PER_S)
    # After this, only the end of the machine ends the process.
    kill_grace_ns: DurationNs = DurationNs(10 * NS_PER_S)
    stop: str = "auto"  # auto | processes | job | instance
    # Whether the provider ladder may destroy the instance when stopping fails.
    destroy: bool = False


def labels_match(match: Mapping[str, tuple[str, ...]], labels: Mapping[str, str], stage: str | None) -> bool:
    """Whether a run with these labels has an accepted value for each label of `match`."""
    for label, accepted in match.items():
        value = stage if label == "stage" and stage is not None else labels.get(label)
        if value not in accepted:
            return False
    return True


@dataclass(frozen=True, slots=True)
class WrongHalt:
    """A halt that a person has called false. `owner`: for whose runs it counts; None: for all."""

    incident_id: str
    owner: int | None = None


# By policy and rule: the false halts since the rule was last re-armed, oldest mark first.
Wrong = Mapping[tuple[str, str], tuple[WrongHalt, ...]]


def _count_for(halts: tuple[WrongHalt, ...], uid: int | None) -> int:
    return sum(one.owner is None or one.owner == uid for one in halts)


@dataclass(frozen=True, slots=True)
class FallBack:
    """A rule that only observes because its halts were wrong. `owner`: for whose runs; None: for all."""

    policy: str
    rule: str
    owner: int | None
    incidents: tuple[str, ...]
    wrong_max: int

    @property
    def whose(self) -> str:
        return "" if self.owner is None else f" for the runs of uid {self.owner}"

    @property
    def text(self) -> str:
        """One clause for a person, with the newest of its incidents."""
        shown = self.incidents[-INCIDENTS_SHOWN:]
        more = f", and {len(self.incidents) - len(shown)} before" if len(self.incidents) > len(shown) else ""
        return (
            f'rule "{self.rule}" of policy "{self.policy}" no longer enforces{self.whose}, it only observes: '
            f"{len(self.incidents)} of its halts are marked false ({', '.join(shown)}{more})"
        )

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FallBack:
        """From a row(). KeyError, TypeError or ValueError when it is none of ours."""
        owner, ids = row.get("owner_uid"), tuple(row["incidents"])
        texts, counts = (row["policy"], row["rule"], *ids), (row["wrong_max"], *(() if owner is None else (owner,)))
        if not all(isinstance(one, str) for one in texts) or any(type(one) is not int for one in counts):
            raise ValueError("no row of a rule that has fallen back")
        return cls(row["policy"], row["rule"], owner, ids, row["wrong_max"])

    def row(self) -> dict[str, Any]:
        return {
            "policy": self.policy, "rule": self.rule, "owner_uid": self.owner, "incidents": list(self.incidents),
            "wrong_max": self.wrong_max,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """All decisions made in advance about a kind of run."""

    name: str
    mode: Mode = Mode.ENFORCE
    match: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Label (or "stage") -> accepted values.
    budget: Budget = field(default_factory=Budget)
    expected: Expected = field(default_factory=Expected)
    halt: HaltSettings = field(default_factory=HaltSettings)
    run_on_finish: str = "keep"  # keep | stop: what happens to the node when the run ends well.
    node_idle_stop_ns: DurationNs | None = None
    rules: tuple[Rule, ...] = ()
    halts_per_day_max: int = HALTS_PER_DAY_MAX
    wrong_max: int = WRONG_MAX  # So many false halts and a rule only observes. 0: never.
    source: str = ""

    def matches(self, labels: Mapping[str, str], stage: str | None) -> bool:
        return labels_match(self.match, labels, stage)

    @property
    def ceiling_is_typed(self) -> bool:
        """Whether its ceiling comes from the command line, which outranks every file."""
        return any(rule.trigger == "budget" and rule.source == COMMAND_LINE for rule in self.rules)

    def may_fall_back(self, rule: Rule) -> bool:
        """Whether false halts take the rule's force: it halts, and it is no promise."""
        is_halt = rule.response is Response.HALT and rule.mode is Mode.ENFORCE
        return self.wrong_max > 0 and is_halt and rule.trigger not in PROMISES

    def fallen_back(self, wrong: Wrong, uid: int) -> Policy:
        """The policy for a run of `uid`: rules with too many false halts only observe."""
        if not any((self.name, rule.name) in wrong for rule in self.rules):
            return self
        rules = tuple(
            replace(rule, mode=Mode.OBSERVE)
            if self.may_fall_back(rule) and _count_for(wrong.get((self.name, rule.name), ()), uid) >= self.wrong_max
            else rule
            for rule in self.rules
        )
        return replace(self, rules=rules)

    def observing(self) -> Policy:
        """The same policy in observe mode (`costgov daemon --observe`)."""
        rules = tuple(replace(rule, mode=Mode.OBSERVE) for rule in self.rules)
        return replace(self, mode=Mode.OBSERVE, rules=rules)


# The policy of a run that matches none, without a default: watched and metered, never touched.
NO_POLICY = Policy(name="none", mode=Mode.OBSERVE)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All loaded policies. `digest` (SHA-256 of the texts) identifies exactly what was in force.

    `wrong`: what people have said of the halts of their rules. It is no part of the texts.
    """

    policies: tuple[Policy, ...]
    digest: str
    wrong: Wrong = field(default_factory=dict)

    def for_run(self, labels: Mapping[str, str], stage: str | None, uid: int | None = None) -> Policy:
        """Return the matching policy with the most `match` keys; ties go to the first name in order.

        A policy without `match` matches every run and so comes last. NO_POLICY when nothing matches. With the run's
        `uid`, rules that have fallen back only observe.
        """
        matching = [policy for policy in self.policies if policy.matches(labels, stage)]
        found = min(matching, key=lambda policy: (-len(policy.match), policy.name), default=NO_POLICY)
        return found if uid is None or not self.wrong else found.fallen_back(self.wrong, uid)

    def fallen(self) -> list[FallBack]:
        """Every rule that has fallen back: for all runs, else for those of single users."""
        found = []
        for policy in self.policies if self.wrong else ():
            for rule in filter(policy.may_fall_back, policy.rules):
                halts = self.wrong.get((policy.name, rule.name), ())
                enough = [
                    owner
                    for owner in (None, *sorted({one.owner for one in halts if one.owner is not None}))
                    if _count_for(halts, owner) >= policy.wrong_max
                ]
                for owner in enough[:1] if None in enough else enough:
                    ids = tuple(one.incident_id for one in halts if one.owner is None or one.owner == owner)
                    found.append(FallBack(policy.name, rule.name, owner, ids, policy.wrong_max))
        return found

    @property
    def typed_ceiling_usd_micros(self) -> UsdMicros | None:
        """The command line's ceiling, which outranks every policy."""
        typed = (policy.budget.ceiling_usd_micros for policy in self.policies if policy.ceiling_is_typed)
        return next(typed, None)

    def observing(self) -> PolicySet:
        return replace(self, policies=tuple(policy.observing() for policy in self.policies))

    def with_ceiling(self, ceiling_usd_micros: UsdMicros) -> PolicySet:
        """Set the command line's `--ceiling` in every policy, with the rule that enforces it.

        If no policy matches every run, add one that does, with only the ceiling.
        """
        policies = self.policies
        if all(policy.match for policy in policies):
            policies = (*policies, Policy(name="command-line", source=COMMAND_LINE))
        return replace(self, policies=tuple(with_ceiling(policy, ceiling_usd_micros) for policy in policies))

    def with_gate(self, after: WarmUp) -> PolicySet:
        """Put the command line's `--gate` into every policy."""
        return replace(self, policies=tuple(_with_gate(policy, after) for policy in self.policies))


def with_ceiling(
    policy: Policy, ceiling_usd_micros: UsdMicros, *, tokens: int | None = None, source: str = COMMAND_LINE
) -> Policy:
    """Return the policy with this ceiling and a budget rule that enforces it, whatever the policy's mode.

    A person set the ceiling, so it halts even if the file only observes. `tokens` None: keep the policy's own.
    """
    others = tuple(rule for rule in policy.rules if not (rule.trigger == "budget" and rule.response is Response.HALT))
    taken = {rule.name for rule in others}
    name = "budget" if "budget" not in taken else "command-line-ceiling"
    budget = replace(policy.budget, ceiling_usd_micros=ceiling_usd_micros, tokens=tokens or policy.budget.tokens)
    return replace(policy, budget=budget, rules=(*others, _enforcing(policy, name, source)))


def _with_gate(policy: Policy, after: WarmUp) -> Policy:
    name = "gate" if all(rule.name != "gate" for rule in policy.rules) else "command-line-gate"
    rule = replace(_enforcing(policy, name, COMMAND_LINE), trigger="gate", params={after.kind.value: after.need})
    # What it halts is healthy.
    rule = replace(rule, checkpoint="none" if rule.checkpoint == "none" else "good")
    return replace(policy, rules=(*policy.rules, rule))


def with_cap_rule(policy: Policy) -> Policy:
    """Return the policy with a rule that holds the run to the budgets of its groups (`Run.caps`).

    Unchanged if a rule of the policy already does so at once. The added rule does not enforce the policy's own ceiling:
    the policy's file may only observe that.
    """
    if any(_enforces_at_once(rule) for rule in policy.rules):
        return policy
    rule = replace(_enforcing(policy, CAP_RULE, "budgets"), params={"caps_only": True})
    return replace(policy, rules=(*(rule for rule in policy.rules if rule.name != CAP_RULE), rule))


CAP_RULE = "budget-of-scope"


def _enforces_at_once(rule: Rule) -> bool:
    return (
        rule.trigger == "budget"
        and rule.response is Response.HALT
        and rule.mode is Mode.ENFORCE
        and rule.persistence == AT_ONCE
        and not rule.match
        and rule.warmup is None
        and rule.params.get("at_frac", 1.0) >= 1
    )


def _enforcing(policy: Policy, name: str, source: str) -> Rule:
    return Rule(
        name=name,
        trigger="budget",
        params={},
        persistence=AT_ONCE,
        response=Response.HALT,
        mode=Mode.ENFORCE,
        checkpoint=policy.halt.checkpoint,
        source=source,
    )
