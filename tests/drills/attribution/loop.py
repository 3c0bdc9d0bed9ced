"""One rank of `loop.py ENGINE INJECTED --amount S --steps N --out DIR`: a small training with a bottleneck in it.

It is written as the framework's own examples are, plus the lines that costgov's README asks for. What it injects, its
own timers time, and DIR/truth.ATTEMPT.RANK.json says it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.drills.attribution.truth import Truth
from trainer_shim import attach

asked = argparse.ArgumentParser()
asked.add_argument("engine", choices=("ddp", "deepspeed", "fsdp2"))
asked.add_argument("injected")
asked.add_argument("--amount", type=float, required=True)
asked.add_argument("--steps", type=int, required=True)
asked.add_argument("--out", type=Path, required=True)
asked.add_argument("--local_rank", type=int)
told = asked.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ENGINE, INJECTED, AMOUNT, STEPS = told.engine, told.injected, told.amount, told.steps
VOCABULARY, LENGTH, WIDTH, DEPTH = 256, 64, 192, 4
BATCH = 64 if INJECTED == "recompute" else 8  # What is computed again is a part of what is computed: it has no amount.
EVERY = 5  # Steps between evaluations and between saves.
DIES_AT, SAVED_AT = STEPS * 2 // 3, STEPS // 3
torch.set_num_threads(1)
NEIGHBOURS = ("neighbour", "uneven")  # A hog is on the last one's core, or on each one's.
if INJECTED in NEIGHBOURS:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[min(RANK, len(cores) - 1)]})
torch.manual_seed(0)
truth = Truth(time.sleep)
again = len(list(told.out.glob("truth.*.0.json")))  # Attempts before this one.


class Sequences(Dataset[Any]):
    """Counting in steps of three, from a disk that may be slow."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if INJECTED == "data" or (INJECTED == "uneven" and RANK == 1):
            time.sleep(AMOUNT / BATCH)
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


def collate(items: list[torch.Tensor]) -> torch.Tensor:
    """A tokenizer that takes its time."""
    until = time.process_time() + (AMOUNT if INJECTED == "collate" else 0.0)
    while time.process_time() < until:
        sum(range(2_000))
    return torch.stack(items)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        if not truth.in_backward:
            return x + self.down(functional.gelu(self.up(self.norm(x))))
        with truth.timed("recompute"):
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if INJECTED == "recompute" and self.training:
            found = checkpoint(self.compute, x, use_reentrant=False)
            assert isinstance(found, torch.Tensor)
            return found
        return self.compute(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        if INJECTED == "slow" and RANK == 1 and self.training:
            slow_down()
            x.register_hook(lambda _: slow_down())  # As a GPU at half its clock is slow in both passes.
        if INJECTED in NEIGHBOURS and self.training:
            compute()
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def compute() -> None:
    """As much on each rank, by the thread's own clock."""
    until = time.thread_time() + AMOUNT
    while time.thread_time() < until:
        sum(range(2_000))


def slow_down() -> None:
    with truth.timed("slow"):
        time.sleep(AMOUNT / 2)


class SlowAdamW(torch.optim.AdamW):
    """As a host is slow that has many weights. A process of few makes up for it by sleeping."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        with truth.timed("offload"):
            time.sleep(AMOUNT)
            return super().step(*args, **kwargs)


LATE = AMOUNT if INJECTED == "collective" else 0.0
if ENGINE == "deepspeed":
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Compiling it takes half a minute.
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
else:
    distributed.init_process_group("gloo")
plain = Model()
if INJECTED == "compile":
    plain.compile(backend="aot_eager")
data = Sequences()
sampler = torch.utils.data.DistributedSampler(data, WORLD, RANK, shuffle=False)
loader: Any = DataLoader(data, batch_size=BATCH, sampler=sampler, collate_fn=collate)
if ENGINE != "ddp":
    truth.time_collectives()
truth.loop_begins(LATE)
optimizer: Any = None
if ENGINE == "deepspeed":
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": 2,
            **({"offload_optimizer": {"device": "cpu"}} if INJECTED == "offload" else {}),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    chosen = SlowAdamW if INJECTED == "offload" else torch.optim.AdamW
    model, _, _, _ = deepspeed.initialize(model=plain, optimizer=chosen(plain.parameters(), lr=1e-3), config=config)
elif ENGINE == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    mesh = distributed.init_device_mesh("cpu", (WORLD,))
    for layer in plain.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(plain, mesh=mesh)
else:
    model = nn.parallel.DistributedDataParallel(plain)
    truth.time_ddp(model)
if ENGINE != "deepspeed":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(ids: torch.Tensor) -> None:
    if ENGINE == "deepspeed":
        loss = model(ids)
        truth.in_backward = True
        model.backward(loss)
        truth.in_backward = False
        model.step()
        return
    loss = model(ids)
    truth.in_backward = True
    loss.backward()
    truth.in_backward = False
    truth.backward_ended(is_ddp=ENGINE == "ddp")
    optimizer.step()
    optimizer.zero_grad()


def evaluate() -> None:
    """Real forward passes, as many as AMOUNT says."""
    with truth.timed("eval"), torch.no_grad():
        model.eval()
        for _ in range(round(AMOUNT * 100)):
            model(torch.zeros((BATCH, LENGTH), dtype=torch.long))
        model.train()


def save() -> None:
    """As each framework's user saves, on a slow disk."""
    with truth.timed("save"):
        if ENGINE == "deepspeed":
            model.save_checkpoint(str(told.out / "saved"), tag=f"step{shim.step}")
        elif ENGINE == "fsdp2":
            save_shards(str(told.out), f"step{shim.step}")
        elif RANK == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, told.out / "ckpt.pt")


