"""Runs that a report must tell well, made up by hand. Shared by the golden tests and the unit tests of reports."""

from __future__ import annotations

import math
from typing import Any

from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import Whole, time_row
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Ack, Hello, Step
from governor.core.events.machine import GpuSample
from governor.reports.run.facts import Peak, RunFacts
from governor.reports.run.series import RunSeries
from governor.wire.recorded import break_note
from tests.golden.report_cases import nan_halt

FIRST = ConnectionId(1)
BEGAN = MonoNs(100 * NS_PER_S)
WALL = 1_780_000_000 * NS_PER_S
H100 = Peak("H100-SXM-80GB", 989e12)


def at(seconds: float) -> MonoNs:
    return MonoNs(BEGAN + round(seconds * NS_PER_S))


def hello(seconds: float, rank: int = 0, attempt: str = "a1", **over: Any) -> Hello:
    told = {"world_size": 2, "parameters": 1_000_000_000, "tokens_per_step": 65_536, "gpu_uuids": (f"GPU-{rank}",)}
    connection = ConnectionId(1 + rank)
    return Hello(
        at(seconds), connection, Peer(ProcessId(40 + rank, 1, "b"), 0), 1, "llama", attempt, rank, rank, **(told | over)
    )


def step(seconds: float, number: int, **over: Any) -> Step:
    told: dict[str, Any] = {
        "loss": 8 * number**-0.2, "grad_norm": 1.0 + 0.1 * (number % 3), "loss_scale": 65_536.0, "skipped_steps": 0,
        "step_s": 2.0, "data_s": 0.4, "forward_s": 0.5, "backward_s": 0.9, "optimizer_s": 0.1, "comm_s": 0.2,
    }  # fmt: skip
    return Step(at(seconds), FIRST, "llama", 0, number, **(told | over))


def trained(steps: int = 120, length: float = 2.0, **over: Any) -> RunSeries:
    """A run of two ranks: a save, a spike, an overflow that halves the loss scale, GPU samples, a gap."""
    series = RunSeries(wall_ahead_ns=WALL - BEGAN)
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, steps + 1):
        now = 10 + number * length
        backward_s = length - 0.7 - over.get("data_s", 0.4) + 0.01 * (number % 5)
        told: dict[str, Any] = {"step_s": length, "backward_s": backward_s} | over
        if number == 60:
            told |= {"loss": 9.5, "checkpoint_s": 1.5}
            series.see(_saved(now - 0.5, number))
        if number >= 80:
            told |= {"loss_scale": 32_768.0, "skipped_steps": 1}
        series.see(step(now, number, **told))
        series.see_other({"rank": 1, "step": number, "step_s": length, "data_s": 0.3, "forward_s": 0.7})
        if number % 10 == 0:
            series.see(GpuSample(at(now), None, (0.9, 0.7), ("GPU-0", "GPU-1")))
    series.note({**break_note(at(0)), "lines": 12}, at(11 + steps * length))
    return series


def _saved(seconds: float, number: int) -> Ack:
    return Ack(at(seconds), FIRST, "llama", 0, 3, "own", "saved", number)


def account(**more: tuple[float, float]) -> dict[str, Any]:
    """Seconds and dollars by cause, as a run's row has them."""
    told = {
        "PRODUCTIVE": (180.0, 1.1), "DATA": (48.0, 0.293333), "START_UP": (60.0, 0.366667),
        "CHECKPOINT": (1.5, 0.009167), "COMMUNICATION": (24.0, 0.146667),
        "UNKNOWN": (20.5, 0.125278), "HALT": (7.0, 0.042778),
    } | more  # fmt: skip
    amounts = {Cause[name]: Amount(round(s * NS_PER_S), round(usd * 1e6)) for name, (s, usd) in told.items()}
    return time_row(Whole(amounts, 240, {1: 5 * NS_PER_S}))


def whole_run() -> RunFacts:
    """Everything is known of it."""
    told = {
        "time": account(), "step": 120, "tokens_total": 7_864_320, "tokens_wasted": 65_536,
        "usd_per_mtok_all_in": 0.265, "usd_per_mtok_useful": 0.267, "usd_per_mtok_steady": 0.186,
        "usd_per_mtok": 0.19, "expected_usd_per_mtok": 0.15, "expected_usd_per_mtok_all_in": 0.2,
        "expected_tokens_per_s": 40_000.0, "ceiling_usd": 25.0, "tokens_goal": 20_000_000, "unpriced_s": 0.0,
    }  # fmt: skip
    halt = nan_halt() | {"run": "llama", "incident_id": "llama.gpu-17.1", "step": 120}
    raised = {
        "at": "2026-05-28T20:26:00Z",
        "what": "rank 1 raised",
        "step": None,
        "text": "ValueError: no (train.py:3)",
    }
    return RunFacts(
        "llama", told, "halted: loss is NaN at step 120", "2026-05-28T20:30:00Z", None, 22.0, [halt], [raised],
        trained(), (), H100,
    )  # fmt: skip


def bare_run() -> RunFacts:
    """Neither a price nor a recording, and it goes on."""
    unpriced = {name: (s, 0.0) for name, s in (("PRODUCTIVE", 60.0), ("UNKNOWN", 30.0), ("START_UP", 10.0))}
    whole = Whole({Cause[name]: Amount(round(s * NS_PER_S), 0) for name, (s, _) in unpriced.items()}, 5, {})
    return RunFacts("bare", {"time": time_row(whole), "step": 5}, None)


def hostile_run() -> RunFacts:
    """Names and texts of strangers."""
    name = '<script>alert("x")</script>|`a`'
    raised = {
        "at": "2026-05-28T20:26:00Z",
        "what": "rank 0 raised",
        "step": 3,
        "text": "[x](https://y)\n# <b>\x1b[31m",
    }
    return RunFacts(
        name, {"time": account(), "step": 3}, "ended: <i>&", None, None, 22.0, (), [raised],
        trained(steps=30, loss=math.nan), ["/tmp/<x>: torn"],
    )  # fmt: skip


CASES = {"whole": whole_run, "bare": bare_run, "hostile": hostile_run}
