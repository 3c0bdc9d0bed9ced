"""Incident reports as files: `<incident>.md` and `.json` in the state directory, replaced as the halt proceeds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from governor.core.base.printable import printable
from governor.core.base.shares import Claim, beyond, halt_claim
from governor.core.base.units import MonoNs
from governor.reports.incident import incident_json, incident_markdown

# Reports hold paths, command lines and stacks. The group costgov reads them, other users may not: as the journal.
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
REPORTS_MAX: Final = 1_000  # Of closed halts, as many as the journal keeps: about 40 MB.
READ_PER_HALT_MAX: Final = 20  # Reports of an earlier governor are read a few at a time: a halt must not wait for them.
INCIDENTS_REMEMBERED_MAX: Final = 64  # As many halts as runs may be under way at once.

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class ReportFiles:
    """`ports.Observer`. A report that cannot be written is logged and costs nothing else: the journal has it."""

    directory: Path
    # State by incident. The oldest is forgotten and written again.
    _stages: dict[str, str] = field(default_factory=dict)
    reports_max: int = REPORTS_MAX
    # Those of closed halts that may be removed, oldest first, and those that were looked at. By the file's stem.
    _closed: dict[str, Claim] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def tick(self, node: Any, at: MonoNs) -> None:
        pass

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        incident_id, stage = str(snapshot["incident_id"]), str(snapshot["halt_stage"])
        if snapshot["closed_wall_ns"] is not None:
            # What is known later, as of its checkpoint and of other nodes, belongs into it.
            stage += f" {len(snapshot['timeline'])} {hash(repr(snapshot.get('nodes')))}"
        # A look at the last good one ends when it ends. What it finds decides whether a command to resume is shown.
        stage += f" {hash(repr(snapshot.get('last_good')))}"
        if self._stages.pop(incident_id, None) == stage:
            self._stages[incident_id] = stage
            # Between states the journal is enough.
            return
        self._stages[incident_id] = stage
        if len(self._stages) > INCIDENTS_REMEMBERED_MAX:
            del self._stages[next(iter(self._stages))]
        stem = printable(incident_id, "_").replace("/", "_")
        try:
            self._make_directory()
            for suffix, text in ((".json", incident_json(dict(snapshot))), (".md", incident_markdown(dict(snapshot)))):
                draft = self.directory / f".{stem}{suffix}.new"
                # A command line is bytes, not always UTF-8. Other bytes show as \udcXX and cost no halt.
                with open(draft, "w", encoding="utf-8", errors="backslashreplace", opener=_owner_and_group) as file:
                    os.fchmod(file.fileno(), FILE_MODE)  # Whatever the umask is, and the draft of a dead governor.
                    file.write(text)
                os.replace(draft, self.directory / f"{stem}{suffix}")
            if snapshot["closed_wall_ns"] is not None:
                self._closed[stem] = halt_claim(snapshot)
                self._known.add(stem)
                self._remove_old()
        except OSError as error:
            log.error("report_not_written", incident_id=snapshot["incident_id"], reason=error.strerror)

    def _remove_old(self) -> None:
        """Remove reports of closed halts beyond the bound, by fair shares of the uids: nobody fills the disk."""
        names = {name.removesuffix(".json") for name in os.listdir(self.directory) if name.endswith(".json")}
        if len(names) <= self.reports_max:
            return
        for stem in sorted(names - self._known, key=self._written)[:READ_PER_HALT_MAX]:
            self._known.add(stem)
            try:
                told = json.loads((self.directory / f"{stem}.json").read_text(encoding="utf-8"))
                if told["closed_wall_ns"] is not None:
                    self._closed = {stem: halt_claim(told), **self._closed}  # It is older than what was written since.
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # Not a report of ours: it is left alone.
        for stem in beyond(self._closed, self.reports_max - (len(names) - len(self._closed.keys() & names))):
            for suffix in (".json", ".md"):
                (self.directory / f"{stem}{suffix}").unlink(missing_ok=True)
            del self._closed[stem]
            self._known.discard(stem)

    def _written(self, stem: str) -> float:
        return (self.directory / f"{stem}.json").stat().st_mtime

    def _make_directory(self) -> None:
        if self.directory.is_dir() and self.directory.stat().st_mode & 0o007 == 0:
            return
        self.directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # The journal makes it so, too.
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(DIRECTORY_MODE)


def _owner_and_group(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
