"""What of a node's life is recorded, and what is not: by the engine's own word of whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import NodeFacts, new_node
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import Disconnected, Event, Tick, TrainerExited
from governor.core.events.machine import GpuSample, HostMemory, HostSample, NodeUse, ProcessUse, SpotNotice
from governor.core.events.operators import OperatorHalt
from governor.core.halt.state import HaltState
from governor.core.rules.log_rhythm import BLIND_AFTER_NS
from governor.daemon.recorder import STOPPED, Recorder
from governor.policies.parse import load_policies
from governor.ports import Packet
from governor.wire import recording
from governor.wire.frames import FrameReader
from governor.wire.recording import ReceivedFrame
from trainer_shim.wire import encode, head

POLICY = '[policy]\nname = "p"\n[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nfor = "1 step"\nresponse = "halt"\n'
Line = dict[str, Any]


@dataclass
class Memory:
    """`recorder.Recordings` that keeps what it is told, as a reader would find it."""

    told: dict[str, list[Line]] = field(default_factory=dict)
    connected: set[ConnectionId] = field(default_factory=set)
    flushed: list[str] = field(default_factory=list)
    problem: str | None = None

    def hello(self, run: str, line: ReceivedFrame) -> None:
        self.connected.add(line.connection)

    def lost(self, connection: ConnectionId) -> None:
        self.connected.discard(connection)

    def put(self, run: str, line: ReceivedFrame) -> None:
        self.told.setdefault(run, []).append(json.loads(recording.line(line)))

    def note(self, run: str, at: MonoNs, line: bytes) -> None:
        self.told.setdefault(run, []).append(json.loads(line))

    def again(self, run: str, at: MonoNs) -> None:
        self.told.setdefault(run, []).append({"kind": "again"})

    def flush(self, run: str) -> None:
        self.flushed.append(run)

    def end(self, run: str) -> None:
        self.told.setdefault(run, []).append({"kind": "end"})


class Loop:
    """The daemon's order of things around the recorder."""

    def __init__(self) -> None:
        policies, problems = load_policies([("p.toml", POLICY)])
        assert policies is not None, problems
        facts = NodeFacts("n", "boot", UsdMicros(1_000_000))
        self.node = new_node(facts, policies, BootNs(0), WallNs(0))
        self.kept = Memory()
        self.recorder = Recorder(self.node, self.kept)
        self.reader = FrameReader()
        self.now = MonoNs(NS_PER_S)

    def say(self, kind: str, connection: int = 1, rank: int = 0, **values: Any) -> None:
        self.now = MonoNs(self.now + NS_PER_S)
        peer = Peer(ProcessId(40 + connection, 9, "boot"), 0)
        packet = Packet(ConnectionId(connection), peer, encode({**head(kind, rank, self.now), **values}))
        for event in self.reader.read(packet, self.now):
            engine.step(self.node, event)
            self.recorder.record_frame(packet, event)

    def hello(self, run: str, connection: int = 1, rank: int = 0, attempt: str = "a", **more: Any) -> None:
        values = {"seq": 1, "run": run, "attempt": attempt, "local_rank": rank, "world_size": 2, "signal": 0}
        self.say("hello", connection, rank, **values, **more)

    def step(self, number: int, connection: int = 1, rank: int = 0, loss: float | str = 2.0) -> None:
        self.say("step", connection, rank, step=number, attempt_step=number, loss=loss)

    def happen(self, event: Event) -> None:
        engine.step(self.node, event)
        self.recorder.record_sample(event)

    def lose(self, connection: int) -> None:
        self.recorder.lost(ConnectionId(connection), self.now)
        engine.step(self.node, Disconnected(self.now, ConnectionId(connection)))

    def tick(self) -> list[str]:
        self.now = MonoNs(self.now + NS_PER_S)
        engine.step(self.node, Tick(self.now, BootNs(self.now), WallNs(self.now)))
        return [alarm.name for alarm in self.recorder.tick(self.now)]

    def kinds(self, run: str = "anna") -> list[str]:
        return [line.get("note") or line["kind"] for line in self.kept.told.get(run, [])]


def test_each_run_has_its_own_frames_and_a_stranger_none() -> None:
    loop = Loop()
    loop.hello("anna", 1)
    loop.hello("ben", 2)
    loop.step(1, 1)
    loop.step(2, 2)
    loop.step(3, 3)  # Nobody's: it never said hello.
    loop.hello("ben", 4)  # Refused: somebody else is that rank.
    loop.step(4, 4)
    assert loop.kinds("anna") == loop.kinds("ben") == ["hello", "step"]
    assert loop.kept.told["anna"][1]["at_ns"] == loop.now - 4 * NS_PER_S, "by the governor's clock"
    assert set(loop.kept.told) == {"anna", "ben"}


def test_no_frame_tells_where_checkpoints_lie() -> None:
    loop = Loop()
    loop.hello("anna", checkpoint_dir="/key", last_good={"step": 1, "path": "/key"})
    saved = {"kind": "good", "path": "/key", "manifest": "/key/m.json"}
    loop.say("ack", seq=2, incident="c-1", what="saved", step=1, checkpoint=saved)
    loop.say("ack", seq=3, incident="c-1", what="failed", step=2, reason="cannot write /key")
    assert loop.kinds() == ["hello", "ack", "ack"]
    assert "/key" not in json.dumps(loop.kept.told)


