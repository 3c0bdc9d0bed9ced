"""Packets of the trainer socket → events, and the governor's answers → packets.

Packets are untrusted: each becomes an event or a list of faults, never an exception. The connection identifies the
sender; no field of a message counts as identity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from governor.core.base.identity import ConnectionId, Peer
from governor.core.base.printable import printable
from governor.core.base.units import COUNT_MAX, TOKENS_OF_A_STEP_MAX, MonoNs
from governor.core.events.checkpoints import NamedCheckpoint, Origin, SavedCheckpoint
from governor.core.events.ends import RankFailed
from governor.core.events.fetch import Fetch
from governor.core.events.forwards import Forwards
from governor.core.events.inputs import Ack, BadHello, Beat, Bye, Event, FramesLost, Hello, PhaseChange, Step
from governor.wire.last_output import failed
from governor.wire.shown import shown
from governor.wire.step_values import step_values
from trainer_shim.connection.starts import host_of
from trainer_shim.wire import (
    ACKS,
    CHECKPOINT_KINDS,
    FRAMES,
    HALT_EXIT_CODE,
    PHASES,
    TEXT_CHARS_MAX,
    WIRE_VERSION,
    encode,
    faults,
)

DROPPED_BY_SENDER = "dropped by the sender"
FAULTS_MAX = 8  # The first few describe a frame that is wrong everywhere.
JOB_NAME = re.compile(r"[A-Za-z0-9._:@+-]{1,128}")
WORLD_SIZE_MAX = 2**24  # A hundred times the largest training so far.
# Drop counts by sender: four times the connections that the inbox admits.
PROCESSES_REMEMBERED_MAX = 1_024

# The signals that a hello may ask us to send: never SIGKILL. 0: the checkpoint request only. Then SIGUSR1, SIGUSR2 and
# the real-time signals.
SIGNAL_NUMBERS = frozenset((0, 10, 12, *range(34, 65)))

Frame = dict[str, Any]
_INT_MAX = 2**63 - 1

# json.loads() first looks for whitespace and options, which is a fifth of the cost of a step.
_read_json = json.JSONDecoder().raw_decode
_JSON_SPACE = " \t\n\r"


class PacketLike(Protocol):
    """The parts of `ports.Packet` that decoding needs."""

    @property
    def connection(self) -> ConnectionId: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def data(self) -> bytes: ...
    @property
    def truncated(self) -> bool: ...


def decode(packet: PacketLike, at: MonoNs, run: str | None) -> Event | list[str]:
    """Return the packet's event, or its faults. `run` is the one in the connection's hello, None before it."""
    frame = parse(packet)
    return frame if isinstance(frame, list) else build(frame, packet, at, run)


def parse(packet: PacketLike) -> Frame | list[str]:
    """Return the packet's valid frame, or its faults."""
    if packet.truncated:
        return [f"larger than {len(packet.data)} bytes"]
    try:
        text = packet.data.decode("utf-8").strip(_JSON_SPACE)
        frame, end = _read_json(text)
        if end != len(text):
            return ["not JSON: something follows the object"]
        if "\\" in text and ("\\ud" in text or "\\uD" in text):
            # A lone half of a surrogate pair is legal JSON, but every later encoder rejects it.
            json.dumps(frame, ensure_ascii=False).encode("utf-8")
    # Also UnicodeError, and integers of thousands of digits.
    except (ValueError, RecursionError) as error:
        return [f"not JSON: {type(error).__name__}"]
    return faults(frame, FRAMES)[:FAULTS_MAX] or frame


def build(frame: Frame, packet: PacketLike, at: MonoNs, run: str | None) -> Event | list[str]:
    """Turn a frame from `parse` into its event, or return what its values contradict."""
    if frame["rank"] < 0:
        return ["rank is negative"]
    kind = frame["kind"]
    if kind == "hello":
        return _hello(frame, packet, at)
    if run is None:
        return [f"{kind} before any hello"]
    return _BUILDERS[kind](frame, packet.connection, at, run)


class FrameReader:
    """Reads the packets of all connections, remembers each connection's run, and counts lost frames."""

    def __init__(self) -> None:
        self._runs: dict[ConnectionId, str] = {}
        # By process: the shim counts since attach, across its reconnects.
        self._dropped: dict[Any, int] = {}

    def read(self, packet: PacketLike, at: MonoNs) -> list[Event]:
        """Return the packet's event, with `FramesLost` for a faulty packet and for what the sender dropped.

        `BadHello` stands for a faulty hello on a connection without a good one.
        """
        run = self._runs.get(packet.connection)
        frame = parse(packet)
        event = frame if isinstance(frame, list) else build(frame, packet, at, run)
        if isinstance(event, list):
            why = "; ".join(event)
            if run is None and _is_hello(packet):
                return [BadHello(at, packet.connection, packet.peer, why)]
            return [FramesLost(at, packet.connection, 1, why)]
        assert isinstance(frame, dict)
        if isinstance(event, Hello):
            self._runs[packet.connection] = event.run
        lost = self._newly_dropped(frame, packet)
        return [FramesLost(at, packet.connection, lost, DROPPED_BY_SENDER), event] if lost else [event]

    def run_of(self, connection: ConnectionId) -> str | None:
        return self._runs.get(connection)

    def forget(self, connection: ConnectionId) -> None:
        """Drop what is known of a closed connection."""
        self._runs.pop(connection, None)

    def _newly_dropped(self, frame: Frame, packet: PacketLike) -> int:
        dropped = frame.get("dropped")
        if not dropped:
            return 0
        total = min(sum(count for count in dropped.values() if isinstance(count, int) and count > 0), COUNT_MAX)
        known = self._dropped.pop(packet.peer.process, 0)
        self._dropped[packet.peer.process] = max(total, known)
        if len(self._dropped) > PROCESSES_REMEMBERED_MAX:
            del self._dropped[next(iter(self._dropped))]
        return max(0, total - known)


