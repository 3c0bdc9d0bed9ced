"""Trains a plain loop in 1,000 tokens a step. argv: where it saves, the last step, how long it waits then, PATH.

It goes on from what is there, or from PATH, and ends once it has saved a checkpoint.
"""

import sys
import time
from pathlib import Path

import torch

from trainer_shim import attach
from trainer_shim.saving.checkpoint import MANIFEST

STEP_S = 0.01

place, last, wait_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
shim = attach(model, optimizer=optimizer, checkpoint_dir=str(place), tokens_per_step=1000)
shim.resume(*sys.argv[4:])
while shim.step < last or not any(place.glob(f"cg_*/{MANIFEST}")):
    shim.loss(model(torch.ones(2, 4)).pow(2).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    if shim.step == last - 5:
        shim.checkpoint()
    time.sleep(STEP_S)
time.sleep(wait_s)
