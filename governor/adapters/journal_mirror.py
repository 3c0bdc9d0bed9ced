"""The newest state of runs and open halts, once more in the runtime directory (tmpfs): what heals a torn journal.

Read only where the journal's own file cannot be: a journal that somebody has removed begins anew, as they wished.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from governor.adapters.journal_fallback import Entry, is_entry

MIRROR_NAME: Final = "journal-mirror.jsonl"
SNAPSHOTS_MAX: Final = 256  # As many as the journal has in memory; about 500 KB.
MIRROR_BYTES_MAX: Final = 4 * 1024 * 1024  # tmpfs is memory. An incident with the stacks of every rank has 100 KB.


class Mirror:
    """For one thread. Nothing in it raises: it is the second copy of everything that it has."""

    def __init__(self, directory: str, journal: str) -> None:
        self.path = os.path.join(directory, MIRROR_NAME)
        self._journal = journal
        self._lines: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, entries: Iterable[Entry]) -> None:
        """Take up what is newer of runs and incidents, and write it all where anything was."""
        before = len(self._lines)
        touched = False
        for entry in entries:
            if entry["table"] not in ("runs", "incidents"):
                continue
            touched = True
            key = entry["table"], entry["run"] if entry["table"] == "runs" else entry["incident_id"]
            self._lines.pop(key, None)
            if entry["table"] == "runs" or entry["open"]:
                self._lines[key] = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        while len(self._lines) > SNAPSHOTS_MAX or sum(map(len, self._lines.values())) > MIRROR_BYTES_MAX:
            self._lines.popitem(last=False)
        if touched or len(self._lines) != before:
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

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # A full tmpfs; the journal has it all.
            with open(self.path + ".new", "wb", opener=_no_follow) as file:
                file.write(json.dumps({"journal": self._journal}).encode() + b"\n")
                file.writelines(self._lines.values())
            os.rename(self.path + ".new", self.path)


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
