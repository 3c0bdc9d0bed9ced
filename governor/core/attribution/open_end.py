"""The open end of a phase that is cut: what one of its like may take is the phase's, and beyond that it stood still.

A phase moves at every hook of the training thread, as beats tell. Only the time since the last hook is in question.
Which is a hang, and which is unknown, follows from what else was seen: earlier ones of its kind, a wait for data, or a
rule of silence whose limit has passed. A compiler or a download without a hook looks like a hang, so without any of
these nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events import step_parts

# An open end is as its like for so many of the longest ones seen: steps, or silences of a phase.
OPEN_TIMES: Final = 2
# Of what is beyond: from so long on, and so many ordinary ones, it stood still. Less may be a slow one, or an end.
STILL_MIN_NS: Final = 5 * NS_PER_S
STILL_TIMES: Final = 3
# Where none of its like was seen and no rule says more: a slow store, or native code that holds the interpreter's
# lock, keeps a healthy trainer from its hooks for a minute or so.
UNSEEN_NS: Final = 60 * NS_PER_S
# Ranks tell of their hooks in beats: of two that moved last within one, nobody knows which did first.
BEAT_NS: Final = NS_PER_S
RANKS_NAMED_MAX: Final = 4

OF_PHASE: Final[Mapping[str, Cause]] = {
    "init": Cause.START_UP,
    "compile": Cause.COMPILE,
    "eval": Cause.EVALUATION,
    "agree": Cause.CHECKPOINT,
    "checkpoint": Cause.CHECKPOINT,
    "idle": Cause.IDLE,
    "finish": Cause.SHUT_DOWN,
}
assert step_parts.PAUSES.keys() <= OF_PHASE.keys(), "OF_PHASE: a phase of step_parts.PAUSES has no cause here"

NAMES: Final[Mapping[Cause, str]] = {
    Cause.START_UP: "start-up",
    Cause.RESTART: "start-up",
    Cause.COMPILE: "compilation",
    Cause.EVALUATION: "evaluation",
    Cause.CHECKPOINT: "its save",
}
# A restart's start is as long as a first one.
_LIKE: Final = {Cause.RESTART: Cause.START_UP}


class Sight(NamedTuple):
    """What beats and rules say of one rank, as of the last tick."""

    moved_at: MonoNs  # Its last hook.
    fetch_ns: int | None = None  # It waits for data, and this was its longest such wait that has ended.
    may_fetch_ns: int = UNSEEN_NS  # So long a wait for data is healthy, by the rules.
    is_overdue: bool = False  # A rule of silence counts it by now.
    is_suspect: bool = False  # The others wait for it, by their collectives or by its beats.


class Beyond(NamedTuple):
    ns: int
    is_hang: bool  # Else nobody knows.


class Still(NamedTuple):
    """For how long a rank stood still, and in what."""

    ns: int
    what: str = ""  # A phase; "" is a step.
    like_ns: int = 0  # Of it, what is told as that phase, because one may take so long.
    own_ns: int = 0  # Since its own last hook.
    is_suspect: bool = False  # The others wait for it.

    def is_like(self, other: Still) -> bool:
        """Whether beats, which come every second, cannot tell which of both stood first."""
        return self.what == other.what and max(abs(self.ns - other.ns), abs(self.own_ns - other.own_ns)) < BEAT_NS

    def words(self, ranks: Sequence[int]) -> str:
        lasted, who = format_duration(DurationNs(self.ns)), _named(ranks)
        if not self.what:
            return f"no step of {who} for {lasted}"
        like = f", of which {format_duration(DurationNs(self.like_ns))} are told as that" if self.like_ns else ""
        return f"{who} stood still {self.what} for {lasted}{like}"


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    rest = len(ranks) - RANKS_NAMED_MAX
    if rest > 0:
        return f"ranks {', '.join(map(str, ranks[:RANKS_NAMED_MAX]))} and {rest} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


@dataclass(slots=True)
class Silences:
    """The longest silence of each kind of phase that ended well, in nanoseconds. All ranks of a run share one."""

    longest: dict[Cause, int] = field(default_factory=dict)

    def keep(self, cause: Cause, ns: int) -> None:
        if cause in NAMES:
            like = _LIKE.get(cause, cause)
            self.longest[like] = max(ns, self.longest.get(like, 0))

    def of(self, cause: Cause) -> int | None:
        return self.longest.get(_LIKE.get(cause, cause))

    def row(self) -> dict[str, int]:
        return {cause.value: ns for cause, ns in self.longest.items()}

    @classmethod
    def restored(cls, row: Mapping[str, int]) -> Silences:
        return cls({Cause(name): int(ns) for name, ns in row.items()})


@dataclass(slots=True)
class Watch:
    """One rank's hooks since its present phase began. `sight`: None while no beat tells of them."""

    silences: Silences = field(default_factory=Silences)
    sight: Sight | None = None
    _since: MonoNs = MonoNs(0)
    _longest_ns: int = 0

    def see(self, sight: Sight) -> None:
        if self.sight is not None:
            self._longest_ns = max(self._longest_ns, self._gap(sight.moved_at))
        self.sight = sight

    def ends(self, cause: Cause, at: MonoNs) -> None:
        """The phase was over then, and went well: the next one's silences are its own."""
        if self.sight is not None:
            self.silences.keep(cause, max(self._longest_ns, self._gap(at)))
            self.sight = Sight(max(at, self.sight.moved_at))
        self._since, self._longest_ns = at, 0

    def _gap(self, at: MonoNs) -> int:
        return max(0, at - max(self._since, self.sight.moved_at if self.sight is not None else at))

    def beyond(self, cause: Cause, since: MonoNs, upto: MonoNs) -> Beyond:
        """Of a phase that began by `since` and is open at `upto`: what is beyond its like."""
        sight, seen_ns = self.sight, self.silences.of(cause)
        if sight is None or cause not in NAMES:
            return Beyond(0, is_hang=False)
        still_ns = max(0, upto - max(since, sight.moved_at))
        if sight.fetch_ns is not None:
            like_ns, least_ns = max(sight.may_fetch_ns, OPEN_TIMES * sight.fetch_ns), STILL_MIN_NS
        elif seen_ns is not None:
            like_ns, least_ns = OPEN_TIMES * seen_ns, max(STILL_MIN_NS, STILL_TIMES * seen_ns)
        else:
            like_ns, least_ns = UNSEEN_NS, STILL_MIN_NS
        is_known = sight.fetch_ns is not None or seen_ns is not None or sight.is_overdue
        rest_ns = still_ns - like_ns
        return Beyond(rest_ns, is_known) if rest_ns >= least_ns else Beyond(0, is_hang=False)

    def told(self, cause: Cause, still_ns: int, like_ns: int = 0) -> Still:
        data = ", where it waited for data," if self.sight is not None and self.sight.fetch_ns is not None else ""
        is_suspect = self.sight is not None and self.sight.is_suspect
        return Still(still_ns, f"in {NAMES[cause]}{data}", like_ns, is_suspect=is_suspect)
