"""Two gloo ranks of a model under fully_shard() whose loop computes the loss and clips; a NaN comes at step 4."""

import os

import torch
from tiny import KeptWatch, write_report
from torch import nn
from torch.distributed.fsdp import fully_shard

from trainer_shim import attach

torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo",
    init_method="file://" + os.environ["DRILL_RENDEZVOUS"],
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


shim = attach(model, optimizer=optimizer, make_watch=make_watch)
losses = []
for step in range(1, 7):
    loss = nn.functional.mse_loss(model(torch.ones(2, 8)), torch.zeros(2, 8))
    loss = loss * float("nan") if step == 4 else loss
    losses.append(loss.item())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
shim.close()
write_report({"frames": kept[0].frames, "losses": losses})
