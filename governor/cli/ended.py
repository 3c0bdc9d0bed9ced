"""Runs of `costgov run` that no governor watches any more: what their journals say of them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_S
from governor.core.events.ends import COMPLETED

if TYPE_CHECKING:
    from governor.adapters.journal.db import JournalReader

JOURNAL_NAME: Final = "costgov.db"
LOOKED_INTO_MAX: Final = 100  # Journals, for a run that has another name than its command. A second's work.
PIDS_NAMED_MAX: Final = 8
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a journal says of the runs of one command."""

    runs: tuple[Row, ...]  # As `status --json` prints them.
    lines: tuple[str, ...]
    living: tuple[int, ...]  # Processes of the last launch, which nobody watches.
    lock: Path | None = None  # Which somebody of it holds whom nothing else shows.


def ended_run(name: str) -> Ended | None:
    """What is known of a run, or of all runs of a command. None where it left no journal, or nothing readable.

    A script and a log may have another name than their command.
    """
    path = _journal(name)
    if path is not None:
        return _read(path, name)
    return next((found for path in _journals()[:LOOKED_INTO_MAX] if (found := _read(path, name)) is not None), None)


def why_unreadable(name: str) -> str | None:
    """One line on the journal that a `costgov run` of this name has left. None: it can be read, or there is none."""
    from governor.adapters.journal.db import JournalReader

    path = _journal(name)
    try:
        if path is not None:
            with contextlib.closing(JournalReader(str(path))) as reader:
                reader.runs()
    except (sqlite3.Error, ValueError) as error:
        return f"{path}: cannot be read: {error}; read it as the governor's user or root"
    return None


def is_of_ended(name: str) -> bool:
    """Whether a `costgov run` of this name has left its journal."""
    return _journal(name) is not None


def runs_named(name: str) -> int:
    """How many runs have this name in the journals beside the one of such a command. What cannot be read has none."""
    from governor.adapters.journal.reader import ChargesUnreadable, journal_paths, read_open
    from governor.app.settings_file import paths_of_run
    from governor.core.money.reports.namesakes import Namesakes

    state_dir = Path(paths_of_run(os.environ, "any")["state_dir"])
    namesakes, parts, meters = Namesakes(), [], []
    paths: list[str] = []
    with contextlib.suppress(ChargesUnreadable):
        paths = journal_paths(state_dir.parent.parent if state_dir.parent.name == "runs" else state_dir)
    for path in reversed(paths[:LOOKED_INTO_MAX]):
        with contextlib.suppress(ChargesUnreadable):
            for one in read_open(path, (name,), unread=lambda _: None):
                if one.meter is not None:
                    meters.append(((path, name), one.meter.began_tokens, one.meter.progress_tokens))
                if one.meter is not None or one.usd_micros:  # Else it stands in for a run of another name.
                    parts.append((path, name))
    namesakes.enter_all(meters)
    return len({namesakes.run_of(part) for part in parts})


def newest_ended() -> str | None:
    """The name whose journal was written last: of a run whose terminal has closed, say.

    A launch that was refused has left one that tells of nothing.
    """
    newest = _journals()[:LOOKED_INTO_MAX]
    return next((name for path in newest if _read(path, name := path.parent.name) is not None), None)


def _journal(name: str) -> Path | None:
    """The journal that `costgov run --name NAME` has left in this user's state directory, with no configured paths."""
    from governor.app.settings_file import paths_of_run

    if "/" in name:
        return None
    path = Path(paths_of_run(os.environ, name)["state_dir"], JOURNAL_NAME)
    return path if path.parent.parent.name == "runs" and path.exists() else None


def _journals() -> list[Path]:
    """All of this user's, the newest first."""
    from governor.app.settings_file import paths_of_run

    runs = os.path.dirname(paths_of_run(os.environ, "any")["state_dir"])
    found: list[tuple[float, Path]] = []
    for path in glob.glob(f"{glob.escape(runs)}/*/{JOURNAL_NAME}") if runs.endswith("/runs") else []:
        with contextlib.suppress(OSError):
            found.append((os.path.getmtime(path), Path(path)))
    return [path for _, path in sorted(found, reverse=True)]


def _read(path: Path, name: str) -> Ended | None:
    from governor.adapters.journal.db import JournalReader

    # A journal may be another version's, another user's, or torn.
    with contextlib.suppress(sqlite3.Error, OSError, ValueError, KeyError, TypeError), contextlib.ExitStack() as at_end:
        reader = JournalReader(str(path))
        at_end.callback(reader.close)
        return _told(reader, name, path.parent)
    return None