def save_shards(directory: str, tag: str, _state: object = None) -> None:
    weights, states = get_state_dict(model, optimizer)
    writer = SlowDisk(os.path.join(directory, tag))
    dcp.save({"model": weights, "optimizer": states}, storage_writer=writer)


def load_shards(directory: str, tag: str) -> None:
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(directory, tag))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


SLOW_DISK_S = AMOUNT if INJECTED == "saves" else 0.0
if ENGINE == "fsdp2":
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    class SlowDisk(dcp.FileSystemWriter):
        def write_data(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(SLOW_DISK_S)
            return super().write_data(*args, **kwargs)

elif SLOW_DISK_S:
    write, calls = torch.save, 2 if ENGINE == "deepspeed" and RANK == 0 else 1  # Files of one save.

    def write_slowly(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        time.sleep(SLOW_DISK_S / calls)

    torch.save = write_slowly

given: dict[str, Any] = {"checkpoint_dir": str(told.out / "checkpoints")} if INJECTED == "restart" else {}
if given and ENGINE == "fsdp2":
    given.update(save_fn=save_shards, load_fn=load_shards)
shim = attach(model, optimizer=optimizer, total_steps=STEPS, **given)
if given:
    shim.resume()
batches = iter(loader)
truth.loop_begins(LATE)
while shim.step < STEPS:
    with truth.timed("data"):
        batch = next(batches)
    train(batch)
    if INJECTED == "loop":
        with truth.timed("loop"):
            time.sleep(AMOUNT)
    if shim.step % EVERY == 0 and INJECTED in ("eval", "saves"):
        truth.is_training = False
        evaluate() if INJECTED == "eval" else save()
        truth.is_training = True
    if INJECTED == "restart" and shim.step == SAVED_AT:
        shim.checkpoint()
    truth.step_ended(shim.step, LATE)
    if INJECTED == "restart" and not again and shim.step == DIES_AT:
        truth.write(told.out / f"truth.{again}.{RANK}.json")
        distributed.barrier()  # Both have written.
        sys.stdout.flush()
        os._exit(1)
truth.write(told.out / f"truth.{again}.{RANK}.json")
shim.finish()
distributed.barrier()
distributed.destroy_process_group()
