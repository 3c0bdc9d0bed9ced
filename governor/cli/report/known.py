"""What is known of a run, wherever it is kept: by a governor that watches it, in its journal, and in its recording."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from governor.adapters.machine import lock_file
from governor.cli.common import ExitCode, Failed, settings_from, sockets
from governor.cli.cost.charges import journals_in
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.rows import told_time
from governor.core.base.model_speed import Peak
from governor.core.base.units import MICROS_PER_USD, MonoNs, UsdMicros, utc_text
from governor.core.events.ends import COMPLETED
from governor.core.money.charges import Charge, LineKind, Unit
from governor.planner.catalog import driver_peaks
from governor.reports.run.facts import RunFacts
from governor.reports.run.series import RunSeries
from governor.text.table import plain
from governor.wire import control_client

HALTS_MAX: Final = 1_000
FAILURES_MAX: Final = 200
HALTED: Final = "halted"
OVER: Final = (HALTED, "finished")  # States of a run that does not go on.
TOLD_EACH: Final = 20_000  # Records, of the progress line.
NOT_OURS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_FAILURE_KINDS: Final = ("failure", "ended", "end_cause")


class Places(NamedTuple):
    """Where journals and recordings are, and where their governor may listen, if settings say it."""

    state_dir: Path
    recordings_dir: Path
    control_socket: Path | None = None
    runtime_dir: Path | None = None


def places_of(config: Path | None, state_dir: Path | None) -> Places:
    """`state_dir`: as the user names it; its recordings are below it. Else what the settings say.

    It may be the directory of one launched command, runs/NAME: its recordings are those of the directory that has it.
    """
    if state_dir is not None:
        if not state_dir.is_dir():
            raise Failed(f"{state_dir}: no directory; name the state directory of a governor")
        whole = Path(os.path.abspath(state_dir))
        is_of_command = whole.parent.name == "runs" and not os.path.isdir(whole / "recordings")
        return Places(state_dir, (whole.parent.parent if is_of_command else state_dir) / "recordings")
    paths = settings_from(config).paths
    return Places(paths.state_dir, paths.recordings_dir, paths.control_socket, paths.runtime_dir)


class Kept(NamedTuple):
    """A run's row in a journal, and what that journal says of it beside that."""

    path: str
    row: Mapping[str, Any]
    halts: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, Any]]


def facts_of(run: str, places: Places, peak: Peak | None, *, is_live_asked: bool = True) -> RunFacts:
    """All that is known of the run. Fails in one line where nothing is."""
    unread: list[str] = []
    kept = kept_of(run, places.state_dir, unread)
    live = live_of(run, places) if is_live_asked else None
    series = _series(run, places.recordings_dir, unread)
    if kept is None and live is None and series is None:
        where = f"{places.state_dir} and {places.recordings_dir}"
        raise Failed(
            "\n".join([*unread, f'there is no run "{plain(run)}" in {where}; `costgov cost` lists runs']),
            ExitCode.UNKNOWN,
        )
    told: Mapping[str, Any] = live or (_told(kept.row, unread) if kept is not None else {})
    wall = kept.row.get("wall_ns") if kept is not None and live is None else None
    unasked = unasked_of(kept) if is_live_asked and live is None and kept is not None else None
    unread += [unasked] if unasked is not None else []
    return RunFacts(
        run=run,
        told=told,
        ended=None if unasked is not None else how_it_ended(live, kept),
        as_of=utc_text(wall) if isinstance(wall, int) else None,
        node=None,
        node_usd_per_hour=_rate(run, live, kept),
        halts=kept.halts if kept is not None else (),
        failures=kept.failures if kept is not None else (),
        series=series,
        unread=unread,
        peak=peak,
        peaks=driver_peaks(),
    )


# --- a governor that watches it ------------------------------------------------------------------------------


def live_of(run: str, places: Places) -> Mapping[str, Any] | None:
    """Its row of the status of a governor that watches it, while it lives, and that writes into these places."""
    for answer in control_client.ask_each(_sockets(run, places), {"cmd": "status"}):
        if not answer.ok or not _writes_into(answer.data["governor"].get("state_dir"), places.state_dir):
            continue
        found = [one for one in answer.data["runs"] if one["run"] == run]
        if found and found[0].get("end") is None and found[0].get("time") is not None:
            row: Mapping[str, Any] = found[0]
            return row
    return None


def _sockets(run: str, places: Places) -> tuple[str, ...]:
    if places.runtime_dir is None or places.control_socket is None:
        return sockets(None, run)
    of_settings = control_client.socket_paths({"COSTGOV_PATHS__RUNTIME_DIR": str(places.runtime_dir)}, run=run)
    found = map(control_client.Found, (str(places.control_socket), *of_settings))
    return tuple(dict.fromkeys((*sockets(None, run), *found)))


def _writes_into(told: object, state_dir: Path) -> bool:
    """Whether a governor's journal is one of those below `state_dir`. One that does not say is of an older costgov."""
    return not isinstance(told, str) or Path(os.path.realpath(told)).is_relative_to(os.path.realpath(state_dir))


