"""`loading.py KIND FILE`: one process trains, and its loader starves it: cpu, disk, outside or no_workers.

FILE: what "disk" reads past the page cache. It ends by itself after LASTS_S.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainer_shim import attach

KIND, FILE = sys.argv[1], sys.argv[2]
LASTS_S, WAITS_S, READS = 14.0, 0.25, 64
torch.set_num_threads(1)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "cpu":
            until = time.process_time() + WAITS_S
            while time.process_time() < until:
                sum(range(2_000))
        elif KIND == "disk":
            read_past_the_cache(index)
        else:  # As a request to a server does.
            time.sleep(WAITS_S)
        return torch.full((8,), float(index % 7))


def read_past_the_cache(index: int) -> None:
    fd = os.open(FILE, os.O_RDONLY | os.O_DIRECT)
    size = os.fstat(fd).st_size
    with mmap.mmap(-1, 1 << 20) as piece:
        for nth in range(READS):
            os.lseek(fd, ((index * READS + nth) << 20) % size, os.SEEK_SET)
            os.readv(fd, [piece])
    os.close(fd)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
shim = attach(model, optimizer=optimizer)
loader: Any = DataLoader(Rows(), batch_size=1, num_workers=0 if KIND == "no_workers" else 1)
ends = time.monotonic() + LASTS_S
for batch in loader:
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if time.monotonic() > ends:
        break
