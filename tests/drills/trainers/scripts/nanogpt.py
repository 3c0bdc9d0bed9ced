"""A training script as nanoGPT's train.py is; one process, or DDP as torchrun starts it.

The model returns (logits, loss). Batches are drawn from a memory map without a DataLoader. There are micro-steps,
clipping, and a GradScaler that float32 leaves off.
"""

import math
import os

import numpy
import torch
from common import LENGTH, RANK, VOCABULARY, arguments, break_at, pace, report, sleep_at
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainer_shim import attach

told = arguments()
MICRO_STEPS, BATCH, WARMUP = 2, 4, 20
ddp = int(os.environ.get("WORLD_SIZE", "1")) > 1
if ddp:
    distributed.init_process_group("gloo")
torch.manual_seed(1337 + RANK)


class GPT(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(LENGTH, width)
        self.drop = nn.Dropout(0.1)
        self.block = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        positions = torch.arange(idx.size(1))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        logits = self.lm_head(self.block(self.drop(self.wte(idx) + self.wpe(positions)), src_mask=mask))
        loss = None if targets is None else functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        return logits, loss


os.makedirs(told.out, exist_ok=True)
corpus = os.path.join(told.out, f"train{RANK}.bin")
(numpy.arange(20_000) * 3 % 97).astype(numpy.uint16).tofile(corpus)


def get_batch(step):
    sleep_at(step)
    data = numpy.memmap(corpus, dtype=numpy.uint16, mode="r")
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    x, y = (
        torch.stack([torch.from_numpy(data[i + k : i + k + LENGTH].astype(numpy.int64)) for i in starts])
        for k in (0, 1)
    )
    return x, y


def get_lr(step):
    return 1e-3 * (step + 1) / WARMUP if step < WARMUP else 1e-4 + 0.9e-3 * (1 + math.cos(step / told.steps * 3)) / 2


model = GPT()
break_at(model, MICRO_STEPS)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
if ddp:
    model = DistributedDataParallel(model)
shim = attach(model, optimizer=optimizer, checkpoint_dir=os.path.join(told.out, "checkpoints"), total_steps=told.steps)
shim.resume()

while shim.step < told.steps:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(shim.step)
    pace()
    for micro_step in range(MICRO_STEPS):
        with shim.data():
            x, y = get_batch(shim.step + 1)
        if ddp:
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
        logits, loss = model(x, y)
        loss = loss / MICRO_STEPS
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    report(shim.step, loss.item() * MICRO_STEPS)
    if shim.step % 10 == 0:
        shim.checkpoint()
if ddp:
    distributed.destroy_process_group()
