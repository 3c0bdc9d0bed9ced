"""What a look at a run's last good checkpoint has found."""

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
