"""Reads recordings back: the segments on one clock, and their frames as events.

Each boot of a machine restarts its monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import COUNT_MAX, NS_PER_S, DurationNs, MonoNs
from governor.core.events.hardware import read_figures
from governor.core.events.inputs import Disconnected, Event, Step, TrainerExited
from governor.core.events.machine import GpuSample, HostMemory, HostSample, NodeUse, ProcessUse, SpotNotice
from governor.core.runs.state import RANKS_MAX
from governor.wire.frames import FAULTS_MAX, build
from governor.wire.recording import FORMAT, NOTE
from trainer_shim.wire import FRAMES, WIRE_VERSION, faults

# No run pauses longer than this, so one of the wall clocks was wrong.
PAUSE_MAX_NS: Final = 30 * 24 * 3600 * NS_PER_S
TIME_NS_BOUND: Final = 2**63  # As the kernel's clocks.
PROCESSES_MAX: Final = 1024  # Twice what a governor looks at.
NAME_CHARS_MAX: Final = 64  # The kernel's names have 15.
_NODE_FIGURES: Final = frozenset(one.name for one in fields(NodeUse))
# Every time that a line may hold. All are of one clock.
_TIMES: Final = ("at_ns", "mono_ns", "started_mono_ns", "phase_since_ns", "last_hook_ns")
_TIMES_WITHIN: Final = (("last_good", "mono_ns"), ("checkpoint", "mono_ns"), ("collective", "entered_ns"))


class RecordedClock:
    """Puts the lines of later boots after those of the first, as far apart as the wall clock says."""

    def __init__(self) -> None:
        self.last_ns = 0
        self.wall_ahead_ns = 0  # The wall clock minus this one, as the segment in hand says.
        self._boot: Any = None
        self._first_ahead_ns = 0  # The wall clock minus the first boot's monotonic clock.
        self._shift_ns = 0

    def begin(self, meta: Mapping[str, Any]) -> str | None:
        """Begin a segment. Returns the fault of its first line, or None."""
        mono_ns, wall_ns, boot = meta.get("mono_ns"), meta.get("wall_ns"), meta.get("boot_id")
        if meta.get("recording") != FORMAT:
            return f"recording format {meta.get('recording')!r:.20}: this costgov knows {FORMAT}"
        if type(mono_ns) is not int or type(wall_ns) is not int:
            return "its first line has no times"
        if not (0 <= mono_ns < TIME_NS_BOUND and 0 <= wall_ns < TIME_NS_BOUND):
            return "the times of its first line are beyond any clock"
        if self._boot is None:
            self._first_ahead_ns = wall_ns - mono_ns
        elif boot != self._boot:
            self._shift_ns = wall_ns - mono_ns - self._first_ahead_ns
            if not 0 <= mono_ns + self._shift_ns - self.last_ns <= PAUSE_MAX_NS:
                self._shift_ns = self.last_ns - mono_ns
        self._boot = boot
        self.wall_ahead_ns = wall_ns - mono_ns - self._shift_ns
        return None

    def put(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its times on the one clock."""
        if self._shift_ns:
            record = self._shifted(record)
        at = record.get("at_ns")
        if type(at) is int and at > self.last_ns:
            self.last_ns = at
        return record

    def _shifted(self, record: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {name: self._moved(record[name]) for name in _TIMES if name in record}
        for name, inner in _TIMES_WITHIN:
            within = record.get(name)
            if isinstance(within, dict) and inner in within:
                changed[name] = within | {inner: self._moved(within[inner])}
        return record | changed

    def _moved(self, value: Any) -> Any:
        return value + self._shift_ns if type(value) is int else value


# --- frames, one per line, as the events that the inbox would have given ------------------------------------
#
# A plain log of frames identifies no process, so each attempt of a rank gets its own. A governor's recording
# (`wire.recording`) also has the connection, the process, and notes.


FIRST_PID: Final = 1_000  # A placeholder: no signal is ever sent to it.
GPUS_MAX: Final = 64  # More than any node has.
SPEAKERS_MAX: Final = 256  # Connections of one node at a time, as the inbox admits them.

Events = tuple[Event, ...]
Faults = list[str]
# Where a line came from: a recorded connection or, in a plain log, its rank.
_Place = tuple[str, int]


def is_frame(record: dict[str, Any]) -> bool:
    """Whether the record is one of our own frames, or was meant as one."""
    kind = record.get("kind")
    return record.get("v") == WIRE_VERSION and isinstance(kind, str) and kind in FRAMES


def is_note(record: dict[str, Any]) -> bool:
    return record.get("v") == WIRE_VERSION and record.get("kind") == NOTE


def is_halt(record: dict[str, Any]) -> bool:
    """Whether the run's halt was decided at this time."""
    return record.get("note") == "halted" and is_note(record)


def is_exit(record: dict[str, Any]) -> bool:
    """Whether the run's ranks were seen to be gone at this time."""
    return record.get("note") == "exited" and is_note(record)


def is_gap(record: dict[str, Any]) -> bool:
    """Whether no governor listened from this time until the next record."""
    return record.get("note") == "gap" and is_note(record)


def break_note(at_ns: int) -> dict[str, Any]:
    """A gap note, for a gap that the recording itself does not state."""
    return {"v": WIRE_VERSION, "kind": NOTE, "note": "gap", "at_ns": at_ns}


@dataclass(frozen=True, slots=True)
class _Packet:
    """What decoding needs of a packet."""

    connection: ConnectionId
    peer: Peer
    data: bytes = b""
    truncated: bool = False


_UNHEARD: Final = _Packet(ConnectionId(0), Peer(ProcessId(FIRST_PID, 1, "replay"), 0))  # For a frame without its hello.


class RecordedRanks:
    """Reads the frames of one run, from its first hello on."""

    def __init__(self, run: str) -> None:
        self.run = run
        # Each speaker's attempt and its connection.
        self._speakers: dict[_Place, tuple[str, _Packet]] = {}
        self._counted = 0

    def read(self, frame: dict[str, Any], at: MonoNs) -> Events | Faults:
        """The line's events, or its faults."""
        if frame["kind"] == NOTE:
            return self._read_note(frame, at)
        found = faults(frame, FRAMES)
        if found:
            return found[:FAULTS_MAX]
        connection = frame.get("conn")
        place = ("conn", connection) if type(connection) is int else ("rank", frame["rank"])
        known = self._speakers.get(place)
        if frame["kind"] == "hello":
            if frame.get("again") is True and known is not None:
                return ()  # Repeated for readers that begin there.
            fault = self._fault(frame)
            if fault is not None:
                return [fault]
            if known is None or known[0] != frame["attempt"]:
                known = self._meet(place, frame)
        if known is None:
            return [f"{frame['kind']} of rank {frame['rank']} before its hello"]
        event = build(frame, known[1], at, self.run)
        return event if isinstance(event, list) else (event,)

    def break_off(self, at: MonoNs) -> Events:
        """Disconnect every rank: each has to send a hello again."""
        ends = tuple(Disconnected(at, packet.connection) for _, packet in self._speakers.values())
        self._speakers.clear()
        return ends

    def _fault(self, hello: Mapping[str, Any]) -> str | None:
        if hello["run"] != self.run:
            return f"hello of run {hello['run']!r:.40}: this log is of {self.run!r:.40}, a log has one run"
        if not 0 <= hello["rank"] < RANKS_MAX:
            return f"rank {hello['rank']} is outside of a node's {RANKS_MAX}"
        return None

    def _meet(self, place: _Place, hello: Mapping[str, Any]) -> tuple[str, _Packet]:
        self._counted += 1
        pid, ticks = hello.get("pid"), hello.get("start_ticks")
        if type(pid) is int and type(ticks) is int:
            # The same process after a reconnect.
            process = ProcessId(pid, ticks, "replay")
        else:
            process = ProcessId(FIRST_PID + self._counted, 1, "replay")
        if len(self._speakers) >= SPEAKERS_MAX:
            del self._speakers[next(iter(self._speakers))]
        met = hello["attempt"], _Packet(ConnectionId(self._counted), Peer(process, 0))
        self._speakers[place] = met
        return met

    def _read_note(self, note: dict[str, Any], at: MonoNs) -> Events | Faults:
        what = note.get("note")
        # What follows a halt is the halt's doing and was not recorded.
        if what in ("gap", "halted"):
            return self.break_off(at)
        if what == "lost":
            ended = self._speakers.pop(("conn", note["conn"]), None) if type(note.get("conn")) is int else None
            return (Disconnected(at, ended[1].connection),) if ended is not None else ()
        if what == "exited":
            return (TrainerExited(at, self.run, None),)
        read = _MACHINE.get(what) if isinstance(what, str) else None
        if read is None:
            return ()  # From a newer governor.
        event = read(note, at, self.run)
        return (event,) if event is not None else [f"note {what}: its values are not as a governor writes them"]


def is_numbered(step: Mapping[str, Any]) -> bool:
    """Whether a step's numbers are below COUNT_MAX: beyond it no tool's number holds one exactly.

    `faults` says what is no number. A recording may hold any: one that no later step exceeds would end all that is
    drawn in the order of steps.
    """
    for name in ("step", "attempt_step"):
        number = step.get(name)
        if type(number) is int and not 0 <= number < COUNT_MAX:
            return False
    return True


def read_step(frame: dict[str, Any], at: MonoNs, run: str) -> Step | None:
    """The step of a line, whoever has told it. None: it is no sound frame of a step."""
    if not is_frame(frame) or faults(frame, FRAMES):
        return None
    event = build(frame, _UNHEARD, at, run)
    return event if isinstance(event, Step) else None


def read_gpus(note: Mapping[str, Any], at: MonoNs, _run: str) -> GpuSample | None:
    """The sample as of a node with no other GPUs. The engine assigns them to the run as it did then."""
    busy = note.get("busy_frac")
    if not isinstance(busy, list) or len(busy) > GPUS_MAX:
        return None
    lists = [note.get(name) for name in ("uuids", "memory_used_bytes", "memory_total_bytes", "pids")]
    lists += [note.get("figures", []), note.get("names", [])]  # Older recordings have none.
    if any(not isinstance(one, list) or len(one) not in (0, len(busy)) for one in lists):
        return None
    uuids, used, total, pids, told, names = (one or [] for one in lists)
    figures = tuple(known for one in told if (known := read_figures(one)) is not None)
    if len(figures) < len(told):
        return None
    if not (
        all(one is None or (type(one) in (int, float) and 0 <= one <= 1) for one in busy)
        and all(isinstance(one, str) for one in (*uuids, *names))
        and all(one is None or type(one) is int for one in (*used, *total))
        and all(one is None or (isinstance(one, list) and all(type(pid) is int for pid in one)) for one in pids)
    ):
        return None
    whose = tuple(None if one is None else frozenset(one) for one in pids)
    return GpuSample(at, None, tuple(busy), tuple(uuids), tuple(used), tuple(total), whose, figures, tuple(names))


def _host(note: Mapping[str, Any], at: MonoNs, run: str) -> Event | None:
    node, rows = note.get("node"), note.get("processes")
    if not isinstance(node, dict) or not isinstance(rows, list) or len(rows) > PROCESSES_MAX:
        return None
    known = {name: value for name, value in node.items() if name in _NODE_FIGURES}
    processes = tuple(use for row in rows if (use := _process_use(row)) is not None)
    if len(processes) < len(rows) or not all(_is_amount(value) for value in known.values()):
        return None
    cut = note.get("cut", [])  # Where all were looked at there is none.
    if not isinstance(cut, list) or not all(type(pid) is int and _is_amount(pid) for pid in cut):
        return None
    return HostSample(at, NodeUse(**known), processes, run, frozenset(ProcessId(pid, 1, "replay") for pid in cut))


def _process_use(row: object) -> ProcessUse | None:
    if not isinstance(row, list) or len(row) < 7:  # A newer governor's may be longer.
        return None
    pid, rank, name, state, cpu_ns, waited, read = row[:7]
    cores, ran = (row[place] if len(row) > place else None for place in (7, 8))  # An older governor's has none.
    counts = [pid, rank, cpu_ns, *(one for one in (waited, read, ran) if one is not None)]
    if not (isinstance(name, str) and isinstance(state, str) and all(type(one) is int for one in counts)):
        return None
    if not all(_is_amount(one) for one in (*counts, *((cores,) if cores is not None else ()))):
        return None
    # Recorded without their start times: within one run's recording a pid says who it is.
    return ProcessUse(
        ProcessId(pid, 1, "replay"),
        ProcessId(rank, 1, "replay"),
        name[:NAME_CHARS_MAX],
        state[:1],
        cpu_ns,
        waited,
        read,
        cores_max=cores,
        core_run_ns=ran,
    )


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < TIME_NS_BOUND  # type: ignore[operator]


def _memory(note: Mapping[str, Any], at: MonoNs, run: str) -> Event | None:
    available, total, group = note.get("available_bytes"), note.get("total_bytes"), note.get("group")
    if type(available) is not int or type(total) is not int or available < 0 or total <= 0:
        return None
    if not isinstance(group, str):
        return HostMemory(at, available, total)
    return HostMemory(at, available, total, run, group)


def _spot(note: Mapping[str, Any], at: MonoNs, _run: str) -> Event | None:
    action, left = note.get("action"), note.get("left_ns")
    if not isinstance(action, str | None) or not (left is None or type(left) is int):
        return None
    return SpotNotice(at, action, None if left is None else DurationNs(left))


_MACHINE: Final[Mapping[str, Callable[[Mapping[str, Any], MonoNs, str], Event | None]]] = {
    "gpus": read_gpus,
    "host": _host,
    "memory": _memory,
    "spot": _spot,
}
