"""Checkpoints of a run: the last good one, and what a look at it or at the one of a halt has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.core.base.units import MonoNs


@dataclass(frozen=True, slots=True)
class LastGood:
    """The newest checkpoint that was saved while nobody had a finding, and what a look at it has found."""

    step: int | None  # None: an ack may have none.
    path: str | None
    tokens_total: int | None = None
    mono_ns: int | None = None  # When the trainer saved it. An ack does not say.
    gone: str | None = None
    unseen: str | None = None

    def row(self) -> dict[str, Any]:
        """As the journal, reports and `status --json` have it. What is not known is left out."""
        known = {name: getattr(self, name) for name in _WHERE_KNOWN}
        return {
            "step": self.step,
            "path": self.path,
            **{name: value for name, value in known.items() if value is not None},
        }

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> LastGood | None:
        """From a row, or from a trainer's hello, which may say anything."""
        if row is None:
            return None
        texts: dict[str, Any] = {name: value for name in ("path", *_MARKS) if isinstance(value := row.get(name), str)}
        counts: dict[str, Any] = {name: value for name in _COUNTS if type(value := row.get(name)) is int}
        return cls(**{"step": None, "path": None, **texts, **counts})


_COUNTS = ("step", "tokens_total", "mono_ns")
_MARKS = ("gone", "unseen")
_WHERE_KNOWN = ("tokens_total", "mono_ns", *_MARKS)


@dataclass(frozen=True, slots=True)
class LastGoodSeen:
    """Whether a run's last good checkpoint is still there. Frameworks remove old ones, and so do people."""

    at: MonoNs
    run: str
    path: str
    there: bool | None  # None: it cannot be seen from here.
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """The governor's own look at the checkpoint that the trainer acknowledged."""

    at: MonoNs
    incident_id: str
    whole: bool | None  # None: we cannot read it; it stays "verified by trainer".
    files: int
    hashed: int  # Of these, files whose SHA-256 we recomputed and found equal.
    reason: str
    counted: str | None = None  # What its files hold and what its parameters need. None: the manifest does not count.
    nonfinite: str | None = None  # The file and the tensor in which a sample has a NaN or an infinity.
