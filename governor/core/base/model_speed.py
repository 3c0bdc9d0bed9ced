"""Model FLOP/s, MFU and tokens a second of each GPU: the same figures, under the same names, in `status` and a report.

A token of training takes 6 floating-point operations for each parameter: 2 forward, 4 backward (PaLM, appendix B,
arXiv:2204.02311). Its term for attention, 12·layers·heads·head size·sequence, is left out: no frame tells these. So the
figure is a little low, by less than 1 % to a tenth, the more the longer the sequence. Every parameter counts as dense
and trained: of a mixture of experts, or where most of the model is frozen, it is too high. Computing again what
activation checkpointing left out is no work of the model's.

MFU is model FLOP/s over the dense bf16 peak of all GPUs, whatever they compute in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from governor.core.base.printable import cut, printable

FLOPS_PER_PARAMETER: Final = 6
NAME_CHARS_MAX: Final = 60
NO_GPU: Final = "no rank has told of a GPU"
NO_PARAMETERS: Final = "no rank has told how many parameters the model has"
NO_NAME: Final = "no driver has named its GPUs"
SLICED: Final = "its GPUs are divided (MIG), and no peak is known of a slice"
NO_TOKENS: Final = "no step tells its tokens"
IMPOSSIBLE: Final = (
    "by what is told it would be above 1: the GPU, the parameters or the tokens are not those of this run"
)


class Peak(NamedTuple):
    """The dense peak of a GPU in bf16, from the package's table."""

    gpu: str
    flops_per_s: float


class ModelSpeed(NamedTuple):
    """None is unknown. `mfu_absent` says why there is no MFU; None where there is one."""

    model_flops_per_s: float | None = None
    mfu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu_absent: str | None = None


def model_speed(tokens_per_s: float | None, parameters: int | None, gpus: float | None, peak: Peak | str) -> ModelSpeed:
    """`tokens_per_s`: of the whole run. `gpus`: of all its ranks; None: no rank has one. `peak`, a text: why none."""
    flops = FLOPS_PER_PARAMETER * parameters * tokens_per_s if parameters and tokens_per_s is not None else None
    per_gpu = tokens_per_s / gpus if tokens_per_s is not None and gpus else None
    absent, mfu = None, None
    if not gpus:
        absent = NO_GPU
    elif not parameters:
        absent = NO_PARAMETERS
    elif isinstance(peak, str):
        absent = peak
    elif flops is None:
        absent = NO_TOKENS
    elif (mfu := flops / (gpus * peak.flops_per_s)) > 1:
        absent, mfu = IMPOSSIBLE, None
    return ModelSpeed(flops, mfu, per_gpu, absent)


def peak_of_names(names: frozenset[str], peaks: Mapping[str, Peak]) -> Peak | str:
    """The peak of the GPUs that a driver calls so; else why there is none. `peaks`: by the drivers' names."""
    if not names:
        return NO_NAME
    found = {name: peaks.get(name) for name in sorted(names)}
    unknown = [name for name, peak in found.items() if peak is None]
    if unknown:
        return f'no peak is known of "{printable(cut(unknown[0], NAME_CHARS_MAX))}"'
    known = {peak for peak in found.values() if peak is not None}
    return "its GPUs are of several kinds" if len(known) > 1 else known.pop()
