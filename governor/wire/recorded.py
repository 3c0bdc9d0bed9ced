"""Frames of a recorded connection, one a line, of all ranks in one log → events, as the inbox would have told them.

A recording holds what ranks said and nothing of who they were: each attempt of a rank gets a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from governor.core.events import Event
from governor.core.identity import ConnectionId, Peer, ProcessId
from governor.core.run_state import RANKS_MAX
from governor.core.units import MonoNs
from governor.wire.frames import FAULTS_MAX, build
from trainer_shim.wire import FRAMES, WIRE_VERSION, faults

FIRST_PID: Final = 1_000  # Of nobody: no signal is ever sent by it.


def is_frame(record: dict[str, Any]) -> bool:
    """Whether the record is one of our own frames, or was meant as one."""
    kind = record.get("kind")
    return record.get("v") == WIRE_VERSION and isinstance(kind, str) and kind in FRAMES


@dataclass(frozen=True, slots=True)
class _Packet:
    """What decoding asks of a packet."""

    connection: ConnectionId
    peer: Peer
    data: bytes = b""
    truncated: bool = False


class RecordedRanks:
    """Reads the frames of one run, from its first hello on."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._packets: dict[int, tuple[str, _Packet]] = {}  # By rank: its attempt, and where it speaks from.
        self._processes = 0

    def read(self, frame: dict[str, Any], at: MonoNs) -> Event | list[str]:
        """The frame's event, or what is wrong with it."""
        found = faults(frame, FRAMES)
        if found:
            return found[:FAULTS_MAX]
        rank = frame["rank"]
        if frame["kind"] == "hello":
            if frame["run"] != self.run:
                return [f"hello of run {frame['run']!r:.40}: this log is of {self.run!r:.40}, a log has one run"]
            if not 0 <= rank < RANKS_MAX:
                return [f"rank {rank} is outside of a node's {RANKS_MAX}"]
            self._meet(rank, frame["attempt"])
        known = self._packets.get(rank)
        if known is None:
            return [f"{frame['kind']} of rank {rank} before its hello"]
        return build(frame, known[1], at, self.run)

    def _meet(self, rank: int, attempt: str) -> None:
        known = self._packets.get(rank)
        if known is None or known[0] != attempt:
            self._processes += 1
            process = ProcessId(FIRST_PID + self._processes, 1, "replay")
            self._packets[rank] = attempt, _Packet(ConnectionId(self._processes), Peer(process, 0))