def test_the_frame_that_decides_a_halt_is_the_last_until_somebody_trains_again() -> None:
    loop = Loop()
    loop.hello("anna")
    loop.step(1)
    loop.step(2, loss="nan")
    loop.step(3, loss="nan")
    loop.hello("anna", 2, 1)  # A rank that comes while it halts.
    loop.happen(HostMemory(loop.now, 1, 2))
    assert loop.kinds() == ["hello", "step", "step", "halted"]
    assert loop.kept.flushed == ["anna"], "written at once: the machine may be stopped next"
    incident = loop.node.runs["anna"].incident
    assert incident is not None
    assert loop.kept.told["anna"][-1]["incident"] == incident.incident_id
    incident.halt = replace(incident.halt, stage=HaltState.HALTED)
    loop.hello("anna", 3, attempt="b")
    loop.step(1, 3)
    assert loop.kinds()[4:] == ["again", "hello", "step"]


def test_a_halt_that_no_frame_decided_is_noted_at_its_tick() -> None:
    loop = Loop()
    loop.hello("anna")
    engine.step(loop.node, OperatorHalt(loop.now, "anna", "because", 0))
    loop.tick()
    assert loop.kinds() == ["hello", "halted"]
    assert loop.kept.told["anna"][-1]["at_ns"] == loop.now
    loop.tick()
    assert loop.kinds() == ["hello", "halted"]


def test_a_connection_that_ends_is_told_and_an_exit_ends_the_recording() -> None:
    loop = Loop()
    loop.hello("anna")
    loop.lose(1)
    engine.step(loop.node, TrainerExited(loop.now, "anna", 0))
    loop.tick()
    loop.tick()
    assert loop.kinds() == ["hello", "lost", "exited", "end"]
    assert loop.kept.connected == set()


def test_a_run_is_told_of_its_own_gpus_and_of_what_all_share() -> None:
    loop = Loop()
    loop.hello("anna", 1, gpu_uuids=["GPU-a"])
    loop.hello("ben", 2, gpu_uuids=["GPU-b"])
    loop.happen(GpuSample(loop.now, None, (0.1, 0.2), ("GPU-a", "GPU-b")))
    loop.happen(HostMemory(loop.now, 1, 2))
    loop.happen(HostMemory(loop.now, 1, 2, "ben", "/group"))
    loop.happen(SpotNotice(loop.now, None))
    loop.happen(SpotNotice(loop.now, "terminate"))
    assert loop.kinds("anna") == ["hello", "gpus", "memory", "spot"]
    assert loop.kinds("ben") == ["hello", "gpus", "memory", "memory", "spot"]
    assert loop.kept.told["ben"][1]["uuids"] == ["GPU-b"]


def test_figures_of_gpus_are_told_at_times_and_whenever_a_rule_sees_a_difference() -> None:
    loop = Loop()
    loop.hello("anna", 1, gpu_uuids=["GPU-a"])
    cool, hot = GpuFigures(power_w=600, clock_reasons=4), GpuFigures(clock_reasons=0x40)
    begun = loop.now
    for second, figures in enumerate([cool] * 12 + [hot, hot, cool]):
        loop.now = MonoNs(begun + second * NS_PER_S)
        loop.happen(GpuSample(loop.now, None, (0.1,), ("GPU-a",), figures=(figures,)))
    told = [number for number, line in enumerate(loop.kept.told["anna"][1:]) if "figures" in line]
    assert told == [0, 10, 12, 14]


def test_the_use_of_a_runs_processes_is_told_every_ten_seconds_and_no_others() -> None:
    loop = Loop()
    loop.hello("anna")
    managed = loop.node.runs["anna"]
    rank = managed.processes()[0]
    strangers = ProcessId(9, 9, rank.boot_id)
    uses = tuple(ProcessUse(one, one, "python", "R", 5) for one in (rank, strangers))
    begun = loop.now
    for second in range(21):
        loop.now = MonoNs(begun + second * NS_PER_S)
        loop.happen(HostSample(loop.now, NodeUse(cores=2), uses))
    told = [line for line in loop.kept.told["anna"] if line.get("note") == "host"]
    assert [line["at_ns"] - begun for line in told] == [0, 10 * NS_PER_S, 20 * NS_PER_S]
    assert [row[0] for row in told[0]["processes"]] == [rank.pid]


@pytest.mark.parametrize(
    ("first", "heard"),
    [
        (lambda loop: loop.step(2), "step"),
        (lambda loop: loop.happen(HostMemory(loop.now, 1, 2)), "memory"),
        (lambda loop: loop.lose(1), "lost"),
        (lambda loop: loop.tick(), None),
    ],
)
def test_time_in_which_we_did_not_run_is_no_silence_of_the_runs(first: Callable[[Loop], Any], heard: str) -> None:
    """Stopped, frozen or paused with the machine, and then first of all this comes."""
    loop = Loop()
    loop.hello("anna")
    loop.step(1)
    loop.tick()
    slept_at, loop.now = loop.now, MonoNs(loop.now + BLIND_AFTER_NS)
    first(loop)
    loop.tick()
    assert loop.kinds() == ["hello", "step", "gap", "again", *([heard] if heard else [])]
    assert loop.kept.told["anna"][2]["at_ns"] == slept_at


def test_what_is_wrong_with_the_disk_is_said_once_until_it_is_well_again() -> None:
    loop = Loop()
    assert loop.tick() == []
    loop.kept.problem = "full"
    assert [loop.tick() for _ in range(3)] == [[STOPPED], [], []]
    loop.kept.problem = None
    assert loop.tick() == []
    loop.kept.problem = "full"
    assert loop.tick() == [STOPPED]
