"""Figures of a plan as text. GB are 1e9 bytes."""

from __future__ import annotations

from governor.core.base.units import MICROS_PER_USD, format_usd
from governor.planner.model.run_cost import Spread
from governor.planner.model.setup import Checkpointing, Framework, Kernel, Setup

GB = 1e9
UNKNOWN = "unknown"
BAR_CELLS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


def usd(value: float | None) -> str:
    """At least three digits, and cents where they matter."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 1000:
        return f"{'-' if value < 0 else ''}${abs(value):,.0f}"
    return format_usd(round(value * MICROS_PER_USD))


def hours(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f} h"
    if value >= 10:
        return f"{value:.1f} h"
    return f"{value:.2f} h" if value >= 1 else f"{60 * value:.1f} min"


def days(value: float) -> str:
    """A number of hours, in days if it is large."""
    return f"{value / 24:,.1f} days" if value >= 48 else hours(value)


def count(value: float) -> str:
    """1.05M, 51.6B, 15T."""
    for size, prefix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}" if value / size < 999.5 else f"{value / size:,.0f}{prefix}"
    return f"{value:.3g}"


def gigabytes(value: float) -> str:
    return f"{value / GB:,.1f}"


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"


def share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.1f} %"


def spread(values: Spread | None, form: object) -> tuple[str, str, str]:
    assert callable(form)
    return (UNKNOWN,) * 3 if values is None else (form(values.low), form(values.mid), form(values.high))


def bar(part: float, whole: float, cells: int = BAR_CELLS) -> str:
    """A bar of eighths of a character: `part` of `whole`."""
    filled = round(8 * cells * min(max(part / whole, 0.0), 1.0)) if whole > 0 else 0
    full, rest = divmod(filled, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def ways(setup: Setup) -> str:
    """The distribution of the model and its settings: "deepspeed ZeRO-3, micro-batch 4 x 16, full checkpointing"."""
    words = [setup.framework.value]
    if setup.gpus == 1 and setup.zero_stage:
        words[0] += f" (one rank: ZeRO-{setup.zero_stage} shards nothing)"
    elif setup.framework not in (Framework.DDP, Framework.FSDP, Framework.FSDP2, Framework.XLA):
        words[0] += f" ZeRO-{setup.zero_stage}"
    parallel = {"tp": setup.tp, "pp": setup.pp, "vp": setup.virtual_stages, "cp": setup.cp, "ep": setup.ep}
    words += [f"{name} {ranks}" for name, ranks in parallel.items() if ranks > 1]
    words.append(f"micro-batch {setup.micro_batch} x {setup.grad_accum}")
    if setup.checkpointing is not Checkpointing.NONE:
        words.append(f"{setup.checkpointing} checkpointing")
    if setup.kernel is not Kernel.USUAL:
        words.append(f"attention {setup.kernel}")
    if setup.offload.moves_optimizer:
        words.append(f"offload {setup.offload}")
    if setup.precision != "bf16":
        words.append(setup.precision.value)
    return ", ".join(words)
