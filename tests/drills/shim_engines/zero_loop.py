"""Two gloo ranks under DDP, the optimizer's state in parts: four steps, saved after two, resumed by new objects."""

import os
import sys

import torch
from tiny import KeptWatch, write_report
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer_shim import attach

RANK = int(os.environ["RANK"])
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo",
    init_method="file://" + os.environ["DRILL_RENDEZVOUS"],
    rank=RANK,
    world_size=int(os.environ["WORLD_SIZE"]),
)


def begin(seed):
    torch.manual_seed(seed)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    kept = []

    def make_watch(*args, **kwargs):
        kept.append(KeptWatch(*args, **kwargs))
        return kept[0]

    shim = attach(model, optimizer=optimizer, checkpoint_dir=sys.argv[1], make_watch=make_watch)
    return shim, kept[0].saver, model, optimizer


def train(model, optimizer, first, last):
    losses = []
    for step in range(first, last + 1):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + RANK))
        loss = model(x).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


shim, saver, model, optimizer = begin(1)
train(model, optimizer, 1, 2)
saver.save(saver.directory, "cg_2", {})
torch.distributed.barrier()  # As the ranks of a save meet before anybody counts on it.
after = train(model, optimizer, 3, 4)
shim.close()
shim, saver, model, optimizer = begin(2)
saver.load(saver.directory, "cg_2")
resumed = train(model, optimizer, 3, 4)
shim.close()
write_report({"losses": after, "resumed": resumed})
