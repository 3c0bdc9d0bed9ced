"""What a user's healthy logs say about limits: how near the worst of them came to each, and which would keep a margin.

No trigger is asked how it measures. The rules are replayed as they are, with one key moved at a time, until the value
is found at which a healthy log would first have been told of: that is the worst case, in the key's own unit, with the
rule's `for` and everything else as it is. What fires there is the detector itself: a new trigger is tuned like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from governor.core.base.findings import Response
from governor.core.base.policy import Mode, Policy, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_MS, NS_PER_S, DurationNs
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Key, defaults
from governor.policies.words import format_span
from governor.replay.play import Replay

Play = Callable[[str, Policy], Replay]
Value = int | float

# How far to look either way, and how fine: 1/16 .. 16 in steps of 4, each gap in 6, and the one found in 4: 6 %.
FACTORS: Final = (1 / 16, 1 / 4, 4.0, 16.0)
REFINED: Final = (5, 3)
FAR: Final = 16
ONCE_NS: Final = DurationNs(100 * 365 * 24 * NS_PER_HOUR)  # Longer than any log.


class State(Enum):
    """How the limit in force stands to the worst of the healthy logs."""

    FIRES = "fires"  # A healthy log would have been told of.
    CLOSE = "close"  # None was, with less than the margin.
    WIDE = "wide"  # The margin is there; a tighter limit would keep it too.
    FAR = "far"  # Nothing within 16 times either way.
    ALWAYS = "always"  # It fires at every value: this limit is not what makes it fire.


@dataclass(frozen=True, slots=True)
class Told:
    """Where a variant first fired."""

    log: str
    t: float | None  # Seconds since the log began.


@dataclass(frozen=True, slots=True)
class Tuned:
    """One key of one rule. `worst`: the last value, coming from the safe side, at which every log stayed quiet."""

    rule: str
    key: Key
    here: Value
    state: State
    worst: Value | None = None
    told: Told | None = None  # At the value beside it.
    suggested: Value | None = None  # None also where no value has the margin.

    @property
    def apart(self) -> float | None:
        """How many times the limit in force is away from the worst case; below 1 it is on the wrong side."""
        if self.worst is None or not self.here or not self.worst or self.suggested is None:
            return None
        outward = self.suggested > self.worst
        return self.here / self.worst if outward else self.worst / self.here


@dataclass
class _Search:
    """The values tried for one key, and which of them fired."""

    rule: Rule
    key: Key
    here: Value
    fired: dict[Value, Told | None] = field(default_factory=dict)

    def values(self) -> list[Value]:
        return sorted(self.fired)

    def bracket(self) -> tuple[Value, Value] | None:
        """The neighbours (quiet, firing) that lie nearest to the limit in force; None where all are alike."""
        values = self.values()
        pairs = [
            (low, high) if self.fired[high] else (high, low)
            for low, high in pairwise(values)
            if (self.fired[low] is None) is not (self.fired[high] is None)
        ]
        return min(pairs, key=lambda pair: abs(math.log(pair[0] / self.here)), default=None)

    def next_values(self, count: int) -> list[Value]:
        """So many values between the neighbours, evenly apart as factors; at first those around the limit in force."""
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
    """Find the worst case of every tunable limit in the policy's rules, and what would keep the margin from it.

    `play` replays a log under a policy. Rules of several triggers are left out: which limit of them counted cannot be
    told. The logs are replayed three times.
    """
    searches = list(_searches(policy))
    plain = {search.rule.name: search for search in searches}  # One of each rule stands for it as it is.
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
        if rule.members:
            continue
        trigger = load()[rule.trigger]
        params = {**defaults(trigger.KEYS), **rule.params}
        for key in trigger.KEYS:
            if key.name in vars(trigger).get("LIMITS", ()) and params[key.name]:
                yield _Search(rule, key, params[key.name])


def _try(logs: Sequence[str], play: Play, policy: Policy, variants: Sequence[tuple[_Search, Value]]) -> None:
    """Replay every log under rules that are these variants alone. What fired in one log is not asked in the next."""
    named = {f"variant-{number}": variant for number, variant in enumerate(variants)}
    for search, value in variants:
        search.fired[value] = None
    for log in logs:
        rules = tuple(_variant(name, *variant) for name, variant in named.items() if not _has_fired(*variant))
        if not rules:
            return
        for told in play(log, replace(policy, rules=rules)).told:
            if told.rule in named and not _has_fired(*named[told.rule]):
                search, value = named[told.rule]
                search.fired[value] = Told(log, told.t)


def _has_fired(search: _Search, value: Value) -> bool:
    return search.fired[value] is not None


def lacking(tuned: Sequence[Tuned]) -> set[str]:
    """Rules that no suggested limit gives the margin: the logs are not healthy, or the rule is not for them."""
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
    """Of one rule's limits that would each have kept it quiet, the one that has to move least."""
    able = [one for one in limits if one.state is State.FIRES and one.suggested is not None]
    return min(able, key=lambda one: abs(math.log((one.suggested or one.here) / one.here)), default=None)


def _variant(name: str, search: _Search, value: Value) -> Rule:
    """The rule with one limit moved. It only watches, and tells once a log: the first time is what is asked for."""
    params = {**search.rule.params, search.key.name: value}
    quiet = replace(search.rule, response=Response.WATCH, mode=Mode.OBSERVE, cooldown_ns=ONCE_NS)
    return replace(quiet, name=name, params=params)


def _tuned(search: _Search, margin: float) -> Tuned:
    plain = Tuned(search.rule.name, search.key, search.here, State.FAR)
    pair = search.bracket()
    if pair is None:
        told = search.fired[search.here]
        return plain if told is None else replace(plain, state=State.ALWAYS, told=told)
    worst, beside = pair
    outward = worst > beside
    suggested = _rounded(search.key, worst * margin if outward else worst / margin, outward=outward)
    tuned = replace(plain, worst=worst, told=search.fired[beside], suggested=suggested)
    if search.fired[search.here] is not None:
        return replace(tuned, state=State.FIRES)
    limit = worst * margin if outward else worst / margin
    has_margin = search.here >= limit if outward else search.here <= limit
    return replace(tuned, state=State.WIDE if has_margin else State.CLOSE)


def _fit(key: Key, value: float) -> Value | None:
    """The nearest value that the key takes, None where there is none."""
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
    """To two digits or a round time, away from the worst case; None where the key takes no such value."""
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
    """A value as it would be read from TOML, not finer than anybody would write it."""
    if key.kind == "duration":
        unit = NS_PER_S if value >= 10 * NS_PER_S else NS_PER_MS
        return format_span(round(value / unit) * unit)
    return value if key.kind == "count" else float(f"{value:.3g}")


def literal(key: Key, value: Value) -> str:
    """A value as it stands in TOML."""
    given = in_toml(key, value)
    return f'"{given}"' if isinstance(given, str) else f"{given:g}"
