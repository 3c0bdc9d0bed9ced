"""Tunes limits on a user's healthy logs: how near the worst log came to each limit, and which value keeps a margin.

The search does not know how a trigger measures. It replays the rules as they are and moves one key at a time, until it
finds the value at which a healthy log would first have fired. That is the worst case in the key's own unit, with the
rule's `for` and everything else unchanged. The detector itself fires there, so a new trigger is tuned like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from governor.core.base.findings import Response
from governor.core.base.policy import Mode, Persistence, PersistenceKind, Policy, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_MS, NS_PER_S, DurationNs
from governor.core.rules.trigger import Key, defaults
from governor.core.rules.triggers import load
from governor.policies.words import format_span
from governor.replay.play import ReplayVerdict

# Plays these logs in their order under a policy.
Play = Callable[[Sequence[str], Policy], Iterable[tuple[str, Sequence[ReplayVerdict]]]]
Value = int | float

# How far to look either way, and how fine: 1/16 .. 16 in steps of 4, then 6 values in the gap, then 4: 6 %.
FACTORS: Final = (1 / 16, 1 / 4, 4.0, 16.0)
REFINED: Final = (5, 3)
FAR: Final = 16
BATCH: Final = 32  # Logs that are played under the same variants. Those that have fired are not tried on the next ones.
FOR: Final = "for"
_FOR: Final = {
    PersistenceKind.DURATION: Key(FOR, "duration", "1s", "How long it must hold."),
    PersistenceKind.STEPS: Key(FOR, "count", 1, "In how many steps it must hold."),
    PersistenceKind.TOKENS: Key(FOR, "count", 1, "For how many tokens it must hold."),
}
_UNIT_OF_FOR: Final = {_FOR[PersistenceKind.STEPS]: "steps", _FOR[PersistenceKind.TOKENS]: "tokens"}
ONCE_NS: Final = DurationNs(100 * 365 * 24 * NS_PER_HOUR)  # Longer than any log.


class State(Enum):
    """The limit in force relative to the worst of the healthy logs."""

    FIRES = "fires"  # A healthy log would have fired.
    CLOSE = "close"  # No log would have fired, but the margin is too small.
    WIDE = "wide"  # The margin is kept. A tighter limit would keep it too.
    FAR = "far"  # No log fires within 16 times either way.
    ALWAYS = "always"  # It fires at every value, so this limit is not the cause.


@dataclass(frozen=True, slots=True)
class NearestVerdict:
    """The first firing of a variant."""

    log: str
    t: float | None  # seconds since the log began


@dataclass(frozen=True, slots=True)
class Tuned:
    """One key of one rule. `worst`: the last value, from the safe side, at which every log stayed quiet."""

    rule: str
    key: Key
    here: Value
    state: State
    worst: Value | None = None
    verdict: NearestVerdict | None = None  # At the neighbouring value.
    suggested: Value | None = None  # None also when no value has the margin.

    @property
    def apart(self) -> float | None:
        """The factor between the limit in force and the worst case. Below 1, the limit is on the wrong side."""
        if self.worst is None or not self.here or not self.worst or self.suggested is None:
            return None
        outward = self.suggested > self.worst
        return self.here / self.worst if outward else self.worst / self.here


@dataclass
class _Search:
    """The values tried for one key, and whether each fired."""

    rule: Rule
    key: Key
    here: Value
    fired: dict[Value, NearestVerdict | None] = field(default_factory=dict)

    def values(self) -> list[Value]:
        return sorted(self.fired)

    def bracket(self) -> tuple[Value, Value] | None:
        """The neighbours (quiet, firing) nearest to the limit in force. None when all values are alike."""
        values = self.values()
        pairs = [
            (low, high) if self.fired[high] else (high, low)
            for low, high in pairwise(values)
            if (self.fired[low] is None) is not (self.fired[high] is None)
        ]
        return min(pairs, key=lambda pair: abs(math.log(pair[0] / self.here)), default=None)

    def next_values(self, count: int) -> list[Value]:
        """`count` values between the neighbours, at equal factors. At first they are around the limit in force."""
        if not self.fired:
            wanted: Iterable[float] = (self.here * factor for factor in FACTORS)
        else:
            pair = self.bracket()
            if pair is None:
                return []
            low, high = sorted(pair)
            wanted = (low * (high / low) ** (part / (count + 1)) for part in range(1, count + 1))
        fit = {value for one in wanted if (value := _fit(self.key, one)) is not None}
        return sorted(fit - self.fired.keys())


def tune(policy: Policy, logs: Sequence[str], play: Play, margin: float) -> list[Tuned]:
    """Find the worst case of every tunable limit in the policy's rules, and the value that keeps the margin from it.

    `play` replays logs under a policy. Of rules with several triggers only the `for` is tuned, because it is unknown
    which of their limits decides. The logs are replayed three times.
    """
    searches = list(_searches(policy))
    plain = {search.rule.name: search for search in searches}  # One search of each rule replays the unchanged rule.
    around = [(search, value) for search in searches for value in search.next_values(0)]
    _try(logs, play, policy, [*((search, search.here) for search in plain.values()), *around])
    for search in searches:
        as_it_is = plain[search.rule.name]
        search.fired[search.here] = as_it_is.fired[as_it_is.here]
    for count in REFINED:
        _try(logs, play, policy, [(search, value) for search in searches for value in search.next_values(count)])
    return [_tuned(search, margin) for search in searches]


def _searches(policy: Policy) -> Iterator[_Search]:
    for rule in policy.rules:
        trigger = None if rule.members else load()[rule.trigger]
        if trigger is not None:
            params = {**defaults(trigger.KEYS), **rule.params}
            for key in trigger.KEYS:
                if key.name in vars(trigger).get("LIMITS", ()) and params[key.name]:
                    yield _Search(rule, key, params[key.name])
        if rule.persistence.need and (trigger is None or vars(trigger).get("FOR_IS_LIMIT", True)):
            yield _Search(rule, _FOR[rule.persistence.kind], rule.persistence.need)


def _try(logs: Sequence[str], play: Play, policy: Policy, variants: Sequence[tuple[_Search, Value]]) -> None:
    """Replay every log under rules that are only these variants. A variant that fired is not replayed again."""
    named = {f"variant-{number}": variant for number, variant in enumerate(variants)}
    for search, value in variants:
        search.fired[value] = None
    for batch in (logs[at : at + BATCH] for at in range(0, len(logs), BATCH)):
        rules = tuple(_variant(name, *variant) for name, variant in named.items() if not _has_fired(*variant))
        if not rules:
            return
        for log, verdicts in play(batch, replace(policy, rules=rules)):
            for verdict in verdicts:
                if verdict.rule in named and not _has_fired(*named[verdict.rule]):
                    search, value = named[verdict.rule]
                    search.fired[value] = NearestVerdict(log, verdict.t)


def _has_fired(search: _Search, value: Value) -> bool:
    return search.fired[value] is not None


def lacking(tuned: Sequence[Tuned]) -> set[str]:
    """Rules to which no suggested limit gives the margin: the logs are not healthy, or the rule does not suit them."""
    by_rule: dict[str, list[Tuned]] = {}
    for one in tuned:
        by_rule.setdefault(one.rule, []).append(one)
    return {
        rule
        for rule, limits in by_rule.items()
        if any(one.state is State.CLOSE and one.suggested is None for one in limits)
        or (any(one.state in (State.FIRES, State.ALWAYS) for one in limits) and cure(limits) is None)
    }


def cure(limits: Iterable[Tuned]) -> Tuned | None:
    """The limit of one rule that has to move least, among those that would each have kept it quiet."""
    able = [one for one in limits if one.state is State.FIRES and one.suggested is not None]
    return min(able, key=lambda one: abs(math.log((one.suggested or one.here) / one.here)), default=None)


def _variant(name: str, search: _Search, value: Value) -> Rule:
    """The rule with one limit moved. It only watches and fires once per log, because only the first time matters."""
    quiet = replace(search.rule, name=name, response=Response.WATCH, mode=Mode.OBSERVE, cooldown_ns=ONCE_NS)
    if search.key.name == FOR:
        hold = search.rule.persistence
        of = max(int(value), hold.of if hold.of > hold.need else 0) if hold.kind is PersistenceKind.STEPS else 0
        return replace(quiet, persistence=Persistence(hold.kind, int(value), of))
    return replace(quiet, params={**search.rule.params, search.key.name: value})


def _tuned(search: _Search, margin: float) -> Tuned:
    plain = Tuned(search.rule.name, search.key, search.here, State.FAR)
    pair = search.bracket()
    if pair is None:
        verdict = search.fired[search.here]
        return plain if verdict is None else replace(plain, state=State.ALWAYS, verdict=verdict)
    worst, beside = pair
    outward = worst > beside
    suggested = _rounded(search.key, worst * margin if outward else worst / margin, outward=outward)
    tuned = replace(plain, worst=worst, verdict=search.fired[beside], suggested=suggested)
    if search.fired[search.here] is not None:
        return replace(tuned, state=State.FIRES)
    limit = worst * margin if outward else worst / margin
    has_margin = search.here >= limit if outward else search.here <= limit
    return replace(tuned, state=State.WIDE if has_margin else State.CLOSE)


def _fit(key: Key, value: float) -> Value | None:
    """The nearest value that the key accepts. None if there is none."""
    least = key.parse(key.least) if key.least else 0
    match key.kind:
        case "duration":
            fit: Value = max(round(value), least, NS_PER_MS)
        case "count":
            fit = max(round(value), least, 1)
        case "frac":
            fit = min(float(value), 1.0)
        case _:
            fit = max(float(value), float(least))
    return fit if math.isfinite(fit) else None


def _rounded(key: Key, value: float, *, outward: bool) -> Value | None:
    """Two digits or a round time, away from the worst case. None when the key accepts no such value."""
    turn = math.ceil if outward else math.floor
    rounded: Value
    if key.kind == "duration":
        unit = next((unit for above, unit in _UNITS if value >= above), 10 * NS_PER_MS)
        rounded = turn(value / unit) * unit
    elif key.kind == "count":
        rounded = turn(value)
    else:
        digit = 10.0 ** (math.floor(math.log10(value)) - 1)
        rounded = float(f"{turn(value / digit) * digit:.6g}")
    fits = _fit(key, rounded)
    return fits if fits is not None and math.isclose(fits, rounded) and rounded > 0 else None


_UNITS: Final = (
    (120 * NS_PER_MINUTE, 15 * NS_PER_MINUTE),
    (10 * NS_PER_MINUTE, NS_PER_MINUTE),
    (NS_PER_MINUTE, 5 * NS_PER_S),
    (10 * NS_PER_S, NS_PER_S),
    (NS_PER_S, 100 * NS_PER_MS),
)


def in_toml(key: Key, value: Value) -> str | Value:
    """A value as parsed from TOML, no finer than a person would write it."""
    if key.kind == "duration":
        unit = NS_PER_S if value >= 10 * NS_PER_S else NS_PER_MS
        return format_span(round(value / unit) * unit)
    if (unit_of_for := _UNIT_OF_FOR.get(key)) is not None:
        return f"{value} {unit_of_for if value != 1 else unit_of_for.removesuffix('s')}"
    return value if key.kind == "count" else float(f"{value:.3g}")


def literal(key: Key, value: Value) -> str:
    """A value as written in TOML."""
    given = in_toml(key, value)
    return f'"{given}"' if isinstance(given, str) else f"{given:g}"
