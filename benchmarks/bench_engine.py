"""Frames judged per second on one core: packet to event to engine, default policy: `python -m benchmarks.bench_engine`.

Eight ranks of one run at 10 steps/s, beats at 1 Hz, ticks at 4 Hz: the daemon's own mix, without its sockets. The
peer reads the same bytes with json.loads and does nothing with them: nothing in Python that takes JSON is faster.
Once more with all of it recorded, on disk at the end, with the CPU time of the thread that packs and writes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.bench_frames import BEAT, STEP
from benchmarks.table import Row, program, row
from governor.adapters.trainers.recordings import RecordingFiles
from governor.adapters.trainers.segments import limits_of
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_MS, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.events.inputs import Tick
from governor.daemon.recorder import Recorder
from governor.policies.parse import load_policies
from governor.ports import Packet
from governor.settings.model import Record
from governor.wire.frames import FrameReader
from trainer_shim.wire import encode, head

RANKS = 8
STEPS = 2_000  # Longer than every window of the rules: the last three quarters run with full ones.
STEP_NS = 100 * NS_PER_MS
STEPS_PER_BEAT = 10
STEPS_PER_BATCH = 10  # One sample: a simulated second, 88 frames and its ticks.
REPEATS = 5
POLICY = Path(__file__).resolve().parents[1] / "policies" / "default.toml"
FRAMES_PER_BATCH = RANKS * (STEPS_PER_BATCH + STEPS_PER_BATCH // STEPS_PER_BEAT)


def packets() -> list[list[tuple[MonoNs, Packet | Tick]]]:
    """Everything that arrives, in batches of one simulated second, with its time of arrival."""
    batches: list[list[tuple[MonoNs, Packet | Tick]]] = []
    for step in range(1, STEPS + 1):
        if (step - 1) % STEPS_PER_BATCH == 0:
            batches.append([])
        at = MonoNs(NS_PER_S + step * STEP_NS)
        if step % 5 in (0, 3):  # 4 ticks in 10 steps.
            batches[-1].append((at, Tick(at, BootNs(at), WallNs(at))))
        for rank in range(RANKS):
            batches[-1].append((at, _packet(rank, _step_frame(rank, step, at))))
            if step % STEPS_PER_BEAT == 0:
                batches[-1].append((at, _packet(rank, _beat_frame(rank, step, at))))
    return batches


def _step_frame(rank: int, step: int, at: MonoNs) -> dict[str, object]:
    changing = {"step": step, "attempt_step": step, "tokens_total": step * 524_288, "skipped_steps": 0}
    wobble = (step * 37 + rank * 11) % 100 / 1e3
    speeds = {"loss": 2.5 + wobble, "step_s": 0.1 + wobble / 10, "data_s": 0.002, "progress_seq": step * 40}
    return {**STEP, **head("step", rank, at), **changing, **speeds}


def _beat_frame(rank: int, step: int, at: MonoNs) -> dict[str, object]:
    return {**BEAT, **head("beat", rank, at), "step": step, "progress_seq": step * 40 + 7, "phase_since_ns": 1}


def _packet(rank: int, frame: dict[str, object]) -> Packet:
    return Packet(ConnectionId(rank + 1), Peer(ProcessId(4000 + rank, 1000 + rank, "boot"), 1000), encode(frame))


def watched() -> tuple[Node, FrameReader]:
    """A governor's state in which all ranks have said hello."""
    policies, problems = load_policies([(str(POLICY), POLICY.read_text(encoding="utf-8"))])
    assert policies is not None, problems
    facts = NodeFacts(node="bench", boot_id="boot", price_usd_micros_per_hour=UsdMicros(98_320_000))
    node, reader = new_node(facts, policies, BootNs(0), WallNs(0)), FrameReader()
    for rank in range(RANKS):
        hello = {
            **head("hello", rank, 1), "seq": 1, "run": "bench", "attempt": "1", "local_rank": rank,
            "world_size": RANKS, "signal": 10, "tokens_per_step": 524_288, "capabilities": ["ask", "agree", "beat"],
        }  # fmt: skip
        for event in reader.read(_packet(rank, hello), MonoNs(NS_PER_S)):
            engine.step(node, event)
    return node, reader


def judge(
    node: Node, reader: FrameReader, batch: Iterable[tuple[MonoNs, Packet | Tick]], recorder: Recorder | None = None
) -> None:
    for at, arrival in batch:
        if isinstance(arrival, Tick):
            engine.step(node, arrival)
            if recorder is not None:
                recorder.tick(at)
        else:
            for event in reader.read(arrival, at):
                engine.step(node, event)
                if recorder is not None:
                    recorder.record_frame(arrival, event)


def recorded(batches: list[list[tuple[MonoNs, Packet | Tick]]]) -> float:
    """Frames a second of a whole run."""
    with tempfile.TemporaryDirectory() as directory:
        node, reader = watched()
        files = RecordingFiles(
            Path(directory) / "recordings", limits_of(Record()), {"node": "bench", "boot_id": "boot"}
        )
        recorder = Recorder(node, files)
        begun = time.process_time_ns()
        for batch in batches:
            judge(node, reader, batch, recorder)
        files.close()
        assert (files.problem, files.lost_total) == (None, 0), "every frame was kept"
        return len(batches) * FRAMES_PER_BATCH * 1e9 / (time.process_time_ns() - begun)


def measure() -> list[Row]:
    batches = packets()
    rates, bare, kept = [], [], []
    for _ in range(REPEATS):
        node, reader = watched()
        for batch in batches:
            begun = time.process_time_ns()
            judge(node, reader, batch)
            rates.append(FRAMES_PER_BATCH * 1e9 / (time.process_time_ns() - begun))
        assert node.frames_total == RANKS * (STEPS + STEPS // STEPS_PER_BEAT), "every frame was judged"
        assert node.runs["bench"].incident is None, "a healthy run"
        for batch in batches:
            arrivals = [arrival.data for _, arrival in batch if isinstance(arrival, Packet)]
            begun = time.process_time_ns()
            for data in arrivals:
                json.loads(data)
            bare.append(FRAMES_PER_BATCH * 1e9 / (time.process_time_ns() - begun))
        kept.append(recorded(batches))
    what = "frames judged, 8 ranks, default policy"
    aim = "median > 20,000"
    rows = ((what, rates), ("the same, and recorded", kept))
    return [
        row(name, "1/s", samples, more_is_better=True, peer="json.loads alone", peer_samples=bare, aim=aim)
        for name, samples in rows
    ]


if __name__ == "__main__":
    program(__doc__, measure)
