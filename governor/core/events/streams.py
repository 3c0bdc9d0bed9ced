"""What a `[[jsonl]]` stream reports: who writes the log, whether it can be read, and how far it was.

As in inputs.py, `at` is arrival on the governor's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs


class Held(NamedTuple):
    """Counts of earlier lines of a log, told once it is known that each is a step's own."""

    lines: tuple[tuple[int, int], ...]  # Step and tokens. Where there were many, several lines are one.
    told: int | None = None  # The last of them that was told as the run's total, and was none.

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.lines)


@dataclass(frozen=True, slots=True)
class TokensSettled:
    """A log goes on no further, and what its last counts were is not known for certain: the best reading of them.

    Either all of `counts`, the last one included, are steps' own, or `total` is the run's by this `step`.
    """

    at: MonoNs
    run: str
    step: int
    counts: Held | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A run known only by its JSONL stream. `processes`: those that its owner named, as found now, of these uids.

    `of_command`: its writer is the launched command, as far as is known. The daemon says so, never the log.
    """

    at: MonoNs
    run: str
    uid: int
    stage: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[ProcessId, ...] = ()
    other_uids: tuple[int, ...] = ()
    is_distrusted: bool = False  # Others than the named processes' users decide what is said of them.
    of_command: bool = False
    is_fresh: bool = False  # Nothing of it is read that was written before this governor began.


@dataclass(frozen=True, slots=True)
class StreamState:
    """Whether a run's JSONL stream can be read, sent when this changes. `problem`: one line; None while it can."""

    at: MonoNs
    run: str
    problem: str | None
    is_foreign: bool = False  # It can be read, and nothing in it is understood.


@dataclass(frozen=True, slots=True)
class StreamRead:
    """How far a stream has been read, sent after the events that were read. `position`: the reader's own plain JSON."""

    at: MonoNs
    run: str
    position: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriterGone:
    """A log's pidfile was written since the log was opened, and its process was gone before anybody could see it.

    All that it wrote has been read. Nobody saw it end, so a later line shows that somebody writes the log all the same.
    """

    at: MonoNs
    run: str
