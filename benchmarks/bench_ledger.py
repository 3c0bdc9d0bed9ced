"""The ledger on disk: a year of it added up, and a token window written: `python -m benchmarks.bench_ledger`.

A year of 10,000 runs in a journal, one at a time and eight at a time, and `costgov cost` over it as a person starts it,
interpreter included; beside it what SQLite's own shell takes for the bare sum over the same file.

Windows: eight runs on a node, each step of theirs a window, through the engine to the journal's commit, one window in
each, with the growing charges and the state of all eight. Timed on the journal's thread, and from the call to the
answer behind the commit. Without fsync, as the daemon commits them: a crash of the governor loses none, that of the
machine the last ones. Every sixth commit the WAL is moved home in between, as the journal does in an idle minute; that
is what waits for the disk. Beside it a plain INSERT of as many bytes, and a halt's row, which is made durable.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.bench_frames import STEP
from benchmarks.ledger_year import RUNS, Year, write_year
from benchmarks.table import Row, program, row
from governor.adapters.journal import writer
from governor.adapters.journal.db import Database
from governor.adapters.journal.runtime_files import Entry
from governor.adapters.journal.writer import SqliteJournal, open_journal
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.events.effects import PersistRuns
from governor.core.events.inputs import Tick
from governor.core.money.charges import charge_row
from governor.policies.parse import load_policies
from governor.ports import Packet
from governor.ports import Row as JournalRow
from governor.wire.frames import FrameReader
from trainer_shim.wire import encode, head

ROOT: Final = Path(__file__).resolve().parents[1]
SHARING: Final = 8
WINDOWS: Final = 4_000
KEEP_NS: Final = 10 * NS_PER_S  # As often as the daemon keeps what it knows.
COMMITS_PER_CHECKPOINT: Final = 6
TOKENS: Final = 1_048_576
ASKED: Final = 5  # How often each question is asked.
POLICY: Final = """
[policy]
name = "bench"
[budget]
ceiling_usd = 1e6
[[rule]]
name = "budget"
trigger = "budget"
response = "warn"
"""
CONFIG: Final = '[node]\nname = "bench"\n[paths]\nstate_dir = "{0}"\nruntime_dir = "{0}/runtime"\n'


# --- a year of it -------------------------------------------------------------------------------------------


def a_year(directory: Path, at_a_time: int) -> list[Row]:
    state = directory / f"year-{at_a_time}"
    state.mkdir()
    year = write_year(state / "costgov.db", at_a_time=at_a_time)
    config = state / "costgov.toml"
    config.write_text(CONFIG.format(state), encoding="utf-8")
    shell = _shell_seconds(state / "costgov.db")
    rows = []
    for by in ("run", "day", "stage"):
        took = [_cost_seconds(config, by, year) for _ in range(ASKED)]
        rows.append(
            row(
                f"cost --by {by}, a year of {RUNS:,} runs, {at_a_time} at a time", "s", took, aim="median < 1",
                peer="sqlite3 shell, sum by run" if shell else "", peer_samples=shell,
                note=f"{year.charges:,} charges, {year.bytes / 1e6:.0f} MB" if by == "run" else "",
            )
        )  # fmt: skip
    return rows


def _cost_seconds(config: Path, by: str, year: Year) -> float:
    argv = [sys.executable, "-m", "governor", "cost", "--by", by, "--config", str(config)]
    begun = time.perf_counter()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    took = time.perf_counter() - begun
    total = next(line for line in done.stdout.splitlines() if line.startswith("total "))
    cents = round(year.usd_micros / 10_000)
    assert f"${cents // 100:,}.{cents % 100:02}" in total.split(), "what was written is what is told"
    return took


def _shell_seconds(journal: Path) -> list[float]:
    shell = shutil.which("sqlite3")
    if shell is None:
        return []
    query = "SELECT run, count(*), sum(usd_micros) FROM charges GROUP BY run"
    took = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        subprocess.run([shell, "-readonly", str(journal), query], capture_output=True, check=True, timeout=60)
        took.append(time.perf_counter() - begun)
    return took


# --- windows ------------------------------------------------------------------------------------------------


class TimedDatabase(Database):
    """The journal's own, which writes down how long each commit of the ledger took on its thread."""

    commits_ms: ClassVar[list[float]] = []

    def write(self, entries: Sequence[Entry], *, full: bool) -> None:
        begun = time.perf_counter()
        super().write(entries, full=full)
        if not full:
            self.commits_ms.append(1e3 * (time.perf_counter() - begun))


