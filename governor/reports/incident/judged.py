"""Which quantities a trigger has judged, and by what limit: what the plots of an incident show. Pure.

A limit is of the incident's evidence. One that the evidence does not have is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from governor.core.base.policy import ALL
from governor.core.base.units import MICROS_PER_USD
from governor.core.money.budgets import SHARED
from governor.text.moments import Snapshot

GIB: Final = 2**30
QUANTITIES_MAX: Final = 4
LIMITS_MAX: Final = 2
TITLES: Final[Mapping[str, str]] = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "loss_scale": "loss scale",
    "tokens_per_s": "tokens per second",
    "steps_per_s": "steps per second",
    "step_s": "step time, s",
    "data_frac": "waiting for data, part of a step",
    "own_s": "own time of a step, s",
    "gpu_busy": "GPU busy, part of the time",
    "gpu_memory_gib": "GPU memory in tensors, GiB",
    "host_left_gib": "main memory left, GiB",
    "silence_s": "seconds since the last step",
    "step": "step",
    "spend_usd": "spent, $",
}
SPEND: Final = "spend_usd"
NODE_WIDE: Final = frozenset({"gpu_busy", "host_left_gib", "silence_s", SPEND})  # Of no one rank.


class Limit(NamedTuple):
    value: float
    name: str


class Judged(NamedTuple):
    """One quantity. `note`: what has to be known to read its plot."""

    name: str
    limits: tuple[Limit, ...] = ()
    note: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.name]


_LOSS: Final = ("loss",)
_NUMBERS: Final = ("loss", "grad_norm", "loss_scale")
_SPEED: Final = ("tokens_per_s",)
_MONEY: Final = (SPEND, *_SPEED)
_QUANTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "nonfinite": _NUMBERS,
    "loss_spike": ("loss", "grad_norm"),
    "loss_divergence": ("loss", "grad_norm"),
    "loss_frozen": _LOSS,
    "loss_stall": _LOSS,
    "loss_vanished": _LOSS,
    "grad_norm": ("grad_norm", "loss"),
    "overflow_storm": ("loss_scale", "loss"),
    "throughput_collapse": _SPEED,
    "slower_than_planned": _SPEED,
    "usd_per_mtok": _SPEED,
    "data_starvation": ("data_frac", "step_s"),
    "gpu_starvation": ("gpu_busy", *_SPEED),
    "gpu_throttled": ("gpu_busy", *_SPEED),
    "gpu_fault": ("gpu_busy", *_SPEED),
    "hang": ("silence_s",),
    "silence": ("silence_s", "gpu_busy"),
    "log_stalled": ("silence_s",),
    "node_idle": ("gpu_busy", "silence_s"),
    "straggler": ("own_s", "step_s"),
    "restart_loop": ("step",),
    "memory_pressure": ("host_left_gib", "gpu_memory_gib"),
    "budget": _MONEY,
    "gate": _MONEY,
    "unsaved_work": ("step",),
}
# Variables of expressions that a recording has, or from which it has them.
_VARIABLES: Final[Mapping[str, str]] = {
    "loss": "loss", "grad_norm": "grad_norm", "loss_scale": "loss_scale", "tokens_per_s": "tokens_per_s",
    "step_s": "step_s", "since_step_s": "silence_s", "gpu_busy_min": "gpu_busy", "spend_usd": SPEND, "step": "step",
}  # fmt: skip
_OTHERWISE: Final = ("loss", "tokens_per_s")  # A person asked for the halt, or a newer version judged.
_NOTES: Final[Mapping[str, str]] = {
    "hang": "The rule judges any sign of progress of a rank, of which a step is one.",
    "silence": "The rule judges any frame of the run, and steps are some of them.",
    "usd_per_mtok": "The rule judges the dollars of tokens over a time, which no recording has step by step.",
    "gate": "The gate judges what the run would have spent at its goal, not what it had spent.",
    "gpu_starvation": "The rule judges the mean of these samples over its window.",
    "gpu_throttled": "The rule judges for how long the clocks were held down; this is how busy the GPU was.",
    "straggler": "The rule judges medians of these times.",
}


def judged_of(snapshot: Snapshot) -> list[Judged]:
    """What the trigger judged first, then what tells more of it. Never empty, at most QUANTITIES_MAX."""
    found: dict[str, Judged] = {}
    for trigger, evidence in _parts(snapshot):
        for name in _names(trigger, evidence):
            limits = tuple(_limits(name, trigger, evidence))[:LIMITS_MAX]
            note = _NOTES.get(trigger, "") if not found else ""
            if name not in found:
                found[name] = Judged(name, limits, note)
            elif not found[name].limits:
                found[name] = found[name]._replace(limits=limits)
    return list(found.values())[:QUANTITIES_MAX]


def is_by_rule(snapshot: Snapshot) -> bool:
    """Whether what is plotted is what a rule has judged."""
    return any(trigger in _QUANTITIES or trigger == "expression" for trigger, _ in _parts(snapshot))


def own_rank(snapshot: Snapshot) -> int | None:
    """The rank that the finding is about, else the lowest one that was known at the verdict."""
    for _, evidence in _parts(snapshot):
        rank = evidence.get("rank")
        if type(rank) is int:
            return rank
    ranks = [one.get("rank") for one in snapshot.get("ranks") or () if isinstance(one, Mapping)]
    known = [rank for rank in ranks if type(rank) is int]
    return min(known, default=None)


def own_gpu(snapshot: Snapshot) -> str | None:
    """The GPU that the finding is about. None: the mean of all is drawn."""
    for _, evidence in _parts(snapshot):
        if isinstance(evidence.get("gpu"), str):
            return str(evidence["gpu"])
    return None


def _parts(snapshot: Snapshot) -> list[tuple[str, Mapping[str, Any]]]:
    """Each trigger that fired, with its evidence."""
    evidence = snapshot.get("evidence")
    evidence = evidence if isinstance(evidence, Mapping) else {}
    if snapshot.get("trigger") == ALL and isinstance(members := evidence.get(ALL), list):
        return [(str(one.get("trigger")), one) for one in members if isinstance(one, Mapping)]
    return [(str(snapshot.get("trigger")), evidence)]


def _names(trigger: str, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    if trigger == "expression":
        return tuple(_VARIABLES[name] for name in evidence if name in _VARIABLES) or _OTHERWISE
    names = _QUANTITIES.get(trigger, _OTHERWISE)
    if evidence.get("unit") == "steps/s":
        return tuple("steps_per_s" if name == "tokens_per_s" else name for name in names)
    if trigger == "memory_pressure":
        return ("gpu_memory_gib",) if "allocated_bytes" in evidence else ("host_left_gib",)
    return names


def _limits(name: str, trigger: str, evidence: Mapping[str, Any]) -> list[Limit]:
    def told(key: str, text: str, scale: float = 1.0) -> list[Limit]:
        value = number(evidence.get(key))
        return [Limit(value * scale, text)] if value is not None else []

    if name == {"loss_spike": "loss", "loss_divergence": "loss", "grad_norm": "grad_norm"}.get(trigger):
        return told("limit", "limit")
    if trigger == "loss_stall" and name == "loss":
        return told("loss_best", "best")
    if name in ("tokens_per_s", "steps_per_s") and (base := number(evidence.get("baseline"))) is not None:
        whose = "plan" if trigger == "slower_than_planned" else "baseline"
        return [*told("floor_frac", "limit", base), Limit(base, whose)]
    if name == "data_frac":
        return told("share_frac", "limit")
    if name == "gpu_busy" and trigger == "gpu_starvation":
        return told("floor_frac", "limit")
    if name == "silence_s" and trigger in ("hang", "log_stalled", "silence"):
        return told("after_s" if trigger == "silence" else "limit_s", "limit")
    if name == "own_s":
        return told("peers_s", "its peers")
    if name == SPEND:
        return _of_money(evidence)
    return _of_memory(name, evidence)


def _of_money(evidence: Mapping[str, Any]) -> list[Limit]:
    ceiling, reserve = number(evidence.get("ceiling_usd_micros")), number(evidence.get("reserve_usd_micros"))
    if ceiling is None:
        return []
    what = "granted" if str(evidence.get("scope")).startswith(SHARED) else "ceiling"
    limits = [Limit(ceiling / MICROS_PER_USD, what)]
    if reserve:
        limits.append(Limit((ceiling - reserve) / MICROS_PER_USD, f"{what} less the halt's reserve"))
    return limits


def _of_memory(name: str, evidence: Mapping[str, Any]) -> list[Limit]:
    total = number(evidence.get("total_bytes"))
    left = number(evidence.get("host_left_frac" if name == "host_left_gib" else "gpu_left_frac"))
    if total is None or left is None or name not in ("host_left_gib", "gpu_memory_gib"):
        return []
    share = left if name == "host_left_gib" else 1 - left
    return [Limit(share * total / GIB, "limit")]


def number(value: object) -> float | None:
    """A finite number that can be computed with, whatever a journal or a recording has in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2.0**63) < value < 2.0**63:
        return None
    return float(value) if math.isfinite(value) else None
