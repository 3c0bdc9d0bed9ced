"""The [[line]] tables of costgov.toml: what is billed beside the machine itself, in its owner's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from governor.core.base.units import UsdMicros, usd
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import NODE_LINE, Lines, Metered
from governor.core.money.prices import Day, day_text, span_of
from trainer_shim.wire import TEXT_CHARS_MAX

LINES_MAX: Final = 16  # Each is metered at every tick, for every run, and is a row of its own in every hour.
GB_MAX: Final = 10**6  # A petabyte on one machine is a mistake in the unit.

_Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
_Usd = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]

# Price key -> what it is for, and whose line it is.
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
    """One thing that is billed: a disk, what is paid by the hour or by the launch, or checkpoints' bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)

    kind: Literal["storage", "fixed", "egress"]
    name: _Text  # In every charge. A disk's first word is its id in the provider's bill: "vol-0abc gp3".
    gb: int | None = Field(default=None, ge=1, le=GB_MAX)
    price_usd_per_hour: _Usd | None = None
    price_usd_per_gb_month: _Usd | None = None
    price_usd_per_launch: _Usd | None = None
    price_usd_per_gb: _Usd | None = None
    source: _Text = "costgov.toml"
    as_of: _Text | None = None  # The day of that price; None: it is said anew at every start.

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
    """Charges are told apart by kind and name, and a meter is found again by its name."""
    seen = {NODE_LINE}
    for table in tables:
        if table.name in seen:
            raise ValueError(f'two lines are called "{table.name}"; give each a name of its own')
        seen.add(table.name)
    return tables


def lines_of(tables: Iterable[LineTable], today: Day) -> Lines:
    """What the core meters. A price without a date is of today."""
    known = [(table.line(today), table.gb or 1) for table in tables]
    return Lines(
        hourly=tuple(Metered(line, gb) for line, gb in known if line.unit in (Unit.HOUR, Unit.GB_MONTH)),
        per_launch=tuple(line for line, _ in known if line.unit is Unit.PIECE),
        per_gb=tuple(line for line, _ in known if line.unit is Unit.GB),
    )