def _told(reader: JournalReader, name: str, state_dir: Path) -> Ended | None:
    from governor.adapters.command import launch_lock
    from governor.core.engine.node_journal import ended_lock_of
    from governor.core.money.charges import UNALLOCATED

    rows = [json.loads(entry["snapshot"]) for entry in reader.runs()]
    halts = [json.loads(entry["snapshot"]) for entry in reader.incidents(LOOKED_INTO_MAX, only_open=False)]
    launched = next((row.get("launched") for row in rows if row["run"] == UNALLOCATED), None)
    left = next((row.get("left") for row in rows if row["run"] == UNALLOCATED), None)
    own = [row for row in rows if name in (row["run"], row.get("command")) and not row.get("strangers")]
    own.sort(key=lambda row: row["run"] != name)
    found = [_run(row, _newest(halts, row), launched, left) for row in own]
    # The command's own name is empty where a log or a script has another one.
    runs = [one for one in found if not _is_empty(one)] or found[:1]
    if not runs:
        return None
    strangers = [row for row in rows if row.get("strangers")]
    living = _living(launched or left, [row for row in own if row["alive"]], strangers)
    lock, held = _held(name, rows, [halt for halt in halts if halt["closed_wall_ns"] is None], state_dir)
    ended_lock = next((ended_lock_of(row) for row in rows if row["run"] == UNALLOCATED), None)
    is_known = ended_lock is not None and ended_lock == launch_lock.stamp(state_dir)
    is_seen_to_end = is_known and launched is None and left is None
    if lock is None and not living and not is_seen_to_end:
        lock, held = _holder(name, state_dir, strangers, launched or left)
    return Ended(tuple(runs), (*map(_line, runs), *_still_there(name, living), *held), living, lock)


def _newest(halts: Sequence[Row], row: Row) -> Row | None:
    """The halt of this attempt, and of this launch: no attempt of a command that never attaches has a name."""
    own = [halt for halt in halts if (halt["run"], halt["attempt"]) == (row["run"], row["attempt"])]
    its = [halt for halt in own if _is_of_its_launch(halt, row)]
    return its[-1] if its else None


def _is_of_its_launch(halt: Row, row: Row) -> bool:
    """By the launch's mark. True where one of both has none, as in an older journal."""
    mark, marks = (halt.get("launch") or {}).get("mark"), row.get("marks")
    return not mark or not marks or mark in marks


