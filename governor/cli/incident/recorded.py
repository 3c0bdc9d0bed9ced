"""What the run's recording and ledger have of an incident, for its plots."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from governor.cli.common import Failed, complain, find_config, settings_from
from governor.core.engine.idle_state import NODE
from governor.reports.incident.judged import SPEND
from governor.reports.incident.seen import Seen
from governor.text.table import plain
from governor.wire.control_client import Snapshot

NEAR_SEGMENTS: Final = 2  # Of the recording, that end at the verdict: what a close view needs.
CHARGES_MAX: Final = 20_000  # Hours. The newest count.


def seen_before(snapshot: Snapshot, config: Path | None, *, is_whole: bool) -> Seen | None:
    """None: there is no recording, and no ledger either. `is_whole`: of the whole run, not of its last hours alone.

    What cannot be read is a line on standard error.
    """
    if snapshot["run"] == NODE:
        return None
    try:
        paths = settings_from(find_config(config)).paths
    except Failed as error:
        complain(error.message)
        return None
    return seen_in(snapshot, paths.state_dir, paths.recordings_dir, is_whole=is_whole)


def seen_in(snapshot: Snapshot, state_dir: Path, recordings_dir: Path, *, is_whole: bool) -> Seen | None:
    seen, run = Seen(snapshot), str(snapshot["run"])
    has_recording = _read(seen, recordings_dir, run, int(snapshot["opened_wall_ns"]), is_whole=is_whole)
    if any(one.name == SPEND for one in seen.judged):
        at_verdict = snapshot.get("spend_at_verdict_usd_micros")
        seen.spend(_charges(state_dir, run), at_verdict if type(at_verdict) is int else None)
    return seen if has_recording or seen.quantities else None


def _read(seen: Seen, recordings_dir: Path, run: str, opened_ns: int, *, is_whole: bool) -> bool:
    """Whether anything was read."""
    directory = recordings_dir / run
    if "/" in run or run in (".", "..") or not os.path.isdir(directory):
        return False
    from governor.replay.readers.lines import LogUnreadable
    from governor.wire.recorded import RecordedClock

    clock, records = RecordedClock(), 0
    try:
        for record in _records(directory, clock, opened_ns, is_whole=is_whole):
            records += 1
            if not seen.read(record, clock.wall_ahead_ns):
                break
    except LogUnreadable as error:
        complain(plain(error))
    seen.end()
    return records > 0


def _records(directory: Path, clock: Any, opened_ns: int, *, is_whole: bool) -> Iterator[dict[str, Any]]:
    from governor.replay.logs import recording

    for part in [directory] if is_whole else _near(directory, opened_ns):
        for _, record in recording(part, clock):
            if isinstance(record, dict) and "meta" not in record:
                yield record


def _near(directory: Path, opened_ns: int) -> list[Path]:
    """The segment in which the verdict is, and those just before it."""
    from governor.replay.logs import lines
    from governor.replay.readers.lines import LogUnreadable
    from governor.wire.jsonl import parse_line
    from governor.wire.recording import segments

    try:
        parts = segments(directory)
    except OSError as error:
        raise LogUnreadable(f"{directory}: {error.strerror}") from error
    last = len(parts)
    while last > 1:
        try:
            first = next((line for _, line in lines(parts[last - 1])), None)
        except LogUnreadable:
            first = None
        head = parse_line(first) if first else None
        meta = head.get("meta") if isinstance(head, dict) else None
        wall_ns = meta.get("wall_ns") if isinstance(meta, dict) else None
        if type(wall_ns) is int and wall_ns <= opened_ns:
            break
        last -= 1
    return parts[max(0, last - NEAR_SEGMENTS) : last]


def _charges(state_dir: Path, run: str) -> list[tuple[int, int, int]]:
    """From, to and micro-dollars of each charge of the run, oldest first."""
    from governor.adapters.journal.reader import ChargesUnreadable, journal_paths, read_charges

    found: list[tuple[int, int, int]] = []
    try:
        for path in journal_paths(state_dir):
            found += [
                (one.from_wall, one.to_wall, one.usd_micros)
                for one in read_charges(path, None, None, lambda _row: None)
                if one.payer.run == run
            ]
    except (ChargesUnreadable, sqlite3.Error) as error:
        complain(plain(error))
    return sorted(found)[-CHARGES_MAX:]
