"""Frames that one core decodes per second, beside bare json.loads: `python -m benchmarks.bench_frames`.

One row per kind of frame; p99 is the slowest of the repeats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from benchmarks.table import Row, program, row
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import MonoNs
from governor.ports import Packet
from governor.wire.frames import decode
from trainer_shim.wire import encode, head

FRAMES_PER_REPEAT = 20_000
REPEATS = 7

PEER = Peer(ProcessId(4242, 123_456, "boot"), 1000)
STEP = {
    **head("step", 3, 10**12), "step": 12_345, "attempt_step": 345, "tokens": 524_288, "tokens_total": 6_472_335_360,
    "loss": 2.71828, "loss_expected": True, "grad_norm": 0.9134, "lr": 0.00029, "skipped_steps": 2, "applied": True,
    "step_s": 0.3112, "data_s": 0.0021, "forward_s": 0.1011, "backward_s": 0.1912, "optimizer_s": 0.0162,
    "checkpoint_s": 0.0, "comm_s": 0.0711, "device_timed": True, "mem_allocated_bytes": 41_234_567_890,
    "mem_reserved_bytes": 61_234_567_890, "rss_bytes": 12_345_678_901, "progress_seq": 987_654,
}  # fmt: skip
BEAT = {
    **head("beat", 3, 10**12), "progress_seq": 987_654, "phase": "train", "phase_since_ns": 10**11, "step": 12_345,
    "in_step": True, "last_hook": "backward", "last_hook_ns": 10**12, "device_wait": "synchronize",
    "stack": [f"/opt/venv/lib/python3.11/site-packages/torch/file_{n}.py:function_{n}:{n}" for n in range(24)],
    "stack_digest": "0123456789abcdef", "collective": {"op": "all_reduce", "count": 99, "done": False},
    "main_cpu_ns": 10**10,
}  # fmt: skip


def per_second(call: Callable[[], object]) -> list[float]:
    """The rate of each repeat, in calls per second of CPU time."""
    rates = []
    for _ in range(REPEATS):
        begun = time.process_time()
        for _ in range(FRAMES_PER_REPEAT):
            call()
        rates.append(FRAMES_PER_REPEAT / (time.process_time() - begun))
    return rates


def measure() -> list[Row]:
    rows = []
    for frame in (STEP, BEAT):
        packet = Packet(ConnectionId(1), PEER, encode(frame))
        ours = per_second(lambda packet=packet: decode(packet, MonoNs(10**12), "run-1"))
        bare = per_second(lambda packet=packet: json.loads(packet.data))
        what = f"{frame['kind']} frames decoded, {len(packet.data)} bytes"
        rows.append(row(what, "1/s", ours, more_is_better=True, peer="json.loads alone", peer_samples=bare))
    return rows


if __name__ == "__main__":
    program(__doc__, measure)
