"""A loop of your own around Accelerate. One line is costgov's: attach()."""

import torch
from accelerate import Accelerator
from tiny import NAN_AT, STEPS, Sequences, TinyModelWithLoss, break_at

from trainer_shim import attach

accelerator = Accelerator()
model = TinyModelWithLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Sequences(), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
shim = attach(accelerator, checkpoint_dir="checkpoints/accelerate", total_steps=STEPS)
shim.resume()  # Weights, optimizer, generators, step: of the newest good checkpoint. None at the first launch.
print("begins at step", shim.step)
break_at(NAN_AT, model, done=shim.step)  # To see a halt.

batches = iter(loader)
while shim.step < STEPS:
    loss = model(next(batches))
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if shim.step % 50 == 0:
        shim.checkpoint()  # Whole and durable, at a step that all ranks agree on.
