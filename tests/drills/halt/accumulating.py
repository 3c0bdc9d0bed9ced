"""One rank, two micro-batches a step, a DataLoader: its data pauses within a step, and later sleeps for good in one.

`accumulating.py WORK PAUSE_AT PAUSE_S SLEEP_AT`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from trainer_shim import attach

work, pause_at, pause_s, sleep_at = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])


class Stalling(torch.utils.data.Dataset):
    """Two samples a step. The second of step `pause_at` comes late, that of step `sleep_at` never."""

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        if index == 2 * pause_at + 1:
            time.sleep(pause_s)
        while index == 2 * sleep_at + 1:
            time.sleep(3600)
        return torch.ones(8)


torch.set_num_threads(1)
(work / "pids").write_text(json.dumps([os.getpid()]))
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
attach(model, optimizer=optimizer, run="drill", tokens_per_step=16)
for number, batch in enumerate(torch.utils.data.DataLoader(Stalling())):
    (model(batch).square().mean() / 2).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
