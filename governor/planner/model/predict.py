"""One set-up's prediction: its memory, its step, its speed with the interval, and what a reader must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from governor.planner.model.bands import Band, band_of
from governor.planner.model.memory import Memory, memory_of
from governor.planner.model.memory_band import MemoryBand, memory_band
from governor.planner.model.setup import Attention, Framework, Offload, Setup
from governor.planner.model.sparse_advice import sparse_of
from governor.planner.model.step_time import StepTime, step_time_of

DOES_NOT_FIT: Final = "does not fit"


@dataclass(frozen=True, slots=True)
class Prediction:
    setup: Setup
    memory: Memory
    step: StepTime
    tokens_per_gpu_s: Band
    memory_band: MemoryBand
    notes: tuple[str, ...]

    @property
    def tokens_per_s(self) -> Band:
        """Of the whole run."""
        return Band(*(self.setup.gpus * value for value in self.tokens_per_gpu_s))


def predict(setup: Setup, assumed: Sequence[str] = ()) -> Prediction:
    """`assumed`: in words, what was not stated and has been filled in; it widens the interval."""
    memory, step = memory_of(setup), step_time_of(setup)
    speed = band_of(step.tokens_per_gpu_s, setup, assumed)
    notes = (*_notes(setup, memory), *(f"assumed: {one}" for one in assumed))
    return Prediction(setup, memory, step, speed, memory_band(setup, assumed), notes)


def _of_capacity(memory: Memory) -> str:
    return f"{memory.reserved / 1e9:.0f} GB of {memory.capacity / 1e9:.0f} GB a GPU"


def _notes(setup: Setup, memory: Memory) -> list[str]:
    notes = []
    if not memory.fits:
        notes.append(f"{DOES_NOT_FIT}: {_of_capacity(memory)}")
    elif not memory.surely_fits:
        notes.append(f"may not fit: {_of_capacity(memory)}, and one run of ten takes more than the rest")
    if setup.shape.is_moe:
        notes.append("a mixture of experts: releases of one framework differ by up to twice in speed")
    if setup.offload is not Offload.NONE:
        notes.append("offload: the time on the host depends on its threads and memory; measured hosts differ fivefold")
    if setup.precision.bits < 16 and setup.framework is Framework.DEEPSPEED:
        notes.append(f"DeepSpeed itself has no {setup.precision} path: the layers' library must bring it")
    if setup.attention in (Attention.SPARSE, Attention.NATIVE_SPARSE):
        notes.append("sparse attention: modelled, no published training speed to hold it against")
        if sparse_of(setup) is None:
            notes.append(f"no kernel for {setup.gpu.arch} skips what {setup.attention} leaves out: dense cost at least")
    return notes
