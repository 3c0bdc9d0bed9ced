"""The incidents that are known: of running governors, and of the journals of ended ones in the state directory."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from governor.cli.common import (
    OF_REFUSAL,
    ExitCode,
    Failed,
    complain,
    find_config,
    refuse,
    remark,
    settings_from,
    sockets,
    tell_left_out,
)
from governor.wire import control_client
from governor.wire.control_client import Snapshot, matching

JOURNAL_NAME: Final = "costgov.db"
# One for each name that `costgov run` ever had. The newest are read.
JOURNALS_MAX: Final = 1_000


def find(incident_id: str, found: list[Snapshot]) -> Snapshot:
    """By full id, by an unambiguous prefix of it, or the newest by "last"."""
    meant = matching(found, incident_id)
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise Failed(f'no incident "{incident_id}"; see `costgov incident list`', ExitCode.UNKNOWN)
    raise Failed(f'"{incident_id}" begins the ids of {len(meant)} incidents; give more of it', ExitCode.UNKNOWN)


def age(snapshot: Mapping[str, Any]) -> tuple[int, str]:
    """The sort key: oldest first, and by id at the same instant, so that the order is stable."""
    return int(snapshot["opened_wall_ns"]), str(snapshot["incident_id"])


def known_incidents(
    last: int, config: Path | None, control: str | None, wanted: str | None = None, *, brief: bool = False
) -> list[Snapshot]:  # fmt: skip
    """The incidents of every governor that answers, and of the journals of ended governors.

    A governor reports only its own halts. Those of an ended `costgov run` are only in its journal. For an incident in
    both, the governor's state is newer. With --control, only that socket is asked. `brief`: what a governor tells has
    what is counted alone, so that a thousand incidents fit into an answer.
    """
    request = {"cmd": "incidents", "last": last} | ({} if wanted is None else {"of": wanted})
    request |= {"brief": True} if brief else {}
    answers = control_client.ask_each(sockets(control), request)
    tell_left_out(answers)
    live = [snapshot for answer in answers if answer.ok for snapshot in answer.data]
    is_answered = any(answer.ok for answer in answers)
    if control is not None:
        if not is_answered:
            refuse(answers[0] if answers else control_client.ask(control, {"cmd": "ping"}))
        return live
    for answer in answers:
        if not answer.ok:
            complain(answer.error)
    try:
        kept = from_journals(settings_from(find_config(config)).paths.state_dir, last, is_answered=is_answered)
    except Failed as error:
        if not is_answered:
            # It is reported above. The code distinguishes denied from absent.
            if answers and error.code is ExitCode.NO_GOVERNOR:
                raise Failed(error.message, OF_REFUSAL.get(answers[0].code, error.code)) from error
            raise
        complain(error.message)
        kept = []
    told = {_key(snapshot) for snapshot in live}
    return [*live, *(snapshot for snapshot in kept if _key(snapshot) not in told)]


def _key(snapshot: Snapshot) -> tuple[Any, Any]:
    """Two journals may use the same incident numbers. Two halts of one name never open in the same nanosecond."""
    return snapshot["incident_id"], snapshot.get("opened_wall_ns")


def from_journals(state_dir: Path, last: int, *, is_answered: bool) -> list[Snapshot]:
    """The incidents of every readable journal, and one line for each unreadable one.

    Fails when there is nothing else to show.
    """
    beside = glob.glob(f"{glob.escape(str(state_dir))}/runs/*/{JOURNAL_NAME}")
    known = [path for path in (str(state_dir / JOURNAL_NAME), *beside) if os.path.exists(path)]
    paths = sorted(known, key=os.path.getmtime, reverse=True)[:JOURNALS_MAX]
    if not paths and not is_answered:
        raise Failed(f"no governor answers, and there is no journal in {state_dir}", ExitCode.NO_GOVERNOR)
    if not is_answered:
        read = paths[0] if len(paths) == 1 else f"{len(paths)} journals below {state_dir}"
        remark(f"no governor answers; reading {read}")
    found: list[Snapshot] = []
    problems: list[str] = []
    for path in paths:
        try:
            found += _read_journal(path, last)
        except (sqlite3.Error, ValueError) as error:
            problems.append(f"{path}: cannot be read: {error}; read it as the governor's user or root")
    if problems and len(problems) == len(paths) and not is_answered:
        raise Failed("\n".join(problems))
    for problem in problems:
        complain(problem)
    return found


def _read_journal(path: str, last: int) -> list[Snapshot]:
    from governor.adapters.journal.db import JournalReader

    reader = JournalReader(path)
    try:
        return [json.loads(row["snapshot"]) for row in reader.incidents(last, only_open=False)]
    finally:
        reader.close()
