"""The journal's files in the runtime directory (tmpfs).

`Fallback` takes the rows that the disk does not take. `Mirror` copies the newest state of runs and halts, which
repairs a journal that lost its last commits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from governor.core.base.printable import storable
from governor.core.base.units import MonoNs, WallNs
from governor.ports import Row

FALLBACK_NAME = "journal-fallback.jsonl"
# tmpfs is memory. This is about 15,000 rows, some hundred halts.
FALLBACK_BYTES_MAX = 8 * 1024 * 1024
CHATTER_BYTES_MAX = FALLBACK_BYTES_MAX // 2  # Rows that need no durability must not displace a halt's.
# Charges stay in memory while the file has no room: a closed charge is reported only once, other rows repeat.
# About 5 MB: half a year of one run, a month of eight. The oldest go first.
CHARGES_HELD_MAX = 5_000

Entry = dict[str, Any]  # {"seq": int, "table": a key of COLUMNS, …that table's columns}

COLUMNS = {
    "journal": frozenset(("seq", "kind", "run", "incident_id", "mono_ns", "wall_ns", "boot_id", "data")),
    "incidents": frozenset(("seq", "incident_id", "open", "snapshot")),
    "runs": frozenset(("seq", "run", "snapshot")),
    "charges": frozenset(("seq", "charge_id", "run", "from_wall_ns", "to_wall_ns", "usd_micros", "data")),
}


class Fallback:
    """Append-only JSON lines, bounded. The loop and the journal's worker share it safely.

    Nothing is synced: tmpfs outlives the governor, and nothing outlives the machine.
    """

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, FALLBACK_NAME)
        self._lock = threading.Lock()
        self._bytes = 0
        with contextlib.suppress(OSError):
            os.makedirs(directory, mode=0o755, exist_ok=True)
            self._bytes = os.stat(self.path).st_size
        # The newest entry of each charge by charge_id, the oldest first.
        self._held: dict[str, Entry] = {}
        # Entries that this file could not take. They went to stderr.
        self.lost_total = 0

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    def append(self, entries: list[Entry], *, full: bool) -> bool:
        """Append the entries. Returns False if they could not be written and went to stderr."""
        block = b"".join(json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries)
        limit = FALLBACK_BYTES_MAX if full else CHATTER_BYTES_MAX
        with self._lock:
            if self._bytes + len(block) <= limit and self._write(block):
                self._bytes += len(block)
                return True
            self.lost_total += len(entries) - self._hold(entries)
        # systemd's journal or a terminal retains stderr.
        if full:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(block.decode())
        return False

    def held(self) -> list[Entry]:
        """Charges that the file could not take. They stay here until `let_go`."""
        with self._lock:
            return list(self._held.values())

    def let_go(self, entries: list[Entry]) -> None:
        """Release entries that the database has. A newer entry of the same charge stays held."""
        with self._lock:
            for entry in entries:
                if self._held.get(entry["charge_id"]) is entry:
                    del self._held[entry["charge_id"]]

    def write_held(self) -> None:
        """At exit, write the held charges to the part of the file reserved for halts, or to stderr."""
        held = self.held()
        if held and self.append(held, full=True):
            self.let_go(held)

    def _hold(self, entries: list[Entry]) -> int:
        """Hold the charges among the entries. Returns the number held now, less those given up for them."""
        charges = [entry for entry in entries if entry["table"] == "charges"]
        for charge in charges:
            self._held.pop(charge["charge_id"], None)
            self._held[charge["charge_id"]] = charge
        excess = max(0, len(self._held) - CHARGES_HELD_MAX)
        for name in list(self._held)[:excess]:
            del self._held[name]
        return len(charges) - excess

    def read(self) -> tuple[list[Entry], int]:
        """Return the whole lines and the bytes of the file that they cover. Torn lines are skipped."""
        with self._lock:
            try:
                with open(self.path, "rb", opener=_no_follow) as file:
                    content = file.read(FALLBACK_BYTES_MAX)
            except OSError:
                return [], 0
        entries = []
        for line in content.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if is_entry(entry):
                    entries.append(entry)
        return entries, len(content)

    def forget(self, size: int) -> None:
        """Remove the first `size` bytes, which the database has now."""
        with self._lock, contextlib.suppress(OSError):
            with open(self.path, "rb", opener=_no_follow) as file:
                file.seek(size)
                rest = file.read(FALLBACK_BYTES_MAX)
            # A rename: after a crash in between, the old file remains, and its rows are imported once more.
            with open(self.path + ".new", "wb", opener=_no_follow) as file:
                file.write(rest)
            os.rename(self.path + ".new", self.path)
            self._bytes = len(rest)

    def _write(self, block: bytes) -> bool:
        try:
            fd = _no_follow(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError:
            return False
        try:
            return os.write(fd, block) == len(block)
        except OSError:
            return False
        finally:
            os.close(fd)


def is_entry(entry: Any) -> bool:
    """Whether the journal can write this entry."""
    # Another version of costgov may have left lines of an unknown shape.
    if not isinstance(entry, dict) or not isinstance(entry.get("seq"), int):
        return False
    columns = COLUMNS.get(entry.get("table", ""))
    return columns is not None and columns <= entry.keys()


def _no_follow(path: str, flags: int) -> int:
    # O_NONBLOCK: a FIFO waits for nobody.
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


# --- entries as the files store them: plain text and numbers, bounded -------------------------------------

# A row is evidence, not an archive. The largest hold the stacks of every rank.
ROW_BYTES_MAX = 256 * 1024


def text_of(data: Mapping[str, Any]) -> str:
    # A value that is not JSON becomes its text: losing its shape is better than failing a halt.
    return json.dumps(dict(data), default=str, separators=(",", ":"))


def bounded(text: str) -> str:
    return text if len(text) <= ROW_BYTES_MAX else json.dumps({"cut_from_bytes": len(text), "head": text[:4096]})


def _name(name: str | None) -> str | None:
    # SQLite takes no half surrogates. A log read with `surrogateescape` may hold some.
    return None if name is None else storable(name)


def row_entry(seq: int, row: Row) -> Entry:
    return {
        "seq": seq, "table": "journal", "kind": row.kind, "run": _name(row.run), "incident_id": _name(row.incident_id),
        "mono_ns": row.mono, "wall_ns": row.wall, "boot_id": row.boot_id, "data": bounded(text_of(row.data)),
    }  # fmt: skip


def incident_entry(seq: int, incident_id: str, snapshot: Mapping[str, Any], *, is_open: bool) -> Entry:
    return {
        "seq": seq, "table": "incidents", "incident_id": storable(incident_id), "open": int(is_open),
        "snapshot": text_of(snapshot),
    }  # fmt: skip


def run_entry(seq: int, run: str, snapshot: Mapping[str, Any]) -> Entry:
    return {"seq": seq, "table": "runs", "run": storable(run), "snapshot": text_of(snapshot)}


def charge_entry(seq: int, charge: Mapping[str, Any]) -> Entry:
    return {
        "seq": seq, "table": "charges", "charge_id": storable(charge["charge_id"]),
        "run": storable(charge["run"]), "from_wall_ns": charge["from_wall_ns"],
        "to_wall_ns": charge["to_wall_ns"], "usd_micros": charge["usd_micros"], "data": text_of(charge),
    }  # fmt: skip


def row_of(entry: Entry) -> Row:
    return Row(
        kind=entry["kind"], run=entry["run"], incident_id=entry["incident_id"], mono=MonoNs(entry["mono_ns"]),
        wall=WallNs(entry["wall_ns"]), boot_id=entry["boot_id"], data=json.loads(entry["data"]),
    )  # fmt: skip


def snapshot_of(entries: list[Entry]) -> Mapping[str, Any] | None:
    """The first entry's snapshot; None without one. Empty where it cannot be read: it may have been damaged since."""
    if not entries:
        return None
    try:
        found = json.loads(entries[0]["snapshot"])
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def seq_of(entry: Entry) -> int:
    return int(entry["seq"])


