"""docs/reference/low_precision.md and configs/precision/*.json, from the planner's own plan of precisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Final

from governor.planner.catalog import gpu_named
from governor.planner.model.precision_facts import ENGINES, LATE_SWITCH_AT, PRECISION_LIMITS, RECIPE
from governor.planner.model.precision_plan import PrecisionPlan, advised, precision_plan, recipe
from governor.planner.model.setup import Precision
from governor.planner.model.training_stages import STAGES, TrainingStage

STAGE: Final = STAGES[-1]
# GPU and precision of each file, and which of them comes after it.
CHAIN: Final = {
    "nvfp4": ("B200", Precision.NVFP4, "mxfp8"),
    "mxfp8": ("B200", Precision.MXFP8, "bf16"),
    "fp8": ("H100", Precision.FP8, "bf16"),
    "bf16": ("H100", Precision.BF16, None),
}
HOME: Final = "configs/precision"

_HEAD = f"""# Low precision: NVFP4, FP8, and what to fall back on

<!-- Drawn from governor/planner/model/precision_*.py by `make docs`: change it there. -->

This page is what `costgov plan precision` says about stage 4, the 70B mixture of experts, and about the other stages. We measured no
speed: the ranges are those of published whole steps. What NVFP4 does to numbers and loss was [measured in an
emulation](../why/low_precision_measured.md), on a small model.

**DeepSpeed has no NVFP4 path.** Its config says `bf16` or `fp16`, so the files of [{HOME}/](../../{HOME}) tell
DeepSpeed `bf16`. The rest is for whoever builds the model, from Transformer Engine's layers.

## The plan for stage 4

"""

_HALT = """
## When it diverges

Low precision fails slowly: the loss stays above what it had reached, or stops falling, long before it is NaN. `policies/stage4-*.toml`
has rules for runs with the label `precision` (`attach(..., labels={"precision": "nvfp4"})`, or
`COSTGOV_LABELS=precision=nvfp4`).

- A rise of a tenth that stays halts the run if the gradient norm has doubled as well.
- A rise of 0.35 halts it alone. BF16 needs half. The limit is lower here because the way out costs no more than a restart.

These limits are judgement, tried only on made-up series. The checkpoint is saved as suspect, and `latest` stays where it was. The
halt names the plan to go on with ([`resume_with`](rules.md)):

| halted in | goes on with |
| --- | --- |
"""


def render() -> str:
    parts = [_HEAD, _shares(), _verdicts(), _rules(), _switch(), _engines(), _HALT]
    parts += [f"| {name} | `{HOME}/stage4-{after}.json` |\n" for name, (_, _, after) in CHAIN.items() if after]
    parts.append(
        "\nResume from the last good checkpoint, under the label of the plan that you resume with.\n\n## Limits\n\n"
    )
    parts += [f"- **{limit.name}.** {limit.text} *({limit.source})*\n" for limit in PRECISION_LIMITS]
    return "".join(parts)


def files() -> dict[str, Callable[[], str]]:
    return {f"{HOME}/stage4-{name}.json": partial(_file, name) for name in CHAIN}


def _file(name: str) -> str:
    after = CHAIN[name][2]
    return json.dumps(recipe(_plan(name), STAGE.tokens, after and f"{HOME}/stage4-{after}.json"), indent=2) + "\n"


def _plan(name: str) -> PrecisionPlan:
    gpu, precision, _ = CHAIN[name]
    return precision_plan(STAGE.shape, gpu_named(gpu), STAGE.seq_len, wanted=precision)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in [heads, ("---",) * len(heads), *rows])


def _shares() -> str:
    plans = [_plan(name) for name in ("nvfp4", "mxfp8", "fp8")]
    names = [group.name for group in plans[0].groups]
    rows = []
    for name in names:
        cells = []
        for plan in plans:
            found = next((group for group in plan.groups if group.name == name), None)
            cells.append(
                "in the rows below" if found is None else f"{found.precision}, {100 * found.flops_share:.1f} %"
            )
        rows.append((name, *cells, next(group.why for group in plans[0].groups if group.name == name)))
    blocks = plans[0].bf16_blocks
    return (
        _table(("matmuls, and their part of the step", "B200: NVFP4", "B200: MXFP8", "Hopper: FP8", "why kept"), rows)
        + f"\nBlocks kept whole in NVFP4: the last {len(blocks)} of {STAGE.shape.layers}, {blocks[0]} to {blocks[-1]} counted "
        "from 0. Embeddings, norms, master\nweights, gradient sums and optimizer states stay in BF16 or FP32 everywhere.\n"
    )


def _verdicts() -> str:
    rows = []
    for stage in STAGES:
        cells = [_verdict(stage, gpu) for gpu in ("B200", "H100")]
        rows.append((f"{stage.name[-1]}: {stage.title}", *cells))
    return (
        "\n## What it would gain, and what is advised\n\nThe speed is that of a whole step over BF16. Bold is the advice: the lowest precision whose "
        "whole published range lies above 1,\nunless something speaks against it.\n\n"
    ) + _table(("stage", "B200", "H100"), rows)


def _verdict(stage: TrainingStage, gpu_name: str) -> str:
    gpu = gpu_named(gpu_name)
    best = advised(stage.shape, gpu, stage.seq_len)
    said = []
    for precision in (Precision.NVFP4, Precision.MXFP8, Precision.FP8):
        plan = precision_plan(stage.shape, gpu, stage.seq_len, wanted=precision)
        if plan.precision is precision and (precision is not Precision.FP8 or not gpu.supports(Precision.MXFP8)):
            said.append(f"{precision} {plan.speedup.low:.2f} to {plan.speedup.high:.2f}")
    lowest = precision_plan(stage.shape, gpu, stage.seq_len)
    against = f"; against {lowest.precision}: {', and '.join(lowest.objections)}" if lowest.objections else ""
    return f"{', '.join(said)}: **{best}**{against}"


def _rules() -> str:
    rows = [(rule.name, rule.text, rule.source) for rule in RECIPE]
    return "\n## NVFP4's recipe\n\n" + _table(("part", "what", "source"), rows)


def _switch() -> str:
    at = LATE_SWITCH_AT * STAGE.tokens / 1e9
    return (
        f"\nFor stage 4 the late switch comes at {at:.0f}B of {STAGE.tokens / 1e9:.0f}B tokens. From there on a third of each "
        f"step runs in BF16: {100 * (1 - LATE_SWITCH_AT) / 3:.0f} % of\nall compute.\n"
    )


def _engines() -> str:
    rows = [
        (precision.value, f"`{engine.recipe}()`", f"`{recipe(_plan(precision.value))['megatron_lm']}`", engine.source)
        for precision, engine in ENGINES.items()
    ]
    return "\n## How to say it to the library\n\n" + _table(("", "Transformer Engine", "Megatron-LM", "note"), rows)
