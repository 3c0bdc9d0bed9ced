"""The console of `costgov run --json`: the same observations, one JSON object per line on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.cli.run_command.console import Console
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.node import Node
from governor.core.views.status import run_status
from governor.reports.report import incident_document
from trainer_shim.wire import worded

PERIOD_NS = NS_PER_S  # As `status --watch`: the 4 Hz grid would only repeat the same step.


@dataclass(slots=True)
class JsonConsole(Console):
    """Lines {"kind": "run"|"incident"|"alarm"|"said", "data": …}: a run of `status`, a report document, or text."""

    def tick(self, node: Node, at: MonoNs) -> None:
        if at - self._shown_at < PERIOD_NS:
            return
        self._shown_at = at
        for tracked in node.runs.values():
            self._object("run", run_status(tracked, at))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        stage = str(snapshot["halt_stage"])
        if stage != self._stage:
            self._stage = stage
            self._object("incident", incident_document(snapshot))

    def alarm(self, name: str, run: str | None, text: str) -> None:
        self._object("alarm", {"name": name, "run": run, "text": text})

    def say(self, line: str) -> None:
        self._object("said", {"text": line})

    def _object(self, kind: str, document: Mapping[str, Any]) -> None:
        text = json.dumps({"kind": kind, "data": worded(dict(document))}, separators=(",", ":"), default=str)
        self._write(f"{text}\n")
