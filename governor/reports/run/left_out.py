"""What of a recording's steps is not believed, as the live account does not: a report has neither its sum nor its peak.

The account bounds a figure by step_parts.SECONDS_MAX, and gives a step no more time than has passed since its rank's
word before. A recording has its frames by their arrival, which may be late by as much as own_time.AGE_MAX_NS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Hello, Step
from governor.core.events.step_parts import FIGURE_MAX, FIGURES, SECONDS_MAX, TIME_FIELDS
from governor.core.runs.own_time import AGE_MAX_NS

RANKS_MAX: Final = 64  # Of more, steps are bounded by SECONDS_MAX alone.
_times: Final = attrgetter(*TIME_FIELDS)
_figures: Final = attrgetter(*FIGURES)


@dataclass(slots=True)
class LeftOut:
    """Bounded. `values`: how many, by their field."""

    values: dict[str, int] = field(default_factory=dict)
    _word_before: dict[int, MonoNs] = field(default_factory=dict)  # By rank: its word before.

    def hello(self, hello: Hello) -> None:
        """A rank that is heard again may be in the midst of a step: then its word before holds."""
        began = hello.at if hello.started_at is None else min(hello.at, hello.started_at)
        if len(self._word_before) < RANKS_MAX:
            self._word_before.setdefault(hello.rank, began)

    def believed(self, step: Step) -> Step:
        """The step without what cannot be."""
        most_s = self._most_s(step.rank, step.at)
        wrong = [
            name for name, told in zip(TIME_FIELDS, _times(step), strict=True)
            if told is not None and not 0 <= told < most_s
        ]  # fmt: skip
        wrong += [
            name for name, told in zip(FIGURES, _figures(step), strict=True)
            if told is not None and FIGURE_MAX <= abs(told) < math.inf
        ]  # fmt: skip
        if not wrong:
            return step
        for name in wrong:
            self._note(name)
        absent: dict[str, Any] = dict.fromkeys(wrong)
        return replace(step, **absent)

    def seconds(self, record: Mapping[str, Any], rank: int, names: tuple[str, ...]) -> list[float | None]:
        """The same of a step as it stands in the recording: its fields of these names."""
        at = record.get("at_ns", record.get("mono_ns"))
        most_s = self._most_s(rank, MonoNs(at)) if type(at) is int else SECONDS_MAX
        told: list[float | None] = []
        for name in names:
            value = record.get(name)
            if isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < most_s:
                told.append(float(value))
                continue
            told.append(None)
            if value is not None:
                self._note(name)
        return told

    def _most_s(self, rank: int, at: MonoNs) -> float:
        """No figure of the rank's next step is so long."""
        before = self._word_before.get(rank)
        if before is not None or len(self._word_before) < RANKS_MAX:
            self._word_before[rank] = at
        return SECONDS_MAX if before is None else min(SECONDS_MAX, (max(0, at - before) + AGE_MAX_NS) / NS_PER_S)

    def _note(self, name: str) -> None:
        self.values[name] = self.values.get(name, 0) + 1
