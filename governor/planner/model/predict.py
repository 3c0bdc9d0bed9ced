"""The 80 % interval of a prediction of speed, from known causes of error; then memory's interval and the prediction.

Doubts are independent, so their squares add up. Each is a standard deviation of the logarithm, fitted on sources that
the constants had not seen (`make bench-planner`). The interval is for a new machine, not for those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from governor.planner.model.memory import Memory, memory_of
from governor.planner.model.setup import Attention, Framework, Offload, Setup
from governor.planner.model.sparse_advice import sparse_of
from governor.planner.model.step_time import StepTime, step_time_of

Z80: Final = 1.2816  # standard normal: 80 % lie within


class Band(NamedTuple):
    """An estimate with the ends of its 80 % interval."""

    low: float
    mid: float
    high: float


# What a framework adds to the doubt of all, where its left-out rows say other than the usual: the least with which
# four of five of them lie within.
OF_FRAMEWORK: Final[Mapping[Framework, float]] = {
    Framework.MEGATRON: 0.0,
    Framework.XLA: 0.0,  # three recipes of one publisher, as near as Megatron's
    Framework.FSDP2: 0.22,  # AMD's apart, which have a doubt of their own
    Framework.MEGATRON_DEEPSPEED: 0.15,  # BLOOM's prototypes, and Azure's
    Framework.DEEPSPEED_COMPILED: 0.25,  # charts of one paper
}


@dataclass(frozen=True, slots=True)
class Doubts:
    """Standard deviations of log(measured / predicted)."""

    always: float = 0.12  # machines, clocks and networks of one name differ
    # fewer sources, and more ways to configure one name
    framework: float = 0.28
    of_framework: Mapping[Framework, float] = field(default_factory=lambda: OF_FRAMEWORK)
    mixture: float = 0.30  # experts: releases of one framework differ by up to a factor of 2
    fp4: float = 0.15  # one publisher
    # AMD's: four rows of one GPU; other reports of an MI350X were 46 and 59 % off, one of an MI355X four times as fast
    amd: float = 0.40
    assumed: float = 1.0  # times the doubt of each value that the row does not state (GUESSED_SPEED)
    offload: float = 0.5  # the host: threads, memory channels, its other GPUs
    sparse: float = 0.3  # attention that no published table has


USUAL: Final = Doubts()
# What guessing a column does to the predicted speed, on rows that state it (`benchmarks/planner/guessed.py`).
GUESSED_SPEED: Final = {
    "params_b": 1.89, "gpu": 1.08, "micro_bs": 0.38, "framework": 0.27, "precision": 0.22, "seq_len": 0.19,
    "grad_accum": 0.14, "ep": 0.12, "heads": 0.08, "hidden": 0.07,
    "act_ckpt": 0.05,  # 0.22 on rows that state it; those that leave it blank are recipes that recompute nothing
}  # fmt: skip
# Of every other column: less.
GUESSED_OTHER: Final = 0.03
# Of a micro-batch whose step is stated: full kernels take as long for two halves. Eager DeepSpeed pays for each.
MICRO_OF_STEP: Final = 0.03
MICRO_OF_STEP_EAGER: Final = 0.43


def spread_of(setup: Setup, assumed: Sequence[str] = (), doubts: Doubts = USUAL) -> float:
    """Standard deviation of the logarithm of the speed."""
    guessed = {one.split()[0]: GUESSED_SPEED.get(one.split()[0], GUESSED_OTHER) for one in assumed}
    if "micro_bs" in guessed and "grad_accum" not in guessed:
        is_eager = setup.framework in (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED)
        guessed["micro_bs"] = MICRO_OF_STEP_EAGER if is_eager else MICRO_OF_STEP
    parts = [doubts.always, *(doubts.assumed * doubt for doubt in guessed.values())]
    parts.append(doubts.of_framework.get(setup.framework, doubts.framework))
    if setup.shape.is_moe:
        parts.append(doubts.mixture)
    if setup.gpu.arch.startswith("CDNA"):
        parts.append(doubts.amd)
    if setup.precision.bits < 8:
        parts.append(doubts.fp4)
    if setup.offload is not Offload.NONE:
        parts.append(doubts.offload)
    if setup.attention in (Attention.SPARSE, Attention.NATIVE_SPARSE):
        parts.append(doubts.sparse)
    return math.hypot(*parts)


def band_of(mid: float, setup: Setup, assumed: Sequence[str] = (), doubts: Doubts = USUAL) -> Band:
    factor = math.exp(Z80 * spread_of(setup, assumed, doubts))
    return Band(mid / factor, mid, mid * factor)


# The 80 % interval of a prediction of memory: it holds four of five set-ups outside the fit. It is calibrated on the
# errors of leaving one source out. The planner's benchmark prints the share that lies within.


# Half-widths, as logarithms (0.1: 10 % up and down). Doubts are independent, so their squares add up.
# A dense model with everything stated: software versions, and what a source measures.
KNOWN: Final = 0.12
KNOWN_MEGATRON: Final = 0.10  # Its tests print their memory every night, and its buffers are read in its code.
MIXTURE: Final = 0.14  # The tokens of each expert, and the tensors that a release keeps.
# What a compiler keeps: Llama-3-8B under one recipe took 48, 39 and 34 GiB (torchao's tables).
COMPILED: Final = 0.20
# 24 to 48 copies of the hidden state per layer, depending on the model's code.
EAGER: Final = 0.20
GUESSED: Final = {
    "model": 0.5, "params_b": 0.5, "hidden": 0.3, "latent": 0.35,
    "seq_len": 0.1, "micro_bs": 0.4, "act_ckpt": 0.2, "gpus": 0.25, "framework": 0.2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryBand:
    """An 80 % interval, as factors of the prediction."""

    low: float
    high: float

    def around(self, predicted: float) -> tuple[float, float]:
        return self.low * predicted, self.high * predicted


def memory_band(setup: Setup, assumed: Sequence[str] = ()) -> MemoryBand:
    """`assumed`: the values that had to be guessed, each beginning with the name of its column."""
    doubts = [KNOWN_MEGATRON if setup.framework is Framework.MEGATRON else KNOWN]
    if setup.shape.is_moe:
        doubts.append(MIXTURE)
    if setup.framework in (Framework.FSDP2, Framework.DEEPSPEED_COMPILED, Framework.XLA):
        doubts.append(COMPILED)
    if setup.framework in (Framework.DEEPSPEED, Framework.DDP, Framework.FSDP):
        doubts.append(EAGER)
    doubts += [GUESSED.get(one.split()[0], 0.0) for one in assumed]
    width = math.sqrt(sum(doubt * doubt for doubt in doubts))
    return MemoryBand(math.exp(-width), math.exp(width))


# One set-up's prediction: its memory, its step, its speed with the interval, and notes for the reader.


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
        """For the whole run."""
        return Band(*(self.setup.gpus * value for value in self.tokens_per_gpu_s))


def predict(setup: Setup, assumed: Sequence[str] = ()) -> Prediction:
    """`assumed`: the values that were not stated and have been filled in, in words. They widen the interval."""
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
