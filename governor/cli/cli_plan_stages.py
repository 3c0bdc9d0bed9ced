"""`costgov plan stages`: what the four stages are expected to cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from governor.cli.cli_common import json_option, print_json
from governor.cli.exit_codes import exits
from governor.text.cli_rows import Head, render_rows

if TYPE_CHECKING:
    from governor.planner.plan_stages import Costed

HEADS = (
    Head("STAGE"), Head("", may_be_cut=True), Head("GPUS"), Head("SET-UP", may_be_cut=True), Head("TOKENS/S", True),
    Head("HOURS", True), Head("$", True), Head("80 %", True), Head("$ PER 1M", True), Head("CALENDAR $", True),
)  # fmt: skip


@click.command(short_help="What the four stages are expected to cost.", epilog=exits())
@json_option
def stages(as_json: bool) -> None:
    """Say what the four stages are expected to take and cost: each on its primary, its fallback, and that on A100s.

    The DeepSpeed configs of both are in configs/<stage>/. Hours and dollars are of the steady state; the calendar adds
    saves, failures, evaluations and what finished runs took beyond. docs/stages.md has memory and reasons as well.
    """
    from governor.planner.output.plan_words import ways
    from governor.planner.plan_stages import PROVIDER, stage_plans

    found = [(plan, name, one) for plan in stage_plans() for name, one in plan.each]
    if as_json:
        print_json([{"stage": plan.stage.name, "which": name, **_document(one)} for plan, name, one in found])
        return
    rows = [(plan.stage.name, name, _gpus(one), ways(one.setup), *_figures(one)) for plan, name, one in found]
    reasons = [f"{plan.stage.name}: {reason}" for plan in stage_plans() for reason in plan.reasons]
    notes = [*reasons, f"prices: {PROVIDER}, on demand; configs: configs/<stage>/primary.json and fallback.json"]
    sys.stdout.write(render_rows(HEADS, rows, total=False, colour=sys.stdout.isatty(), notes=notes))


def _gpus(one: Costed) -> str:
    return f"{one.setup.gpus} x {one.setup.gpu.name}"


def _figures(one: Costed) -> tuple[str, ...]:
    from governor.planner.output.plan_words import hours, usd

    cost = one.cost
    assert cost.steady_usd is not None, "its price is listed"
    assert cost.calendar_usd is not None
    assert cost.mtok_usd is not None
    return (
        f"{one.prediction.tokens_per_s.mid:,.0f}", hours(cost.steady_hours.mid), usd(cost.steady_usd.mid),
        f"{usd(cost.steady_usd.low)} to {usd(cost.steady_usd.high)}", usd(cost.mtok_usd.mid),
        usd(cost.calendar_usd.mid),
    )  # fmt: skip


def _document(one: Costed) -> dict[str, Any]:
    from governor.planner.output.plan_document import setup_document

    cost, memory = one.cost, one.prediction.memory
    return {
        **setup_document(one.setup),
        "gpu_hour_usd": one.price.gpu_hour_usd,
        "tokens_per_s": one.prediction.tokens_per_s._asdict(),
        "memory_gb_reserved": round(memory.reserved / 1e9, 3),
        "steady_hours": cost.steady_hours._asdict(),
        "steady_usd": cost.steady_usd and cost.steady_usd._asdict(),
        "usd_per_mtok": cost.mtok_usd and cost.mtok_usd._asdict(),
        "calendar_hours": cost.calendar_hours._asdict(),
        "calendar_usd": cost.calendar_usd and cost.calendar_usd._asdict(),
    }
