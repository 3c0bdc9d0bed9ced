"""The [[budget]] and [[line]] tables of costgov.toml: ceilings, and what is billed beside the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from governor.core.base.units import UsdMicros, parse_count, usd
from governor.core.money.budgets import (
    GROUP_ALERT_AT,
    Scope,
    ScopedBudget,
    ScopeKind,
    checked_ceiling,
    checked_fractions,
    parse_scope,
)
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import NODE_LINE, Lines, Metered
from governor.core.money.prices import Day, day_text, span_of
from governor.settings.values import Dollars, Text

SOURCE = "costgov.toml"


def _scope(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError('must be a scope in quotes such as "stage:stage1" or "day"')
    return parse_scope(value)


def _ceiling(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not an amount in dollars")
    return checked_ceiling(usd(value))


def _fractions(value: object) -> object:
    numbers = [item for item in value if isinstance(item, (int, float))] if isinstance(value, (list, tuple)) else None
    if numbers is None or len(numbers) != len(value):  # type: ignore[arg-type]
        raise ValueError("must be a list of fractions such as [0.5, 0.8, 0.95]")
    return checked_fractions(numbers)


def _tokens(value: object) -> object:
    count = parse_count(value) if isinstance(value, str) else value
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        raise ValueError('must be a number of tokens above 0 such as "20B"')
    return count


class BudgetTable(BaseModel):
    """One budget. It halts in every mode of the policies; only the node's `observe = true` prevents that."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    scope: Annotated[Scope, BeforeValidator(_scope)]
    ceiling_usd: Annotated[int, BeforeValidator(_ceiling)]  # In micro-dollars once parsed.
    alert_at: Annotated[tuple[float, ...] | None, BeforeValidator(_fractions)] = None
    tokens: Annotated[int | None, BeforeValidator(_tokens)] = None

    @model_validator(mode="after")
    def _tokens_of_a_run(self) -> BudgetTable:
        if self.tokens is not None and self.scope.kind is not ScopeKind.RUN:
            raise ValueError('tokens belong to a run: scope = "run:NAME"')
        return self

    def scoped(self) -> ScopedBudget:
        usual = () if self.scope.kind is ScopeKind.RUN else GROUP_ALERT_AT  # A run's policy has its own.
        alert_at = usual if self.alert_at is None else self.alert_at
        return ScopedBudget(self.scope, UsdMicros(self.ceiling_usd), SOURCE, alert_at, self.tokens)


def one_of_each(tables: Sequence[BudgetTable]) -> Any:
    """ValueError if two tables have the same scope."""
    scopes = [table.scope.text for table in tables]
    twice = next((scope for scope in scopes if scopes.count(scope) > 1), None)
    if twice is not None:
        raise ValueError(f'two of them have scope = "{twice}"; keep one')
    return tables


# --- [[line]]: what is billed beside the machine itself, in its owner's words ---------------------------


# Each is metered at every tick for every run, and is a row in every hour.
LINES_MAX: Final = 16
GB_MAX: Final = 10**6  # A petabyte on one machine is a mistake in the unit.

_Usd = Annotated[Dollars, Field(gt=0, lt=1e6, allow_inf_nan=False)]

# Price key -> its unit and its kind of line.
_UNITS: Final = {
    "price_usd_per_hour": Unit.HOUR,
    "price_usd_per_gb_month": Unit.GB_MONTH,
    "price_usd_per_launch": Unit.PIECE,
    "price_usd_per_gb": Unit.GB,
}
_PRICES_OF: Final = {
    "storage": ("price_usd_per_gb_month", "price_usd_per_hour"),
    "fixed": ("price_usd_per_hour", "price_usd_per_launch"),
    "egress": ("price_usd_per_gb",),
}


class LineTable(BaseModel):
    """One billed item: a disk, a fixed price by the hour or by the launch, or the egress of checkpoints."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)

    kind: Literal["storage", "fixed", "egress"]
    # In every charge. A disk's first word is its id in the provider's bill: "vol-0abc gp3".
    name: Text
    gb: int | None = Field(default=None, ge=1, le=GB_MAX)
    price_usd_per_hour: _Usd | None = None
    price_usd_per_gb_month: _Usd | None = None
    price_usd_per_launch: _Usd | None = None
    price_usd_per_gb: _Usd | None = None
    source: Text = "costgov.toml"
    # The day of that price. None: it is restated at every start.
    as_of: Text | None = None

    @field_validator("as_of")
    @classmethod
    def _date(cls, value: str | None) -> str | None:
        if value is not None:
            span_of(value)
        return value

    @model_validator(mode="after")
    def _one_price(self) -> LineTable:
        wanted = _PRICES_OF[self.kind]
        given = [key for key in _UNITS if getattr(self, key) is not None]
        if len(given) != 1 or given[0] not in wanted:
            has = f"; it has {' and '.join(given)}" if given else ""
            raise ValueError(f'a line of kind "{self.kind}" takes exactly one of {", ".join(wanted)}{has}')
        needs_gb = given[0] == "price_usd_per_gb_month"
        if needs_gb and self.gb is None:
            raise ValueError("gb is missing: how many GB the disk has")
        if not needs_gb and self.gb is not None:
            raise ValueError("gb counts beside price_usd_per_gb_month alone; remove it")
        if usd(getattr(self, given[0])) == 0:
            raise ValueError(f"{given[0]} is below a millionth of a dollar; state it for a larger unit")
        return self

    def line(self, today: Day) -> Line:
        [(key, unit)] = [(key, unit) for key, unit in _UNITS.items() if getattr(self, key) is not None]
        price: UsdMicros = usd(getattr(self, key))
        return Line(LineKind(self.kind), self.name, unit, price, self.source, self.as_of or day_text(today))


def named_apart(tables: tuple[LineTable, ...]) -> tuple[LineTable, ...]:
    """Refuse equal names: kind and name identify a charge, and a name identifies its meter."""
    seen = {NODE_LINE}
    for table in tables:
        if table.name in seen:
            raise ValueError(f'two lines are called "{table.name}"; give each a name of its own')
        seen.add(table.name)
    return tables


def lines_of(tables: Iterable[LineTable], today: Day) -> Lines:
    """The lines that the core meters. A price without a date is today's."""
    known = [(table.line(today), table.gb or 1) for table in tables]
    return Lines(
        hourly=tuple(Metered(line, gb) for line, gb in known if line.unit in (Unit.HOUR, Unit.GB_MONTH)),
        per_launch=tuple(line for line, _ in known if line.unit is Unit.PIECE),
        per_gb=tuple(line for line, _ in known if line.unit is Unit.GB),
    )