def unasked_of(kept: Kept) -> str | None:
    """One line where the run goes on, under a governor that holds its journal and was not found to be asked."""
    if not kept.row.get("alive") or (pid := lock_file.holder(f"{kept.path}.lock")) is None:
        return None
    return (
        f"its governor (pid {pid}) runs and was not found to be asked: what it knows since its last row in "
        f"{kept.path} is missing; name its costgov.toml with --config, or its socket in COSTGOV_CONTROL"
    )


def how_it_ended(live: Mapping[str, Any] | None, kept: Kept | None) -> str | None:
    """None while it goes on. A governor also answers for runs that are over."""
    if live is not None and live.get("state") not in OVER:
        return None
    if live is None:
        return _how(kept)
    if live.get("state") == HALTED and (halt := live.get("halt")) is not None:
        return f"halted: {plain(halt['reason'])} (costgov incident show {plain(halt['incident_id'])})"
    # The journal's row may be older than the end of which the governor tells.
    is_told = kept is not None and kept.row.get("attempt") == live.get("attempt") and not kept.row.get("alive")
    return _how(kept) if is_told else "ended"


def _rate(run: str, live: Mapping[str, Any] | None, kept: Kept | None) -> float | None:
    """What an hour of the node cost it last. The node's own price may be another by now."""
    if live is not None:
        rate = live.get("spend_rate_usd_per_hour")
        return float(rate) if rate is not None else None
    if kept is None:
        return None
    from governor.adapters.journal.reader import ChargesUnreadable, read_charges
    from governor.adapters.journal.sums import read_sums

    with contextlib.suppress(ChargesUnreadable):  # `costgov cost` tells of what cannot be read of the ledger.
        sums = read_sums(kept.path, "run", (run,), unread=_left_out)
        prices = {one.charge.line.price_usd_micros for one in sums if _is_of_node(run, one.charge)}
        if len(prices) > 1:  # Which was last, the sums do not say.
            own = (one for one in read_charges(kept.path, unread=_left_out) if _is_of_node(run, one))
            prices = {max(own, key=lambda one: one.to_wall).line.price_usd_micros}
        return next((price / MICROS_PER_USD for price in prices), None)
    return None


def _is_of_node(run: str, charge: Charge) -> bool:
    return charge.payer.run == run and charge.line.kind is LineKind.COMPUTE and charge.line.unit is Unit.HOUR


def _left_out(_row: object) -> None:
    """A row that is no charge."""


# --- its journal ---------------------------------------------------------------------------------------------


def kept_of(run: str, state_dir: Path, unread: list[str]) -> Kept | None:
    """From the journal that was written last for it."""
    found = []
    for path in journals_in(state_dir):
        try:
            one = _read(path, run)
        except (sqlite3.Error, UnicodeDecodeError, *NOT_OURS) as error:
            unread.append(f"{path}: cannot be read: {plain(error)[:200]}; it is in no figure here")
            continue
        if one is not None:
            found.append(one)
    return max(found, key=lambda one: int(one.row.get("wall_ns") or 0), default=None)


def _read(path: str, run: str) -> Kept | None:
    from governor.adapters.journal.db import JournalReader

    with closing(JournalReader(path)) as reader:
        rows = [json.loads(entry["snapshot"]) for entry in reader.run(run) if entry["run"] is not None]
        if not rows:
            return None
        incidents = [json.loads(entry["snapshot"]) for entry in reader.incidents(HALTS_MAX, only_open=False)]
        failures = [entry for kind in _FAILURE_KINDS for entry in reader.rows_of(run, kind, FAILURES_MAX)]
    halts = [one for one in incidents if one.get("run") == run and type(one.get("opened_wall_ns")) is int]
    told = _failures(sorted(failures, key=lambda entry: int(entry["seq"])))
    return Kept(path, rows[0], halts, told)


