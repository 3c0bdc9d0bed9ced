"""Two ranks under torchrun, without DeepSpeed: what an elastic agent does when its workers are ended from outside."""

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

work = Path(sys.argv[1])
dist.init_process_group("gloo")
with (work / "starts").open("a") as starts:
    starts.write(json.dumps({"pid": os.getpid(), "restart": os.environ["TORCHELASTIC_RESTART_COUNT"]}) + "\n")
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
shim = attach(model, optimizer=optimizer, checkpoint_dir=str(work / "checkpoints"))
for step in range(1, 100_000):
    loss = model(torch.ones(4, 8)).square().mean()
    if step == 30 and dist.get_rank() == 1:
        loss = loss * float("nan")
    shim.loss(loss)
    loss.backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