def _is_hello(packet: PacketLike) -> bool:
    """Whether a packet that is not a valid frame was meant as a hello."""
    try:
        frame = json.loads(packet.data)
    except (ValueError, RecursionError):
        return False
    return isinstance(frame, dict) and frame.get("kind") == "hello"


# --- governor -> rank ------------------------------------------------------------------------------------


def request_packet(
    *, incident: str, checkpoint: str, deadline_mono_ns: MonoNs, exit_after: bool, reason: str,
    exit_code: int = HALT_EXIT_CODE,
) -> bytes:  # fmt: skip
    assert checkpoint in CHECKPOINT_KINDS
    return encode({
        "v": WIRE_VERSION, "kind": "letter", "incident": incident, "checkpoint": checkpoint,
        "deadline_mono_ns": deadline_mono_ns, "exit_after": exit_after, "exit_code": exit_code,
        "reason": reason[:TEXT_CHARS_MAX],
    })  # fmt: skip


def confirm_packet(seq: int) -> bytes:
    return encode({"v": WIRE_VERSION, "kind": "confirm", "seq": seq})


def refuse_packet(reason: str) -> bytes:
    return encode({"v": WIRE_VERSION, "kind": "refuse", "reason": reason[:TEXT_CHARS_MAX]})


# --- builders --------------------------------------------------------------------------------------------


def _hello(frame: Frame, packet: PacketLike, at: MonoNs) -> Hello | list[str]:
    found = []
    if not frame["run"] or not frame["run"].isprintable() or not frame["attempt"].isprintable():
        found.append("hello.run and hello.attempt must be printable text")
    if not 0 <= frame["rank"] < frame["world_size"]:
        world_size = frame["world_size"]
        found.append(f"hello.rank {frame['rank']} is outside the world size {world_size}: set RANK and WORLD_SIZE")
    if frame["world_size"] > WORLD_SIZE_MAX:
        found.append(f"hello.world_size {frame['world_size']} is more than any job has: set WORLD_SIZE")
    if frame["signal"] not in SIGNAL_NUMBERS:
        found.append(f"hello.signal {frame['signal']} cannot be used: use SIGUSR1, SIGUSR2, a real-time signal or 0")
    if found:
        return found
    started = frame.get("started_mono_ns")
    shares = _shares(frame)
    return Hello(
        at=at,
        connection=packet.connection,
        peer=packet.peer,
        seq=frame["seq"],
        run=frame["run"],
        attempt=frame["attempt"],
        rank=frame["rank"],
        local_rank=frame["local_rank"],
        world_size=frame["world_size"],
        stage=_shown(frame.get("stage")),
        labels={printable(k): printable(str(v)) for k, v in (frame.get("labels") or {}).items()},
        gpu_uuids=_texts(frame.get("gpu_uuids")),
        framework=_shown(frame.get("framework")),
        zero_stage=_count(frame.get("zero_stage")),
        parameters=_count(frame.get("parameters")),
        tokens_per_step=_count(frame.get("tokens_per_step"), TOKENS_OF_A_STEP_MAX),
        data_parallel_size=shares[0],
        data_parallel_rank=shares[1],
        total_steps=_count(frame.get("total_steps")),
        checkpoint_dir=frame.get("checkpoint_dir"),
        resume_argv=tuple(frame.get("resume_argv") or ()),
        cwd=frame.get("cwd"),
        signal=frame["signal"],
        capabilities=frozenset(frame.get("capabilities") or ()),
        shim_version=_shown(frame.get("shim_version")),
        started_at=None if started is None else MonoNs(min(started, at)),
        sent=MonoNs(frame["mono_ns"]),
        resumed_step=_count(frame.get("resumed_step")),
        resumes=_resumes(frame),
        origin=Origin.said(frame.get("origin")),
        loaded_at=_count(frame.get("loaded_at")) or 0,
        last_good=NamedCheckpoint.named(frame.get("last_good")),
        harmed_save=NamedCheckpoint.named(frame.get("harmed_save")),
        beside=_shown(frame.get("beside")),
        mark=_count(frame.get("mark"), _INT_MAX),
        open_incident=frame.get("open_incident"),
        job=_job(frame.get("job")),
        master=host_of(frame.get("master")),
    )


