"""docs/reference/stages.md and configs/*/*.json: the four stages as the planner sees them."""

from __future__ import annotations

import json

from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.memory import Memory
from governor.planner.model.run_cost import REST_USUAL, Spread
from governor.planner.model.shape import Shape
from governor.planner.stage_plans import GPU, OTHER_GPU, PROVIDER, Costed, StagePlan, stage_plans
from governor.planner.words import count, gigabytes, hours, usd, ways

_HEAD = f"""# The four stages: expected cost, and the configs to run them with

<!-- Drawn from governor/planner/stage_plans.py by `make docs`: change it there. -->

This page is what `costgov plan stages` predicts for the four stages. Nothing was run. [Planning](../howto/planner.md) has the constants behind it, and how far
they were off on published runs.

**The search** tried everything in a small space that DeepSpeed trains in bf16 on {GPU}: the stage's machines of eight, ZeRO 1 to 3, micro-batches
of 1 to 16, no or full checkpointing. A mixture's experts lie on 1 to 8 ranks, as `deepspeed.moe` builds them; it takes ZeRO up to 2.

- The *primary* is the fastest within 5 % of the cheapest that leaves a tenth of the memory free.
- The *fallback* takes at most 80 % of the primary's memory, and the same config also runs on {OTHER_GPU}. It is for when memory does not suffice, or
  those machines are not to be had.

**Prices** are {PROVIDER}'s list of 2026, on demand. *Steady* is training at its usual speed. *Calendar* is what machines are paid for: saves, failures,
evaluations, and what finished public runs took beyond (usually {REST_USUAL:.2f} times all of that). In brackets: 80 % intervals.

"""

_BESIDES = """
Known models of 7B, 70B and 405B, under every way of sharding, with their memory maths: [reference_configs.md](reference_configs.md).

## The configs

`configs/<stage>/primary.json` and `fallback.json` are what `deepspeed.initialize(config=...)` takes. DeepSpeed 0.19 knows every key of
them and trained five steps under each, on two CPU ranks, with a tiny model of the family, other batch sizes and torch's own Adam. Nothing else
was changed (`tests/drills/planner`). What a JSON cannot say:

"""


def render() -> str:
    parts = [_HEAD, _models(), "\n## Expected cost\n\n", _costs(), "\n## Memory of one GPU, in GB\n\n", _memories()]
    return "".join([*parts, "\n## Why these\n\n", _reasons(), _BESIDES, _notes()])


def config_text(stage: str, which: str) -> str:
    """One of the two configs of a stage, as it stands in its file."""
    plan = next(plan for plan in stage_plans() if plan.stage.name == stage)
    one = plan.primary if which == "primary" else plan.fallback
    return json.dumps(config_of(one.setup, plan.stage.tokens).config, indent=2) + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _models() -> str:
    heads = (
        "stage",
        "parameters",
        "active",
        "layers",
        "hidden",
        "heads (kv)",
        "MLP",
        "vocabulary",
        "tokens",
        "sequence",
        "a step",
    )
    return _table(heads, [_model(plan) for plan in stage_plans()])


def _model(plan: StagePlan) -> tuple[str, ...]:
    stage, shape = plan.stage, plan.stage.shape
    return (
        f"{stage.name[-1]}: {stage.title}", count(shape.params), count(shape.matmul_params), str(shape.layers), str(shape.hidden),
        f"{shape.heads} ({shape.kv_heads})", _mlp(shape), f"{shape.vocab}{' tied' if shape.tied else ''}",
        count(stage.tokens), str(stage.seq_len), f"{stage.step_tokens / 2**20:g} x 2^20",
    )  # fmt: skip


def _mlp(shape: Shape) -> str:
    if shape.experts is None:
        return str(shape.ffn)
    return f"{shape.experts.topk} of {shape.experts.count} x {shape.experts.ffn}"


def _each() -> list[tuple[StagePlan, str, Costed]]:
    return [(plan, name, one) for plan in stage_plans() for name, one in plan.each]


def _costs() -> str:
    heads = (
        "stage",
        "",
        "GPUs",
        "set-up",
        "tokens/s a GPU",
        "MFU",
        "steady",
        "$ steady",
        "$ per 1M tokens",
        "calendar",
        "$ calendar",
    )
    rows = []
    for plan, name, one in _each():
        speed, cost = one.prediction.tokens_per_gpu_s, one.cost
        assert cost.steady_usd is not None
        assert cost.calendar_usd is not None
        assert cost.mtok_usd is not None
        rows.append((
            plan.stage.name[-1], name, f"{one.setup.gpus} x {one.setup.gpu.name} at {usd(one.price.gpu_hour_usd)}",
            ways(one.setup), f"{speed.mid:,.0f} ({speed.low:,.0f} to {speed.high:,.0f})",
            f"{one.prediction.step.mfu:.0%}", _spread(cost.steady_hours, hours), _spread(cost.steady_usd, usd),
            f"{usd(cost.mtok_usd.mid)}", _spread(cost.calendar_hours, hours), _spread(cost.calendar_usd, usd),
        ))  # fmt: skip
    return _table(heads, rows)


def _spread(spread: Spread, form: object) -> str:
    assert callable(form)
    return f"{form(spread.mid)} ({form(spread.low)} to {form(spread.high)})"


_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")


def _memories() -> str:
    heads = ("stage", "", *_PARTS, "allocated", "reserved", "of")
    return _table(heads, [(plan.stage.name[-1], name, *_memory(one.prediction.memory)) for plan, name, one in _each()])


def _memory(memory: Memory) -> tuple[str, ...]:
    parts = (*(getattr(memory, part) for part in _PARTS), memory.allocated, memory.reserved, memory.capacity)
    return tuple(map(gigabytes, parts))


def _reasons() -> str:
    text = ""
    for plan in stage_plans():
        text += f"- **{plan.stage.name[-1]}: {plan.stage.title}**, {plan.tried} tried, {plan.fitting} fit. "
        text += ". ".join(reason[0].upper() + reason[1:] for reason in plan.reasons)
        text += f". When {GPU} is not to be had: the same config on {plan.elsewhere.setup.gpus} x {OTHER_GPU}, "
        text += f"{_more(plan)}.\n"
    return text


def _more(plan: StagePlan) -> str:
    was, now = plan.primary.cost, plan.elsewhere.cost
    assert was.steady_usd is not None
    assert now.steady_usd is not None
    longer, dearer = now.steady_hours.mid / was.steady_hours.mid, now.steady_usd.mid / was.steady_usd.mid
    return f"{longer:.1f} times as long for {dearer:.1f} times the money"


def _notes() -> str:
    rows = []
    for plan in stage_plans():
        for name, one in (("primary", plan.primary), ("fallback", plan.fallback)):
            notes = config_of(one.setup, plan.stage.tokens).notes
            rows.append((f"[{plan.stage.name}/{name}](../../configs/{plan.stage.name}/{name}.json)", "; ".join(notes)))
    return _table(("config", "needs besides"), rows)
