"""What people have said of halts, wherever it is kept: by running governors, and in the state directory's own file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from governor.cli.common import Failed, complain, find_config, settings_from, sockets
from governor.core.base.halt_marks import Entry, HaltMark, HaltMarks, RuleKey, entry_of
from governor.core.base.policy import PROMISES, WRONG_MAX, FallBack
from governor.core.money.reports.halt_precision import BY_HAND
from governor.text.table import plain
from governor.wire import control_client


@dataclass(frozen=True, slots=True)
class Source:
    """One file of marks. `socket`: of the governor that keeps it; None: it is read and written directly."""

    path: str
    marks: HaltMarks
    socket: str | None = None


def state_dir_of(config: Path | None) -> Path:
    return settings_from(find_config(config)).paths.state_dir


def _marks_dir_of(config: Path | None) -> Path:
    return settings_from(find_config(config)).paths.marks_dir


def mark_sources(config: Path | None, control: str | None) -> list[Source]:
    """Every file of marks that can be read, each once. One that cannot is a line on standard error."""
    found: dict[str, Source] = {}
    for socket in sockets(control):
        answer = control_client.ask(socket, {"cmd": "halt_marks"})
        if answer.code == "refused":
            complain(answer.error)
        elif answer.ok and (source := _told(answer.data, socket)) is not None:
            found.setdefault(source.path, source)
    if control is None:
        own = _own(config)
        if own is not None:
            found.setdefault(own.path, own)
    return list(found.values())


def _told(data: Any, socket: str) -> Source | None:
    try:
        return Source(os.path.realpath(str(data["path"])), HaltMarks.of(map(entry_of, data["entries"])), socket)
    except (LookupError, TypeError, ValueError):
        complain(plain(f"{socket}: what it says of halt marks is not as this version has it"))
        return None


def _own(config: Path | None) -> Source | None:
    from governor.adapters.journal.halt_marks import FILE_NAME, HaltMarkFile, HaltMarksUnusable

    file = HaltMarkFile(_marks_dir_of(config) / FILE_NAME)
    try:
        return Source(os.path.realpath(file.path), file.read())
    except HaltMarksUnusable as unusable:
        complain(str(unusable))
        return None


def append_here(config: Path | None, entry: Entry) -> HaltMarks:
    """Write into the file of governors that may have ended. Fails in one line."""
    from governor.adapters.journal.halt_marks import FILE_NAME, HaltMarkFile, HaltMarksUnusable

    try:
        return HaltMarkFile(_marks_dir_of(config) / FILE_NAME).append(entry)
    except HaltMarksUnusable as unusable:
        raise Failed(str(unusable)) from unusable


def fallen_now(sources: list[Source]) -> list[FallBack]:
    """The rules that have fallen back, as far as the marks alone say."""
    return [one for source in sources for rule in source.marks.rules() for one in fallen_of(source.marks, rule)]


def fallen_of(marks: HaltMarks, rule: RuleKey) -> list[FallBack]:
    """Whether a rule has fallen back, at the `wrong_max` that its last false halt has. For all runs, else by user."""
    counted = marks.counted(rule)
    wrong_max = wrong_max_of(counted[-1]) if counted else 0
    everyone = [mark for mark in counted if mark.for_all]
    owners = sorted({mark.owner for mark in counted if not mark.for_all})
    sets = [(None, everyone), *((uid, [m for m in counted if m.for_all or m.owner == uid]) for uid in owners)]
    enough = [(uid, held) for uid, held in sets if wrong_max and len(held) >= wrong_max]
    return [
        FallBack(*rule, uid, tuple(mark.incident_id for mark in held), wrong_max)
        for uid, held in (enough[:1] if enough and enough[0][0] is None else enough)
    ]


def wrong_max_of(mark: HaltMark) -> int:
    """0: the rule never falls back. An older version's incident does not say: it is the default then."""
    if mark.wrong_max is not None:
        return mark.wrong_max
    return 0 if mark.trigger in (*PROMISES, BY_HAND) else WRONG_MAX
