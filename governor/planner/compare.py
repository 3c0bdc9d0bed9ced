"""Reference set-ups for models of three sizes under every way of sharding: where each fits, and DeepSpeed's configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from governor.planner.estimate import WAYS, Estimate, by_way, estimate
from governor.planner.model.candidates import MARGIN
from governor.planner.model.memory import memory_frac
from governor.planner.model.setup import Framework
from governor.planner.output.report import document, notes_of
from governor.planner.promise import promised_cost, sharding_text
from governor.planner.request import asked
from governor.planner.what_fits import refusal
from governor.planner.words import UNKNOWN, days, gigabytes, share, usd, ways
from governor.text.screen import Screen, Styled
from governor.text.table import Head, render_rows

GPU: Final = "H100-SXM-80GB"
MEGATRON: Final = "Megatron"
DEEPSPEED_WAYS: Final = ("ZeRO-1", "ZeRO-2", "ZeRO-3")
# Model, number of GPUs, sequence length, tokens per step (Llama 2's 4M; Llama 3's 8M to 16M), tokens of the whole run.
REFERENCES: Final = (
    ("Llama2-7B", (8,), 4096, 2**22, 2e12),
    ("Llama3-70B", (64, 128, 256), 8192, 2**23, 15e12),
    ("Llama3.1-405B", (512, 1024, 2048), 8192, 2**24, 15e12),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """`by_way`: the best set-up of each way of sharding. None: no framework runs it."""

    model: str
    gpus: int
    tokens: float
    by_way: Mapping[str, Estimate | None]

    @property
    def name(self) -> str:
        return f"{self.model.lower()}-{self.gpus}"

    @property
    def deepspeed(self) -> Estimate:
        """The fastest of DeepSpeed's ways that fits."""
        fitting = [one for way in DEEPSPEED_WAYS if (one := self.by_way[way]) and one.prediction.memory.fits]
        assert fitting, f"{self.name}: no ZeRO stage fits"
        return max(fitting, key=lambda one: one.tokens_per_s.mid)


@cache
def references() -> tuple[Reference, ...]:
    return tuple(
        _reference(model, gpus, seq_len, step_tokens, tokens)
        for model, counts, seq_len, step_tokens, tokens in REFERENCES
        for gpus in counts
    )


def _reference(model: str, gpus: int, seq_len: int, step_tokens: int, tokens: float) -> Reference:
    values = {
        "model": model, "gpu": GPU, "gpus": str(gpus), "seq-len": str(seq_len), "batch-tokens": str(step_tokens),
        "tokens": f"{tokens:.0f}",
    }  # fmt: skip
    megatron = estimate({**values, "framework": Framework.MEGATRON.value})
    return Reference(model, gpus, tokens, {**by_way(asked(values)), MEGATRON: megatron})


# Several plans side by side, and each of them under every way of sharding.


HEADS = (
    *(Head("PLAN", may_wrap=True), Head("SHARDING"), Head("GPUS", is_number=True), Head("GB", is_number=True)),
    *(Head("OF", is_number=True), Head("FITS"), Head("TOK/S/GPU", is_number=True), Head("MFU", is_number=True)),
    *(Head("STEADY", is_number=True), Head("CALENDAR", is_number=True), Head("STEADY $", is_number=True)),
    *(Head("CALENDAR $", is_number=True), Head("$/1M", is_number=True), Head("AGAINST 1ST", is_number=True)),
)


def comparison(plans: Sequence[Estimate], *, screen: Screen) -> str:
    """One row for each plan, with figures where it fits; each plan under every way of sharding; the assumptions."""
    first = next((one for one in plans if one.prediction.memory.fits), plans[0])
    against = [] if first is plans[0] else [f"against {first.plan.asked.name}, the first that fits"]
    table = render_rows(HEADS, [_row(one, first) for one in plans], total=False, screen=screen, notes=against)
    return "\n".join([table, _ways_table(plans, screen), *_notes(plans)]) + "\n"


