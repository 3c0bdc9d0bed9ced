"""docs/reference/reference_configs.md and configs/reference/*.json: known models under every way of sharding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from governor.planner.compare import GPU, REFERENCES, Reference, references
from governor.planner.estimate import MEMORY_PARTS, Estimate
from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.memory import Memory
from governor.planner.words import gigabytes, ways

HOME = "configs/reference"

_HEAD = f"""# Reference configs: 7B on 8, 70B on 64 to 256, 405B on 512 to 2,048 GPUs

<!-- Drawn from governor/planner/compare.py by `make docs`: change it there. -->

Three known models on {GPU} in bf16, each under every way of sharding, as `costgov plan` predicts them. Nothing was run. What a way leaves
open (micro-batch, checkpointing, Megatron's parallelism) is chosen for it: the fastest that fits into 90 % of the memory, else the fastest that fits,
else what needs least. For your own model: `costgov plan compare --model llama3-70b --gpus 128 "128xh100"`.

## The states, in bytes a parameter

N is the number of ranks among which states are sharded: here all of them, under Megatron divided by tp x pp.

| way | weights | gradients | master weights and Adam | kept by one of 8 ranks |
| --- | --- | --- | --- | --- |
| DDP | 2 | 2 | 12 | 16 |
| ZeRO-1 | 2 | 2 | 12/N | 5.5 |
| ZeRO-2 | 2 | 2/N | 12/N | 3.75 |
| ZeRO-3 | 2/N | 2/N | 12/N | 2 |
| FSDP, FSDP2 | 4/N, in fp32 | 4/N | 8/N | 2 |
| Megatron | 2 | 4, in fp32 | 12/N | 7.5, over tp x pp |

Activations, logits and buffers come on top. Buffers are parameters gathered whole, buckets, and what the optimizer's step adds. *Reserved* adds what the
allocator loses, and the driver's context.

"""


def render() -> str:
    parts = [_HEAD]
    for model, _, seq_len, step_tokens, _ in REFERENCES:
        mine = [one for one in references() if one.model == model]
        params = mine[0].deepspeed.setup.shape.params
        parts.append(
            f"## {model}: {params / 1e9:.1f}e9 parameters, sequences of {seq_len}, {step_tokens:,} tokens a step\n\n"
        )
        parts.append(_table(mine))
        parts += [f"\n{_maths(one)}\n" for one in mine]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def files() -> dict[str, Callable[[], str]]:
    return {f"{HOME}/{one.name}.json": partial(_config, one) for one in references()}


def _config(one: Reference) -> str:
    return json.dumps(config_of(one.deepspeed.setup, one.tokens).config, indent=2) + "\n"


def _table(mine: list[Reference]) -> str:
    heads = ("GPUs", "way", "set-up", *MEMORY_PARTS, "reserved", "fits", "tokens/s a GPU")
    rows = [
        (str(one.gpus), way, *_row(estimate))
        for one in mine
        for way, estimate in one.by_way.items()
        if estimate is not None
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, ("---",) * len(heads), *rows))


def _row(one: Estimate) -> tuple[str, ...]:
    memory = one.prediction.memory
    parts = (gigabytes(getattr(memory, part)) for part in MEMORY_PARTS)
    speed = f"{one.per_gpu_s.mid:,.0f}" if memory.fits else ""
    return ways(one.setup), *parts, gigabytes(memory.reserved), _fits(memory), speed


def _fits(memory: Memory) -> str:
    return "yes" if memory.fits else f"no: {gigabytes(memory.capacity)} there"


def _maths(one: Reference) -> str:
    """The states of the config in figures, as the table above has them in letters."""
    setup, memory = one.deepspeed.setup, one.deepspeed.prediction.memory
    billions, ranks, zero = f"{setup.shape.params / 1e9:.1f}", f"/ {setup.shards}", setup.zero_stage
    states = " + ".join(
        f"{size} x {billions}{f' {ranks}' if zero >= least else ''}" for size, least in ((2, 3), (2, 2), (12, 1))
    )
    total = memory.weights + memory.gradients + memory.optimizer
    rest = memory.activations + memory.logits + memory.buffers
    return (
        f"**{one.gpus} GPUs, ZeRO-{zero}** ([config](../../{HOME}/{one.name}.json)): states {states} = {gigabytes(total)} GB; activations, logits and "
        f"buffers {gigabytes(rest)} GB; reserved {gigabytes(memory.reserved)} of {gigabytes(memory.capacity)} GB."
    )
