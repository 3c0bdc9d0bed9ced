"""How far a prediction of memory can be trusted: an interval that holds four of five set-ups nobody has fitted.

Calibrated on what leaving one source out leaves over; the planner's benchmark prints the share that lies within.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from governor.planner.model.setup import Framework, Setup

# Half-widths, as logarithms (0.1: a tenth up and down). Reasons for doubt are independent: their squares add up.
KNOWN: Final = 0.12  # a dense model of which everything is said: versions of software, and what a source measures
MIXTURE: Final = 0.12  # which expert gets how many tokens, and which of its tensors a release keeps
COMPILED: Final = 0.20  # what a compiler keeps: Llama-3-8B under one recipe took 48, 39 and 34 GiB (torchao's tables)
EAGER: Final = 0.20  # 24 to 48 copies of the hidden state a layer, as the model's authors write it
GUESSED: Final = {
    "model": 0.5, "params_b": 0.5, "hidden": 0.3, "latent": 0.35,
    "seq_len": 0.1, "micro_bs": 0.4, "act_ckpt": 0.2, "gpus": 0.25, "framework": 0.2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryBand:
    """An 80 % interval, as factors on what is predicted."""

    low: float
    high: float

    def around(self, predicted: float) -> tuple[float, float]:
        return self.low * predicted, self.high * predicted


def memory_band(setup: Setup, assumed: Sequence[str] = ()) -> MemoryBand:
    """`assumed`: what had to be guessed, each beginning with the name of its column."""
    doubts = [KNOWN]
    if setup.shape.is_moe:
        doubts.append(MIXTURE)
    if setup.framework in (Framework.FSDP2, Framework.DEEPSPEED_COMPILED, Framework.XLA):
        doubts.append(COMPILED)
    if setup.framework in (Framework.DEEPSPEED, Framework.DDP, Framework.FSDP):
        doubts.append(EAGER)
    doubts += [GUESSED.get(one.split()[0], 0.0) for one in assumed]
    width = math.sqrt(sum(doubt * doubt for doubt in doubts))
    return MemoryBand(math.exp(-width), math.exp(width))
