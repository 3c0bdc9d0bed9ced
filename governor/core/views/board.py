"""What the page of the metrics port shows: chosen fields of `status`, without anybody's free words.

The port has no password. So nothing is here that a user wrote (reasons of holds and halts, texts of exceptions, labels,
paths): only figures, names of runs and rules, and words of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.policy import first_trigger
from governor.core.base.printable import cut
from governor.core.base.units import MICROS_PER_USD, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.views.status import run_status

RUNS_MAX: Final = 32  # As a scrape has them. Live ones first, then the newest.
FINDINGS_MAX: Final = 8
NAME_CHARS_MAX: Final = 128
_FIGURES: Final = (
    "state",
    "step",
    "total_steps",
    "loss",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "stepless_s",
    "halts_in_s",
    "spend_usd",
    "spend_rate_usd_per_hour",
    "ceiling_usd",
    "usd_per_mtok",
    "usd_per_mtok_all_in",
    "expected_usd_per_mtok",
    "drift_frac",
    "runway_s",
    "world_size",
    "ranks_connected",
    "last_frame_age_s",
    "mode",
    "time",
)


def take_board(node: Node, at: MonoNs) -> dict[str, Any]:
    """Plain values alone: nothing of the node is kept. Dollars are floats, for people."""
    newest = list(reversed(node.runs.values()))
    newest.sort(key=lambda managed: not managed.run.alive)
    price = node.ledger.price_usd_micros_per_hour
    return {
        "node": _name(node.facts.node),
        "mode": "observe" if node.facts.observe else "enforce",
        "price_usd_per_hour": price / MICROS_PER_USD if price is not None else None,
        "price_source": node.price_source,
        "runs": [_run(managed, at) for managed in newest[:RUNS_MAX]],
        "runs_more": max(0, len(newest) - RUNS_MAX),
    }


def _run(managed: ManagedRun, at: MonoNs) -> dict[str, Any]:
    told = run_status(managed, at)
    halt, hold, end = told["halt"], told["hold"], told["end"]
    firing = [one for one in told["findings"] if one["reading"] == "firing"]
    return {
        "run": _name(told["run"]),
        **{name: told[name] for name in _FIGURES},
        "halt": {**halt, "incident_id": _name(halt["incident_id"])} if halt is not None else None,
        "hold_left_s": hold["left_s"] if hold is not None else None,
        "exit_code": end["exit_code"] if end is not None else None,
        "firing": [{"rule": _name(one["rule"]), "reason": one["reason"]} for one in firing[:FINDINGS_MAX]],
        "gpus": told["machine"]["gpus"],
    }


def incident_row(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """One incident as the page lists it. KeyError: it is no incident's snapshot."""
    return {
        "incident_id": _name(snapshot["incident_id"]),
        "run": _name(snapshot["run"]),
        "reason": _name(snapshot["reason"]),
        "trigger": _name(first_trigger(snapshot)),
        "halt_stage": _name(snapshot["halt_stage"]),
        "opened_wall_ns": int(snapshot["opened_wall_ns"]),
        "closed": snapshot["closed_wall_ns"] is not None,
        "spend_usd": int(snapshot["spend_usd_micros"]) / MICROS_PER_USD,
    }


def _name(text: object) -> str:
    return cut(str(text), NAME_CHARS_MAX)
