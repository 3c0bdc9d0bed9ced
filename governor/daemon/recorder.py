"""What of all that happens is recorded: the frames of each run that were judged, and what else its rules were shown.

Recorded is what was judged. From a halt on a run's ranks do what the halt asks of them, which says nothing of other
policies: until they train again nothing more is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Ack, Event, Hello
from governor.core.events.machine import GpuSample, HostMemory, SpotNotice
from governor.core.rules.triggers.hang import BLIND_AFTER_NS
from governor.ports import Packet
from governor.wire import recording
from governor.wire.recording import Heard

STOPPED: Final = "recording_stopped"


class Recordings(Protocol):
    """A port: where it is kept. Nothing here blocks or fails: what cannot be kept is counted."""

    @property
    def problem(self) -> str | None:
        """One line while what is handed over is not kept."""

    def hello(self, run: str, line: Heard) -> None:
        """Not written by itself: this rank is connected, until `lost`, and is named to whoever reads on from later."""

    def lost(self, connection: ConnectionId) -> None: ...

    def put(self, run: str, line: Heard) -> None: ...

    def note(self, run: str, at: MonoNs, line: bytes) -> None:
        """A line of our own (wire.recording)."""

    def again(self, run: str, at: MonoNs) -> None:
        """Nothing was kept for a while, and is from now on: repeat the hellos of who is connected."""

    def flush(self, run: str) -> None:
        """Have it on disk as soon as may be."""

    def end(self, run: str) -> None:
        """It has exited; a hello begins it anew."""


@dataclass(slots=True)
class Recorder:
    """Of the loop's thread; called behind the engine, which knows by then whose connection it is."""

    node: Node
    recordings: Recordings
    _is_on: dict[str, bool] = field(default_factory=dict)  # By run; False while its halt lasts.
    _is_said: bool = False
    _awake_at: MonoNs | None = None  # When we last ran. Ticks come every 250 ms, also where nobody trains.

    def heard(self, packet: Packet, event: Event) -> None:
        """A frame was read and judged. One that the engine took from nobody's connection is nobody's."""
        self._wake(event.at)
        held = self.node.connections.get(packet.connection)
        managed = self.node.runs.get(held[0]) if held is not None else None
        if managed is None:
            return
        run = managed.run.run
        is_halted, was_on = managed.incident is not None, self._is_on.get(run)
        if was_on and not is_halted and not isinstance(event, Hello | Ack):  # Nearly always.
            self.recordings.put(run, Heard(event.at, packet.connection, packet.data))
            return
        if was_on is False and not is_halted:
            self.recordings.again(run, event.at)
        process = packet.peer.process if isinstance(event, Hello) else None
        line = Heard(event.at, packet.connection, packet.data, process, is_ack=isinstance(event, Ack))
        if process is not None:
            self.recordings.hello(run, line)  # Of a halted run, too: it may be what goes on after it.
        if was_on or not is_halted:
            self.recordings.put(run, line)
        self._is_on[run] = not is_halted
        if is_halted and was_on:
            self._halted(managed, event.at)

    def lost(self, connection: ConnectionId, at: MonoNs) -> None:
        """A connection has ended. Before the engine, which forgets whose it was."""
        self._wake(at)
        self.recordings.lost(connection)
        held = self.node.connections.get(connection)
        if held is not None and self._is_on.get(held[0]):
            self.recordings.note(held[0], at, recording.lost(at, connection))

    def seen(self, event: Event) -> None:
        """The machine has shown something: each run's rules were shown their part of it."""
        self._wake(event.at)
        if isinstance(event, GpuSample) and event.run is None:
            for managed in self._recorded():
                own = managed.run.gpus
                if own is not None and own.at == event.at:
                    self.recordings.note(managed.run.run, event.at, recording.gpus(own))
        elif isinstance(event, HostMemory):
            for managed in self._recorded():
                if event.run in (None, managed.run.run):
                    self.recordings.note(managed.run.run, event.at, recording.memory(event))
        elif isinstance(event, SpotNotice) and event.action is not None:
            for managed in self._recorded():
                self.recordings.note(managed.run.run, event.at, recording.spot(event))

    def tick(self, at: MonoNs) -> list[Alarm]:
        """After the engine's: halts that time decided, runs that have ended, and what is wrong with the disk, once."""
        self._wake(at)
        for run in list(self._is_on):
            managed = self.node.runs.get(run)
            if managed is not None and managed.incident is not None and self._is_on[run]:
                self._halted(managed, at)
            if managed is None or not managed.run.alive:
                self.recordings.note(run, at, recording.exited(at))
                self.recordings.end(run)
                del self._is_on[run]
        problem = self.recordings.problem
        was_said, self._is_said = self._is_said, problem is not None
        if problem is None or was_said:
            return []
        return [Alarm(STOPPED, None, f"what runs send is not recorded: {problem}; nothing else depends on it")]

    def _wake(self, at: MonoNs) -> None:
        """We ourselves may not have run (`hang` has it so, too): what nobody listened to is no silence of the run's."""
        slept_at, self._awake_at = self._awake_at, max(at, self._awake_at or at)
        if slept_at is None or at - slept_at < BLIND_AFTER_NS:
            return
        for managed in self._recorded():
            self.recordings.note(managed.run.run, slept_at, recording.gap(slept_at, 0))
            self.recordings.again(managed.run.run, at)

    def _recorded(self) -> Iterator[ManagedRun]:
        for run, is_on in self._is_on.items():
            managed = self.node.runs.get(run)
            if is_on and managed is not None:
                yield managed

    def _halted(self, managed: ManagedRun, at: MonoNs) -> None:
        assert managed.incident is not None
        run = managed.run.run
        self._is_on[run] = False
        self.recordings.note(run, at, recording.halted(at, managed.incident.incident_id))
        self.recordings.flush(run)  # The machine itself may be stopped next.
