"""A run as a governor leaves it: its recording, and the journal with its charges, windows, halt and alarm."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from governor.adapters.journal.writer import open_journal
from governor.core.attribution.account import TimeAccount
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.events.machine import GpuSample
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_row
from governor.core.money.expected import ExpectedCost, WindowRow, window_row
from governor.core.money.token_windows import Window
from governor.ports import Row
from governor.wire import recording
from governor.wire.recording import ReceivedFrame, segment_name
from trainer_shim.wire import encode, head

RUN = "llama"
WALL_S = 1_800_000_000  # Of the recording's second 0: 2027-01-15 08:00:00 UTC.
FACTS = {"node": "n", "boot_id": "b"}


def at(second: float) -> MonoNs:
    return MonoNs(round(second * NS_PER_S))


def wall(second: float) -> int:
    return round((WALL_S + second) * NS_PER_S)


def hello(second: float, rank: int = 0, attempt: str = "a1", world_size: int = 2) -> ReceivedFrame:
    fields = {"seq": 1, "run": RUN, "attempt": attempt, "local_rank": rank, "world_size": world_size, "signal": 0}
    packet = encode({**head("hello", rank, at(second)), **fields})
    return ReceivedFrame(at(second), ConnectionId(7 + rank), packet, ProcessId(40 + rank, 9, "b"))


def step(second: float, number: int, rank: int = 0, **fields: Any) -> ReceivedFrame:
    told = {"step": number, "attempt_step": number, "loss": 2.0, "tokens": 1_000, "tokens_total": number * 1_000}
    packet = encode({**head("step", rank, at(second)), **told, **fields})
    return ReceivedFrame(at(second), ConnectionId(7 + rank), packet)


def gpus(second: float) -> bytes:
    return recording.gpus(
        GpuSample(at(second), RUN, (0.5, None), ("GPU-a", "GPU-b"), (10, None), (80, 80), (None, None))
    )


PARTS = {"step_s": 0.5, "data_s": 0.125, "forward_s": 0.125, "backward_s": 0.125, "comm_s": 0.0625}
LINES: Sequence[ReceivedFrame | bytes] = (
    hello(0),
    hello(0, rank=1),
    step(10, 1, **PARTS),
    step(10, 1, rank=1, loss=9.0),
    gpus(15),
    step(20, 2, **PARTS, lr=0.001),
    step(30, 3, loss="nan", **PARTS),
)


def leave_recording(
    state: Path, lines: Sequence[ReceivedFrame | bytes] = LINES, number: int = 1, run: str = RUN,
    wall_s: int = WALL_S, *, continues: bool | None = None,
) -> Path:  # fmt: skip
    """`continues`: nothing was missed since the segment before. None: as of one governor."""
    directory = state / "recordings" / RUN
    directory.mkdir(parents=True, exist_ok=True)
    goes_on = number > 1 if continues is None else continues
    begin = recording.head(run, FACTS, mono_ns=0, wall_ns=wall_s * NS_PER_S, continues=goes_on)
    told = [line if isinstance(line, bytes) else recording.line(line) for line in lines]
    path = directory / segment_name(number)
    path.write_bytes(gzip.compress(b"".join((begin, *told)), mtime=0))
    return path


def charge(name: str, begin: float, end: float, micros: int, run: str = RUN) -> dict[str, Any]:
    line = Line(LineKind.COMPUTE, "8x H100", Unit.HOUR, 22_000_000, "config", "2027-01-01")
    span = WallNs(wall(begin)), WallNs(wall(end))
    return charge_row(Charge(name, Place("n"), Payer(run), line, *span, 1, UsdMicros(micros)))


def account_row(account: TimeAccount, second: float) -> dict[str, Any]:
    """A run's row of a journal, as a governor writes it at this second."""
    return {"run": RUN, "wall_ns": wall(second), "boot_ns": at(second), "time": account.snapshot()}


def row(kind: str, second: float, data: dict[str, Any], incident: str | None = None, run: str = RUN) -> Row:
    return Row(kind, run, incident, at(second), WallNs(wall(second)), "b", data)


def window(second: float, begin: int, end: int, micros: int) -> Row:
    one = Window(begin, end, DurationNs(NS_PER_S), UsdMicros(micros), 0)
    return row("window", second, window_row(WindowRow(None, "a1", one, ExpectedCost())))


ROWS = (
    row("run", 0, {"attempt": "a1", "policy": "default", "uid": 0, "world_size": 2}),
    window(15, 0, 1_500, 300),
    row("alarm", 25, {"name": "rule_slow", "text": "half the pace"}),
    row("verdict", 31, {"rule": "nan", "response": "halt", "enforced": True, "text": "loss is nan", "evidence": {}}),
    row("transition", 32, {"from": "ARMED", "to": "ASKED", "fact": "DECIDED"}, "llama.n.1"),
    row("alarm", 33, {"name": "rule_slow", "text": "of another run"}, run="other"),
    row("ended", 40, {"completed": False, "exit_code": 1, "step": 3, "cause": "killed"}),
)
CHARGES = (charge("c1", 0, 20, 2_000_000), charge("c2", 20, 40, 1_000_000), charge("c3", 0, 40, 7, run="other"))


def leave_journal(
    state: Path, rows: Sequence[Row] = ROWS, charges: Sequence[dict[str, Any]] = CHARGES,
    runs: dict[str, dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    state.mkdir(parents=True, exist_ok=True)
    journal, problem = open_journal(str(state / "costgov.db"), str(state))
    assert problem is None
    assert journal.save_runs(runs or {}, charges, rows)
    journal.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
