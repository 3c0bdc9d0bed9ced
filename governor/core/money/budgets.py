"""Budgets by scope: a ceiling for one run, a stage, a label's value, the UTC day or the node, and who set it.

A budget counts what this governor meters: the ledger of its own node. Pure data; core.engine applies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from governor.core.base.identity import RUN_NAME
from governor.core.base.policy import Policy, with_cap_rule, with_ceiling
from governor.core.base.units import UsdMicros, WallNs
from governor.core.money.ceiling_forecast import AT_ONCE, Met, ReserveGrowth
from governor.core.money.group_totals import KEY_CHARS_MAX, keys_of, label_key, stage_key

# Of each source. Each budget is judged at every tick. One team's list on one node is shorter.
BUDGETS_MAX: Final = 64
# A billion dollars: the dearest node takes a thousand years to spend it.
CEILING_MAX_USD_MICROS: Final = 10**15
GROUP_ALERT_AT: Final = (0.5, 0.8, 0.95)  # The default of [[budget]], as in the shipped policies.
# Of a scope, or of an error about it. Five of each fit into one alarm.
NAMED_CHARS_MAX: Final = 80
# The errors of reading a row that is damaged or of another version. int() of 1e999 raises OverflowError.
TORN: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
SCOPES: Final = "run:NAME, stage:NAME, label:KEY=VALUE, day or node"
SHARED: Final = "shared:"  # Before the scope of a budget of a fleet, in a Cap and in incidents.


class ScopeKind(Enum):
    RUN = "run"
    STAGE = "stage"
    LABEL = "label"
    # UTC, from 00:00. Counts all spend on the node, also unallocated spend.
    DAY = "day"
    NODE = "node"  # All spend since the ledger began, also unallocated spend.


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose spend is counted. `name` is the run, the stage or the label; `value` is the label's value."""

    kind: ScopeKind
    name: str = ""
    value: str = ""

    @property
    def text(self) -> str:
        match self.kind:
            case ScopeKind.STAGE:
                return stage_key(self.name)
            case ScopeKind.LABEL:
                return label_key(self.name, self.value)
            case ScopeKind.RUN:
                return f"run:{self.name}"
            case ScopeKind.DAY | ScopeKind.NODE:
                return str(self.kind.value)

    def covers(self, run: str, stage: str | None, labels: Mapping[str, str]) -> bool:
        match self.kind:
            case ScopeKind.DAY | ScopeKind.NODE:
                return True
            case ScopeKind.RUN:
                return run == self.name
            case _:
                return self.text in keys_of(stage, labels.items())


def scopes_of(run: str, stage: str | None, labels: Mapping[str, str]) -> set[str]:
    """All scopes that cover this run, as text."""
    return {Scope(ScopeKind.RUN, run).text, *keys_of(stage, labels.items()), "day", "node"}


def parse_scope(text: str, *, bare_run: bool = False) -> Scope:
    """Read a scope. With `bare_run` a single word is a run's name. ValueError says what is accepted."""
    kind, colon, name = text.partition(":")
    if len(text) > KEY_CHARS_MAX or not text.isprintable():
        raise ValueError(f"a scope has at most {KEY_CHARS_MAX} printable characters: {SCOPES}")
    if text in ("day", "node"):
        return Scope(ScopeKind(text))
    if colon and kind == "stage" and name.strip():
        return Scope(ScopeKind.STAGE, name)
    if colon and kind == "label":
        label, equals, value = name.partition("=")
        if label.strip() and equals:
            return Scope(ScopeKind.LABEL, label, value)
    if colon and kind == "run" and RUN_NAME.fullmatch(name):
        return Scope(ScopeKind.RUN, name)
    if bare_run and kind not in ("run", "stage", "label") and RUN_NAME.fullmatch(text):
        return Scope(ScopeKind.RUN, text)
    raise ValueError(f'"{text}" is not a scope; write {SCOPES}')


def checked_ceiling(usd_micros: int) -> UsdMicros:
    """ValueError when the amount cannot be a ceiling."""
    if usd_micros <= 0:
        raise ValueError("a ceiling is more than $0")
    if usd_micros >= CEILING_MAX_USD_MICROS:
        raise ValueError(f"a ceiling is below ${CEILING_MAX_USD_MICROS // 10**6:,}: more is a typo")
    return UsdMicros(usd_micros)


