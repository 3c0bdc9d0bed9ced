"""Plain loops that train what a checkpoint easily lacks: six steps, saved after three, resumed by new objects."""

import collections
import datetime
import decimal
import fractions
import os
import pathlib
import sys
import uuid

import numpy
import torch
from tiny import KeptWatch, write_report
from torch import nn

from trainer_shim import attach

SAVED_AT, STEPS = 3, 6
torch.set_num_threads(1)


class Adapted(nn.Module):
    """A base that does not train, which is called as DDP calls what it wraps."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(8, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 8)

    def forward(self, x):
        return self.module(x) + self.adapter(x)


class Note:
    """No plain value."""


class Noted(nn.Linear):
    def get_extra_state(self):
        return {"note": Note()}

    def set_extra_state(self, state):
        pass


VALUES = {
    "sums": collections.defaultdict(list, {"a": [1.5]}), "counts": collections.defaultdict(int, {"b": 2}),
    "window": collections.deque([1.0, 2.0], maxlen=2), "seen": frozenset([3]), "part": slice(1, 4), "turns": range(5),
    "at": datetime.datetime(2026, 11, 24, 3, 0, tzinfo=datetime.UTC), "day": datetime.date(2026, 11, 24),
    "took": datetime.timedelta(seconds=1.5), "file": pathlib.Path("shards") / "0.bin", "price": decimal.Decimal("1.10"),
    "third": fractions.Fraction(1, 3), "id": uuid.UUID(int=5),
}  # fmt: skip


class Numbers:
    """State of the script's own, with numpy's numbers in it, and Python's values that are neither number nor tensor."""

    def __init__(self):
        self.best = numpy.float64(9.5)

    def state_dict(self):
        return {"best": self.best, "seen": numpy.arange(3), "values": VALUES}

    def load_state_dict(self, state):
        self.best = state["best"]
        assert state["values"] == VALUES
        assert {name: type(one) for name, one in state["values"].items()} == {n: type(one) for n, one in VALUES.items()}
        assert (state["values"]["window"].maxlen, state["values"]["sums"].default_factory) == (2, list)


class Loop:
    """One kind of loop. The seed makes its weights, which a resumed one must not keep."""

    def __init__(self, kind, directory, seed):
        torch.manual_seed(seed)
        self.kind, self.kept, self.stateful = kind, [], {}
        self.model = Adapted() if kind == "adapter" else Noted(8, 8) if kind == "object" else nn.Linear(8, 8)
        if kind == "masters":
            self.model.bfloat16()
        self.head = nn.Linear(8, 8)
        self.weights = [one for one in self.model.parameters() if one.requires_grad]
        self.trained = list(self.weights)
        if kind == "masters":
            self.trained = [one.detach().float().clone().requires_grad_() for one in self.weights]
        if kind == "head":
            self.trained += self.head.parameters()
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-2)
        if kind == "numbers":
            self.stateful["numbers"] = Numbers()
        if kind == "name":
            self.stateful["model"] = nn.Linear(2, 2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5) if kind == "schedule" else None
        self.shim = attach(
            self.model,
            optimizer=self.optimizer,
            stateful=self.stateful,
            checkpoint_dir=os.path.join(directory, kind),
            make_watch=self.make_watch,
        )

    def make_watch(self, *args, **kwargs):
        self.kept.append(KeptWatch(*args, **kwargs))
        return self.kept[0]

    def train(self, first):
        return [self.step(step) for step in range(first, STEPS + 1)]

    def step(self, step):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        if self.kind == "numbers":
            for group in self.optimizer.param_groups:
                group["lr"] = 1e-2 * (1 + numpy.cos(numpy.pi * step / 10))
        made = self.model(x.to(self.weights[0].dtype)).float()
        loss = (self.head(made) if self.kind == "head" else made).square().mean()
        loss.backward()
        if self.kind == "masters":
            for weight, master in zip(self.weights, self.trained, strict=True):
                master.grad = weight.grad.float()
        self.optimizer.step()
        if self.kind == "masters":
            with torch.no_grad():
                for weight, master in zip(self.weights, self.trained, strict=True):
                    weight.copy_(master)
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.model.zero_grad()
        if step == SAVED_AT:
            self.kept[0].saver.save(self.kept[0].saver.directory, "cg_drill", {})
        return loss.item()


report = {}
for kind in sys.argv[2:]:
    loop = Loop(kind, sys.argv[1], seed=1)
    losses = loop.train(1)
    loop.shim.close()
    again = Loop(kind, sys.argv[1], seed=2)
    try:
        again.kept[0].saver.load(again.kept[0].saver.directory, "cg_drill")
        report[kind] = {"losses": losses[SAVED_AT:], "resumed": again.train(SAVED_AT + 1)}
    except ValueError as error:
        report[kind] = {"refused": str(error)}
    again.shim.close()
write_report(report)
