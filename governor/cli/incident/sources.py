"""What people have said of halts, wherever it is kept: by running governors, and in the state directory's own file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from governor.cli.common import Failed, complain, find_config, settings_from, sockets
from governor.core.base.halt_marks import Entry, HaltMarks, Standing, entry_of
from governor.core.base.policy import FallBack, PolicySet
from governor.text.table import plain
from governor.wire import control_client


@dataclass(frozen=True, slots=True)
class Source:
    """One file of marks. `socket`: of the governor that keeps it; None: it is read and written directly.

    `policies`: of all running governors that keep it, which say themselves which of their rules have `fallen` back.
    """

    path: str
    marks: HaltMarks
    socket: str | None = None
    policies: frozenset[str] = frozenset()
    fallen: tuple[FallBack, ...] = ()

    def joined(self, other: Source) -> Source:
        """One file of two governors."""
        return replace(self, policies=self.policies | other.policies, fallen=(*self.fallen, *other.fallen))


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
            found[source.path] = found[source.path].joined(source) if source.path in found else source
    if control is None:
        own = _own(config)
        if own is not None:
            found.setdefault(own.path, own)
    return list(found.values())


def _told(data: Any, socket: str) -> Source | None:
    try:
        marks = HaltMarks.of(map(entry_of, data["entries"]))
        fallen = tuple(FallBack.of(row) for row in data["fallen_back"])
        return Source(os.path.realpath(str(data["path"])), marks, socket, frozenset(map(str, data["policies"])), fallen)
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


def standing_of(config: Path | None, marks: HaltMarks) -> Standing:
    """By the policies that a governor of this node would load, where none that runs says it."""
    return Standing.of(_policies_of(config), marks)


def fallen_now(sources: list[Source], config: Path | None) -> list[FallBack]:
    """The rules that have fallen back: as running governors say of their policies, else as one would judge by now."""
    found: list[FallBack] = [back for source in sources for back in source.fallen]
    for source in sources:
        by_marks = standing_of(config, source.marks).fallen() if source.marks.rules() else []
        found += [back for back in by_marks if back.policy not in source.policies]
    return list(dict.fromkeys(found))


def _policies_of(config: Path | None) -> PolicySet:
    from governor.policies import files
    from governor.policies.parse import load_policies

    settings = settings_from(find_config(config))
    problem = ""
    try:
        policies, errors = load_policies(files.policy_texts(files.of_node(settings.paths.policies_dir)))
        problem = str(errors[0]) if errors else ""
    except files.PolicyUnreadable as unreadable:
        policies, problem = None, str(unreadable)
    if policies is None:
        complain(plain(f"{problem}; what was marked stands by each halt's own wrong_max"))
        return PolicySet((), "")
    return policies.observing() if settings.observe else policies