def checked_fractions(values: Iterable[float]) -> tuple[float, ...]:
    """The fractions, sorted, each once. ValueError when a value is not between 0 and 1."""
    found = set(values)
    if not all(0 < value < 1 for value in found):  # NaN fails too, and so does an integer that no float can hold.
        raise ValueError("must be fractions of the ceiling, between 0 and 1")
    return tuple(sorted(float(value) for value in found))


@dataclass(frozen=True, slots=True)
class ScopedBudget:
    """One ceiling. For a live budget `uid`, `reason` and `set_wall` say who set it, why and when."""

    scope: Scope
    ceiling_usd_micros: UsdMicros
    source: str  # "costgov.toml", "set by uid 0".
    alert_at: tuple[float, ...] = ()
    tokens: int | None = None  # Only for a run.
    uid: int | None = None
    reason: str = ""
    set_wall: WallNs | None = None
    # Only for a live budget: the command line's ceiling that it replaced.
    over_usd_micros: int | None = None

    @property
    def is_live(self) -> bool:
        return self.uid is not None


@dataclass(frozen=True, slots=True)
class Cap:
    """The present state of a budget. It is reached when spend plus reserve equal its ceiling."""

    scope: str
    ceiling_usd_micros: UsdMicros
    spend_usd_micros: UsdMicros
    reserve_usd_micros: UsdMicros = UsdMicros(0)  # The cost of halting all runs that it covers.
    rate_usd_micros_per_hour: UsdMicros | None = None  # Of all runs that it covers; None: the price is unknown.
    # If the halt would end after this time, it ends in the next day, whose budget starts at zero.
    hours_to_reset: float = float("inf")
    growths: tuple[ReserveGrowth, ...] = ()  # Of that halt: one for each run that it covers.
    # Of a shared budget: its own ceiling. `ceiling` is then what was granted of it, which grows again and again.
    whole_usd_micros: UsdMicros | None = None

    @property
    def is_grant(self) -> bool:
        return self.whole_usd_micros is not None

    @property
    def room_usd_micros(self) -> int:
        return self.ceiling_usd_micros - self.spend_usd_micros - self.reserve_usd_micros

    def met(self) -> Met | None:
        """When its halt comes at the present rate, with the reserve as it will be then. Every view asks here.

        A group's comes with the first of its runs for which spend and reserve are used up. None: never, as nothing is
        spent, the price is unknown, or the budget resets first.
        """
        room, rate = self.room_usd_micros, self.rate_usd_micros_per_hour
        if room <= 0:
            return AT_ONCE
        if not rate or room / rate > self.hours_to_reset:
            return None
        each = [growth.met(room, rate) for growth in self.growths or (ReserveGrowth(),)]
        return Met(min(m.after_ns for m in each), min(m.low_ns for m in each), min(m.high_ns for m in each))


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """The largest fraction of a budget that an alarm has reported, with its ceiling and (for `day`) the day."""

    frac: float
    ceiling_usd_micros: int
    day: int | None