def _run(row: Row, halt: Row | None, launched: Row | None, left: Row | None) -> Row:
    """`launched`: the command that went on when its governor ended. A run that no rank has told of stands in for it.

    `left`: the launch whose command had exited, and of which that governor still waited for what it had left.
    """
    stands_in = launched is not None and bool(launched.get("unattached")) and row["run"] == _payer(launched)
    spent = row["spend_usd_micros"] + (_unallocated(launched) if launched is not None and stands_in else 0)
    is_open = bool(row["alive"]) or stands_in or (left is not None and row["run"] == left["run"])
    return {
        **{key: row.get(key) for key in ("run", "attempt", "step", "last_good", "completed")},
        "tokens_at": row.get("tokens_total"),
        "ended": how_ended(row, halt, is_open=is_open),
        "incident_id": halt["incident_id"] if halt is not None else None,
        "spend_usd": spent / MICROS_PER_USD,
        **money_of(row),
        "as_of": datetime.fromtimestamp(row["wall_ns"] / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def money_of(row: Row) -> Row:
    """As the status of a watched run has it, with the tokens it is for. An older journal has no steady price."""
    from governor.core.money.expected import plan_of_row
    from governor.core.money.paid_tokens import PaidTokens, bought_of
    from governor.core.money.waste import SpendSplit, wasted_usd

    # An older journal has no plan and no split, and a run that told of no tokens no meter.
    plan = plan_of_row(row["plan"]) if row.get("plan") is not None else None
    split = SpendSplit.restored(row["spend_split"]) if row.get("spend_split") is not None else None
    bought = bought_of(row, same_boot=False)
    prices = PaidTokens(bought).prices(row["spend_usd_micros"])
    return {
        "ceiling_usd": _usd(plan.ceiling_usd_micros) if plan is not None else None,
        "tokens_total": bought.progress_of(row.get("tokens_total")),
        "tokens_wasted": bought.meter.wasted_tokens if bought.meter is not None else None,
        **{name: _usd(price) for name, price in prices.named("usd_per_mtok").items()},
        **wasted_usd(split.wasted_usd_micros() if split is not None else None),
        "unpriced_s": bought.unpriced_ns / NS_PER_S,
    }


def _usd(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_USD


def _payer(launched: Row) -> Any:
    return launched["account"] if launched["account"] is not None else launched.get("run")


def _unallocated(launched: Row) -> int:
    """What the command's time has cost that no run has taken over, in micro-dollars."""
    return int(launched["nobodys_older_usd_micros"]) + sum(int(row["usd_micros"]) for row in launched["nobodys"])


def how_ended(row: Row, halt: Row | None, *, is_open: bool) -> str:
    from governor.core.events.ends import RunEnd
    from governor.core.runs.ends import ended_text

    if halt is not None and halt["halt_stage"] != "HALTED":
        shown = f"costgov incident show {halt['incident_id']}"
        return f"its halt was not seen to its end, stage {halt['halt_stage']}: {halt['text']} ({shown})"
    if row.get("end") is not None:
        return ended_text(RunEnd(row["end"]["exit_code"], row["end"]["cause"]))
    if halt is not None:
        return f"halted: {halt['text']} (costgov incident show {halt['incident_id']})"
    if is_open:
        return "its end was not seen"
    return COMPLETED if row.get("completed") else "ended"


def _is_empty(run: Row) -> bool:
    return (
        run["step"] is None and not run["spend_usd"] and run["ended"] in ("ended", COMPLETED) and not run["incident_id"]
    )


def _line(run: Row) -> str:
    from governor.reports.terminal import closing_line

    return f"{closing_line(run, run['ended'])}; as of {run['as_of']}"


def _living(launched: Row | None, alive: Sequence[Row], strangers: Sequence[Row]) -> tuple[int, ...]:
    """Which processes of the command and its ranks still run. Empty where that cannot be seen.

    Of a command whose end was not seen also what else it has started.
    """
    from governor.adapters.machine.clock import SystemClock
    from governor.adapters.machine.processes import LinuxProcesses
    from governor.app.earlier_launch import lives_here
    from governor.core.engine.launched_command import launch_of
    from governor.core.halt.elsewhere import as_seen
    from governor.core.halt.left_launch import process_of
    from governor.daemon.process_killer import ProcessKiller

    rows = [
        *(launched["processes"] if launched is not None else ()),
        *(p for row in alive for p in row.get("processes", ())),
    ]
    known = dict.fromkeys(process_of(row) for row in rows)
    with contextlib.suppress(OSError):
        processes = LinuxProcesses(SystemClock().boot_id)
        places = [place for process in known if (place := processes.locate(process)) is not None]
        seen = [process for process in places if not processes.is_gone(process)]
        launch = launch_of(as_seen({"launched": launched}, processes.locate)["launched"]) if launched else None
        if launch is not None:
            others = [process_of(p) for row in strangers for p in row.get("processes", ())]
            killer = ProcessKiller(processes, os.getpid())
            its = lives_here(launch, killer, [row["uid"] for row in alive], others)
            seen += [facts.process for facts in its if facts.process not in seen]
        return tuple(process.pid for process in seen)
    return ()


def _held(
    name: str, rows: Sequence[Row], halts: Sequence[Row], state_dir: Path
) -> tuple[Path | None, list[str]]:  # fmt: skip
    """The lock of a launch that cannot be seen from here, and what is told of who holds it."""
    from governor.adapters.command import launch_lock
    from governor.adapters.machine.clock import SystemClock
    from governor.adapters.machine.processes import LinuxProcesses
    from governor.app.earlier_launch import held_elsewhere
    from governor.core.halt.elsewhere import as_seen, left_elsewhere

    boot_id, path = SystemClock().boot_id, launch_lock.path_of(state_dir)
    where = None
    with contextlib.suppress(OSError):
        locate = LinuxProcesses(boot_id).locate
        runs, opened = ([as_seen(row, locate) for row in of] for of in (rows, halts))
        where = held_elsewhere(left_elsewhere(runs, opened, boot_id), state_dir)
    if where is None:
        return None, []
    return path, [
        f"{name}: its last launch still runs {where}, UNWATCHED: its processes hold {path}, and nothing here sees, "
        "meters or ends them; end it there"
    ]


def _holder(
    name: str, state_dir: Path, strangers: Sequence[Row], last: Row | None
) -> tuple[Path | None, list[str]]:  # fmt: skip
    """The lock that somebody on this machine holds whom nothing else ties to the launch, as who would launch asks."""
    from governor.adapters.command import launch_lock
    from governor.adapters.machine.clock import SystemClock
    from governor.adapters.machine.processes import LinuxProcesses
    from governor.app.earlier_launch import holds_here
    from governor.core.engine.launched_command import launch_of
    from governor.core.halt.elsewhere import as_seen
    from governor.core.halt.left_launch import process_of
    from governor.daemon.process_killer import ProcessKiller

    others = [process_of(p) for row in strangers for p in row.get("processes", ())]
    processes = LinuxProcesses(SystemClock().boot_id)
    launch = launch_of(as_seen({"launched": last}, processes.locate)["launched"]) if last else None
    holds, seen, _ = holds_here(state_dir, ProcessKiller(processes, os.getpid()), others, launch)
    if not holds:
        return None, []
    who = ", ".join(f"pid {facts.process.pid} of uid {facts.uid}" for facts in seen[:PIDS_NAMED_MAX])
    path = launch_lock.path_of(state_dir)
    return path, [
        f"{name}: somebody of its last launch still lives and holds {path} "
        f"({f'perhaps {who}' if who else 'who that is cannot be seen from here'}); nothing meters or ends it"
    ]


def _still_there(name: str, pids: Sequence[int]) -> list[str]:
    if not pids:
        return []
    shown = " ".join(map(str, pids[:PIDS_NAMED_MAX]))
    more = f" and {len(pids) - PIDS_NAMED_MAX} more" if len(pids) > PIDS_NAMED_MAX else ""
    return [
        f"{name}: its last launch still runs, UNWATCHED: nothing meters or ends pid {shown}{more}; end it with "
        f"`kill {shown}`"
    ]
