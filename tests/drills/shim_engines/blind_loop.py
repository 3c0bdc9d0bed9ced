"""A loop of which nothing can be seen: its gradients are nowhere where an optimizer has them."""

import torch
from tiny import KeptWatch, TinyModel, write_report

from trainer_shim import attach

torch.set_num_threads(1)
model = TinyModel()


class Blind(torch.optim.Optimizer):
    def __init__(self):
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {"lr": 1.0})

    def step(self, closure=None):
        pass


optimizer = Blind()
kept = []


def make_watch(*args, **kwargs):
    kept.append(KeptWatch(*args, **kwargs))
    return kept[0]


attach(model, optimizer=optimizer, make_watch=make_watch)
ids = torch.zeros((2, 16), dtype=torch.long)
ended = None
for _ in range(30):
    torch.func.vmap(model.embed)(ids)
    try:
        optimizer.step()
    except SystemExit as end:
        ended = str(end)
        break
write_report({"frames": kept[0].frames, "ended": ended})
