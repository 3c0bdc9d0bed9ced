"""What comes in at the trainer socket: packets become events, refusals and complaints are told within bounds.

A hello whose run memory has dropped waits here until the journal has said what it knows of that run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import Effect, RecallRun, Refuse
from governor.core.events.inputs import BadHello, Disconnected, Event, FramesLost, Hello
from governor.core.events.machine import RunRecalled
from governor.core.events.shown import RankShowed
from governor.daemon.log_quota import more_like_it
from governor.daemon.perform import Performer
from governor.daemon.recorder import Recorder
from governor.ports import Closed, Opened, Packet, Rejected
from governor.wire import frames

# A journal answers within a millisecond. On a disk that hangs, a run is watched without its past.
RECALL_BOUND_NS: Final = NS_PER_S
REFUSED_SHOWN_MAX: Final = 16  # In `status`: the uids that were refused last.

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class Health:
    """The governor's own health, for those who watch the watchdog."""

    frames_malformed_total: int = 0
    rejected_total: int = 0
    # The last refusal of each uid, the newest last.
    refused: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    loop_lag_ms: float = 0.0
    last_reload_ok: bool = True
    last_reload_wall_ns: int = 0
    reload_error: str | None = None

    def loaded(self, wall_ns: int) -> None:
        """Note that policies were read and are in force."""
        self.last_reload_wall_ns = wall_ns

    def note_refused(self, uid: int | None, pid: int | None, reason: str, wall_ns: int) -> None:
        """Note whose connection was not accepted: its trainer goes on unwatched."""
        self.rejected_total += 1
        before = self.refused.pop(uid, None)
        times = before["times"] + 1 if before is not None else 1
        self.refused[uid] = {"uid": uid, "pid": pid, "reason": reason, "times": times, "last_wall_ns": wall_ns}
        if len(self.refused) > REFUSED_SHOWN_MAX:
            del self.refused[next(iter(self.refused))]


@dataclass(slots=True)
class Reception:
    """Used on the loop's thread. `apply` puts an event through the engine; `welcome` follows each accepted hello."""

    performer: Performer
    health: Health
    apply: Callable[[Event], list[Effect]]
    welcome: Callable[[Hello], None]
    introduce: Callable[[Hello], Hello]  # Adds what the kernel says of the rank.
    recorder: Callable[[], Recorder | None]
    _reader: frames.FrameReader = field(default_factory=frames.FrameReader)
    # The hellos that wait, by the name that the journal was asked for. As many as connections at most.
    _waiting: dict[str, dict[ConnectionId, Packet]] = field(default_factory=dict)

    def drain(self) -> None:
        """Take what has arrived."""
        refused: set[ConnectionId] = set()
        for arrival in self.performer.inbox.receive():
            match arrival:
                case Packet():
                    if arrival.connection not in refused and self._on_packet(arrival):
                        refused.add(arrival.connection)  # The same batch may have its frames after the hello.
                        self._forget(arrival.connection)
                case Closed():
                    self._forget(arrival.connection)
                case Rejected():
                    self._note_rejected(arrival)
                case Opened():
                    pass

    def let_in(self, run: str) -> None:
        """The journal has answered for this run: its hellos are judged now."""
        self.performer.recalls.pop(run, None)
        for packet in self._waiting.pop(run, {}).values():
            if self._on_packet(packet):
                self._forget(packet.connection)

    def tick(self, at: MonoNs) -> None:
        for run in [run for run, since in self.performer.recalls.items() if at - since >= RECALL_BOUND_NS]:
            self.apply(RunRecalled(at, run, None, is_answered=False))
            self.let_in(run)
        for uid, kind, count in self.performer.quota.left_out(at):
            log.warning("left_out", uid=uid, kind=kind, more_like_this=count)

    def _forget(self, connection: ConnectionId) -> None:
        for packets in self._waiting.values():
            packets.pop(connection, None)
        self._reader.forget(connection)
        at = self.performer.clock.mono()
        recorder = self.recorder()
        if recorder is not None:
            recorder.lost(connection, at)
        self.apply(Disconnected(at, connection))

    def _note_rejected(self, arrival: Rejected) -> None:
        self.health.note_refused(arrival.uid, arrival.pid, arrival.reason, self.performer.clock.wall())
        more = self._quota(arrival.uid, "connection_refused")
        if more is not None:
            log.warning(
                "connection_refused", reason=arrival.reason, uid=arrival.uid, pid=arrival.pid,
                total=self.health.rejected_total, **more_like_it(more),
            )  # fmt: skip

    def _on_packet(self, packet: Packet) -> bool:
        """Apply a packet's events. Return whether its sender was refused, and so is closed."""
        recorder = self.recorder()
        for event in self._reader.read(packet, self.performer.clock.mono()):
            if isinstance(event, (FramesLost, BadHello)) and event.why != frames.DROPPED_BY_SENDER:
                self._complain(packet, event.why)
            if isinstance(event, RankShowed):
                self.performer.showed(event)
                continue
            if isinstance(event, Hello):
                event = self.introduce(event)
            effects = self.apply(event)
            if isinstance(event, (Hello, BadHello)):
                told = [effect.connection for effect in effects if isinstance(effect, Refuse)]
                for connection in told:
                    if connection != packet.connection:  # Its run gives way to this one.
                        self._forget(connection)
                if packet.connection in told:
                    return True
                asked = next((effect.run for effect in effects if isinstance(effect, RecallRun)), None)
                if asked is not None:
                    self._waiting.setdefault(asked, {})[packet.connection] = packet
                    continue
            if recorder is not None and not isinstance(event, (FramesLost, BadHello)):
                recorder.record_frame(packet, event)
            if isinstance(event, Hello):
                self.welcome(event)
        return False

    def _complain(self, packet: Packet, why: str) -> None:
        self.health.frames_malformed_total += 1
        more = self._quota(packet.peer.uid, "bad_frame")
        if more is not None:
            peer = packet.peer
            log.warning("bad_frame", pid=peer.process.pid, uid=peer.uid, fault=why[:300], **more_like_it(more))

    def _quota(self, uid: int | None, kind: str) -> int | None:
        return self.performer.quota.take(-1 if uid is None else uid, kind, self.performer.clock.mono())