@dataclass(slots=True)
class Budgets:
    """The budgets in force. A live budget outranks a configured one of the same scope."""

    # By scope, from [[budget]] of costgov.toml. A run whose ceiling is on the command line has none here.
    configured: Mapping[str, ScopedBudget] = field(default_factory=dict)
    live: dict[str, ScopedBudget] = field(default_factory=dict)  # By scope; survives restarts.
    reports: dict[str, BudgetReport] = field(default_factory=dict)
    caps: tuple[Cap, ...] = ()  # The state of each at the last tick.

    def in_force(self) -> list[ScopedBudget]:
        return list({**self.configured, **self.live}.values())

    def of(self, scope: Scope) -> ScopedBudget | None:
        return self.live.get(scope.text) or self.configured.get(scope.text)

    def of_groups(self) -> list[ScopedBudget]:
        """The budgets that cover more than one run."""
        return [budget for budget in self.in_force() if budget.scope.kind is not ScopeKind.RUN]

    def runs(self) -> list[str]:
        """The runs that have a budget of their own."""
        return [budget.scope.name for budget in self.in_force() if budget.scope.kind is ScopeKind.RUN]

    def scopes(self) -> set[str]:
        """All scopes that have a budget."""
        return {*self.configured, *self.live}

    def set_live(self, scope: Scope, budget: ScopedBudget | None) -> None:
        """Set a live budget, or remove it."""
        if budget is None:
            self.live.pop(scope.text, None)
        else:
            self.live[scope.text] = budget
        if self.of(scope) is None:
            # Otherwise each snapshot would hold every scope that ever had a budget.
            self.reports.pop(scope.text, None)

    def drop_older_than(self, typed_usd_micros: UsdMicros) -> list[ScopedBudget]:
        """Remove and return the live budgets of runs that were not set over this ceiling of the command line."""
        live = self.live.values()
        over = [b for b in live if b.scope.kind is ScopeKind.RUN and b.over_usd_micros != typed_usd_micros]
        for budget in over:
            del self.live[budget.scope.text]
        return over

    def stand(self, caps: Iterable[Cap]) -> None:
        """Store the state of each budget at this tick."""
        self.caps = tuple(caps)

    def set_report(self, scope: str, report: BudgetReport) -> None:
        """Store the fraction of this scope's budget that was alarmed."""
        self.reports[scope] = report

    def over(
        self, policy: Policy, run: str, stage: str | None, labels: Mapping[str, str], *, of_command: bool = False
    ) -> Policy:
        """The policy with the run's own budget for its `[budget]`, and with a rule for the group budgets over it.

        `of_command`: another run's budget may be over it too, as that of the command's name.
        """
        own = self.of(Scope(ScopeKind.RUN, run))
        if own is not None:
            policy = with_ceiling(policy, own.ceiling_usd_micros, tokens=own.tokens, source=own.source)
        is_named = of_command and bool(self.runs())
        if is_named or any(budget.scope.covers(run, stage, labels) for budget in self.of_groups()):
            policy = with_cap_rule(policy)
        return policy

    def snapshot(self) -> dict[str, Any]:
        return {
            "live": [_row(budget) for budget in self.live.values()],
            "said": {
                scope: [reports.frac, reports.ceiling_usd_micros, reports.day]
                for scope, reports in self.reports.items()
            },
        }

    def restore(self, snapshot: Mapping[str, Any]) -> list[str]:
        """Restore each readable live budget; return the problem of each other one.

        An unreadable report is dropped, so its alarm is sent again. Raises one of TORN when there is no list of
        budgets.
        """
        live, problems = [], []
        for row in snapshot["live"]:
            try:
                live.append(_of_row(row))
            except TORN as error:
                problems.append(f"{_named(row)}: {type(error).__name__} {str(error)[:NAMED_CHARS_MAX]}")
        self.live = {budget.scope.text: budget for budget in live}
        reports = snapshot.get("said")
        for scope, told in reports.items() if isinstance(reports, Mapping) else ():
            try:
                frac, ceiling, day = told
                one = BudgetReport(float(frac), int(ceiling), None if day is None else int(day))
            except TORN:
                continue
            if scope in self.live or scope in self.configured:
                self.reports[scope] = one
        return problems


def by_scope(budgets: Sequence[ScopedBudget]) -> dict[str, ScopedBudget]:
    return {budget.scope.text: budget for budget in budgets}


def _named(row: object) -> str:
    """What a person needs to set an unreadable budget again."""
    if not isinstance(row, Mapping):
        return repr(row)[:NAMED_CHARS_MAX]
    return f"{row.get('scope')!s:.{NAMED_CHARS_MAX}} of {row.get('ceiling_usd_micros')!s:.20} micro-dollars"


def _row(budget: ScopedBudget) -> dict[str, Any]:
    return {
        "scope": budget.scope.text,
        "ceiling_usd_micros": budget.ceiling_usd_micros,
        "source": budget.source,
        "alert_at": list(budget.alert_at),
        "tokens": budget.tokens,
        "uid": budget.uid,
        "reason": budget.reason,
        "set_wall_ns": budget.set_wall,
        "over_usd_micros": budget.over_usd_micros,
    }


def _of_row(row: Mapping[str, Any]) -> ScopedBudget:
    return ScopedBudget(
        scope=parse_scope(row["scope"]),
        ceiling_usd_micros=checked_ceiling(int(row["ceiling_usd_micros"])),
        source=str(row["source"]),
        alert_at=checked_fractions(row["alert_at"]),
        tokens=None if row["tokens"] is None else int(row["tokens"]),
        uid=int(row["uid"]),
        reason=str(row["reason"]),
        set_wall=WallNs(int(row["set_wall_ns"])),
        over_usd_micros=None if row.get("over_usd_micros") is None else int(row["over_usd_micros"]),
    )
