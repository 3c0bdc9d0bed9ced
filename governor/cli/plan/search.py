"""`costgov plan search`: the set-ups that are worth their money, and the best use of a budget; `plan stages`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from governor.cli.common import Failed, exits, json_option, print_json, show_text
from governor.cli.plan.options import PLAN_ERRORS, html_option, model_argument, plan_options, values_of, write_page
from governor.core.base.units import read_amount, read_float
from governor.text.screen import screen_of
from governor.text.table import Head, render_rows

if TYPE_CHECKING:
    from governor.planner.stage_plans import Costed


@click.command(short_help="Find the set-ups worth their money; what a budget is best spent on.", epilog=exits())
@model_argument
@click.option("--deadline", metavar="HOURS", help="Hours the run may take, by the calendar; 30d for days.")
@click.option(
    "--budget", metavar="USD", help="What it may cost, by the calendar. Without a model: what to train with it."
)
@plan_options
@html_option
@json_option
def search(
    model: str | None, deadline: str | None, budget: str | None, html: Path | None, as_json: bool, **options: str | None
) -> None:
    """Search parallelism, ZeRO stage, micro-batch, checkpointing, GPUs and providers under memory, deadline and budget.

    Shown are those that no other beats in dollars, hours and GPUs at once, and two to keep: the primary, and a
    fallback for when its memory does not suffice or its GPUs are not to be had, each with the reason.

    Lists: --gpu h100,a100 --gpus 8,16 --zero 2,3, and the same for framework, checkpointing, precision, micro-batch,
    tp, pp, cp and ep. Prices: the built-in table's, of one --provider or all; or --price of one --gpu. --budget without
    --tokens: as many tokens as it buys; without a model too: the size and the tokens of least loss.
    """
    from governor.planner.model.candidates import Limits
    from governor.planner.output.search_report import search_document, search_report, sizes_document, sizes_report
    from governor.planner.search import DAYS_USUAL, Searched, Wanted, searched, sizes_for, tokens_of, wanted

    screen = screen_of(sys.stdout)
    want: Wanted
    result: Searched
    try:
        values = values_of(model, options)
        limits = Limits(_hours(deadline), _usd(budget))
        tokens, assumed = tokens_of(values), []
        is_open = tokens is None
        if is_open and limits.budget_usd is None:
            raise Failed("tokens: how many are to be trained? Or budget: as many as it buys")
        if is_open and limits.deadline_h is None:
            limits = Limits(24 * DAYS_USUAL, limits.budget_usd)
            assumed.append(f"deadline {DAYS_USUAL:.0f}d")
        if is_open and not any(values.get(key) for key in ("model", "config", "shape")):
            sizes = sizes_for(values, limits)
            if not sizes:
                raise Failed(
                    f"no size of model fits and is trained for ${limits.budget_usd:,.0f}: state other gpu or gpus"
                )
            text = sizes_report(sizes, screen=screen, assumed=assumed)
            made = sizes_document(sizes)
            best = min(sizes, key=lambda size: size.loss)
            want, result = best.want, best.result
        else:
            want = wanted(values, limits)
            result = searched(want, tokens)
            text = search_report(want, result, screen=screen, assumed=assumed)
            made = search_document(want, result)
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json(made)
    else:
        show_text(text)
    if html is not None:
        from governor.planner.output.page import search_page

        write_page(html, search_page(want, result))
    if result.choice.primary is None:
        raise Failed(result.choice.reasons[0])


def _hours(text: str | None) -> float | None:
    if text is None:
        return None
    number, scale = (text[:-1], 24.0) if text.endswith("d") else (text.removesuffix("h"), 1.0)
    return scale * _above_zero("deadline", number, text)


def _usd(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return _above_zero("budget", read_amount(text), text)
    except ValueError as error:
        raise Failed(f"budget: {error}") from error


def _above_zero(key: str, number: str, text: str) -> float:
    try:
        value = read_float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise Failed(
            f"{key} {text!r}: must be a number above 0, such as {'240 or 30d' if key == 'deadline' else '15000'}"
        )
    return value


# --- stages: what the four stages are expected to cost


HEADS = (
    Head("STAGE"), Head("", may_wrap=True), Head("GPUS"), Head("SET-UP", may_wrap=True), Head("TOKENS/S", True),
    Head("HOURS", True), Head("$", True), Head("80 %", True), Head("$/1M STEADY", True), Head("CALENDAR $", True),
)  # fmt: skip


@click.command(short_help="What the four stages are expected to cost.", epilog=exits())
@json_option
def stages(as_json: bool) -> None:
    """Say what the four stages are expected to take and cost: each on its primary, its fallback, and that on A100s.

    The DeepSpeed configs of both are in configs/<stage>/. Hours and dollars are of the steady state; the calendar adds
    saves, failures, evaluations and what finished runs took beyond. Memory and reasons: docs/reference/stages.md.
    """
    from governor.planner.stage_plans import PROVIDER, stage_plans
    from governor.planner.words import ways

    found = [(plan, name, one) for plan in stage_plans() for name, one in plan.each]
    if as_json:
        print_json([{"stage": plan.stage.name, "which": name, **_document(one)} for plan, name, one in found])
        return
    rows = [(plan.stage.name, name, _gpus(one), ways(one.setup), *_figures(one)) for plan, name, one in found]
    reasons = [f"{plan.stage.name}: {reason}" for plan in stage_plans() for reason in plan.reasons]
    notes = [*reasons, f"prices: {PROVIDER}, on demand; configs: configs/<stage>/primary.json and fallback.json"]
    show_text(render_rows(HEADS, rows, total=False, screen=screen_of(sys.stdout), notes=notes))


def _gpus(one: Costed) -> str:
    return f"{one.setup.gpus} x {one.setup.gpu.name}"


def _figures(one: Costed) -> tuple[str, ...]:
    from governor.planner.words import hours, usd

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
    from governor.planner.output.report import setup_document

    cost, memory = one.cost, one.prediction.memory
    return {
        **setup_document(one.setup),
        "gpu_hour_usd": one.price.gpu_hour_usd,
        "tokens_per_s": one.prediction.tokens_per_s._asdict(),
        "memory_gb_reserved": round(memory.reserved / 1e9, 3),
        "steady_hours": cost.steady_hours._asdict(),
        "steady_usd": cost.steady_usd and cost.steady_usd._asdict(),
        "usd_per_mtok_steady": cost.mtok_usd and cost.mtok_usd._asdict(),
        "calendar_hours": cost.calendar_hours._asdict(),
        "calendar_usd": cost.calendar_usd and cost.calendar_usd._asdict(),
    }
