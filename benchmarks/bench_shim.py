"""What the shim costs the training thread per step: `python -m benchmarks.bench_shim [--json]`.

Two engines: one that does nothing, so that all that is left is the shim, and a real tiny DeepSpeed engine, for what the
hooks cost amid real work, with cold caches. Beside each, in the same run and in the same kind of loop, what a step
costs through DeepSpeed's own CSV monitor and through prometheus-client gauges with the same fields. What the listener
thread does for a step is a row of its own: it runs beside the training thread, and shares the interpreter with it.
Each row: median over the runs of each run's median and p99.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
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
from torch import nn

from benchmarks.shim_timing import gauges, listening, samples_us, shim_row, summary
from benchmarks.table import Row, program
from trainer_shim import attach
from trainer_shim.attach import Shim
from trainer_shim.engines.deepspeed_engine import DeepSpeedFacts

RUNS = 5
STEPS = 1_000  # Per run of the no-op engine: p99 is then the 10th worst.
REAL_RUNS = 3
REAL_STEPS = 150
WARM_STEPS = 50
AIM = "median < 15, p99 < 50"
PEERS = ("DeepSpeed CSV monitor, 3 events", "prometheus-client, 20 gauges set")
PACE_S = 0.001  # Paced steps find colder caches than back-to-back ones: closer to training, and noisier.
HOOKS = (
    "enter_forward", "exit_forward", "enter_backward", "exit_backward",
    "enter_optimizer", "exit_optimizer", "end_step", "boundary",
)  # fmt: skip


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


def no_op_step() -> tuple[NoOp, Callable[[], None]]:
    engine = NoOp()
    ids = torch.zeros((4, 128), dtype=torch.long)

    def step() -> None:
        engine.backward(engine(ids))
        engine.step()

    return engine, step


def bench_no_op(socket_path: str, pace_s: float = 0.0) -> dict[str, float]:
    """Median and p99 of an attached step that does nothing, less the bare one's median.

    `listener_us`: CPU time of the shim's own thread per step, beats included.
    """
    os.environ["COSTGOV_SOCKET"] = socket_path
    attached, bare, listener_us = [], [], []
    for _ in range(RUNS):
        engine, step = no_op_step()
        bare.append(samples_us(step, STEPS, pace_s))
        shim = attach(engine)
        assert shim.watching
        samples_us(step, WARM_STEPS)
        clock = listener_clock()
        begun = time.clock_gettime_ns(clock)
        attached.append(samples_us(step, STEPS, pace_s))
        listener_us.append((time.clock_gettime_ns(clock) - begun) / 1e3 / STEPS)
        shim.close()
    known = summary(attached, minus_us=statistics.median(statistics.median(run) for run in bare))
    return {**known, "listener_us": statistics.median(listener_us), "listener_max_us": max(listener_us)}


def listener_clock() -> int:
    """The CPU clock of the shim's listener thread."""
    [ident] = [thread.ident for thread in threading.enumerate() if thread.name == "costgov-listener"]
    assert ident is not None
    return time.pthread_getcpuclockid(ident)


def bench_real(socket_path: str, stage: int, directory: str) -> dict[str, dict[str, float]]:
    """Time inside the hooks per step of a real engine, and in peers called at the end of the same steps.

    The collectives' own hooks are in the step and counted apart.
    """
    os.environ["COSTGOV_SOCKET"] = socket_path
    peers = {"DeepSpeed CSV monitor, 3 events": csv_writer(directory), "prometheus-client, 20 gauges set": gauges(20)}
    times: dict[str, list[list[float]]] = {name: [] for name in ("hooks", *peers)}
    step_ms = []
    for _ in range(REAL_RUNS):
        model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 256))
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=real_config(stage))
        shim, spent = attach_timed(engine)
        ids = torch.randint(0, 256, (4, 64))
        for step in range(REAL_STEPS + WARM_STEPS):
            if step in (0, WARM_STEPS):
                run = {name: list[float]() for name in times}
            spent[0] = 0
            begun = time.perf_counter()
            engine.backward(nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten()))
            engine.step()
            step_ms.append((time.perf_counter() - begun) * 1e3)
            run["hooks"].append(spent[0] / 1e3)
            for name, write in peers.items():
                run[name] += samples_us(write, 1)
        for name in times:
            times[name].append(run[name])
        shim.close()
    return {name: {**summary(runs), "step_ms": statistics.median(step_ms)} for name, runs in times.items()}


