"""A loop of one's own around an Accelerator. With --naming Accelerate numbers its checkpoints, and keeps one."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from common import VOCABULARY, Sequences, arguments, break_at, report
from torch import nn
from torch.nn import functional

from trainer_shim import attach

BATCH = 4


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.drop = nn.Dropout(0.1)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        logits = self.head(torch.tanh(self.hidden(self.drop(self.embed(ids)))))
        return functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))


told = arguments(naming={"action": "store_true"})
torch.manual_seed(3)
project = ProjectConfiguration(told.out, automatic_checkpoint_naming=told.naming, total_limit=1)
accelerator = Accelerator(cpu=True, project_config=project)
model = Model()
break_at(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
loader = torch.utils.data.DataLoader(Sequences(BATCH), batch_size=BATCH, shuffle=True)
model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
shim = attach(accelerator, checkpoint_dir=os.path.join(told.out, "checkpoints"), total_steps=told.steps)
loader = shim.wrap_loader(loader)
shim.resume()

batches = iter(loader)
while shim.step < told.steps:
    loss = model(next(batches))
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    report(shim.step, loss.item())
    if shim.step % 10 == 0:
        if told.naming:
            accelerator.save_state()
        else:
            shim.checkpoint()
