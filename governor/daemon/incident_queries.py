"""Queries about past halts, answered off the loop: a list of a thousand incidents does not delay an open halt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from governor.core.base.halt_marks import Entry, HaltMarks
from governor.daemon.request_faults import ANSWER, RequestFaults
from governor.ports import Journal
from governor.wire.control_client import matching
from trainer_shim.wire import worded

# A person looks at one thing at a time. Each query's thread competes for the interpreter.
QUESTIONS_AT_ONCE_MAX: Final = 4

Reply = Callable[[bytes], None]


class MarksFile(Protocol):
    """The file of what people say of halts. It blocks, so never on the loop; it raises its adapter's errors."""

    @property
    def path(self) -> Path: ...

    def read(self) -> HaltMarks:
        """What the file has; nothing where there is none."""

    def append(self, entry: Entry) -> HaltMarks:
        """Add what somebody has said, and return all of it."""


@dataclass(slots=True)
class IncidentQueries:
    """Reads, decodes and encodes on one thread for each query, never on the caller's."""

    faults: RequestFaults = field(default_factory=RequestFaults)
    _asked: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def ask(
        self, journal: Journal, last: int, wanted: str | None, reply: Reply, *, brief: bool = False
    ) -> bool:  # fmt: skip
        """Call `reply` with the answer's line, on another thread. False when too many queries are open.

        The answer has the newest `last` incidents, oldest first. `wanted` selects among them: the incident of that id,
        else all whose ids begin so, or the newest for "last". `brief`: only what is counted of each.
        """
        return self.begin(lambda: answer_line(journal, last, wanted, brief=brief), reply)

    def begin(self, work: Callable[[], bytes], reply: Reply) -> bool:
        """Have `work` make the answer's line on another thread, and call `reply` with it there.

        False when too many are open.
        """
        with self._lock:
            if self._asked >= QUESTIONS_AT_ONCE_MAX:
                return False
            self._asked += 1
        try:
            threading.Thread(target=self._work, args=(work, reply), name="archive", daemon=True).start()
        except RuntimeError:  # No thread is available (RLIMIT_NPROC, TasksMax).
            self._answered()
            return False
        return True

    def _work(self, work: Callable[[], bytes], reply: Reply) -> None:
        lines: list[bytes] = []
        self.faults.guarded(
            lambda: lines.append(work()), lambda: lines.append(json.dumps(ANSWER).encode() + b"\n"), lambda: False
        )
        self._answered()
        reply(lines[0])

    def _answered(self) -> None:
        with self._lock:
            self._asked -= 1


# What lists, tables and marks count of an incident.
BRIEF: Final = (
    *("incident_id", "run", "uid", "policy", "rule", "trigger", "reason", "wrong_max", "halt_stage", "checkpoint"),
    *("opened_wall_ns", "closed_wall_ns", "opened_mono_ns", "last_good", "spend_usd_micros"),
    *("spend_at_verdict_usd_micros", "spend_rate_usd_micros_per_hour"),
)


def answer_line(journal: Journal, last: int, wanted: str | None, *, brief: bool = False) -> bytes:
    """The line for the control socket. Snapshots are encoded one by one: one large encoding would block the loop."""
    found = journal.incidents(last)
    if wanted is not None:
        found = matching(found, wanted)
    if brief:
        found = [{key: snapshot[key] for key in BRIEF if key in snapshot} for snapshot in found]
    texts = [json.dumps(worded(snapshot), separators=(",", ":"), allow_nan=False, default=str) for snapshot in found]
    return b'{"ok":true,"data":[' + ",".join(texts).encode() + b"]}\n"