def first_seq_of(entry: Entry) -> int:
    return int(entry["first_seq"] if "first_seq" in entry else entry["seq"])


def name_of(table: str, entry: Entry) -> str:
    return str(entry["run"] if table == "runs" else entry["incident_id"])


# --- the mirror: used only beside its journal's own file, never for one that was removed -----------------

MIRROR_NAME: Final = "journal-mirror.jsonl"
SNAPSHOTS_MAX: Final = 256  # As many as the journal has in memory: about 500 KB.
# Closed halts are mirrored so that a file without its last commits does not resume a halt that has ended.
CLOSED_MAX: Final = 16
# tmpfs is memory. An incident with the stacks of every rank has 100 KB.
MIRROR_BYTES_MAX: Final = 4 * 1024 * 1024


class Mirror:
    """For one thread. It never raises: it holds a second copy only."""

    def __init__(self, directory: str, journal: str) -> None:
        self.path = os.path.join(directory, MIRROR_NAME)
        self._journal = journal
        # Closed incidents make room first, open ones last, because a restart resumes them.
        kinds = ("closed", "runs", "open")
        self._lines: dict[str, OrderedDict[tuple[str, str], bytes]] = {kind: OrderedDict() for kind in kinds}

    def keep(self, entries: Iterable[Entry]) -> None:
        """Take the newer snapshots of runs and incidents. If there were any, write the whole file."""
        touched = False
        for entry in entries:
            if entry["table"] not in ("runs", "incidents"):
                continue
            touched = True
            kind = "runs" if entry["table"] == "runs" else "open" if entry["open"] else "closed"
            name = entry["run"] if kind == "runs" else entry["incident_id"]
            for lines in self._lines.values():
                lines.pop((entry["table"], name), None)
            self._lines[kind][entry["table"], name] = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if touched:
            self._make_room()
            self._write()

    def forget(self) -> None:
        """Discard what the previous governor left: its journal is gone."""
        self._write()

    def read(self) -> list[Entry]:
        """What the previous governor mirrored of this same journal, oldest first."""
        try:
            with open(self.path, "rb", opener=_no_follow) as file:
                head, *lines = file.read(MIRROR_BYTES_MAX + 4096).splitlines() or [b"{}"]
            if json.loads(head) != {"journal": self._journal}:
                return []
        except (OSError, ValueError):
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if is_entry(entry):
                    entries.append(entry)
        return sorted(entries, key=lambda entry: int(entry["seq"]))

    def _make_room(self) -> None:
        closed = self._lines["closed"]
        while len(closed) > CLOSED_MAX:
            closed.popitem(last=False)
        count = sum(map(len, self._lines.values()))
        size = sum(len(line) for lines in self._lines.values() for line in lines.values())
        for lines in self._lines.values():
            while lines and (count > SNAPSHOTS_MAX or size > MIRROR_BYTES_MAX):
                _, line = lines.popitem(last=False)
                count, size = count - 1, size - len(line)

    def _write(self) -> None:
        try:
            with open(self.path + ".new", "wb", opener=_no_follow) as file:
                file.write(json.dumps({"journal": self._journal}).encode() + b"\n")
                for lines in self._lines.values():
                    file.writelines(lines.values())
            os.rename(self.path + ".new", self.path)
        # tmpfs is full. The journal has everything, and a halt's rows need the remaining room.
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self.path + ".new")
