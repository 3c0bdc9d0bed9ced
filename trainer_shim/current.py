"""The one meter of this process: loaders and phases are often made before the engine that they will serve."""

from __future__ import annotations

from typing import Optional

from .meter import StepMeter


class _Current:
    __slots__ = ("meter",)

    def __init__(self) -> None:
        self.meter: Optional[StepMeter] = None


CURRENT = _Current()
