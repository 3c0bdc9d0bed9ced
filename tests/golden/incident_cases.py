"""Recordings around incidents, made up by hand: what their plots have to show."""

from __future__ import annotations

import math
from typing import Any

from governor.core.base.units import NS_PER_S
from governor.reports.incident.seen import Seen
from tests.golden.report_cases import OPENED_WALL, ceiling_of_a_trainer, hang_deaf, nan_halt

BEGAN = 100 * NS_PER_S
VERDICT = 700 * NS_PER_S
AHEAD = OPENED_WALL - VERDICT
HOSTILE = "<script>alert(1)</script>\x1b[31m`x`"


def step(at_s: float, number: int, **over: Any) -> dict[str, Any]:
    told = {"loss": 4 - number / 200, "grad_norm": 1.5, "step_s": 1.0, "data_s": 0.25, "tokens": 1_000}
    at_ns = BEGAN + round(at_s * NS_PER_S)
    return {"kind": "step", "rank": 0, "step": number, "at_ns": at_ns} | told | over


def halted(incident: str) -> dict[str, Any]:
    return {"kind": "note", "note": "halted", "v": 1, "at_ns": VERDICT, "incident": incident}


def seen_of(snapshot: dict[str, Any], *records: dict[str, Any]) -> Seen:
    seen = Seen(snapshot)
    for record in records:
        if not seen.read(record, AHEAD):
            break
    seen.end()
    return seen


def with_nan() -> tuple[dict[str, Any], Seen]:
    """The loss rises for 20 steps, and is no number in the last two."""
    snapshot = nan_halt()
    steps = [step(number, number, loss=4 - number / 200 + max(0, number - 580) ** 2 / 50) for number in range(1, 598)]
    broken = [step(number, number, loss="nan") for number in (598, 599)]
    return snapshot, seen_of(snapshot, *steps, *broken, halted(snapshot["incident_id"]))


def with_hang() -> tuple[dict[str, Any], Seen]:
    """Steps of a second, then nothing for 74 s."""
    snapshot = hang_deaf() | {"evidence": {"still_s": 74.0, "limit_s": 60.0}}
    return snapshot, seen_of(snapshot, *(step(number, number) for number in range(1, 527)))


def with_ceiling() -> tuple[dict[str, Any], Seen]:
    """Two hours' charges, and the first one of an earlier run of that name."""
    snapshot = ceiling_of_a_trainer() | {"spend_at_verdict_usd_micros": 3_000_000}
    seen = seen_of(snapshot, step(1, 1), step(2, 2))
    hour = 3_600 * NS_PER_S
    ends = [(OPENED_WALL - 30 * hour, 9_000_000), (OPENED_WALL - hour, 1_600_000), (OPENED_WALL, 1_400_000)]
    seen.spend([(end - hour, end, usd_micros) for end, usd_micros in ends], 3_000_000)
    return snapshot, seen


def with_hostile_names() -> tuple[dict[str, Any], Seen]:
    """Every text that somebody else chooses."""
    rank = {"rank": 0, "phase": HOSTILE, "last_hook": HOSTILE, "device_wait": HOSTILE, "stack": [HOSTILE]}
    snapshot = nan_halt() | {
        "run": HOSTILE, "incident_id": f"{HOSTILE}.1", "text": HOSTILE, "resume": HOSTILE, "node": HOSTILE,
        "ranks": [rank], "evidence": {HOSTILE: HOSTILE, "gpu": HOSTILE}, "trigger": "gpu_starvation",
        "stays_billed": [HOSTILE], "checkpoint": {"path": HOSTILE, "kind": HOSTILE, "step": 4},
    }  # fmt: skip
    note = {"kind": "note", "note": "gpus", "at_ns": BEGAN, "busy_frac": [0.5], "uuids": [HOSTILE]}
    return snapshot, seen_of(snapshot, note, note | {"at_ns": BEGAN + NS_PER_S}, step(1, 1, loss=math.inf))


INCIDENTS = {case.__name__: case for case in (with_nan, with_hang, with_ceiling, with_hostile_names)}
