"""How a recording lies on disk: a directory a run, in it numbered segments that are each replayable by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.machine import GpuSample, HostMemory, SpotNotice
from trainer_shim.wire import FRAMES, WIRE_VERSION

_SEGMENT: Final = re.compile(r"frames-([0-9]{6,12})\.jsonl\.gz")


def segment_name(number: int) -> str:
    return f"frames-{number:06d}.jsonl.gz"


def number_of(name: str) -> int | None:
    """None for what is no segment."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found is not None else None


def segments(directory: Path) -> list[Path]:
    """In the order in which they were written. OSError when the directory cannot be read."""
    found = [(number, path) for path in directory.iterdir() if (number := number_of(path.name)) is not None]
    return [path for _, path in sorted(found)]


# The lines of a recording: what a run's ranks said, when it came, and what else its rules were shown.
#
# A frame stands as it came, with two keys more: `at_ns`, the governor's CLOCK_MONOTONIC at its arrival, by which it
# was judged, and `conn`, the connection that it came on. A hello has also the kernel's word of who said it. Hellos
# and acks lack what might hold a secret. A note is a line of our own: what no frame says. `wire.recorded` reads them.


FORMAT: Final = 1  # `recording` of a segment's first line.
NOTE: Final = "note"  # The kind of our own lines.
# A command line and paths may hold a key; what a rank knows of an old incident is the incident's.
LEFT_OUT: Final = frozenset({"resume_argv", "cwd", "checkpoint_dir", "open_incident"})
LAST_GOOD_KEPT: Final = ("step", "tokens_total", "mono_ns")
SAVED_KEPT: Final = ("kind", "tokens_total", "files", "bytes", "hashed")
_HELLO: Final = frozenset(FRAMES["hello"]) - LEFT_OUT  # A newer shim's own fields may hold anything.
_ACK: Final = frozenset(FRAMES["ack"]) - {"reason"}  # Of a failure: the error's words, which name files.


class Heard(NamedTuple):
    """A frame that was judged, as it came. `process`: of a hello, who the kernel says it is."""

    at: MonoNs
    connection: ConnectionId
    data: bytes
    process: ProcessId | None = None
    is_again: bool = False  # Said before, and repeated for whoever reads on from here.
    is_ack: bool = False


def line(heard: Heard) -> bytes:
    """`data` has been parsed: it is one JSON object. A line break in it can only be space between its parts."""
    if heard.process is not None:
        return _hello_line(heard, heard.process)
    if heard.is_ack:
        return _ack_line(heard)
    text = heard.data.strip()
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return b'%b,"at_ns":%d,"conn":%d}\n' % (text[:-1], heard.at, heard.connection)


def _hello_line(heard: Heard, process: ProcessId) -> bytes:
    frame = _kept(heard.data, _HELLO, "last_good", LAST_GOOD_KEPT)
    frame |= {"at_ns": heard.at, "conn": heard.connection, "pid": process.pid, "start_ticks": process.start_ticks}
    return _encode(frame | ({"again": True} if heard.is_again else {}))


def _ack_line(heard: Heard) -> bytes:
    frame = _kept(heard.data, _ACK, "checkpoint", SAVED_KEPT)
    return _encode(frame | {"at_ns": heard.at, "conn": heard.connection})


def _kept(data: bytes, names: Collection[str], inner: str, names_within: Sequence[str]) -> dict[str, Any]:
    """Of a frame the fields of these names, and of its record `inner` those within."""
    frame = {name: value for name, value in json.loads(data).items() if name in names}
    if isinstance(frame.get(inner), dict):
        frame[inner] = {name: frame[inner].get(name) for name in names_within}
    return frame


def head(run: str, facts: Mapping[str, Any], *, mono_ns: int, wall_ns: int, continues: bool) -> bytes:
    """A segment's first line. The two times are of one moment: another boot's monotonic clock began anew.
    `continues`: nothing was missed since the segment before."""
    meta = {
        "recording": FORMAT, "run": run, **facts, "mono_ns": mono_ns, "wall_ns": wall_ns, "continues": continues,
    }  # fmt: skip
    return _encode({"meta": meta})


def lost(at: MonoNs, connection: ConnectionId) -> bytes:
    return _note("lost", at, conn=connection)


def exited(at: MonoNs) -> bytes:
    return _note("exited", at)


def halted(at: MonoNs, incident_id: str) -> bytes:
    """What ranks do from here on is the halt's doing."""
    return _note("halted", at, incident=incident_id)


def gap(at: MonoNs, lines: int) -> bytes:
    """From here on so many lines could not be kept; 0: nobody was there to hear any."""
    return _note("gap", at, lines=lines)


def gpus(sample: GpuSample) -> bytes:
    """Those of the run alone."""
    return _note(
        "gpus",
        sample.at,
        busy_frac=sample.busy_frac,
        uuids=sample.uuids,
        memory_used_bytes=sample.memory_used_bytes,
        memory_total_bytes=sample.memory_total_bytes,
        pids=[None if pids is None else sorted(pids) for pids in sample.pids],
    )


def memory(event: HostMemory) -> bytes:
    of = {} if event.run is None else {"group": event.group or ""}
    return _note("memory", event.at, available_bytes=event.available_bytes, total_bytes=event.total_bytes, **of)


def spot(notice: SpotNotice) -> bytes:
    return _note("spot", notice.at, action=notice.action, left_ns=notice.left)


def _note(what: str, at: MonoNs, **more: Any) -> bytes:
    return _encode({"v": WIRE_VERSION, "kind": NOTE, "note": what, "at_ns": at, **more})


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
