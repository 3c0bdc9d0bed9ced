"""The terminal of `costgov run`: a live line, the progress of a halt, and its timeline at the end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from governor.cli.run.own_runs import whose
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import Node
from governor.core.halt.state import GivenUp
from governor.core.views.status import run_status
from governor.daemon.stderr import QueuedStream
from governor.reports.incident import incident_document, live_line, timeline_lines
from governor.reports.terminal import LIVE_COLUMNS_MAX
from governor.text.screen import screen_of, styled, width
from governor.text.table import plain
from trainer_shim.wire import worded

LIVE_PERIOD_TTY_NS: Final = NS_PER_S  # Redrawn in place.
LIVE_PERIOD_LOG_NS: Final = 10 * NS_PER_S  # Each is a new line. A log should stay readable.
SETTLES_S: Final = 0.25  # The command starts so much later where nobody takes the lines before it.
CRASHED: Final = "crashed"
_CLEARED: Final = "\r\x1b[2K"  # The present line of a terminal.


@dataclass(slots=True)
class Console:
    """`ports.Observer` on a text stream. It ignores a closed terminal: the halt does not need one."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    # A drill writes the monotonic time of its fault to this file. The timeline counts from it.
    fault_mark: Path | None = None
    live_period_ns: int | None = None
    node: Node | None = None  # Of the governor that speaks.
    _shown_at: MonoNs = MonoNs(-(10**18))
    _stage: str = ""
    # As they were shown last. A short halt is over before its checkpoint and the last good one have been looked at.
    _checkpoints: Any = None
    _shown_lines: list[str] = field(default_factory=list)  # Of the halt's timeline.
    _drawn: bool = False
    _is_amid: bool = False  # The last copied line has no end yet.
    _is_bar: bool = False  # That line is redrawn by who prints it.

    def tick(self, node: Node, at: MonoNs) -> None:
        screen = screen_of(self.stream)
        in_place = screen.columns is not None
        columns = LIVE_COLUMNS_MAX if screen.columns is None else min(LIVE_COLUMNS_MAX, screen.columns - 1)
        if at - self._shown_at < (self.live_period_ns or LIVE_PERIOD_TTY_NS):
            return
        shown = [
            managed
            for managed in node.runs.values()
            if managed.run.alive
            and (managed.run.step is not None or managed.is_unattached)
            and managed.incident is None
        ]
        # Only one line can be redrawn in place. Several, each with its run's name, come as rarely as in a log.
        is_one = len(shown) == 1 and not whose(node, shown[0].run.run)
        is_drawn = in_place and is_one
        period = self.live_period_ns or (LIVE_PERIOD_TTY_NS if is_drawn else LIVE_PERIOD_LOG_NS)
        if not shown or at - self._shown_at < period:
            return
        self._shown_at = at
        if is_drawn:
            self._draw(live_line(run_status(shown[0], at), columns))
            return
        for managed in shown:
            name = "" if is_one else f"{plain(managed.run.run)}{whose(node, managed.run.run)}  "
            self.print_line(f"{name}{live_line(run_status(managed, at), max(columns - width(name), 1))}")

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        snapshot = self._to_show(snapshot)
        stage = str(snapshot["halt_stage"])
        given_up = GivenUp.of(stage)
        is_over = stage in ("HALTED", "NEEDS_HUMAN") or (given_up is not None and not given_up.is_by_next)
        if not self._is_news(stage, is_over, snapshot):
            return
        if not self._stage:
            what = "NODE STOP" if snapshot["run"] == NODE else f"HALT {snapshot['run']}"
            of = whose(self.node, str(snapshot["run"]))
            text = plain(f"{what}{of}: {snapshot['text']} (incident {snapshot['incident_id']})")
            self.print_line(styled(text, "bold red", screen_of(self.stream)))
        self._stage = stage
        if is_over:
            self._report(snapshot)

    def leave(self, snapshot: Mapping[str, Any]) -> None:
        """Show the report of a halt that we leave before its end."""
        self._report(self._to_show(snapshot))

    def _report(self, snapshot: Mapping[str, Any]) -> None:
        lines = timeline_lines(dict(snapshot), self._fault_mono_ns(), screen_of(self.stream))
        for line in lines:
            if line not in self._shown_lines:
                self.print_line(line)
        self._shown_lines = lines

    def _to_show(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without the command to paste, where another user wrote it."""
        return {**snapshot, "resume": None} if snapshot.get("strangers") else snapshot

    def _is_news(self, stage: str, is_over: bool, snapshot: Mapping[str, Any]) -> bool:
        """Whether the halt is in another stage, or a look at a checkpoint has ended after it."""
        now = (snapshot.get("checkpoint"), snapshot.get("last_good"))
        before, self._checkpoints = self._checkpoints, now
        return stage != self._stage or (is_over and now != before)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        if name == CRASHED:
            return  # The closing line says it.
        of = whose(self.node, run)
        about = f"{run}{of}: " if of else ""
        self.print_line(styled(plain(f"[{name}] {about}{text}"), "yellow", screen_of(self.stream)))

    @staticmethod
    def lost_line(lines: int) -> str:
        """What stands where lines were lost, since whoever shows this stream took none for too long."""
        return f"costgov: lines of this output that are lost here, since nobody took them in time: {lines}"

    def _fault_mono_ns(self) -> int | None:
        if self.fault_mark is None:
            return None
        try:
            return int(self.fault_mark.read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def print_line(self, line: str) -> None:
        with self._alone():
            self._end_line()
            self._write(f"{line}\n")

    def copy(self, data: bytes) -> None:
        """Show what the command has printed, on any thread. The live line makes room for it."""
        assert isinstance(self.stream, QueuedStream), "nothing else takes bytes without waiting"
        with self._alone():
            if self._drawn:
                self._drawn = False
                self._write(_CLEARED)
            self.stream.copy(data)
            self._is_amid = not data.endswith(b"\n")
            self._is_bar = self._is_amid and b"\r" in data[data.rfind(b"\n") + 1 :]

    def _draw(self, line: str) -> None:
        """Show it in place of the live line before, or of a progress bar, which comes again."""
        with self._alone():
            if self._is_amid and not self._is_bar:
                self._end_line()
            self._write(f"{_CLEARED}{line}")
            self._drawn, self._is_amid = True, False

    def _end_line(self) -> None:
        if self._drawn or self._is_amid:
            self._drawn = self._is_amid = False
            self._write("\n")

    def _alone(self) -> AbstractContextManager[object]:
        return self.stream.alone() if isinstance(self.stream, QueuedStream) else contextlib.nullcontext()

    def settle(self) -> None:
        """Have all of it shown, where somebody takes it: what the command itself prints comes behind it."""
        if isinstance(self.stream, QueuedStream):
            self.stream.drain(SETTLES_S)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self._shown_at = MonoNs(2**62)  # The stream is closed: stop drawing.


# --- `costgov run --json`: the same observations, one JSON object per line on stderr


# The period of `status --watch`. The 4 Hz grid would only repeat the same step.
PERIOD_NS = NS_PER_S


@dataclass(slots=True)
class JsonConsole(Console):
    """Lines {"kind": "run"|"incident"|"alarm"|"said", "data": …}: a run of `status`, a report document, or text."""

    def tick(self, node: Node, at: MonoNs) -> None:
        if at - self._shown_at < (self.live_period_ns or PERIOD_NS):
            return
        self._shown_at = at
        for managed in node.runs.values():
            self._object("run", run_status(managed, at))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        snapshot = self._to_show(snapshot)
        stage = str(snapshot["halt_stage"])
        if self._is_news(stage, snapshot.get("closed_wall_ns") is not None, snapshot):
            self._stage = stage
            self._report(snapshot)

    def _report(self, snapshot: Mapping[str, Any]) -> None:
        self._object("incident", incident_document(snapshot))

    def alarm(self, name: str, run: str | None, text: str) -> None:
        self._object("alarm", {"name": name, "run": run, "text": text})

    def print_line(self, line: str) -> None:
        self._object("said", {"text": line})

    @staticmethod
    def lost_line(lines: int) -> str:
        return _as_object("said", {"text": Console.lost_line(lines)})

    def _object(self, kind: str, document: Mapping[str, Any]) -> None:
        with self._alone():
            self._end_line()
            self._write(f"{_as_object(kind, document)}\n")


def _as_object(kind: str, document: Mapping[str, Any]) -> str:
    return json.dumps({"kind": kind, "data": worded(dict(document))}, separators=(",", ":"), default=str)
