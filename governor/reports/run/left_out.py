"""What of a recording's steps is not believed, as the live account does not: a report has neither its sum nor its peak.

The account bounds a figure by step_parts.SECONDS_MAX, and gives a step no more time than has passed since its rank's
word before. A recording has its frames by their arrival, which may be late by as much as own_time.AGE_MAX_NS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Hello, Step
from governor.core.events.step_parts import FIGURE_MAX, FIGURES, SECONDS_MAX, TIME_FIELDS
from governor.core.runs.own_time import AGE_MAX_NS
from governor.core.runs.state import RANKS_MAX

_NUMBERS: Final = (float, int)  # A bool is none.
_SPOKEN: Final = ConnectionId(0)  # A placeholder: a step without a connection is a log's line.
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
        return self._without([*wrong, *_wrong_figures(step)], step)

    def whole(self, step: Step, line: Step) -> Step:
        """The same of a step whose `line` was believed before: its times are the line's, and are not judged again."""
        times: dict[str, Any] = dict(zip(TIME_FIELDS, _times(line), strict=True))
        return self._without(_wrong_figures(step), replace(step, **times))

    def _without(self, wrong: Sequence[str], step: Step) -> Step:
        if not wrong:
            return step
        for name in wrong:
            self._note(name)
        absent: dict[str, Any] = dict.fromkeys(wrong)
        return replace(step, **absent)

    def line(self, record: Mapping[str, Any], rank: int, number: int) -> Step:
        """The same of a step as it stands in the recording, with its times alone. No frame is made of it."""
        told: dict[str, Any] = {name: record[name] for name in TIME_FIELDS if type(record.get(name)) in _NUMBERS}
        at, is_bound = record.get("at_ns", record.get("mono_ns")), record.get("data_bound") is True
        at = at if type(at) is int else self._word_before.get(rank, 0)
        return self.believed(Step(MonoNs(at), _SPOKEN, "", rank, number, data_bound=is_bound, **told))

    def _most_s(self, rank: int, at: MonoNs) -> float:
        """No figure of the rank's next step is so long. Of more ranks than RANKS_MAX the constant alone is known."""
        before = self._word_before.get(rank)
        if before is not None or len(self._word_before) < RANKS_MAX:
            self._word_before[rank] = at
        return SECONDS_MAX if before is None else min(SECONDS_MAX, (max(0, at - before) + AGE_MAX_NS) / NS_PER_S)

    def _note(self, name: str) -> None:
        self.values[name] = self.values.get(name, 0) + 1


def _wrong_figures(step: Step) -> list[str]:
    return [
        name for name, told in zip(FIGURES, _figures(step), strict=True)
        if told is not None and FIGURE_MAX <= abs(told) < math.inf
    ]  # fmt: skip
