"""How a recording lies on disk: one directory per run, with numbered segments that are each replayable alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.machine import GpuSample, HostMemory, HostSample, SpotNotice
from trainer_shim.wire import FRAMES, WIRE_VERSION

_SEGMENT: Final = re.compile(r"frames-([0-9]{6,12})\.jsonl\.gz")


def segment_name(number: int) -> str:
    return f"frames-{number:06d}.jsonl.gz"


def number_of(name: str) -> int | None:
    """The segment's number, or None if the name is not a segment's."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found is not None else None


def segments(directory: Path) -> list[Path]:
    """The segments in the order of writing. OSError if the directory cannot be read."""
    found = [(number, path) for path in directory.iterdir() if (number := number_of(path.name)) is not None]
    return [path for _, path in sorted(found)]


# --- the lines of a recording -------------------------------------------------------------------------------
#
# A frame is stored as it came, with two more keys: `at_ns`, the governor's CLOCK_MONOTONIC at its arrival, by which it
# was judged, and `conn`, its connection. A hello also has its process as the kernel reported it. Hellos and acks lack
# fields that might hold a secret. A note is our own line, for facts that no frame states. `wire.recorded` reads them.


FORMAT: Final = 1  # `recording` of a segment's first line.
NOTE: Final = "note"  # The kind of our own lines.
# A command line and paths may hold a key. What a rank knows of an old incident belongs to that incident.
LEFT_OUT: Final = frozenset({"resume_argv", "cwd", "checkpoint_dir", "open_incident", "mark", "harmed_save"})
LAST_GOOD_KEPT: Final = ("step", "tokens_total", "mono_ns")
SAVED_KEPT: Final = ("kind", "tokens_total", "files", "bytes", "hashed", "mono_ns")
# A newer shim's own fields may hold anything.
_HELLO: Final = frozenset(FRAMES["hello"]) - LEFT_OUT
# The reason of a failure is the error's text, which names files.
_ACK: Final = frozenset(FRAMES["ack"]) - {"reason"}


class ReceivedFrame(NamedTuple):
    """A judged frame, as it came. `process` is set for a hello: the process that the kernel reports."""

    at: MonoNs
    connection: ConnectionId
    data: bytes
    process: ProcessId | None = None
    # A repeated hello, for readers that begin here.
    is_again: bool = False
    is_ack: bool = False


def line(received: ReceivedFrame) -> bytes:
    """The line of a frame. `data` is one JSON object, so a line break in it is only space between its parts."""
    if received.process is not None:
        return _hello_line(received, received.process)
    if received.is_ack:
        return _ack_line(received)
    text = received.data.strip()
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return b'%b,"at_ns":%d,"conn":%d}\n' % (text[:-1], received.at, received.connection)


def _hello_line(received: ReceivedFrame, process: ProcessId) -> bytes:
    frame = _kept(received.data, _HELLO, "last_good", LAST_GOOD_KEPT)
    frame |= {"at_ns": received.at, "conn": received.connection, "pid": process.pid, "start_ticks": process.start_ticks}
    return _encode(frame | ({"again": True} if received.is_again else {}))


def _ack_line(received: ReceivedFrame) -> bytes:
    frame = _kept(received.data, _ACK, "checkpoint", SAVED_KEPT)
    return _encode(frame | {"at_ns": received.at, "conn": received.connection})


def _kept(data: bytes, names: Collection[str], inner: str, names_within: Sequence[str]) -> dict[str, Any]:
    """The frame's fields in `names`, with `inner` reduced to the fields in `names_within`."""
    frame = {name: value for name, value in json.loads(data).items() if name in names}
    if isinstance(frame.get(inner), dict):
        frame[inner] = {name: frame[inner].get(name) for name in names_within}
    return frame


def head(run: str, facts: Mapping[str, Any], *, mono_ns: int, wall_ns: int, continues: bool) -> bytes:
    """A segment's first line.

    The two times are of one moment, because another boot's monotonic clock starts anew. `continues`: nothing was missed
    since the segment before.
    """
    meta = {
        "recording": FORMAT, "run": run, **facts, "mono_ns": mono_ns, "wall_ns": wall_ns, "continues": continues,
    }  # fmt: skip
    return _encode({"meta": meta})


def lost(at: MonoNs, connection: ConnectionId) -> bytes:
    return _note("lost", at, conn=connection)


def exited(at: MonoNs) -> bytes:
    return _note("exited", at)


def halted(at: MonoNs, incident_id: str) -> bytes:
    """A note that what ranks do from here on is the halt's doing."""
    return _note("halted", at, incident=incident_id)


def gap(at: MonoNs, lines: int) -> bytes:
    """A note that so many lines from here on were not stored. 0: no governor was running."""
    return _note("gap", at, lines=lines)


def gpus(sample: GpuSample) -> bytes:
    """A sample of the run's own GPUs."""
    return _note(
        "gpus",
        sample.at,
        busy_frac=sample.busy_frac,
        uuids=sample.uuids,
        memory_used_bytes=sample.memory_used_bytes,
        memory_total_bytes=sample.memory_total_bytes,
        pids=[None if pids is None else sorted(pids) for pids in sample.pids],
        **({"figures": [one.told() for one in sample.figures]} if sample.figures else {}),
        **({"names": sample.names} if sample.names else {}),
    )


def memory(event: HostMemory) -> bytes:
    of = {} if event.run is None else {"group": event.group or ""}
    return _note("memory", event.at, available_bytes=event.available_bytes, total_bytes=event.total_bytes, **of)


def host(sample: HostSample) -> bytes:
    """What the machine and the run's processes use. Totals: a reader takes differences, so no look must be kept."""
    node = {name: value for name, value in asdict(sample.node).items() if value is not None}
    rows = [
        (
            one.process.pid,
            one.rank.pid,
            one.name,
            one.state,
            one.cpu_ns,
            one.core_wait_ns,
            one.read_bytes,
            one.cores_at_once,
            one.core_run_ns,
        )
        for one in sample.processes
    ]
    cut = {"cut": sorted(one.pid for one in sample.cut)} if sample.cut else {}
    return _note("host", sample.at, node=node, processes=rows, **cut)


def spot(notice: SpotNotice) -> bytes:
    return _note("spot", notice.at, action=notice.action, left_ns=notice.left)


def _note(what: str, at: MonoNs, **more: Any) -> bytes:
    return _encode({"v": WIRE_VERSION, "kind": NOTE, "note": what, "at_ns": at, **more})


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
