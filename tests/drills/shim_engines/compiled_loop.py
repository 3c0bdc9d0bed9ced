"""A loop whose model is compiled whole (fullgraph=True), in the order that argv names, with and without the shim.

backend="aot_eager" needs no compiler. As with inductor, one operation of autograd returns all that the model returns.
"""

import sys

import torch
from tiny import KeptWatch, TinyModel, Toy, write_report
from torch import nn

from trainer_shim import attach

STEPS = 6
torch.set_num_threads(1)
COMPILE = {"fullgraph": True, "backend": "aot_eager"}


class Pair(nn.Module):
    """(ids, labels) -> (a part of the loss, the loss)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyModel()

    def forward(self, ids, labels):
        loss = self.inner(ids, labels)
        return loss * 0.5, loss


class Descent(torch.optim.Optimizer):
    """One that a graph can hold whole."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * group["lr"])


def train(order, make_watch=None):
    torch._dynamo.reset()
    torch.manual_seed(7)
    model = Pair()
    kind = Descent if "of its own" in order else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-2)
    called = attached = model
    if order == "compiled, attached":
        called = attached = torch.compile(model, **COMPILE)
    elif order == "in place, attached":
        model.compile(**COMPILE)
    shim = attach(attached, optimizer=optimizer, make_watch=make_watch) if make_watch is not None else None
    step = optimizer.step
    if order == "attached, compiled":
        called = torch.compile(model, **COMPILE)
    elif order == "attached, in place":
        model.compile(**COMPILE)
    elif order == "attached, within a function":
        called = torch.compile(lambda ids, labels: [*model(ids, labels)], **COMPILE)
    elif order == "attached, its optimizer compiled":
        step = torch.compile(optimizer.step, backend="aot_eager")  # PyTorch's own break the graph themselves.
    elif order == "attached, an optimizer of its own within a function":
        step = torch.compile(lambda: [optimizer.step()], **COMPILE)
    losses = []
    for x, y in torch.utils.data.DataLoader(Toy(STEPS * 4), batch_size=4):
        _, loss = called(x, y)
        (loss / 2).backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if shim is not None:
        shim.close()
        called(x, y)
    return losses


def seen(order):
    """What a watch is told in that order, and the losses without one."""
    alone = train(order)
    kept, bumps = [], []

    class Watch(KeptWatch):
        def close(self):
            bumps.append(self.progress.progress_seq)

    def make_watch(*args, **kwargs):
        kept.append(Watch(*args, **kwargs))
        return kept[0]

    losses = train(order, make_watch)
    watch = kept[0].report()
    return {"alone": alone, "losses": losses, **watch, "calls_after_close": watch["progress_seq"] - bumps[0]}


write_report({"orders": {order: seen(order) for order in sys.argv[1:]}})
