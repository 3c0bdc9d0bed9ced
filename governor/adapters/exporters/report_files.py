"""Incident reports as files: `<incident>.md` and `.json` in the state directory, replaced as the halt goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from governor.core.units import MonoNs
from governor.report import incident_json, incident_markdown

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class ReportFiles:
    """`ports.Observer`. A report that cannot be written is said and costs nothing else: the journal has it all."""

    directory: Path
    _stage: str = ""

    def tick(self, node: Any, at: MonoNs) -> None:
        pass

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        if snapshot["halt_stage"] == self._stage:
            return  # Between stages the journal is enough; a report is for reading.
        self._stage = str(snapshot["halt_stage"])
        stem = str(snapshot["incident_id"]).replace("/", "_")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for suffix, text in ((".json", incident_json(dict(snapshot))), (".md", incident_markdown(dict(snapshot)))):
                draft = self.directory / f".{stem}{suffix}.new"
                draft.write_text(text, encoding="utf-8")
                os.replace(draft, self.directory / f"{stem}{suffix}")
        except OSError as error:
            log.error("report_not_written", incident_id=snapshot["incident_id"], reason=error.strerror)
