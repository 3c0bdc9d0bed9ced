"""The points, GPU samples and causes of a recording.

Of a node's ranks one speaks for the run (wire.recordings.speaker): all have the same steps. Causes are of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.hardware import GpuFigures
from governor.core.events.machine import GpuSample
from governor.core.events.step_parts import PART_FIELDS, rest_s
from governor.core.runs.own_time import StepEnds
from governor.exports.causes import Ask, Paid, RecordedCauses
from governor.exports.series import (
    OF_FRAMES,
    OTHER_S,
    STEP_S,
    STEPS_PER_S,
    TOKENS_PER_S,
    Gpu,
    Happened,
    Item,
    Order,
    Phase,
    Point,
)
from governor.replay.logs import recording
from governor.replay.readers.lines import LogUnreadable
from governor.wire.recorded import RecordedClock, is_exit, is_frame, is_gap, is_halt, is_note, is_numbered, read_gpus
from governor.wire.recordings.speaker import Speaker
from trainer_shim.wire import FRAMES, PHASES, faults


class Recording:
    """One pass over a run's recording in the order in which it was written."""

    def __init__(self, directory: Path, run: str, paid: Paid, account: Ask = lambda: None) -> None:
        self.faulty = 0  # Lines that are no frames.
        self.problem: str | None = None  # One line, where a part could not be read.
        self._directory = directory
        self._run = run
        self._clock = RecordedClock()
        self.causes = RecordedCauses(paid, account)
        self._speaker = Speaker[tuple[dict[str, Any], int]]()  # Frames, and their steps' ends.
        self._tokens_per_step: int | None = None
        self._last: tuple[int, int] | None = None  # Attempt step and end of the point before.
        self._step = 0
        self._ends = StepEnds()
        self._order = Order()

    def items(self) -> Iterator[Item]:
        """In the order of the recording's clock, as far as lines of two seconds tell it."""
        for item in self._as_read():
            self._order.give(item.wall - self._clock.wall_ahead_ns, item)
            yield from self._order.take(self._clock.last_ns)
        yield from self._order.take(None)

    def _as_read(self) -> Iterator[Item]:
        try:
            for _, record in recording(self._directory, self._clock):
                if isinstance(record, list):
                    self.faulty += 1
                elif self._is_head(record):
                    self.causes.begin(record)
                else:
                    yield from self._read(record)
                    if is_frame(record) or is_note(record):
                        yield from self.causes.hear(record, self._clock.wall_ahead_ns, self._step)
        except LogUnreadable as error:
            self.problem = str(error)
        yield from self.causes.close(self._step)

    def _is_head(self, record: dict[str, Any]) -> bool:
        """Whether it is the recording's first line. Raises `LogUnreadable` if that is of another run."""
        meta = record.get("meta")
        if not isinstance(meta, dict):
            return False
        if meta.get("run") != self._run:
            raise LogUnreadable(f"{self._directory}: is of run {str(meta.get('run'))[:60]!r}; move it away")
        return True

    def _read(self, record: dict[str, Any]) -> Iterable[Item]:
        at = record.get("at_ns")
        if type(at) is not int:
            self.faulty += 1
            return ()
        if is_note(record):
            return self._note(record, at)
        if not is_frame(record) or faults(record, FRAMES) or (record["kind"] == "step" and not is_numbered(record)):
            self.faulty += 1
            return ()
        if record["kind"] == "hello":
            return self._hello(record, at)
        if record["kind"] in ("phase", "bye"):
            return self._phase(record, at)
        if record["kind"] == "step":
            return self._step_of(record, at)
        return ()

    def _hello(self, hello: dict[str, Any], at: int) -> Iterable[Item]:
        is_new, connection = hello["attempt"] != self._speaker.attempt, hello.get("conn")
        told = self._speaker.hello(hello["attempt"], hello["rank"], connection if type(connection) is int else None)
        points: list[Item] = list(self._points(told))
        if is_new:
            self._last = None
            points.append(Phase(self._wall(at), self._step, "init"))
        self._ends.begin(hello["rank"])
        self._tokens_per_step = hello.get("tokens_per_step") or self._tokens_per_step
        return points

    def _phase(self, frame: dict[str, Any], at: int) -> Iterable[Item]:
        """Of the rank that speaks for the run. Its begin is the hello's to tell, which comes once an attempt."""
        name = "finish" if frame["kind"] == "bye" else frame["phase"]
        if not self._speaker.leads(frame["rank"]) or name not in PHASES or name == "init":
            return ()
        began = self._ends.of(frame["rank"], frame["mono_ns"], MonoNs(at))
        return (Phase(self._wall(began), self._step, name),)

    def _step_of(self, frame: dict[str, Any], at: int) -> Iterable[Point]:
        """A point, unless another rank speaks, or the step is told again."""
        rank, ended = frame["rank"], self._ends.of(frame["rank"], frame["mono_ns"], MonoNs(at))
        is_shown = self._speaker.step(rank, frame["attempt_step"], at, (frame, ended))
        return (self._point(frame, ended),) if is_shown else ()

    def _points(self, told: Iterable[tuple[dict[str, Any], int]]) -> Iterable[Point]:
        return [self._point(frame, ended) for frame, ended in told]

    def _point(self, frame: dict[str, Any], ended: int) -> Point:
        values = {series: float(frame[name]) for name, series in OF_FRAMES.items() if frame.get(name) is not None}
        self._add_speed(values, frame, ended)
        self._last, self._step = (frame["attempt_step"], ended), frame["step"]
        return Point(self._wall(ended), frame["step"], values)

    def _add_speed(self, values: dict[str, float], frame: dict[str, Any], ended: int) -> None:
        """By the step's own time, else by when the step before ended."""
        parts = [values[OF_FRAMES[name]] for name in PART_FIELDS if OF_FRAMES[name] in values]
        step_s, steps = values.get(STEP_S), 1
        if step_s is not None and parts and (rest := rest_s(step_s, parts)) >= 0:
            values[OTHER_S] = rest
        if step_s is None and self._last is not None:
            step_s, steps = (ended - self._last[1]) / NS_PER_S, frame["attempt_step"] - self._last[0]
        if step_s is None or not 0 < step_s < float("inf"):
            return
        values[STEPS_PER_S] = steps / step_s
        tokens = frame.get("tokens") or self._tokens_per_step
        if tokens is not None and tokens > 0:
            values[TOKENS_PER_S] = tokens * steps / step_s

    def _note(self, note: dict[str, Any], at: int) -> Iterable[Item]:
        what = note.get("note")
        if what == "lost" and type(note.get("conn")) is int:
            return self._points(self._speaker.lost(note["conn"]))
        if is_halt(note):
            return self._points(self._speaker.verdict(at))
        if is_exit(note):
            self._speaker.exited()
        if is_gap(note):
            points, lines = self._points(self._speaker.break_off()), note.get("lines")
            if self._speaker.is_over and not lines:
                return points
            text = f"{lines} lines were not stored" if lines else "nobody recorded from here on, until the next step"
            return (*points, Happened(self._wall(at), self._step, "recording_gap", text))
        if what == "gpus":
            sample = read_gpus(note, MonoNs(at), self._run)
            if sample is not None:
                return self._gpus(sample, at)
            self.faulty += 1
        return ()

    def _gpus(self, sample: GpuSample, at: int) -> Iterator[Gpu]:
        for index, busy in enumerate(sample.busy_frac):
            uuid, used, total = (
                found[index] if index < len(found) else None
                for found in (sample.uuids, sample.memory_used_bytes, sample.memory_total_bytes)
            )
            known = uuid if isinstance(uuid, str) and uuid else None
            figures = _numbers(sample.figures[index]) if sample.figures else {}
            yield Gpu(self._wall(at), self._step, index, known, busy, _whole(used), _whole(total), figures)

    def _wall(self, at: int) -> int:
        return at + self._clock.wall_ahead_ns


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _numbers(figures: GpuFigures) -> dict[str, float]:
    """What is known, as numbers; of the XIDs their count alone."""
    return {name: float(value) for name, value in figures.told().items() if isinstance(value, int | float)}
