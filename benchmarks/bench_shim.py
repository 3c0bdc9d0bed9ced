"""What the shim costs the training thread per step: `python -m benchmarks.bench_shim [--json]`.

Two engines: one that does nothing, so that all that is left is the shim, and a real tiny DeepSpeed engine, for what the
hooks cost amid real work, with cold caches. Beside them, in the same run, what a step
costs through DeepSpeed's own CSV monitor and through prometheus-client gauges with the same fields.
Each row: median over the runs of each run's median and p99.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LOCAL_RANK", "0")

import deepspeed
import deepspeed.comm
import deepspeed.ops
import torch
from prometheus_client import CollectorRegistry, Gauge
from torch import nn

from benchmarks.table import Row, program
from trainer_shim import attach
from trainer_shim.attach import Shim

RUNS = 5
STEPS = 1_000  # Per run of the no-op engine: p99 is then the 10th worst.
REAL_STEPS = 150
WARM_STEPS = 50
PACE_S = 0.001  # Paced steps find colder caches than back-to-back ones: closer to training, and noisier.
HOOKS = (
    "enter_forward", "exit_forward", "enter_backward", "exit_backward",
    "enter_optimizer", "exit_optimizer", "end_step", "boundary",
)  # fmt: skip
DRAIN = (
    "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.bind(sys.argv[1])\ns.listen(8)\n"
    "print('listening', flush=True)\nwhile True:\n    c, _ = s.accept()\n    while c.recv(65536):\n        pass\n"
)


class NoOp(nn.Module):
    """Looks like a DeepSpeedEngine and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Identity()
        self.optimizer = None
        self.device = torch.device("cpu")
        self.global_steps = self.skipped_steps = self.global_rank = 0
        self.loss = torch.tensor(2.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.loss

    def backward(self, loss: torch.Tensor) -> None:
        pass

    def step(self) -> None:
        self.global_steps += 1

    def was_step_applied(self) -> bool:
        return True

    def get_global_grad_norm(self) -> float:
        return 0.5

    def get_lr(self) -> list[float]:
        return [1e-3]

    def zero_optimization_stage(self) -> int:
        return 2

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
        return True

    load_checkpoint = save_checkpoint


# attach() knows an engine by its class's name and home.
NoOp.__name__ = NoOp.__qualname__ = "DeepSpeedEngine"
NoOp.__module__ = "deepspeed.runtime.engine"


def samples_us(call: Callable[[], object], steps: int, pace_s: float = 0.0) -> list[float]:
    """Time `steps` calls, in microseconds, each begun `pace_s` after the last one ended."""
    times = []
    for _ in range(steps):
        until = time.perf_counter() + pace_s
        while time.perf_counter() < until:
            pass
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1e3)
    return times


def summary(runs: list[list[float]], minus_us: float = 0.0) -> dict[str, float]:
    """Return the median run's median and p99, less what the same calls cost without the shim."""
    return {
        "median_us": statistics.median(statistics.median(run) for run in runs) - minus_us,
        "p99_us": statistics.median(sorted(run)[int(len(run) * 0.99)] for run in runs) - minus_us,
        "runs": len(runs),
    }


def no_op_step() -> tuple[NoOp, Callable[[], None]]:
    engine = NoOp()
    ids = torch.zeros((4, 128), dtype=torch.long)

    def step() -> None:
        engine.backward(engine(ids))
        engine.step()

    return engine, step


def bench_no_op(socket_path: str, pace_s: float = 0.0) -> dict[str, float]:
    """Median and p99 of an attached step that does nothing, less the bare one's median."""
    os.environ["COSTGOV_SOCKET"] = socket_path
    attached, bare = [], []
    for _ in range(RUNS):
        engine, step = no_op_step()
        bare.append(samples_us(step, STEPS, pace_s))
        shim = attach(engine)
        assert shim.watching
        samples_us(step, WARM_STEPS)
        attached.append(samples_us(step, STEPS, pace_s))
        shim.close()
    return summary(attached, minus_us=statistics.median(statistics.median(run) for run in bare))


def bench_real(socket_path: str, stage: int) -> dict[str, float]:
    """Time inside the hooks per step of a real engine; collectives' own hooks are in the step and counted apart."""
    os.environ["COSTGOV_SOCKET"] = socket_path
    runs, step_ms = [], []
    for _ in range(3):
        model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 256))
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=real_config(stage))
        shim = attach(engine)
        spent = time_hooks(shim)
        ids = torch.randint(0, 256, (4, 64))
        times = []
        for step in range(REAL_STEPS + WARM_STEPS):
            begun = time.perf_counter()
            spent[0] = 0
            engine.backward(nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten()))
            engine.step()
            if step >= WARM_STEPS:
                times.append(spent[0] / 1e3)
                step_ms.append((time.perf_counter() - begun) * 1e3)
        runs.append(times)
        shim.close()
    return {**summary(runs), "step_ms": statistics.median(step_ms)}