def _job(name: str | None) -> str | None:
    """A name to compare. What is none is left out: the rank is watched without it."""
    return name if name is not None and JOB_NAME.fullmatch(name) else None


def _shares(frame: Frame) -> tuple[int, int] | tuple[None, None]:
    """Of how many ranks that see different tokens this is which. None where that cannot be."""
    size, place = _count(frame.get("data_parallel_size")), _count(frame.get("data_parallel_rank"))
    if size is None or place is None or not place < size <= frame["world_size"]:
        return None, None
    return size, place


def _resumes(frame: Frame) -> str | None:
    called = frame.get("resume_called")  # An older shim does not say.
    if called is None:
        return None
    return "called" if called else "loaded" if frame.get("resumed_step") is not None else "never"


def _step(frame: Frame, connection: ConnectionId, at: MonoNs, run: str) -> Step | list[str]:
    if frame["step"] < 0:
        return ["step.step is negative"]
    if frame["step"] > COUNT_MAX:
        return ["step.step is more than any run has"]
    values = step_values(frame)
    values["ended"] = frame["mono_ns"]
    return Step(at, connection, run, frame["rank"], frame["step"], **values)


def _phase(frame: Frame, connection: ConnectionId, at: MonoNs, run: str) -> PhaseChange | RankFailed | list[str]:
    if frame["phase"] not in PHASES:
        return [f"unknown phase {frame['phase']!r:.40}"]
    if frame.get("failure") is not None:
        return failed(frame, connection, at, run)
    return PhaseChange(
        at=at,
        connection=connection,
        run=run,
        rank=frame["rank"],
        phase=frame["phase"],
        step=_count(frame.get("step")),
        progress_seq=_count(frame.get("progress_seq")),
        detail=_shown(frame.get("detail")),
        since=None if frame.get("since_ns") is None else MonoNs(max(0, min(frame["since_ns"], at))),
    )


def _beat(frame: Frame, connection: ConnectionId, at: MonoNs, run: str) -> Beat | list[str]:
    if frame["phase"] not in PHASES:
        return [f"unknown phase {frame['phase']!r:.40}"]
    if frame["progress_seq"] < 0:
        return ["beat.progress_seq is negative"]
    return Beat(
        at=at,
        connection=connection,
        run=run,
        rank=frame["rank"],
        progress_seq=frame["progress_seq"],
        phase=frame["phase"],
        # A future time would give a negative age.
        phase_since=MonoNs(max(0, min(frame["phase_since_ns"], at))),
        step=_count(frame.get("step")),
        in_step=frame.get("in_step") is True,
        last_hook=_shown(frame.get("last_hook")),
        device_wait=_shown(frame.get("device_wait")),
        stack=_texts(frame.get("stack")),
        collective=frame.get("collective"),
        main_cpu_ns=_count(frame.get("main_cpu_ns"), _INT_MAX),
        fetch=Fetch.read(frame.get("fetch"), at),
        forwards=Forwards.read(frame.get("forwards")),
    )


def _ack(frame: Frame, connection: ConnectionId, at: MonoNs, run: str) -> Ack | list[str]:
    if frame["what"] not in ACKS:
        return [f"unknown ack {frame['what']!r:.40}"]
    return Ack(
        at=at,
        connection=connection,
        run=run,
        rank=frame["rank"],
        seq=frame["seq"],
        incident_id=printable(frame["incident"]),
        what=frame["what"],
        step=_count(frame.get("step")),
        reason=_shown(frame.get("reason")),
        merged_into=_shown(frame.get("merged_into")),
        exit_after=frame.get("exit_after"),
        checkpoint=SavedCheckpoint.named(frame.get("checkpoint")),
    )


def _bye(frame: Frame, connection: ConnectionId, at: MonoNs, run: str) -> Bye:
    return Bye(
        at=at,
        connection=connection,
        run=run,
        rank=frame["rank"],
        seq=frame["seq"],
        reason=_shown(frame.get("reason")),
        completed=frame.get("completed") is True,
        step=_count(frame.get("step")),
    )


_BUILDERS: dict[str, Callable[[Frame, ConnectionId, MonoNs, str], Event | list[str]]] = {
    "step": _step,
    "phase": _phase,
    "beat": _beat,
    "ack": _ack,
    "bye": _bye,
    "shown": shown,
}
assert {*_BUILDERS, "hello"} == FRAMES.keys(), "a frame kind without a builder"


def _count(value: int | None, most: int = COUNT_MAX) -> int | None:
    """None also for more than any training has: a schedule without an end may be said as the largest integer."""
    return value if value is not None and 0 <= value <= most else None


def _shown(text: str | None) -> str | None:
    return None if text is None else printable(text)


def _texts(values: list[str] | None) -> tuple[str, ...]:
    return tuple(printable(value) for value in values) if values else ()
