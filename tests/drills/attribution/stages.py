"""One rank of `stages.py pipeline INJECTED --amount S --steps N --out DIR`: two stages of DeepSpeed's pipeline.

Each layer sleeps in both passes, so that stages are as long as they are told: the two cores of a small machine have
other tenants. Injected: none (many micro-batches), bubble (few), slow (few, and stage 1 takes longer in both passes).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import deepspeed.ops
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.drills.attribution.truth import Truth
from trainer_shim import attach, wrap_loader

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute.
import deepspeed  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: E402
from deepspeed.runtime import engine as runtime_engine  # noqa: E402
from deepspeed.runtime.pipe import engine as pipe_engine  # noqa: E402
from deepspeed.utils import RepeatingLoader  # noqa: E402

asked = argparse.ArgumentParser()
asked.add_argument("engine", choices=("pipeline",))
asked.add_argument("injected")
asked.add_argument("--amount", type=float, required=True)
asked.add_argument("--steps", type=int, required=True)
asked.add_argument("--out", type=Path, required=True)
asked.add_argument("--micro-batches", type=int, help="of a step; default: 16, or 3 of a bubble and 4 of a slow stage")
told = asked.parse_args()
RANK = int(os.environ["RANK"])
STAGES, BATCH, WIDTH, CLASSES = 2, 4, 32, 8
MICRO_BATCHES = told.micro_batches or {"bubble": 3, "slow": 4}.get(told.injected, 16)
# A layer's two passes; a stage has two layers. AMOUNT is what a slow stage takes longer in a step.
PASS_S = 0.24 / MICRO_BATCHES / 4
SLOW_S = told.amount / MICRO_BATCHES / 4 if told.injected == "slow" else 0.0
torch.set_num_threads(1)
torch.manual_seed(0)
truth = Truth(time.sleep)


class Pause(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> Any:
        time.sleep(context.seconds)
        return grads[0], None


class Layer(nn.Module):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = PASS_S + (SLOW_S if stage == 1 else 0.0)

    def forward(self, x: torch.Tensor) -> Any:
        return Pause.apply(self.linear(x), self.seconds)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((WIDTH,), index / 10_000), index % CLASSES


def loss_of(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(found[:, :CLASSES], labels)


def time_neighbours() -> None:
    """Own timers around what a stage sends and receives, and around the norm and the loss of all stages."""

    def timed(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with truth.timed("bubble"):
                return original(*args, **kwargs)

        return call

    for owner, names in ((pipe_engine.p2p, ("send", "recv")), (runtime_engine, ("clip_grad_norm_",))):
        for name in names:
            setattr(owner, name, timed(getattr(owner, name)))
    pipe_engine.PipelineEngine._aggregate_total_loss = timed(pipe_engine.PipelineEngine._aggregate_total_loss)


deepspeed.init_distributed("gloo", verbose=False)
time_neighbours()
module = PipelineModule(
    layers=[LayerSpec(Layer, stage) for stage in (0, 0, 1, 1)], num_stages=STAGES, loss_fn=loss_of,
    partition_method="uniform",
)  # fmt: skip
engine, *_ = deepspeed.initialize(
    model=module,
    model_parameters=list(module.parameters()),
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
)
loader: Any = DataLoader(Rows(), batch_size=BATCH)
shim = attach(engine, total_steps=told.steps)
batches = iter(RepeatingLoader(wrap_loader(loader)))
truth.loop_begins()
while shim.step < told.steps:
    engine.train_batch(data_iter=batches)
    truth.step_ended(shim.step)
truth.write(told.out / f"truth.0.{RANK}.json")
shim.finish()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
