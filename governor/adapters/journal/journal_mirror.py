"""The newest state of runs and halts, once more in the runtime directory (tmpfs): what heals a torn journal.

Believed only beside a journal's own file: one that somebody has removed begins anew, as they wished.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from governor.adapters.journal.journal_fallback import Entry, is_entry

MIRROR_NAME: Final = "journal-mirror.jsonl"
SNAPSHOTS_MAX: Final = 256  # As many as the journal has in memory; about 500 KB.
CLOSED_MAX: Final = 16  # Of a file that lacks its last commits a halt that has ended would begin again.
MIRROR_BYTES_MAX: Final = 4 * 1024 * 1024  # tmpfs is memory. An incident with the stacks of every rank has 100 KB.


class Mirror:
    """For one thread. Nothing in it raises: it is the second copy of everything that it has."""

    def __init__(self, directory: str, journal: str) -> None:
        self.path = os.path.join(directory, MIRROR_NAME)
        self._journal = journal
        # In the order in which they make room: what a restart resumes goes last.
        kinds = ("closed", "runs", "open")
        self._lines: dict[str, OrderedDict[tuple[str, str], bytes]] = {kind: OrderedDict() for kind in kinds}

    def keep(self, entries: Iterable[Entry]) -> None:
        """Take up what is newer of runs and incidents, and write it all where anything was."""
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
        """What the governor before us has left is of a journal that is there no more."""
        self._write()

    def read(self) -> list[Entry]:
        """What the governor before us has kept of this very journal, oldest first."""
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
        except OSError:  # A full tmpfs; the journal has it all, and the rows of a halt need what room there is.
            with contextlib.suppress(OSError):
                os.unlink(self.path + ".new")


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
