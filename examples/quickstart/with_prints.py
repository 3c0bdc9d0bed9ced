"""A trainer that knows nothing of costgov and only prints, as nanoGPT does."""

import time

import torch
from tiny import NAN_AT, STEPS, Sequences, TinyModelWithLoss, break_at

model = TinyModelWithLoss()
break_at(NAN_AT, model)  # To see a halt.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Sequences(), batch_size=8)
print(f"tokens per iteration will be: {8 * Sequences()[0].numel():,}")
began = time.perf_counter()
for step, ids in enumerate(loader, start=1):
    loss = model(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)  # A trainer of some size.
    took_ms, began = 1000 * (time.perf_counter() - began), time.perf_counter()
    print(f"iter {step}: loss {loss.item():.4f}, time {took_ms:.2f}ms")
    if step == STEPS:
        break