def _failures(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the end of a command tells of its run's end stands in the place of what was known of that before."""
    told: list[Mapping[str, Any]] = []
    for entry in entries:
        row = _failure(entry)
        if row is None:
            continue
        last = told[-1] if told and entry["kind"] == "end_cause" else {}
        if last.get("what") == row["what"] and last.get("step") == row["step"]:
            told[-1] = {**row, "at": last["at"]}
        else:
            told.append(row)
    return told


def _failure(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """None: it ended well, or says no more than another row."""
    data, kind = json.loads(entry["data"]), entry["kind"]
    if kind == "failure":
        what, text = f"rank {data['rank']} raised", f"{data['name']}: {data['text']} ({data['place']})"
    elif data.get("completed") or data.get("exit_code") in (None, 0):
        return None
    else:
        why = data.get("cause") or "no cause is known"
        what, text = "ended", f"exit code {data['exit_code']}: {why}"
    return {"at": utc_text(entry["wall_ns"]), "what": what, "step": data.get("step"), "text": text}


def _told(row: Mapping[str, Any], unread: list[str]) -> Mapping[str, Any]:
    """The row as a status has it."""
    from governor.cli.ended import money_of
    from governor.core.money.expected import plan_of_row

    told: dict[str, Any] = {"step": row.get("step")}
    try:
        told |= money_of(row)
        plan = plan_of_row(row.get("plan") or {})
        told |= {
            "expected_usd_per_mtok": _usd(plan.usd_micros_per_mtok),
            "expected_usd_per_mtok_all_in": _usd(plan.usd_micros_per_mtok_all_in),
            "expected_tokens_per_s": plan.tokens_per_s,
            "tokens_goal": plan.tokens_goal,
        }
    except NOT_OURS as error:
        unread.append(f"what its tokens cost cannot be read from its journal ({plain(error)[:100]})")
    try:
        if row.get("time") is not None:
            told["time"] = told_time(TimeAccount.restored(row["time"], same_boot=False))
    except NOT_OURS as error:
        unread.append(f"the account of its time cannot be read from its journal ({plain(error)[:100]})")
    return told


def _usd(micros: UsdMicros | int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_USD


def _how(kept: Kept | None) -> str:
    """How it ended, as `costgov status` says of a run whose governor has ended."""
    if kept is None:
        return "unknown: no journal has it"
    from governor.cli.ended import how_ended

    own = [one for one in kept.halts if one.get("attempt") == kept.row.get("attempt")]
    try:
        how = how_ended(kept.row, own[-1] if own else None, is_open=bool(kept.row.get("alive")))
        has_step = how == COMPLETED and kept.row.get("step") is not None
        return f"{how} at step {kept.row['step']:,}" if has_step else how
    except NOT_OURS:
        return "unknown: its journal does not say"


# --- its recording -------------------------------------------------------------------------------------------


def _series(run: str, recordings_dir: Path, unread: list[str]) -> RunSeries | None:
    directory = recordings_dir / run
    if "/" in run or not os.path.isdir(directory):
        return None
    from governor.replay.logs import recording
    from governor.replay.readers.lines import LogUnreadable
    from governor.wire.recorded import RecordedClock

    reader = _Reader(run, RecordedClock())
    was_enabled = gc.isenabled()
    gc.disable()  # A hundred thousand records have no cycles, and the search for them takes a tenth of the time.
    try:
        for place, record in recording(directory, reader.clock):
            reader.read(place, record)
    except LogUnreadable as error:
        unread.append(str(error))
    finally:
        reader.progress.clear()
        if was_enabled:
            gc.enable()
    if reader.faulty:
        more = f", as were {reader.faulty - 1:,} more" if reader.faulty > 1 else ""
        unread.append(f"{directory}: {reader.fault}; skipped{more}")
    return reader.series if reader.records else None


class _Reader:
    """Feeds the series with what the recording holds."""

    def __init__(self, run: str, clock: Any) -> None:
        from governor.wire.recorded import RecordedRanks, is_frame, is_note, is_numbered

        self.clock, self.series, self.records, self.faulty, self.fault = clock, RunSeries(), 0, 0, ""
        self.progress = Progress(run)
        self._ranks = RecordedRanks(run)
        self._is_frame, self._is_note, self._is_numbered = is_frame, is_note, is_numbered

    def read(self, place: int | str, record: dict[str, Any] | list[str]) -> None:
        if isinstance(record, list):
            self._note_fault(place, "; ".join(record))
            return
        kind = record.get("kind")
        if kind is None or kind == "beat":
            return  # A segment's first line, and what tells of no step.
        self.records += 1
        self.progress.step(self.records)
        at = record.get("at_ns", record.get("mono_ns"))
        if type(at) is not int or not 0 <= at < 2**63:
            self._note_fault(place, "its time is none")
            return
        if self.series.began is None:
            self.series.set_clock(self.clock.wall_ahead_ns)
        if kind == "step" and not self._is_numbered(record):
            self._note_fault(place, "a step of no such number")
            return
        if kind == "step" and self.series.see_other(record):
            return
        now = MonoNs(at)
        if kind == "note":
            self.series.note(record, now)
        if type(record.get("v")) is not int or not isinstance(kind, str):
            self._note_fault(place, "no frame of ours")
            return
        events = self._ranks.read(record, now) if self._is_frame(record) or self._is_note(record) else ()
        if isinstance(events, list):
            self._note_fault(place, "; ".join(events))
            return
        for event in events:
            self.series.see(event)

    def _note_fault(self, place: int | str, what: str) -> None:
        self.faulty += 1
        self.fault = self.fault or f"{place}: {plain(what)[:200]}"


class Progress:
    """How much was read, on one line of a terminal that goes again. Nothing elsewhere."""

    def __init__(self, name: str, each: int = TOLD_EACH, of: str = "records") -> None:
        self._name, self._each, self._of = plain(name)[:60], each, of
        self._is_told = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = False

    def step(self, records: int) -> None:
        if self._is_told and records % self._each == 0:
            self._is_shown = True
            click.echo(f"\r\x1b[Kreading {self._name}: {records:,} {self._of}", nl=False, err=True)

    def clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            click.echo("\r\x1b[K", nl=False, err=True)
