"""One node for the page of the metrics port and for `costgov top`: what both show is the same."""

from __future__ import annotations

from typing import Any, Final

from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import ADVICE

WALL_S: Final = 36_000.0
USD_PER_HOUR: Final = 22.0
# Of the run's time, as of the least that is told apart.
_SHARES: Final = {
    Cause.DATA: 0.0864, Cause.CHECKPOINT: 0.041, Cause.STRAGGLER: 0.0313, Cause.START_UP: 0.011,
    Cause.EVALUATION: 0.009, Cause.COMPILE: 0.004, Cause.UNKNOWN: 0.0031, Cause.LOOP: 0.0012,
    Cause.SHUT_DOWN: 0.0002, Cause.LOST_STEPS: 0.0,
}  # fmt: skip


def time_row(priced: bool = True) -> dict[str, Any]:
    usd = WALL_S / 3600 * USD_PER_HOUR if priced else 0.0
    productive = 1 - sum(_SHARES.values())
    return {
        "wall_s": WALL_S, "usd": usd, "productive_s": productive * WALL_S, "productive_usd": productive * usd,
        "goodput": productive,
        "causes": [
            {
                "cause": cause.value, "s": share * WALL_S, "usd": share * usd, "share": share,
                "usd_per_hour": share * USD_PER_HOUR if priced else 0.0, "confidence": ADVICE[cause].confidence,
                "evidence": ADVICE[cause].evidence, "next_step": ADVICE[cause].next_step,
            }
            for cause, share in _SHARES.items()
        ],
    }  # fmt: skip


def run_row(**changed: Any) -> dict[str, Any]:
    gpus = [{"gpu": f"GPU-{n}", "busy_frac": 0.93 - n / 50, "memory_used_bytes": 71 * 2**30 + n} for n in range(8)]
    return {
        "run": "llama-8b", "uid": 1000, "attempt": "a1", "stage": "stage1", "policy": "default", "mode": "enforce",
        "state": "training", "step": 12_040, "total_steps": 30_000, "loss": 2.3071, "tokens_total": 49_000_000,
        "tokens_per_s": 41_300.0, "mfu": 0.412, "tokens_per_s_per_gpu": 5_162.5, "stepless_s": None, "step_s": 0.4,
        "spend_usd": 220.0,
        "spend_rate_usd_per_hour": USD_PER_HOUR, "paid_by": None, "ceiling_usd": 300.0, "usd_per_mtok": 0.148,
        "usd_per_mtok_all_in": 0.1791, "expected_usd_per_mtok": 0.14, "drift_frac": 0.057, "runway_s": 13_080.0,
        "world_size": 8, "ranks_connected": 8, "last_frame_age_s": 0.2, "hold": None, "halt": None, "end": None,
        "findings": [], "machine": {"gpus": gpus, "memory_left_frac": 0.4}, "time": time_row(),
    } | changed  # fmt: skip


HALT: Final = {"stage": "SAVING", "reason": "loss_nan", "incident_id": "llama-8b.gpu-17.2"}
HALTING: Final = {
    "state": "halting", "halt": HALT, "loss": "nan",
    "findings": [{"rule": "nan", "reading": "firing", "reason": "loss_nan", "text": "loss is NaN"}],
}  # fmt: skip
HELD: Final = {"hold": {"left_s": 3_180.0, "reason": "evaluating by hand"}}
YOUNG: Final = {
    "run": "tiny", "state": "starting", "step": None, "total_steps": None, "loss": None, "tokens_per_s": None,
    "mfu": None, "tokens_per_s_per_gpu": None,
    "spend_usd": 0.0, "spend_rate_usd_per_hour": None, "ceiling_usd": None, "usd_per_mtok": None,
    "usd_per_mtok_all_in": None, "expected_usd_per_mtok": None, "drift_frac": None, "runway_s": None, "world_size": 1,
    "ranks_connected": 0, "last_frame_age_s": None, "machine": {"gpus": None}, "time": time_row(priced=False),
}  # fmt: skip


def board_run(**changed: Any) -> dict[str, Any]:
    """The same run as core.views.board has it."""
    told = run_row(**changed)
    hold = told.pop("hold")
    told |= {"gpus": told["machine"]["gpus"], "hold_left_s": hold["left_s"] if hold is not None else None}
    told |= {"exit_code": None, "firing": [{"rule": one["rule"], "reason": one["reason"]} for one in told["findings"]]}
    return told


INCIDENT: Final = {
    "incident_id": "llama-8b.gpu-17.2", "run": "llama-8b", "reason": "loss_nan", "trigger": "nonfinite",
    "halt_stage": "SAVING",
    "opened_wall_ns": 1_780_000_000_000_000_000, "closed": False, "spend_usd": 220.0,
}  # fmt: skip
_CLOSED: Final = {
    **INCIDENT, "incident_id": "llama-8b.gpu-17.1", "halt_stage": "HALTED", "closed": True, "spend_usd": 41.5,
    "opened_wall_ns": 1_779_900_000_000_000_000,
}  # fmt: skip
_NODE: Final = {
    "node": "gpu-17", "mode": "enforce", "price_usd_per_hour": USD_PER_HOUR, "price_source": "contract",
    "runs_more": 0,
}  # fmt: skip
BOARDS: Final[dict[str, dict[str, Any]]] = {
    "busy": {**_NODE, "runs": [board_run(), board_run(**YOUNG)], "incidents": [_CLOSED]},
    "halting": {
        **_NODE, "runs": [board_run(**HALTING, **HELD, mode="observe")],
        "incidents": [INCIDENT, _CLOSED], "runs_more": 3,
    },
    "empty": {**_NODE, "runs": [], "incidents": [], "price_usd_per_hour": None, "price_source": None},
}  # fmt: skip
