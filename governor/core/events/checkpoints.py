"""What a look at a checkpoint of a run has found: the one of a halt, and the last good one."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.units import MonoNs


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
