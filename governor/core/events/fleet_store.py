"""What a governor asks of the store that its fleet shares, and what comes back (docs/adr/0028)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from governor.core.base.units import MonoNs


@dataclass(frozen=True, slots=True)
class Kept:
    """A row as the store has it. `revision` is that of its last change, and never comes again. 0: there is no row."""

    key: str
    value: str = ""
    revision: int = 0


class Answer(Enum):
    APPLIED = "applied"
    CONFLICT = "conflict"  # A compared row has changed. The answer has the rows.
    READ = "read"
    UNKNOWN = "unknown"  # Nobody knows whether it was applied, or will be.
    UNREACHABLE = "unreachable"  # It was certainly not applied.
    REFUSED = "refused"  # Certainly not applied, and it will not be: a password, a right.


@dataclass(frozen=True, slots=True)
class Transaction:
    """Puts and deletes that are applied together, or not at all: only if each compared row has its revision still."""

    compares: tuple[tuple[str, int], ...]
    puts: tuple[tuple[str, str], ...] = ()
    deletes: tuple[str, ...] = ()
    lease: int = 0  # The rows that are put end with this lease. 0: they stay.


@dataclass(frozen=True, slots=True)
class AskStore:
    """What to send. Without a transaction it is a read of these rows, or of all rows below `prefix`.

    `lowers`: a grant has less after it. The journal has that before it is sent. Every ask gets one answer.
    """

    request: str
    transaction: Transaction | None = None
    keys: tuple[str, ...] = ()
    prefix: str = ""
    lowers: bool = False


@dataclass(frozen=True, slots=True)
class StoreAnswered:
    """The answer to the ask of this request. `revision`: of the rows that an applied transaction has put."""

    at: MonoNs
    request: str
    answer: Answer
    rows: tuple[Kept, ...] = ()
    revision: int = 0
