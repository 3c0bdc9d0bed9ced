"""Lines of a recording, written and read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.hardware import UNTOLD, GpuFigures
from governor.core.events.inputs import Ack, Beat, Disconnected, Event, Hello, Step, TrainerExited
from governor.core.events.machine import GpuSample, HostMemory, HostSample, NodeUse, ProcessUse, SpotNotice
from governor.wire import recording
from governor.wire.recorded import PAUSE_MAX_NS, RecordedClock, RecordedRanks, is_note
from governor.wire.recording import ReceivedFrame
from trainer_shim.wire import encode, head

AT = MonoNs(5 * NS_PER_S)
FIRST, SECOND = ConnectionId(7), ConnectionId(8)


def hello(rank: int = 0, **more: Any) -> dict[str, Any]:
    said = {"seq": 1, "run": "r", "attempt": "a", "local_rank": rank, "world_size": 2, "signal": 0}
    return {**head("hello", rank, 1), **said, **more}


def step(rank: int = 0) -> dict[str, Any]:
    return {**head("step", rank, 1), "step": 4, "attempt_step": 4, "loss": "nan"}


def said(frame: dict[str, Any], connection: ConnectionId = FIRST, pid: int = 0, **more: Any) -> dict[str, Any]:
    """As it stands in the recording, read back."""
    process = ProcessId(pid, 9, "boot") if pid else None
    return read(recording.line(ReceivedFrame(AT, connection, encode(frame), process, **more)))


def read(line: bytes) -> dict[str, Any]:
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    return dict(json.loads(line))


def ranks(*lines: dict[str, Any]) -> tuple[RecordedRanks, list[Event]]:
    reader, events = RecordedRanks("r"), []
    for line in lines:
        found = reader.read(line, AT)
        assert not isinstance(found, list), found
        events += found
    return reader, events


def test_a_frame_is_its_own_words_with_when_and_where_it_was_heard() -> None:
    line = said(step())
    assert line == {**step(), "at_ns": AT, "conn": FIRST}
    _, (_, event) = ranks(said(hello(), pid=40), line)
    assert isinstance(event, Step)
    assert (event.at, event.step) == (AT, 4)
    assert event.loss is not None
    assert math.isnan(event.loss)


@pytest.mark.parametrize("space", [b" \n", b"\r\n\t", b"\n\n"])
def test_a_frame_is_one_line_however_it_was_laid_out(space: bytes) -> None:
    packet = space + encode(step()).replace(b",", b"," + space) + space
    assert read(recording.line(ReceivedFrame(AT, FIRST, packet))) == {**step(), "at_ns": AT, "conn": FIRST}


def test_what_a_frame_says_of_its_own_arrival_is_not_believed() -> None:
    assert said({**step(), "at_ns": 1, "conn": 1})["at_ns"] == AT


def test_a_hello_lacks_what_may_hold_a_secret() -> None:
    last_good = {"step": 3, "mono_ns": 2, "path": "s3://key@bucket"}
    told = {
        "resume_argv": ["--key=x"],
        "cwd": "/x",
        "checkpoint_dir": "/x",
        "open_incident": {},
        "harmed_save": {"path": "/x"},
        "newer_field": "x",
    }
    line = said(hello(**told, last_good=last_good, labels={"team": "a"}), pid=40)
    assert not told.keys() & line.keys()
    assert line["last_good"] == {"step": 3, "tokens_total": None, "mono_ns": 2}
    assert (line["labels"], line["pid"], line["start_ticks"]) == ({"team": "a"}, 40, 9)


def test_an_ack_lacks_where_the_checkpoint_lies_and_what_the_error_said() -> None:
    kept = {"kind": "good", "tokens_total": 9, "files": 2, "bytes": 5, "hashed": True, "mono_ns": 1}
    saved = {**kept, "path": "s3://key@bucket/step4", "manifest": "s3://key@bucket/step4/m.json"}
    ack = {**head("ack", 0, 1), "seq": 2, "incident": "c-1", "what": "saved", "step": 4}
    line = said({**ack, "checkpoint": saved, "reason": "no room in s3://key@bucket", "newer_field": "x"}, is_ack=True)
    assert line == {**ack, "checkpoint": kept, "at_ns": AT, "conn": FIRST}
    _, (_, event) = ranks(said(hello(), pid=40), line)
    assert isinstance(event, Ack)
    assert event.checkpoint is not None
    assert {**event.checkpoint.row(), "mono_ns": event.checkpoint.mono_ns} == kept


def test_a_connection_speaks_for_the_process_that_the_kernel_named() -> None:
    lost = read(recording.lost(AT, FIRST))
    _, events = ranks(said(hello(), pid=40), lost, said(hello(), SECOND, pid=40), said(step(), SECOND))
    before, gone, after, heard = events
    assert isinstance(before, Hello)
    assert isinstance(after, Hello)
    assert isinstance(heard, Step)
    assert gone == Disconnected(AT, before.connection)
    assert before.peer == after.peer
    assert before.connection != after.connection == heard.connection


def test_a_repeated_hello_is_for_whoever_begins_to_read_there() -> None:
    again = said(hello(), pid=40, is_again=True)
    _, events = ranks(said(hello(), pid=40), again)
    assert len(events) == 1
    _, events = ranks(again, said(step()))
    assert [type(event) for event in events] == [Hello, Step]


@pytest.mark.parametrize("note", [recording.gap(AT, 12), recording.halted(AT, "i-1")])
def test_nobody_has_record_behind_a_gap_or_a_halt(note: bytes) -> None:
    reader, events = ranks(said(hello(), pid=40), said(hello(1), SECOND, pid=41), read(note))
    assert [type(event) for event in events] == [Hello, Hello, Disconnected, Disconnected]
    assert reader.read(said(step()), AT) == ["step of rank 0 before its hello"]


GPUS = GpuSample(AT, None, (0.5, None), ("GPU-a", "GPU-b"), (1, None), (2, 3), (frozenset((40,)), None))


FIGURES = (GpuFigures(power_w=640.5, clock_reasons=0x40, xid_total=1, xids=(79,), is_mig=False), UNTOLD)
USE = NodeUse(cores=2, cpu_busy_s=12.5, disk_read_bytes=7)
RANK, WORKER = ProcessId(40, 1, "replay"), ProcessId(41, 1, "replay")
PROCESSES = (
    ProcessUse(RANK, RANK, "python", "S", 5_000, 7, None, cores_max=1.5, core_run_ns=4_000),
    ProcessUse(WORKER, RANK, "pt_data_worker", "R", 9_000, None, 4096),
)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (recording.gpus(GPUS), GPUS),
        (recording.gpus(GpuSample(AT, "r", (0.25,))), GpuSample(AT, None, (0.25,))),
        (recording.gpus(replace(GPUS, figures=FIGURES)), replace(GPUS, figures=FIGURES)),
        (recording.gpus(replace(GPUS, names=("A", "B"))), replace(GPUS, names=("A", "B"))),
        (recording.host(HostSample(AT, USE, PROCESSES, "r")), HostSample(AT, USE, PROCESSES, "r")),
        (
            recording.host(HostSample(AT, USE, PROCESSES, "r", frozenset({RANK}))),
            HostSample(AT, USE, PROCESSES, "r", frozenset({RANK})),
        ),
        (recording.memory(HostMemory(AT, 5, 9)), HostMemory(AT, 5, 9)),
        (recording.memory(HostMemory(AT, 5, 9, "r", "/g")), HostMemory(AT, 5, 9, "r", "/g")),
        (recording.spot(SpotNotice(AT, "stop", DurationNs(3))), SpotNotice(AT, "stop", DurationNs(3))),
        (recording.exited(AT), TrainerExited(AT, "r", None)),
    ],
)
def test_what_no_frame_says_is_told_as_it_was(line: bytes, event: Event) -> None:
    note = read(line)
    assert is_note(note)
    assert ranks(note)[1] == [event]


NO_GPUS: dict[str, Any] = {"uuids": [], "memory_used_bytes": [], "memory_total_bytes": [], "pids": []}


@pytest.mark.parametrize(
    ("note", "values"),
    [
        ("gpus", {**NO_GPUS, "busy_frac": [2.0]}),
        ("gpus", {**NO_GPUS, "busy_frac": [0.5], "uuids": ["a", "b"]}),
        ("gpus", {"busy_frac": 1}),
        ("gpus", {**NO_GPUS, "busy_frac": [0.5], "figures": [3]}),
        ("gpus", {**NO_GPUS, "busy_frac": [0.5], "names": [3]}),
        ("gpus", {**NO_GPUS, "busy_frac": [0.5], "figures": [{}, {}]}),
        ("gpus", {**NO_GPUS, "busy_frac": [0.5], "figures": [{"power_w": "hot"}]}),
        ("host", {"node": {}, "processes": 3}),
        ("host", {"node": {}, "processes": [], "cut": 3}),
        ("host", {"node": {}, "processes": [], "cut": [-3]}),
        ("host", {"node": {"cores": float("nan")}, "processes": []}),
        ("host", {"node": {}, "processes": [[1, 1, "python", "S", 5]]}),
        ("host", {"node": {}, "processes": [[1, 1, "python", "S", -5, None, None]]}),
        ("host", {"node": {}, "processes": [[1, 1, 5, "S", 5, None, None]]}),
        ("host", {"node": {}, "processes": [[1, 1, "python", "S", 5, None, None, -1]]}),
        ("host", {"node": {}, "processes": [[1, 1, "python", "S", 5, None, None, None, True]]}),
        ("host", {"node": {}, "processes": [[0, 0, "", "", 0, None, None]] * 1025}),
        ("memory", {"available_bytes": -1, "total_bytes": 2}),
        ("memory", {"available_bytes": True, "total_bytes": 2}),
        ("spot", {"action": 5}),
    ],
)
def test_a_note_that_no_governor_writes_is_a_fault_and_no_event(note: str, values: dict[str, Any]) -> None:
    found = RecordedRanks("r").read({"v": 1, "kind": "note", "note": note, **values}, AT)
    assert found == [f"note {note}: its values are not as a governor writes them"]


def segment(boot: str, mono_s: int, wall_s: int) -> dict[str, Any]:
    times = {"mono_ns": mono_s * NS_PER_S, "wall_ns": wall_s * NS_PER_S}
    return dict(read(recording.head("r", {"boot_id": boot}, **times, continues=False))["meta"])


def beat(at_s: int) -> dict[str, Any]:
    at_ns = at_s * NS_PER_S
    spoken = {"progress_seq": 1, "phase": "train", "phase_since_ns": at_ns - NS_PER_S}
    return {**head("beat", 0, at_ns), **spoken, "collective": {"entered_ns": at_ns}, "at_ns": at_ns, "conn": 7}


def test_another_boot_goes_on_as_long_after_the_first_as_it_was() -> None:
    clock = RecordedClock()
    assert clock.begin(segment("one", 1_000, 50_000)) is None
    assert clock.put(beat(1_005)) == beat(1_005)
    assert clock.begin(segment("one", 2_000, 90_000)) is None, "a wall clock that is set moves nothing within a boot"
    assert clock.put(beat(2_000)) == beat(2_000)
    assert clock.begin(segment("two", 10, 52_000)) is None
    later = clock.put(beat(11))
    assert later == beat(3_001), "every time in it is of the same clock"
    _, (_, event) = ranks(said(hello(), pid=40), later)
    assert isinstance(event, Beat)


@pytest.mark.parametrize("wall_s", [50_000 - 3600, 50_000 + 2 * PAUSE_MAX_NS // NS_PER_S])
def test_a_wall_clock_that_was_wrong_makes_no_time(wall_s: int) -> None:
    clock = RecordedClock()
    clock.begin(segment("one", 1_000, 50_000))
    clock.put(beat(1_005))
    clock.begin(segment("two", 10, wall_s))
    assert clock.put(beat(10))["at_ns"] == 1_005 * NS_PER_S


def test_the_wall_clock_is_told_by_the_segment_in_hand() -> None:
    clock = RecordedClock()
    clock.begin(segment("one", 1_000, 50_000))
    assert clock.wall_ahead_ns == 49_000 * NS_PER_S
    clock.put(beat(1_005))
    clock.begin(segment("one", 2_000, 49_000))  # It was set back by 2,000 s.
    assert clock.wall_ahead_ns == 47_000 * NS_PER_S
    clock.put(beat(2_000))
    clock.begin(segment("two", 10, 55_000))
    assert clock.put(beat(11))["at_ns"] + clock.wall_ahead_ns == 55_001 * NS_PER_S


@pytest.mark.parametrize("beyond", [-1, 2**63])
def test_a_time_beyond_any_clock_is_damage(beyond: int) -> None:
    meta = segment("one", 1_000, 50_000)
    for name in ("mono_ns", "wall_ns"):
        assert RecordedClock().begin(meta | {name: beyond}) == "the times of its first line are beyond any clock"


def test_a_format_to_come_is_named() -> None:
    assert RecordedClock().begin({"recording": 2}) == "recording format 2: this costgov knows 1"