def real_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }


def time_hooks(shim: Shim) -> list[int]:
    """Sum the nanoseconds spent in this shim's hooks into the returned cell."""
    spent = [0]
    meter = shim._meter

    def timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begun = time.perf_counter_ns()
            result = hook(*args)
            spent[0] += time.perf_counter_ns() - begun
            return result

        return call

    for name in HOOKS:
        setattr(meter, name, timed(getattr(meter, name)))
    return spent


def bench_collective() -> dict[str, float]:
    """What timing adds to one collective call."""
    from trainer_shim.comm import wrap_backend
    from trainer_shim.meter import StepMeter
    from trainer_shim.progress import Progress
    from trainer_shim.tokens import TokenCount

    class Backend:
        def all_reduce(self) -> None:
            pass

    backend = Backend()
    bare = [samples_us(backend.all_reduce, STEPS) for _ in range(RUNS)]
    wrap_backend(backend, StepMeter(Progress(0), TokenCount(1, None, 1)))
    wrapped = [samples_us(backend.all_reduce, STEPS) for _ in range(RUNS)]
    return summary(wrapped, minus_us=statistics.median(statistics.median(run) for run in bare))


def bench_csv_monitor(directory: str) -> dict[str, float]:
    """DeepSpeed's own: the three events that its engine writes per step."""
    from deepspeed.monitor.config import CSVConfig
    from deepspeed.monitor.csv_monitor import csvMonitor

    monitor = csvMonitor(CSVConfig(enabled=True, output_path=directory, job_name="bench"))
    names = ("Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/loss_scale")
    return summary([samples_us(lambda: monitor.write_events([(n, 0.5, 7) for n in names]), 500) for _ in range(RUNS)])


def bench_gauges(count: int) -> dict[str, float]:
    """prometheus-client: `count` gauges set."""
    registry = CollectorRegistry()
    gauges = [Gauge(f"bench_{index}", "A figure of the step.", registry=registry) for index in range(count)]

    def write() -> None:
        for gauge in gauges:
            gauge.set(0.5)

    return summary([samples_us(write, STEPS) for _ in range(RUNS)])


def measure(directory: Path) -> dict[str, dict[str, float]]:
    """Run everything; keys are the rows' names."""
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rendezvous = {"init_method": f"file://{directory}/rendezvous", "rank": 0, "world_size": 1}
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False, **rendezvous)
    path = str(directory / "trainer.sock")
    listener = subprocess.Popen([sys.executable, "-c", DRAIN, path], stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None
        listener.stdout.readline()
        return {
            "shim, no-op engine, governor listening": bench_no_op(path),
            "shim, no-op engine, listening, paced 1 kHz": bench_no_op(path, PACE_S),
            "shim, no-op engine, nobody listening": bench_no_op(str(directory / "absent.sock")),
            "shim hooks, DeepSpeed ZeRO-2": bench_real(path, 2),
            "shim hooks, DeepSpeed ZeRO-3": bench_real(path, 3),
            "shim, each collective call": bench_collective(),
            "peer: DeepSpeed CSV monitor, 3 events": bench_csv_monitor(str(directory)),
            "peer: prometheus-client, 1 gauge set": bench_gauges(1),
            "peer: prometheus-client, 20 gauges set": bench_gauges(20),
        }
    finally:
        listener.kill()
        listener.wait()


PEERS = ("peer: DeepSpeed CSV monitor, 3 events", "peer: prometheus-client, 20 gauges set")
AIMED = ("shim, no-op engine, governor listening", "shim hooks, DeepSpeed ZeRO-2", "shim hooks, DeepSpeed ZeRO-3")


def table_rows(figures: dict[str, dict[str, float]]) -> list[Row]:
    """The shim's figures, the first beside both peers."""
    rows = []
    for name, one in figures.items():
        if name.startswith("peer:"):
            continue
        note = f"in a step of {one['step_ms']:.1f} ms" if "step_ms" in one else ""
        aim = "median < 15, p99 < 50" if name in AIMED else ""
        if "collective" in name:  # Per call, not per step: no peer does this.
            rows.append(Row(name, "us/call", one["median_us"], one["p99_us"], int(one["runs"])))
            continue
        for peer in PEERS if name == AIMED[0] else PEERS[:1]:
            theirs = figures[peer]["median_us"]
            rows.append(
                Row(
                    name, "us/step", one["median_us"], one["p99_us"], int(one["runs"]), aim,
                    peer.removeprefix("peer: "), theirs, note,
                )
            )  # fmt: skip
    return rows


def rows() -> list[Row]:
    # DeepSpeed starts compilers and prints; its directory goes with it.
    with tempfile.TemporaryDirectory() as directory:
        return table_rows(measure(Path(directory)))


if __name__ == "__main__":
    program(__doc__, rows)