def windows(directory: Path) -> list[Row]:
    vars(writer)["Database"] = TimedDatabase
    path = directory / "costgov.db"
    journal, problem = open_journal(str(path), str(directory / "runtime"))
    assert problem is None, problem
    took, handed, checkpoints = [], [], []
    written, first = 0, (0, 0)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as beside:
            for effect in kept():
                begun = time.perf_counter()
                _persist(journal, effect)
                handed.append(1e3 * (time.perf_counter() - begun))
                journal.rows(last=0)  # Answered behind the commit.
                took.append(1e3 * (time.perf_counter() - begun))
                written += len(effect.records)
                if len(took) % COMMITS_PER_CHECKPOINT == 0:
                    checkpoints.append(_checkpoint_ms(beside))
                    first = first if first[0] else (written, path.stat().st_size)
        durable = [_durable_ms(journal) for _ in range(200)]
    finally:
        journal.close()
    assert journal.errors_total == 0, "every commit was taken"
    assert WINDOWS - SHARING <= written <= WINDOWS, f"every step closed its window: {written}"
    per_window = (path.stat().st_size - first[1]) / (written - first[0])
    plain = _plain_insert_ms(directory, len(took))
    what, aim = "ledger's write per window, 8 runs on the node", "p99 < 1"
    return [
        row(what, "ms", TimedDatabase.commits_ms, aim=aim, peer="plain INSERT, WAL, no fsync", peer_samples=plain),
        row("the same, from the call to the answer behind it", "ms", took),
        row("of it, the daemon's loop", "ms", handed),
        row("WAL moved home, of six windows", "ms", checkpoints, note="on the journal's thread, in an idle minute"),
        row("a halt's row beside it, durable", "ms", durable),
        row(
            "database, per window", "bytes", [per_window], aim="< 1,024",
            note=f"{written:,} windows and the charges of their time; 240,000 windows: {per_window * 0.24:,.0f} MB",
        ),
    ]  # fmt: skip


def kept() -> Iterator[PersistRuns]:
    """What a governor keeps while eight runs close a window after the other, each ten seconds behind the last."""
    node, reader = _watched()
    for count in range(1, WINDOWS + 1):
        at = MonoNs(NS_PER_S + count * KEEP_NS)
        number, step = count % SHARING, count // SHARING + 1
        changing = {"step": step, "attempt_step": step, "tokens_total": step * TOKENS, "skipped_steps": 0}
        frame = {**STEP, **head("step", 0, at), **changing, "loss": 2.5, "progress_seq": step * 40}
        for event in reader.read(_packet(number, frame), at):
            engine.step(node, event)
        for effect in engine.step(node, Tick(at, BootNs(at), WallNs(at))):
            if isinstance(effect, PersistRuns) and effect.records:
                yield effect


def _watched() -> tuple[Node, FrameReader]:
    policies, problems = load_policies([("bench.toml", POLICY)])
    assert policies is not None, problems
    facts = NodeFacts(node="bench", boot_id="boot", price_usd_micros_per_hour=UsdMicros(98_320_000))
    node, reader = new_node(facts, policies, BootNs(0), WallNs(0)), FrameReader()
    for number in range(SHARING):
        hello = {
            **head("hello", 0, 1), "seq": 1, "run": f"bench-{number}", "attempt": "1", "local_rank": 0,
            "world_size": 1, "signal": 10, "tokens_per_step": TOKENS, "capabilities": ["ask", "agree"],
        }  # fmt: skip
        for event in reader.read(_packet(number, hello), MonoNs(NS_PER_S)):
            engine.step(node, event)
    return node, reader


def _packet(number: int, frame: dict[str, object]) -> Packet:
    peer = Peer(ProcessId(4000 + number, 1000 + number, "boot"), 1000)
    return Packet(ConnectionId(number + 1), peer, encode(frame))


def _persist(journal: SqliteJournal, effect: PersistRuns) -> None:
    rows = [
        JournalRow(one.kind, one.run, one.incident_id, MonoNs(0), WallNs(0), "boot", one.data) for one in effect.records
    ]
    journal.save_runs(effect.runs, [charge_row(charge) for charge in effect.charges], rows)


def _checkpoint_ms(connection: sqlite3.Connection) -> float:
    begun = time.perf_counter()
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute(f"PRAGMA user_version = {version}")
    return 1e3 * (time.perf_counter() - begun)


def _durable_ms(journal: SqliteJournal) -> float:
    begun = time.perf_counter()
    durable = journal.append(
        [JournalRow("transition", "bench-0", "i", MonoNs(0), WallNs(0), "boot", {"n": 1})], full=True
    )
    assert durable, "the disk is there"
    return 1e3 * (time.perf_counter() - begun)


def _plain_insert_ms(directory: Path, count: int) -> list[float]:
    took = []
    with closing(sqlite3.connect(directory / "plain.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE windows (n INTEGER PRIMARY KEY, data TEXT)")
        for number in range(count):
            begun = time.perf_counter()
            connection.execute("INSERT INTO windows VALUES (?, ?)", (number, "x" * 400))
            took.append(1e3 * (time.perf_counter() - begun))
            if number % COMMITS_PER_CHECKPOINT == 0:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return took


def measure() -> list[Row]:
    # Beside the repository, not in /tmp: that may be memory, and a ledger is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=os.environ.get("COSTGOV_BENCH_DIR", ROOT)) as name:
        directory = Path(name)
        return [*a_year(directory, 1), *a_year(directory, SHARING), *windows(directory)]


if __name__ == "__main__":
    program(__doc__, measure)
