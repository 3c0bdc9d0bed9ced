"""Replays one log under policies, and tells what became of it as plain values, which a worker process can send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from governor.core.base.policy import Policy
from governor.core.base.units import DurationNs, UsdMicros
from governor.replay.compare import LabelTally
from governor.replay.logs import Read, records
from governor.replay.output import picture
from governor.replay.output.page import section
from governor.replay.play import Replay, ReplayVerdict
from governor.replay.readers.lines import LogUnreadable
from governor.replay.readers.text import ANY, TextOptions
from governor.replay.trace import Trace
from governor.wire.jsonl import DEFAULT_FIELDS

Fields = Mapping[str, Sequence[str]]  # The names that a log may use for each field of a step.
SAID_MAX: Final = 16  # Lines about one log, beside the one about what cannot be read.


@dataclass(frozen=True, slots=True)
class Terms:
    """What every log of a call is played with. `fields` and `text` as `records` takes them."""

    policies: tuple[Policy, ...]
    price: UsdMicros | None = None  # Of the node, per hour.
    run_on: DurationNs = DurationNs(0)
    fields: Fields = field(default_factory=lambda: DEFAULT_FIELDS)
    text: TextOptions = ANY
    is_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """What became of one log."""

    path: Path
    records: int
    verdicts: tuple[ReplayVerdict, ...]
    tallies: tuple[LabelTally, ...]  # Of this log alone, one a policy.
    said: tuple[str, ...]  # What it does not say of itself.
    problem: str | None  # Its first unreadable place, in one line.
    lacks: str | None  # What a valid log lacks for this replay.
    t: float | None  # At its end, on its own clock, seconds.
    is_evidence: bool = True  # Enough of it is understood to say something about a policy.
    section: str | None = None  # Of the page.
    undrawn: str | None = None  # Why there is no picture.


def play_log(path: Path, terms: Terms, picture_at: Path | None = None) -> Played:
    """Replay a log. `picture_at`: where its picture goes; without one, what is drawn is a section of a page."""
    said: list[str] = []
    trace = Trace() if terms.is_drawn else None
    tallies = tuple(LabelTally(policy.name, terms.price) for policy in terms.policies)
    own = replace(terms, text=replace(terms.text, tell=said.append))
    replay, problem = play(path, own, tallies, trace)
    drawn, undrawn = None, None
    if trace is not None and picture_at is None:
        drawn = section(str(path), replay, trace)
    elif trace is not None and picture_at is not None:
        try:
            picture.draw(picture_at, str(path), replay, trace)
        except OSError as error:
            undrawn = f"{picture_at}: {error.strerror}; name a file that can be written"
    lacks = _lacks(replay, terms.run_on) if problem is None else None
    return Played(
        path,
        replay.records,
        tuple(replay.verdicts),
        tallies,
        tuple(said[:SAID_MAX]),
        problem,
        lacks,
        replay.t,
        _is_evidence(replay),
        drawn,
        undrawn,
    )


def play(
    path: Path, terms: Terms, tallies: Sequence[LabelTally] = (), trace: Trace | None = None
) -> tuple[Replay, str | None]:
    """Replay one log and count it in `tallies`. The returned problem is one line about the first unreadable place."""
    replay = Replay(terms.policies, terms.price, trace, terms.fields)
    return replay, judge(path, replay, records(path, terms.fields, terms.text), terms.run_on, tallies)


def judge(
    path: Path, replay: Replay, read: Iterable[Read], run_on: DurationNs = DurationNs(0),
    tallies: Sequence[LabelTally] = (),
) -> str | None:  # fmt: skip
    """`play` with a replay and records of the caller's. Returns the problem."""
    problem: str | None = None
    faulty = 0
    try:
        for number, record in read:
            fault = "; ".join(record) if isinstance(record, list) else replay.read(record)
            if fault is not None:
                faulty += 1
                problem = problem or f"{path}:{number}: {fault}; skipped"
    except LogUnreadable as error:
        problem = problem or str(error)
    if faulty > 1:
        problem = f"{problem}, as {'was' if faulty == 2 else 'were'} {faulty - 1} more"
    mute = replay.not_understood()
    if problem is None and mute is not None:
        problem = f"{path}: {mute}"
    elif mute is not None and replay.is_judged:
        problem = f"{problem}; {mute}"
    end_ns = replay.length_ns
    replay.end(run_on)
    if _is_evidence(replay):
        for tally in tallies:
            tally.add(replay, end_ns)
    return problem


def _is_evidence(replay: Replay) -> bool:
    """An unreadable log says nothing about a policy."""
    return bool(replay.records) and replay.not_understood() is None


def _lacks(replay: Replay, run_on: DurationNs) -> str | None:
    """What a valid log lacks for this replay. None when it lacks nothing."""
    if not replay.records:
        return "holds no record"
    if run_on and not replay.clock.is_timed:
        return "its records have no time, so no clock can run on"
    told = [] if replay.clock.is_timed else ["its records have no time: neither a hang nor a slow run can be seen"]
    lacks = replay.lacks()
    return "; ".join([*told, *([lacks] if lacks is not None else [])]) or None
