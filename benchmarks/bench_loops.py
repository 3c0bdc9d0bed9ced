"""What the shim costs the training thread in loops without DeepSpeed: `python -m benchmarks.bench_loops [--json]`.

The no-op loops call a model, backward() and an optimizer that do next to nothing, so that what a step takes longer with
the shim is the shim: with PyTorch's own cost of having hooks, and with the sample of the gradient, for a sample here is
the mean of the eight steps in which it is taken once. The real loop trains a tiny model; there the bare and the watched
blocks alternate. Each row: median over the runs of each run's median and p99, less the bare median.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.shim_timing import gauges, listening, samples_us, shim_row, summary
from benchmarks.table import Row, program
from trainer_shim import attach

RUNS = 5
SAMPLED_STEPS = 8  # The gradient is sampled at one step in so many.
SAMPLES = 250  # Per run of a no-op loop: p99 is then the third worst.
WARM_STEPS = 50
REAL_BLOCKS = 10
REAL_STEPS = 40
PEER = "prometheus-client, 20 gauges set"
Step = Callable[[], object]
Watched = Callable[[], Any]  # Attaches; returns what has close().


class NoOpModel(nn.Module):
    """Of 24 parameters, whose gradients are there from the beginning. `shape`: what forward() returns."""

    def __init__(self, shape: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.shape = shape
        self.scale = nn.Parameter(torch.tensor(2.5))
        sizes = [64, 4_096] * 12
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.shape(self.scale * 1.0)


class NoOpOptimizer(torch.optim.Optimizer):
    """Leaves the weights as they are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> None:
        pass


def returns_loss(out: Any) -> Any:
    return out


def loss_of_tuple(out: Any) -> Any:
    return out[0]


SHAPES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]] = {
    "the model returns the loss": (returns_loss, returns_loss),
    "it returns (loss, logits)": (lambda scalar: (scalar, scalar), loss_of_tuple),
    "the loop computes the loss": (lambda scalar: scalar.reshape(1, 1).expand(2, 1), torch.Tensor.sum),
}


def no_op_loop(name: str) -> tuple[Step, Watched]:
    """One step of a plain loop that does nothing, and what attaches to it."""
    shape, loss_of = SHAPES[name]
    model = NoOpModel(shape)
    optimizer = NoOpOptimizer(model.parameters())
    ids = torch.zeros((4, 128), dtype=torch.long)

    def step() -> None:
        loss_of(model(ids)).backward()
        optimizer.step()

    return step, lambda: attach(model, optimizer=optimizer, checkpoint_dir=os.curdir)


class Trainer:
    """As much of transformers.Trainer as is hooked: the loop below calls its callback as train() does."""

    def __init__(self, model: Any, optimizer: Any, directory: str) -> None:
        from transformers import TrainingArguments

        self.model = self.model_wrapped = model
        self.optimizer = optimizer
        self.accelerator = _Accelerator()
        self.args = TrainingArguments(directory, use_cpu=True, report_to=[])
        self.state = _State()
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)
        callback.on_train_begin(self.args, self.state, _Control())

    def remove_callback(self, callback: Any) -> None:
        self.callbacks.remove(callback)

    def evaluate(self) -> None:
        pass

    def _save_checkpoint(self) -> None:
        pass


# attach() knows a Trainer by its class's name and home.
Trainer.__module__ = "transformers.trainer"


class _Accelerator:
    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


class _State:
    global_step = 0
    max_steps = -1


class _Control:
    should_save = False


def trainer_loop(directory: str) -> tuple[Step, Watched]:
    """One step as a Trainer's, around a model that does nothing."""
    model = NoOpModel(returns_loss)
    trainer = Trainer(model, NoOpOptimizer(model.parameters()), directory)
    ids, control = torch.zeros((4, 128), dtype=torch.long), _Control()

    def step() -> None:
        trainer.accelerator.backward(model(ids))
        trainer.optimizer.step()
        trainer.state.global_step += 1
        for callback in trainer.callbacks:
            callback.on_step_end(trainer.args, trainer.state, control)

    return step, lambda: attach(trainer)


def real_loop(clips: bool) -> tuple[Step, Watched]:
    """One step of a tiny model, with AdamW."""
    model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 256, (4, 64))

    def step() -> None:
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: attach(model, optimizer=optimizer, checkpoint_dir=os.curdir)


def bench_no_op(loop: tuple[Step, Watched]) -> dict[str, float]:
    """Per step, the mean of eight."""
    step, watched = loop

    def eight() -> None:
        for _ in range(SAMPLED_STEPS):
            step()

    def run() -> list[float]:
        samples_us(step, WARM_STEPS)
        return [eight_us / SAMPLED_STEPS for eight_us in samples_us(eight, SAMPLES)]

    bare, attached = [], []
    for _ in range(RUNS):
        bare.append(run())
        shim = watched()
        assert shim.watching
        attached.append(run())
        shim.close()
    return summary(attached, minus_us=statistics.median(statistics.median(one) for one in bare))


def bench_real(loop: tuple[Step, Watched]) -> dict[str, float]:
    """CPU time of the training thread: on a step of milliseconds, what other processes do would hide ours."""
    step, watched = loop
    bare, attached = [], []
    samples_us(step, WARM_STEPS)
    for _ in range(REAL_BLOCKS):
        bare.append(_cpu_us(step))
        shim = watched()
        assert shim.watching
        attached.append(_cpu_us(step))
        shim.close()
    added = sorted(ours - theirs for ours, theirs in zip(attached, bare, strict=True))
    return {
        "median_us": statistics.median(added),
        "p99_us": added[-1],
        "runs": REAL_BLOCKS,
        "step_us": statistics.median(bare),
    }


def _cpu_us(step: Step) -> float:
    for _ in range(SAMPLED_STEPS):
        step()
    begun_ns = time.thread_time_ns()
    for _ in range(REAL_STEPS):
        step()
    return (time.thread_time_ns() - begun_ns) / 1e3 / REAL_STEPS


def measure(directory: Path) -> list[Row]:
    torch.set_num_threads(1)
    os.environ["COSTGOV_SOCKET"] = str(directory / "trainer.sock")
    twenty = summary([samples_us(gauges(20), 1_000) for _ in range(RUNS)])["median_us"]
    with listening(os.environ["COSTGOV_SOCKET"]):
        loops = {f"shim, no-op plain loop, {name}": no_op_loop(name) for name in SHAPES}
        loops["shim, no-op loop of a Hugging Face Trainer"] = trainer_loop(str(directory))
        rows = [shim_row(name, bench_no_op(loop), peer=PEER, theirs=twenty) for name, loop in loops.items()]
        for clips in (False, True):
            one = bench_real(real_loop(clips))
            name = f"shim, plain loop of a tiny model{', clipped' if clips else ''}"
            note = f"CPU time, worst of {REAL_BLOCKS} blocks for p99; a bare step takes {one['step_us'] / 1e3:.2f} ms"
            rows.append(shim_row(name, one, note=note))
    return rows


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        return measure(Path(directory))


if __name__ == "__main__":
    program(__doc__, rows)