def real_config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }


def attach_timed(engine: Any) -> tuple[Shim, list[int]]:
    """Attach to `engine`; the returned cell sums the nanoseconds spent in our hooks and in reading its facts."""
    spent = [0]

    def timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begun = time.perf_counter_ns()
            result = hook(*args)
            spent[0] += time.perf_counter_ns() - begun
            return result

        return call

    read = DeepSpeedFacts.read
    DeepSpeedFacts.read = timed(read)  # type: ignore[method-assign]
    try:
        shim = attach(engine)
        assert shim.watching
    finally:
        DeepSpeedFacts.read = read  # type: ignore[method-assign]
    meter = shim._meter
    for name in HOOKS:
        setattr(meter, name, timed(getattr(meter, name)))
    return shim, spent


def bench_collective() -> dict[str, float]:
    """What timing adds to one collective call."""
    from trainer_shim.engines.deepspeed_comm import wrap_backend
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


def csv_writer(directory: str) -> Callable[[], None]:
    """DeepSpeed's own: the three events that its engine writes per step."""
    from deepspeed.monitor.config import CSVConfig
    from deepspeed.monitor.csv_monitor import csvMonitor

    monitor = csvMonitor(CSVConfig(enabled=True, output_path=directory, job_name="bench"))
    names = ("Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/loss_scale")
    return lambda: monitor.write_events([(name, 0.5, 7) for name in names])


def measure(directory: Path) -> list[Row]:
    """Run everything."""
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rendezvous = {"init_method": f"file://{directory}/rendezvous", "rank": 0, "world_size": 1}
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False, **rendezvous)
    path = str(directory / "trainer.sock")
    with listening(path):
        return [
            *no_op_rows(path, str(directory / "absent.sock"), str(directory)),
            *real_rows(path, 2, str(directory)),
            *real_rows(path, 3, str(directory)),
            shim_row("shim, each collective call", bench_collective(), unit="us/call"),
        ]


def no_op_rows(path: str, absent: str, directory: str) -> list[Row]:
    """The shim alone, with and without a governor; peers in a loop as bare."""
    figures = {
        "shim, no-op engine, governor listening": bench_no_op(path),
        "shim, no-op engine, listening, paced 1 kHz": bench_no_op(path, PACE_S),
        "shim, no-op engine, nobody listening": bench_no_op(absent),
    }
    csv = summary([samples_us(csv_writer(directory), 500) for _ in range(RUNS)])["median_us"]
    twenty = summary([samples_us(gauges(20), STEPS) for _ in range(RUNS)])["median_us"]
    rows = []
    for name, one in figures.items():
        aim = AIM if name.endswith("governor listening") else ""
        rows.append(shim_row(name, one, aim, PEERS[0], csv))
        if aim:
            rows.append(shim_row(name, one, aim, PEERS[1], twenty))
    paced = figures["shim, no-op engine, listening, paced 1 kHz"]
    thread = {"median_us": paced["listener_us"], "p99_us": paced["listener_max_us"], "runs": paced["runs"]}
    return [*rows, shim_row("shim, its listener thread's CPU, paced 1 kHz", thread)]


def real_rows(path: str, stage: int, directory: str) -> list[Row]:
    """The hooks of a real engine beside both peers, called in the same steps."""
    figures = bench_real(path, stage, directory)
    hooks = figures["hooks"]
    note = f"in a step of {hooks['step_ms']:.1f} ms"
    name = f"shim hooks, DeepSpeed ZeRO-{stage}"
    return [shim_row(name, hooks, "", f"{peer}, same steps", figures[peer]["median_us"], note) for peer in PEERS]


def rows() -> list[Row]:
    # DeepSpeed starts compilers and prints; its directory goes with it.
    with tempfile.TemporaryDirectory() as directory:
        return measure(Path(directory))


if __name__ == "__main__":
    program(__doc__, rows)
