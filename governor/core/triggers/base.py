"""The contract of a trigger: one condition, one file, no clock.

A trigger sees every event of its run, so that its windows stay warm, and answers when asked. Its state is its own,
JSON-serialisable by `snapshot`, and dropped or kept at a new attempt as its docstring says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from governor.core.events import Event
from governor.core.findings import Finding
from governor.core.run_state import Run
from governor.core.units import MonoNs


@dataclass(frozen=True, slots=True)
class Key:
    """One policy key of a trigger: `kind` is duration|count|number|frac|text|flag; the default stands as in TOML."""

    name: str
    kind: str
    default: str | float | int | bool
    meaning: str


class Trigger(Protocol):
    """`KIND`, `KEYS` and the docstring make the documentation table; see governor.core.triggers.load."""

    KIND: ClassVar[str]
    KEYS: ClassVar[tuple[Key, ...]]

    def __init__(self, params: Mapping[str, Any]) -> None:
        """`params` holds every key of KEYS, parsed: durations in ns (int), counts int, fractions float."""

    def observe(self, event: Event, run: Run) -> None:
        """See an event that has already been applied to `run`. Must be cheap: called for every frame."""

    def judge(self, at: MonoNs, run: Run) -> Finding:
        """Answer now. Called after every step frame and on every tick; must not change what a second call returns."""

    def new_attempt(self, run: Run) -> None:
        """The run was launched again: drop what does not hold across attempts."""

    def snapshot(self) -> Mapping[str, Any]: ...

    def restore(self, snapshot: Mapping[str, Any]) -> None: ...
