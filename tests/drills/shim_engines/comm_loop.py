"""A gloo rank of `comm_loop.py KIND HOW`: what a step waits for and computes again, by the shim and by own timers.

KIND: plain, ddp, around (DDP around what is attached), fsdp2, averaged (weights, behind each second step). HOW: even,
slow (rank 1 comes SLOW_S later), micro (as slow, of two micro-steps that are both reduced), again, reentrant (the
blocks are checkpointed), bare (not attached).
"""

import contextlib
import os
import sys
import time

import torch
from tiny import KeptWatch, write_report
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.utils.checkpoint import CheckpointFunction, _CheckpointFrame, checkpoint

from trainer_shim import attach

WIDTH, STEPS, SLOW_S = 192, 8, 0.3
kind, how = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(0)
rendezvous = "file://" + os.environ["DRILL_RENDEZVOUS"]
torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
spent = {"comm": 0.0, "again": 0.0, "late": 0.0}
place = {"backward": False, "inside": 0}


@contextlib.contextmanager
def timed(name):
    began = time.perf_counter()
    place["inside"] += 1
    try:
        yield
    finally:
        place["inside"] -= 1
        if not place["inside"]:
            spent[name] += time.perf_counter() - began


def time_method(owner, name):
    original = getattr(owner, name)

    def call(*args, **kwargs):
        with timed("comm"):
            return original(*args, **kwargs)

    setattr(owner, name, call)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def compute(self, x):
        with timed("again") if place["backward"] else contextlib.nullcontext():
            return x + self.narrow(torch.relu(self.wide(x)))

    def forward(self, x):
        if how in ("again", "reentrant"):
            return checkpoint(self.compute, x, use_reentrant=how == "reentrant", early_stop=False)
        return self.compute(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.pow(2).mean()


attached = model = Net()
ready = [0.0]
if kind in ("ddp", "around"):
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    attached = model if kind == "ddp" else attached
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.__setitem__(0, time.perf_counter()))
if kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    gather = "all_gather_single" if hasattr(c10d.ProcessGroup, "all_gather_single") else "_allgather_base"
    scatter = "reduce_scatter_single" if hasattr(c10d.ProcessGroup, "reduce_scatter_single") else "_reduce_scatter_base"
    for owner, method in ((c10d.ProcessGroup, gather), (c10d.ProcessGroup, scatter), (c10d.Work, "wait")):
        time_method(owner, method)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
owners = (c10d.ProcessGroup, c10d.Work, CheckpointFunction, _CheckpointFrame)
before = [dict(vars(owner)) for owner in owners]
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


if how != "bare":
    saves = {"save_fn": lambda *_: None} if kind == "fsdp2" else {}
    shim = attach(attached, optimizer=optimizer, make_watch=make_watch, **saves)
hooked = [dict(vars(owner)) != was for owner, was in zip(owners, before, strict=True)]
truths, losses = [], []
for number in range(1, STEPS + 1):
    spent.update(comm=0.0, again=0.0, late=0.0)
    for _ in range(2 if how == "micro" else 1):
        if how in ("slow", "micro") and rank == 1:
            with timed("late"):
                time.sleep(SLOW_S)
        loss = model(torch.randn(64, WIDTH))
        place["backward"] = True
        loss.backward()
        place["backward"] = False
        if kind in ("ddp", "around"):
            spent["comm"] += time.perf_counter() - ready[0]
    if kind == "plain":
        for parameter in model.parameters():
            with timed("comm"):
                torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if kind == "averaged" and number % 2 == 0:
        for parameter in model.parameters():
            with timed("comm"):
                torch.distributed.all_reduce(parameter.data)
            parameter.data /= world
    truths.append(dict(spent))
    losses.append(float(loss.detach()))
if how != "bare":
    shim.close()
after = [dict(vars(owner)) == was for owner, was in zip(owners, before, strict=True)]
frames = kept[0].frames if kept else []
write_report({"frames": frames, "truths": truths, "losses": losses, "hooked": hooked, "after": after})
torch.distributed.barrier()
