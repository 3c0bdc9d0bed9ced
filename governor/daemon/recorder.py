"""What is recorded: each run's judged frames, and everything else that its rules were shown.

Only judged input is recorded. From a halt on, a run's ranks do what the halt asks, which shows nothing about other
policies. So nothing more is recorded until they train again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm
from governor.core.events.ends import RankFailed
from governor.core.events.inputs import Ack, Event, Hello
from governor.core.events.machine import GpuSample, HostMemory, HostSample, SpotNotice
from governor.core.rules.log_rhythm import BLIND_AFTER_NS
from governor.ports import Packet
from governor.wire import recording
from governor.wire.recording import ReceivedFrame

STOPPED: Final = "recording_stopped"
# GPUs' figures and processes' use come every second. All of them would be more than all frames, and most say the same.
# Less than the time after which a rule takes figures for old (gpu_fault, gpu_throttled).
FIGURES_PERIOD_NS: Final = 10 * NS_PER_S


class Recordings(Protocol):
    """The port to the stored recordings. No call blocks or fails: what cannot be stored is counted."""

    @property
    def problem(self) -> str | None:
        """One line while input is not stored."""

    def hello(self, run: str, line: ReceivedFrame) -> None:
        """Note a connected rank, until `lost`. Its hello is repeated where a later part begins, not written alone."""

    def lost(self, connection: ConnectionId) -> None: ...

    def put(self, run: str, line: ReceivedFrame) -> None: ...

    def note(self, run: str, at: MonoNs, line: bytes) -> None:
        """Store a line of the governor's own (wire.recording)."""

    def again(self, run: str, at: MonoNs) -> None:
        """Go on after a pause in the recording: repeat the hellos of the connected ranks."""

    def flush(self, run: str) -> None:
        """Write it to disk as soon as possible."""

    def end(self, run: str) -> None:
        """Note that the run has exited. A hello begins it anew."""


@dataclass(slots=True)
class Recorder:
    """Used on the loop's thread. It is called after the engine, which then knows each connection's run."""

    node: Node
    recordings: Recordings
    _is_on: dict[str, bool] = field(default_factory=dict)  # By run; False while its halt lasts.
    _is_problem_reported: bool = False
    _judged: dict[str, Any] = field(default_factory=dict)  # By run: what rules saw of its GPUs' figures.
    _figures_at: dict[str, MonoNs] = field(default_factory=dict)  # By run: when they were recorded.
    _host_at: dict[str, MonoNs] = field(default_factory=dict)
    # When the governor last ran. Ticks come every 250 ms, also without runs.
    _awake_at: MonoNs | None = None

    def record_frame(self, packet: Packet, event: Event) -> None:
        """Record a frame that was read and judged. A frame of a connection without a run is not recorded."""
        self._wake(event.at)
        if isinstance(event, RankFailed):
            return  # No rule judges it, and an exception's text may hold anything.
        held = self.node.connections.get(packet.connection)
        managed = self.node.runs.get(held[0]) if held is not None else None
        if managed is None:
            return
        run = managed.run.run
        is_halted, was_on = managed.incident is not None, self._is_on.get(run)
        if was_on and not is_halted and not isinstance(event, Hello | Ack):  # The most frequent case.
            self.recordings.put(run, ReceivedFrame(event.at, packet.connection, packet.data))
            return
        if was_on is False and not is_halted:
            self.recordings.again(run, event.at)
        process = packet.peer.process if isinstance(event, Hello) else None
        line = ReceivedFrame(event.at, packet.connection, packet.data, process, is_ack=isinstance(event, Ack))
        if process is not None:
            self.recordings.hello(run, line)  # Also for a halted run: this rank may go on after the halt.
        if was_on or not is_halted:
            self.recordings.put(run, line)
        self._is_on[run] = not is_halted
        if is_halted and was_on:
            self._halted(managed, event.at)

    def lost(self, connection: ConnectionId, at: MonoNs) -> None:
        """A connection has ended. Called before the engine, which forgets the connection's run."""
        self._wake(at)
        self.recordings.lost(connection)
        held = self.node.connections.get(connection)
        if held is not None and self._is_on.get(held[0]):
            self.recordings.note(held[0], at, recording.lost(at, connection))

    def record_sample(self, event: Event) -> None:
        """Record a machine sample: for each run, the part that its rules were shown."""
        self._wake(event.at)
        if isinstance(event, GpuSample) and event.run is None:
            for managed in self._recorded():
                own = managed.run.gpus
                if own is not None and own.at == event.at:
                    self.recordings.note(managed.run.run, event.at, recording.gpus(self._thinned(own)))
        elif isinstance(event, HostSample):
            for managed in self._recorded():
                used, run = managed.run.host_use, managed.run.run
                if used is not None and used.at == event.at and self._is_due(self._host_at, run, event.at):
                    self.recordings.note(run, event.at, recording.host(used))
        elif isinstance(event, HostMemory):
            for managed in self._recorded():
                if event.run in (None, managed.run.run):
                    self.recordings.note(managed.run.run, event.at, recording.memory(event))
        elif isinstance(event, SpotNotice) and event.action is not None:
            for managed in self._recorded():
                self.recordings.note(managed.run.run, event.at, recording.spot(event))

    def tick(self, at: MonoNs) -> list[Alarm]:
        """After the engine's tick: note halts that it decided, ended runs and, once, a problem of the disk."""
        self._wake(at)
        for run in list(self._is_on):
            managed = self.node.runs.get(run)
            if managed is not None and managed.incident is not None and self._is_on[run]:
                self._halted(managed, at)
            if managed is None or not managed.run.alive:
                self.recordings.note(run, at, recording.exited(at))
                self.recordings.end(run)
                del self._is_on[run]
                for kept in (self._judged, self._figures_at, self._host_at):
                    kept.pop(run, None)
        problem = self.recordings.problem
        was_reported, self._is_problem_reported = self._is_problem_reported, problem is not None
        if problem is None or was_reported:
            return []
        return [Alarm(STOPPED, None, f"what runs send is not recorded: {problem}; nothing else depends on it")]

    def _thinned(self, sample: GpuSample) -> GpuSample:
        """The sample with the GPUs' figures at times, and whenever a rule would see a difference."""
        run = str(sample.run)
        judged = [(one.is_lost, one.throttles, one.xid_total, one.ecc_uncorrected_total) for one in sample.figures]
        changed = self._judged.get(run) != judged
        self._judged[run] = judged
        if self._is_due(self._figures_at, run, sample.at) or changed:
            self._figures_at[run] = sample.at
            return sample
        return replace(sample, figures=())

    def _is_due(self, last: dict[str, MonoNs], run: str, at: MonoNs) -> bool:
        if run in last and 0 <= at - last[run] < FIGURES_PERIOD_NS:
            return False
        last[run] = at
        return True

    def _wake(self, at: MonoNs) -> None:
        """Record a gap if the governor did not run: unheard time is no silence of the run. `hang` does the same."""
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
