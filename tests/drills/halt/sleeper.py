"""Two ranks of DDP on gloo with a DataLoader: rank 0 pauses as if it saved, and long after that rank 1's data sleeps.

`sleeper.py WORK PAUSE_AT PAUSE_S SLEEP_AT`. One program imports torch, and each rank is a fork of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainer_shim import attach

work, pause_at, pause_s, sleep_at = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])


class Sleepy(torch.utils.data.Dataset):
    """One sample a step. That of step `sleep_at` never comes to rank 1."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        while index == sleep_at and dist.get_rank() == 1:
            time.sleep(3600)
        return torch.ones(8)


def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/rendezvous", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attach(model, optimizer=optimizer, run="drill", tokens_per_step=16)
    for step, batch in enumerate(torch.utils.data.DataLoader(Sleepy())):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == pause_at and rank == 0:
            time.sleep(pause_s)


ranks = []
for rank in range(2):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        train(rank)
        os._exit(0)
(work / "pids").write_text(json.dumps(ranks))
for pid in ranks:
    os.waitpid(pid, 0)
