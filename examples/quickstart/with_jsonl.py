"""A trainer that knows nothing of costgov: no import of it, one JSON object a line in a log of its own."""

import json
import os
import time
from pathlib import Path

import torch
from tiny import NAN_AT, STEPS, Sequences, TinyModelWithLoss, break_at

Path("foreign").mkdir(exist_ok=True)
Path("foreign/run.pid").write_text(str(os.getpid()))  # How a halt finds the process.
model = TinyModelWithLoss()
break_at(NAN_AT, model)  # To see a halt.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Sequences(), batch_size=8)
with open("foreign/metrics.jsonl", "a") as log:
    for step, ids in enumerate(loader, start=1):
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)  # A trainer of some size.
        log.write(json.dumps({"iter": step, "train/loss": loss.item(), "batch_tokens": ids.numel()}) + "\n")
        log.flush()
        if step == STEPS:
            break
