"""What the scripts share: arguments, data, the fault, and the line of each step. torch alone is imported."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch

VOCABULARY, LENGTH = 128, 16
RANK = int(os.environ.get("RANK", "0"))
_WORLD = int(os.environ.get("WORLD_SIZE", "1"))
_FAULT = os.environ.get("FAULT", "") if min(int(os.environ.get("FAULT_RANK", "1")), _WORLD - 1) == RANK else ""
_FAULT_AT = int(os.environ.get("FAULT_AT", "0"))
_PACE_S = float(os.environ.get("PACE", "0"))


def arguments(**more: dict[str, Any]) -> argparse.Namespace:
    """--out, --steps, and what the script adds: name -> keywords of add_argument."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--out", required=True)
    asked.add_argument("--steps", type=int, required=True)
    for name, keywords in more.items():
        asked.add_argument(f"--{name}", **keywords)
    told, _ = asked.parse_known_args()  # Launchers add words of their own.
    torch.set_num_threads(1)
    return told


class Sequences(torch.utils.data.Dataset):
    """Counting in steps of three. `batch` items make one rank's step; at the step of FAULT=hang it sleeps for ever."""

    def __init__(self, batch: int, size: int = 20_000) -> None:
        self.batch, self.size, self.given = batch, size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        if (self.given - 1) % self.batch == 0:
            fetch(self.given // self.batch + 1)
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


def fetch(step: int) -> None:
    """What the data set does before the batch of a step."""
    pace()
    sleep_at(step)


def pace() -> None:
    """Take the time of one step, where there is no data set that does."""
    time.sleep(_PACE_S)


def sleep_at(step: int) -> None:
    """Sleep for ever, as a dead mount makes a data set do, in the step of FAULT=hang."""
    while _FAULT == "hang" and step == _FAULT_AT:
        time.sleep(3600)


_batches_read = 0


def read(rows: Any) -> Any:
    """A transform of Hugging Face's data sets, which are no class of the script's: one call reads one batch."""
    global _batches_read
    _batches_read += 1
    fetch(_batches_read)
    return rows


def break_at(model: torch.nn.Module, micro_steps: int = 1) -> None:
    """Make what the loss of `model` is or comes from NaN in the step of FAULT=nan, as a broken batch would."""
    passes = 0

    def after(module: torch.nn.Module, _args: Any, output: Any) -> Any:
        nonlocal passes
        if not module.training or not torch.is_grad_enabled():
            return output
        passes += 1
        if _FAULT == "nan" and (passes - 1) // micro_steps + 1 == _FAULT_AT:
            if isinstance(output, torch.Tensor):
                return output * float("nan")
            if isinstance(output, tuple):
                return (*output[:-1], output[-1] * float("nan"))
            for name in ("loss", "log_probs"):  # TRL makes its loss of the latter.
                if getattr(output, name, None) is not None:
                    setattr(output, name, getattr(output, name) * float("nan"))
        return output

    model.register_forward_hook(after)


def report(step: int, loss: Any) -> None:
    """The line of one step, on rank 0."""
    if RANK == 0:
        sys.stdout.write(f"loss {step} {float(loss).hex()}\n")
        sys.stdout.flush()