def comparison_document(plans: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "plans": [
            {
                **document(one),
                "sharding": sharding_text(one.setup),
                "problem": refusal(one),
                "ways": {
                    way: None if other is None else _way_document(other)
                    for way, other in by_way(one.plan.asked).items()
                },
            }
            for one in plans
        ]
    }


def _way_document(one: Estimate) -> dict[str, Any]:
    memory, cost = one.prediction.memory, promised_cost(one)
    return {
        "setup": ways(one.setup),
        "fits": memory.fits,
        "reserved_gb": round(memory.reserved / 1e9, 4),
        "tokens_per_gpu_s": one.per_gpu_s.mid,
        "steady_hours": None if cost is None else cost.steady_hours.mid,
        "steady_usd": None if cost is None or cost.steady_usd is None else cost.steady_usd.mid,
    }


def _row(one: Estimate, first: Estimate) -> tuple[str, ...]:
    setup, memory, cost = one.setup, one.prediction.memory, one.cost
    room = (
        one.plan.asked.name,
        sharding_text(setup),
        f"{setup.gpus} x {setup.gpu.name}",
        gigabytes(memory.reserved),
        gigabytes(memory.capacity),
    )
    if not memory.fits:
        return (*room, Styled("NO", "bold red"), *["-"] * (len(HEADS) - len(room) - 1))
    money = None if cost is None else cost.steady_usd
    return (
        *room,
        Styled("yes", "green") if memory_frac(setup) <= MARGIN else Styled("only just", "yellow"),
        f"{one.per_gpu_s.mid:,.0f}",
        share(one.mfu),
        UNKNOWN if cost is None else days(cost.steady_hours.mid),
        UNKNOWN if cost is None else days(cost.calendar_hours.mid),
        UNKNOWN if money is None else usd(money.mid),
        UNKNOWN if cost is None or cost.calendar_usd is None else usd(cost.calendar_usd.mid),
        UNKNOWN if one.mtok_usd is None else usd(one.mtok_usd.mid),
        _against(one, first),
    )


def _against(one: Estimate, first: Estimate) -> str:
    """The ratio in dollars per token if both have a price, else in time."""
    if one.mtok_usd is not None and first.mtok_usd is not None:
        return f"{one.mtok_usd.mid / first.mtok_usd.mid:.2f} x $"
    return f"{first.tokens_per_s.mid / one.tokens_per_s.mid:.2f} x time"


def _ways_table(plans: Sequence[Estimate], screen: Screen) -> str:
    rows = [(one.plan.asked.name, *(_way_cell(other) for other in by_way(one.plan.asked).values())) for one in plans]
    heads = (Head("THE SAME UNDER", may_wrap=True), *(Head(way, is_number=True) for way in WAYS))
    note = "steady-state cost (tokens/s/GPU without price or tokens); GB where it does not fit; -: nobody runs it so"
    return render_rows(heads, rows, total=False, screen=screen, notes=[note])


def _way_cell(one: Estimate | None) -> str:
    if one is None:
        return "-"
    memory = one.prediction.memory
    if not memory.fits:
        return f"no: {gigabytes(memory.reserved)} GB"
    if one.cost is not None and one.cost.steady_usd is not None:
        return usd(one.cost.steady_usd.mid)
    return f"{one.per_gpu_s.mid:,.0f} tok/s"


def _notes(plans: Sequence[Estimate]) -> list[str]:
    """For each plan its set-up, then the assumptions of all plans, once."""
    notes = [f"{one.plan.asked.name}: {ways(one.setup)}" for one in plans]
    notes += [problem for one in plans if (problem := refusal(one)) is not None]
    said = [line for one in plans for line in notes_of(one) if not line.startswith("chosen")]
    prices = [
        f"{one.plan.asked.name}: ${price.gpu_hour_usd:,.2f} a GPU-hour ({price.source})"
        for one in plans
        if (price := one.plan.asked.price) is not None
    ]
    if not prices:
        prices = ["no price: state price (USD per GPU-hour) or provider (cheapest takes the cheapest listed)"]
    return [*notes, *prices, *dict.fromkeys(said)]
