"""A model and data small enough for any laptop. What the quick starts show is around them."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

STEPS = int(os.environ.get("STEPS", "200"))
NAN_AT = int(os.environ.get("NAN_AT", "0"))  # NAN_AT=120 breaks the model at step 120: watch it being halted.
VOCABULARY, LENGTH = 256, 64


class TinyModel(nn.Module):
    """Token ids -> logits, as most models of a training loop are."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.hidden(self.embed(ids))))


class TinyModelWithLoss(TinyModel):
    """Token ids -> mean cross entropy of the next token."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return loss_of(super().forward(ids), ids)


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class Sequences(Dataset):
    """Counting in steps of three: learned in a minute."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


def break_at(step: int, model: nn.Module, done: int = 0) -> None:
    """Make a weight of `model` NaN in `step`, or in the first step when `done` are behind it already; 0 is never."""
    steps = done

    def before(*_: object) -> None:
        nonlocal steps
        steps += 1
        if 0 < step <= steps:
            with torch.no_grad():
                next(model.parameters()).mul_(float("nan"))

    model.register_forward_pre_hook(before)
