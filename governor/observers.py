"""Several observers as one; each is told everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from governor.core.units import MonoNs
from governor.ports import Observer


@dataclass(slots=True)
class Observers:
    observers: Sequence[Observer]

    def tick(self, node: Any, at: MonoNs) -> None:
        for observer in self.observers:
            observer.tick(node, at)

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.incident(snapshot)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        for observer in self.observers:
            observer.alarm(name, run, text)
