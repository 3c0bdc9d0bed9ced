"""A run's recording as a governor leaves it, at any time."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.wire import recording
from governor.wire.recording import ReceivedFrame, segment_name
from trainer_shim.wire import encode, head

FIRST = ConnectionId(7)


@dataclass
class Written:
    """Lines of one run at seconds of the governor's clock. `wall_s`: the wall clock's reading at zero of it."""

    run: str
    wall_s: int
    boot_id: str = "boot-1"
    lines: list[bytes] = field(default_factory=list)

    def hello(self, at_s: float, attempt: str = "a") -> Written:
        frame = {"seq": 1, "run": self.run, "attempt": attempt, "local_rank": 0, "world_size": 1, "signal": 0}
        packet = encode({**head("hello", 0, ns(at_s)), **frame})
        self.lines.append(recording.line(ReceivedFrame(ns(at_s), FIRST, packet, ProcessId(40, 9, "b"))))
        return self

    def steps(self, numbers: Iterable[int], at_s: float, each_s: float = 60.0, loss: float = 2.0) -> Written:
        """So many steps from then on. A loss that is not finite is a word on the wire."""
        told = loss if math.isfinite(loss) else "nan"
        for count, number in enumerate(numbers):
            at = ns(at_s + count * each_s)
            packet = encode({**head("step", 0, at), "step": number, "attempt_step": number, "loss": told})
            self.lines.append(recording.line(ReceivedFrame(at, FIRST, packet)))
        return self

    def note(self, line: bytes) -> Written:
        self.lines.append(line)
        return self

    def exited(self, at_s: float) -> Written:
        return self.note(recording.exited(ns(at_s)))

    def halted(self, at_s: float, incident: str = "i-1") -> Written:
        return self.note(recording.halted(ns(at_s), incident))

    def gap(self, at_s: float, lines: int = 0) -> Written:
        return self.note(recording.gap(ns(at_s), lines))

    def save(self, root: Path, number: int = 1, *, continues: bool = False, at_s: float = 0.0) -> Written:
        """Write what there is as a segment whose two clocks were read at `at_s`. The next one begins empty."""
        times = {"mono_ns": ns(at_s), "wall_ns": self.wall_s * NS_PER_S + ns(at_s)}
        facts = {"node": "node-1", "boot_id": self.boot_id}
        first = recording.head(self.run, facts, **times, continues=continues)
        (root / self.run).mkdir(parents=True, exist_ok=True)
        (root / self.run / segment_name(number)).write_bytes(gzip.compress(b"".join([first, *self.lines])))
        self.lines = []
        return self


def ns(seconds: float) -> MonoNs:
    return MonoNs(round(seconds * NS_PER_S))


def run_row(run: str, wall_ns: int, **more: Any) -> dict[str, Any]:
    """A run's snapshot, as far as its end is told by it."""
    end = {"alive": False, "completed": False, "end": None, "spend_usd_micros": 0}
    return {"run": run, "uid": 1000, "wall_ns": wall_ns, **end, **more}


def halt_entry(incident_id: str, run: str, rule: str | None, opened_ns: int, closed_ns: int | None) -> dict[str, Any]:
    """An incident's row, as far as it says which halt it was."""
    snapshot = {"run": run, "rule": rule, "opened_wall_ns": opened_ns, "closed_wall_ns": closed_ns, "uid": 1000}
    row = {"table": "incidents", "incident_id": incident_id, "seq": 10_000, "open": int(closed_ns is None)}
    return {**row, "snapshot": json.dumps({"incident_id": incident_id, **snapshot})}


def journal_entry(seq: int, kind: str, run: str, wall_ns: int, data: dict[str, Any]) -> dict[str, Any]:
    row = {"table": "journal", "seq": seq, "kind": kind, "run": run, "incident_id": None, "mono_ns": 0}
    return {**row, "wall_ns": wall_ns, "boot_id": "boot-1", "data": json.dumps(data)}


def run_entries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"table": "runs", "run": row["run"], "seq": 20_000 + number, "snapshot": json.dumps(row)}
        for number, row in enumerate(rows)
    ]
