"""Which files among logs are one run's export as JSON lines: that is one log, not one a file.

`.costgov-export.json` says it. A copy may be without it (`cp DIR/*` leaves it behind): then the files' lines do.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from governor.exports.forms.jsonl import CAUSES, FILES, PERFORMANCE, TIMELESS, is_line
from governor.exports.owned import MARKER, is_changed
from governor.replay.logs import records
from governor.replay.readers.lines import LogUnreadable

GONE = f"{CAUSES} is missing, empty or no file"
STEPS_CHANGED = f"all of its steps, as {PERFORMANCE} is not as it was exported"


class Account(NamedTuple):
    """Where the account of a log's run is. `untold`: what was exported, and is there no more."""

    causes: Path | None = None
    is_changed: bool | None = None  # As `owned.is_changed` says it of the file that may have the account.
    untold: tuple[str, ...] = ()


def with_times(found: Sequence[Path]) -> tuple[dict[Path, Account], list[str]]:
    """Each log with where its run's account is, and a line for each directory of an export.

    Of such a directory's files one is the log: that of its steps' times. Without it the causes are their own log.
    """
    own, read = _of_exports(found), dict[Path, Account]()
    lines: dict[Path, str] = {}
    for path in found:
        causes, steps = path.with_name(CAUSES), path.with_name(PERFORMANCE)
        is_own = path in own
        has_causes = causes in own and _has_lines(causes)
        if path == causes and not (is_own and steps in own):
            read[path] = Account(causes, is_changed(causes))
        elif path == steps and is_own:
            lost = (STEPS_CHANGED,) if is_changed(steps) else ()
            read[path] = (
                Account(causes, is_changed(causes), lost) if has_causes else Account(untold=(*_gone(causes), *lost))
            )
        elif not is_own:
            read[path] = Account(is_changed=is_changed(path))
        elif not has_causes and steps not in own:
            lines[path.parent] = f"{path}: of an export of costgov, without its {CAUSES}, {PERFORMANCE}: tells no time"
        elif path != causes or not has_causes:
            told = f"{CAUSES} tells the time of all ranks" if has_causes else f"{PERFORMANCE} tells the time of steps"
            marked = "" if os.path.lexists(path.parent / MARKER) else f" without its {MARKER}"
            lines[path.parent] = f"{path.parent}: an export of costgov{marked}; its {told}, and is read"
    return read, list(lines.values())


def _gone(causes: Path) -> tuple[str, ...]:
    """Empty: it is there, and was not asked for, or it was exported without a line: nothing was recorded."""
    return (f"the account of its run, as {GONE}",) if not _has_lines(causes) and is_changed(causes) else ()


def _of_exports(found: Sequence[Path]) -> frozenset[Path]:
    """Those that are an export's own files."""
    beside: dict[Path, list[Path]] = {}
    for path in found:
        if path.name in FILES:
            beside.setdefault(path.parent, []).append(path)
    own: set[Path] = set()
    for directory, files in beside.items():
        own |= {*files} if os.path.lexists(directory / MARKER) else _by_their_lines(files)
    return frozenset(own)


def _by_their_lines(files: Sequence[Path]) -> set[Path]:
    """Those of one directory. Without causes and step times the file of losses is a log as any."""
    has_lines = [path for path in files if _has_lines(path)]
    own = {path for path in has_lines if _is_ours(path)}
    if not any(path.name in (CAUSES, PERFORMANCE) for path in own):
        return {path for path in own if path.name in TIMELESS}
    return own | ({*files} - {*has_lines})


def _is_ours(path: Path) -> bool:
    """By its first line."""
    try:
        _, first = next(records(path), (0, None))
    except LogUnreadable:
        return False
    return isinstance(first, dict) and is_line(path.name, first)


def _has_lines(path: Path) -> bool:
    """Whether it is a file, or a link to one, that is not empty."""
    try:
        found = os.stat(path)
        return stat.S_ISREG(found.st_mode) and found.st_size > 0
    except OSError:
        return False
