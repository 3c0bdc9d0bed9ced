"""A plain PyTorch loop under DDP. Two lines are costgov's: attach(), and shim.loss() where the loss is computed."""

import os

import torch
from tiny import NAN_AT, STEPS, Sequences, TinyModel, break_at, loss_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainer_shim import attach

on_gpu = torch.cuda.is_available()
distributed.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
model = DistributedDataParallel(TinyModel().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Sequences()
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
shim = attach(model, optimizer=optimizer, checkpoint_dir="checkpoints/ddp", total_steps=STEPS)
shim.resume()  # Weights, optimizer, generators, step: of the newest good checkpoint. None at the first launch.
print("begins at step", shim.step)
break_at(NAN_AT, model, done=shim.step)  # To see a halt.

batches = iter(loader)
while shim.step < STEPS:
    ids = next(batches).to(device)
    loss = loss_of(model(ids), ids)
    shim.loss(loss).backward()  # Leave shim.loss() out where the model returns the loss itself.
    optimizer.step()
    optimizer.zero_grad()
    if shim.step % 50 == 0:
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
distributed.destroy_process_group()
