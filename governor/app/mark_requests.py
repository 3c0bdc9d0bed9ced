"""Requests of the control socket about halt marks: mark a halt, re-arm a rule, list what was said.

The file is read and written off the loop. What it has is in force once its watch has seen it, a second later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from governor.adapters.journal.halt_marks import (
    FILE_NAME,
    UNREADABLE,
    HaltMarkFile,
    HaltMarksUnusable,
    HaltMarkWatch,
)
from governor.app.request_fields import Refused
from governor.core.base.halt_marks import (
    NAME_CHARS_MAX,
    NOTE_CHARS_MAX,
    Entry,
    HaltMarks,
    Rearm,
    Said,
    Standing,
    row_of,
)
from governor.core.base.policy import PolicySet
from governor.core.events.effects import Alarm
from governor.core.money.reports.halt_precision import mark_of
from governor.daemon.incident_queries import MarksFile
from governor.daemon.loop import Daemon
from governor.ports import ControlRequest
from governor.wire.control_client import INCIDENTS_MAX
from governor.wire.peers import is_own
from trainer_shim.wire import worded

Answer = dict[str, Any]
BUSY: Final = "too many questions about past halts are open; try again in a moment"
NO_FILE: Final = "this governor keeps no marks"


def begin(marks_dir: Path, policies: PolicySet) -> tuple[HaltMarkWatch, PolicySet, list[Alarm]]:
    """At the start: the file's watch, the policies with what people have said so far, and what is wrong with it."""
    watch = HaltMarkWatch(HaltMarkFile(marks_dir / FILE_NAME))
    marks, problem = watch.first()
    told = [Alarm(UNREADABLE, None, problem)] if problem else []
    return watch, replace(policies, wrong=marks.wrong()), told


def with_marks(marks_dir: Path, policies: PolicySet) -> tuple[PolicySet, list[str]]:
    """The policies as a governor with these marks would judge by them now, and what is wrong with the marks."""
    _, marked, told = begin(marks_dir, policies)
    return marked, [alarm.text for alarm in told]


def mark(daemon: Daemon, request: ControlRequest) -> Answer | None:
    """A person's word on one halt, which root, our own user and the halted run's user may say."""
    body, wall = request.body, daemon.performer.clock.wall()
    incident_id, opened, note = body.get("incident_id"), body.get("opened_wall_ns"), body.get("note", "")
    if not isinstance(incident_id, str) or len(incident_id) > NAME_CHARS_MAX or type(opened) is not int:
        return _no("bad_request", "incident_id and opened_wall_ns name one halt")
    if not isinstance(note, str) or len(note) > NOTE_CHARS_MAX:
        return _no("bad_request", f"a note has at most {NOTE_CHARS_MAX} characters")
    if body.get("said") not in [one.value for one in Said]:
        return _no("bad_request", f"said is one of {', '.join(one.value for one in Said)}")
    said, journal, policies = Said(body["said"]), daemon.performer.journal, daemon.node.policies
    for_all, uid = _speaks_for_all(daemon, request), request.uid

    def work(file: MarksFile) -> Answer:
        found = [one for one in journal.incidents(INCIDENTS_MAX) if one["incident_id"] == incident_id]
        found = [one for one in found if one["opened_wall_ns"] == opened]
        if not found:
            raise Refused("no_such_run", f"no incident {incident_id[:60]!r} here")
        if not for_all and found[0].get("uid") != uid:
            raise Refused("denied", f"uid {uid} neither owns the run of this halt nor may control this governor")
        before = file.read().marks.get((incident_id, opened))
        if not for_all and before is not None and before.for_all:
            raise Refused("denied", f"uid {before.uid} has marked this halt for every run; uid {uid} cannot change it")
        entry = mark_of(found[0], said, note, uid, wall, for_all=for_all)
        return acted(file.append(entry), entry, policies)

    return _off_loop(daemon, request, work)


def rearm(daemon: Daemon, request: ControlRequest) -> Answer | None:
    """Let a rule's false halts count no more. Of a run's user, only the own ones."""
    policy, rule, note = (request.body.get(key, "") for key in ("policy", "rule", "note"))
    if not all(isinstance(one, str) and 0 < len(one) <= NAME_CHARS_MAX for one in (policy, rule)):
        return _no("bad_request", "policy and rule are names")
    if not isinstance(note, str) or len(note) > NOTE_CHARS_MAX:
        return _no("bad_request", f"a note has at most {NOTE_CHARS_MAX} characters")
    for_all = _speaks_for_all(daemon, request)
    entry, policies = (
        Rearm(policy, rule, request.uid, daemon.performer.clock.wall(), for_all, note),
        daemon.node.policies,
    )

    def work(file: MarksFile) -> Answer:
        counted = file.read().counted(entry.rule_key)
        if not counted:
            raise Refused("no_such_run", f'no halt of rule "{rule}" of policy "{policy}" counts as false here')
        if not for_all and all(one.for_all or one.owner != entry.uid for one in counted):
            raise Refused("denied", f"uid {entry.uid} may re-arm for its own runs alone, and none of these is one")
        return acted(file.append(entry), entry, policies)

    return _off_loop(daemon, request, work)


def list_marks(daemon: Daemon, request: ControlRequest) -> Answer | None:
    """All that was said, and what follows from it under the policies in force."""
    policies = daemon.node.policies

    def work(file: MarksFile) -> Answer:
        marks = file.read()
        return {
            "path": str(file.path), "entries": [row_of(one) for one in marks.entries],
            "policies": [policy.name for policy in policies.policies],
            "fallen_back": [one.row() for one in replace(policies, wrong=marks.wrong()).fallen()],
        }  # fmt: skip

    return _off_loop(daemon, request, work)


def acted(marks: HaltMarks, entry: Entry, policies: PolicySet) -> Answer:
    """What was said, which false halts its rule has by now, and what follows from that."""
    standing = Standing.of(policies, marks)
    return {
        "entry": row_of(entry), "counted": [row_of(one) for one in marks.counted(entry.rule_key)],
        "wrong_max": standing.wrong_max(entry.rule_key),
        "fallen_back": [one.row() for one in standing.fallen(entry.rule_key)],
    }  # fmt: skip


def _off_loop(daemon: Daemon, request: ControlRequest, work: Callable[[MarksFile], Answer]) -> Answer | None:
    file = daemon.halt_marks
    if file is None:
        return _no("unavailable", NO_FILE)

    def line() -> bytes:
        try:
            answer: Mapping[str, Any] = {"ok": True, "data": work(file)}
        except Refused as refused:
            answer = _no(refused.code, str(refused))
        except HaltMarksUnusable as unusable:
            answer = _no("refused", str(unusable))
        except (LookupError, TypeError, ValueError):
            answer = _no("refused", "that incident is not whole: something that a mark needs is missing")
        return json.dumps(worded(answer), separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"

    def tell(told: bytes) -> None:
        daemon.soon(lambda: daemon.reply(request.conn, told))

    return None if daemon.incident_queries.begin(line, tell) else _no("unavailable", BUSY)


def _speaks_for_all(daemon: Daemon, request: ControlRequest) -> bool:
    """Whether the client is root, our own user, or in the socket's group: as for a halt, but for the run's owner."""
    return request.uid == 0 or is_own(request.uid) or daemon.control_is_private


def _no(code: str, error: str) -> Answer:
    return {"ok": False, "code": code, "error": error}
