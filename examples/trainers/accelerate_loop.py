"""A loop around Accelerate as its own examples write it: accumulate(), a schedule, an evaluation, save_state().

    costgov run --ceiling 300 --price 22 -- torchrun --nproc_per_node 2 examples/trainers/accelerate_loop.py

costgov's are attach(), shim.resume() and shim.phase(). The schedule goes through prepare(), so save_state() has it.
"""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trainer_shim import attach

STEPS = int(os.environ.get("STEPS", "60"))
VOCABULARY, LENGTH, WIDTH, BATCH, ACCUMULATION = 256, 64, 64, 4, 2


class Sequences(Dataset):
    """Counting in steps of three."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    gradient_accumulation_steps=ACCUMULATION,
    project_config=ProjectConfiguration("checkpoints/accelerate", automatic_checkpoint_naming=True, total_limit=1),
)
set_seed(3)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
model, optimizer, scheduler, train_loader, eval_loader = accelerator.prepare(
    model,
    optimizer,
    scheduler,
    DataLoader(Sequences(20_000), batch_size=BATCH, shuffle=True),
    DataLoader(Sequences(64), batch_size=BATCH),
)
shim = attach(accelerator, total_steps=STEPS)
train_loader = shim.wrap_loader(train_loader)
shim.resume()  # Weights, optimizer, schedule, generators, data, step. None at the first launch.

while shim.step < STEPS:
    for ids in train_loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(ids))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        if shim.step % 20 == 0:
            with shim.phase("eval"), torch.no_grad():
                model.eval()
                losses = [accelerator.gather(model(batch)).mean() for batch in eval_loader]
                model.train()
            accelerator.print(f"step {shim.step}: evaluation loss {torch.stack(losses).mean():.4f}")
            accelerator.save_state()
        if shim.step >= STEPS:
            break
accelerator.end_training()
