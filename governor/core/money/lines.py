"""What this node is billed for: lines that run by the hour, and lines that a launch or a checkpoint adds to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.core.base.units import NS_PER_HOUR, UsdMicros, format_usd
from governor.core.money.charges import Line, LineKind, Unit

NODE_LINE: Final = "node"  # The compute line's name in every charge.


@dataclass(frozen=True, slots=True)
class Metered:
    """A line that is charged by time. `amount`: a disk's GB where it costs by the GB-month, else 1."""

    line: Line
    amount: int = 1

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        """Rounded up: ceilings reserve by it."""
        return UsdMicros(-(-self.line.price_usd_micros * self.amount * NS_PER_HOUR // self.line.unit.base_units))

    @property
    def is_disk(self) -> bool:
        """It is billed while the machine is off, too."""
        return self.line.kind is LineKind.STORAGE

    @property
    def text(self) -> str:
        """For people: "vol-0abc gp3: $0.0548/h (500 GB at $0.08/GB-month; costgov.toml, 2026-11-01)"."""
        line = self.line
        size = ""
        if line.unit is Unit.GB_MONTH:
            size = f"{self.amount} GB at {format_usd(line.price_usd_micros)}/GB-month; "
        return f"{line.name}: {format_usd(self.usd_micros_per_hour)}/h ({size}{line.source}, {line.as_of})"


@dataclass(frozen=True, slots=True)
class Lines:
    """Everything billed beside compute, as its owner says."""

    hourly: tuple[Metered, ...] = ()
    per_launch: tuple[Line, ...] = ()  # Of each attempt of a run.
    per_gb: tuple[Line, ...] = ()  # Of each checkpoint that a run acknowledges as whole.

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        return UsdMicros(sum(metered.usd_micros_per_hour for metered in self.hourly))

    @property
    def texts(self) -> tuple[str, ...]:
        """A line of text for each, for people."""
        said = [metered.text for metered in self.hourly]
        said += [_piece_text(line, "a launch") for line in self.per_launch]
        said += [_piece_text(line, "a GB of checkpoints") for line in self.per_gb]
        return tuple(said)


def _piece_text(line: Line, what: str) -> str:
    return f"{line.name}: {format_usd(line.price_usd_micros)} for {what} ({line.source}, {line.as_of})"


def compute_line(price: UsdMicros | None, source: str | None, as_of: str) -> Metered | None:
    """What an hour of the node is charged as; None while its price is unknown."""
    if price is None:
        return None
    return Metered(Line(LineKind.COMPUTE, NODE_LINE, Unit.HOUR, price, source or "", as_of))
