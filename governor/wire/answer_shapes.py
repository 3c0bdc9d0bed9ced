"""What a governor's answers hold that commands read unasked. Anything else did not come from a governor.

A key with "?" may be absent or null. Of an incident in a list only what a list shows is asked: one old incident with
a gap does not hide the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

NUMBER_MAX: Final = 2.0**63  # More than all money, and all nanoseconds until 2262.
_NUMBER, _MAYBE, _WALL_NS, _ANYTHING = "a number", "a number or null", "a moment", "anything"

_CAP: Final = {"scope": str, "ceiling_usd": _NUMBER, "spend_usd": _NUMBER}
_BUDGET: Final = {
    **_CAP, "reserve_usd": _NUMBER, "reached_in_s?": _NUMBER, "source": str, "live": bool, "set_at_s?": _NUMBER,
}  # fmt: skip
_GPU_PROCESS: Final = {"pid": _NUMBER, "gpu": _ANYTHING, "usd_per_hour?": _NUMBER}
_CAUSE: Final = {"cause": str, "s": _NUMBER, "usd": _NUMBER, "confidence": str, "next_step?": str}
_RUN: Final = {
    "run": str,
    "state": str,
    # What is computed with: a text times a billion is a text of gigabytes.
    **dict.fromkeys(
        (
            "step?",
            "total_steps?",
            "tokens_per_s?",
            "mfu?",
            "usd_per_mtok?",
            "usd_per_mtok_all_in?",
            "usd_per_mtok_useful?",
            "usd_per_mtok_steady?",
            "expected_usd_per_mtok?",
            "expected_tokens_per_s?",
            "drift_frac?",
            "drift_all_in_frac?",
            "burn_rate?",
            "wasted_usd?",
            "unpriced_s?",
            "spend_rate_usd_per_hour?",
            "runway_s?",
            "last_frame_age_s?",
            "stepless_s?",
            "halts_in_s?",
            "pad_frac?",
            "loss_unseen_steps?",
            "tokens_wasted?",
            "tokens_goal?",
            "ceiling_in_s?",
            "ceiling_at_tokens?",
        ),
        _NUMBER,
    ),
    "hours_left?": [_MAYBE],
    "cost_left_usd?": [_MAYBE],
    "ceiling_between_s?": [_NUMBER],
    "ceiling_between_tokens?": [_NUMBER],
    "saves?": dict.fromkeys(("save_s", "interval_s", "mtbf_s", "best_interval_s", "saved_usd_per_hour?"), _NUMBER),
    "wasted_usd_by_cause?": dict.fromkeys(("start_up?", "after_last_step?", "halt?", "trained_twice?"), _NUMBER),
    "window?": dict.fromkeys(
        (
            "from_tokens",
            "to_tokens",
            "duration_s",
            "usd_per_mtok?",
            "usd_per_mtok_steady?",
            "tokens_per_s?",
            "drift_frac?",
            "burn_rate?",
        ),
        _NUMBER,
    ),
    "time?": {"wall_s": _NUMBER, "goodput?": _NUMBER, "causes": [_CAUSE]},
    "machine?": {"gpus?": [{"busy_frac?": _NUMBER, "memory_used_bytes?": _NUMBER}]},
    "spend_usd": _NUMBER,
    "ceiling_usd?": _NUMBER,
    "ranks_connected": _NUMBER,
    "world_size": _NUMBER,
    "halt?": {"stage": str, "reason": str, "incident_id": str},
    "hold?": {"left_s": _NUMBER, "reason": str},
    "end?": {"text": str},
    "binding?": _CAP,
    "command_ceiling?": _CAP,
    "findings?": [{"rule": str, "reading": str, "reason": _ANYTHING, "text": _ANYTHING}],
}
_GOVERNOR: Final = {
    "node": str,
    "state_dir?": str,
    "budgets?": [_BUDGET],
    "price_usd_per_hour?": _NUMBER,
    "lines?": [{"usd_per_hour?": _NUMBER}],
    "policies?": [str],
    "fallen_back?": [{"policy": str, "rule": str, "owner_uid?": _NUMBER, "incidents": [str], "wrong_max": _NUMBER}],
    "cloud?": {"stays_billed?": [str], "problems?": [str]},
    "alerts?": {"problems?": [str]},
    "selftest?": [{"ok": bool, "line": str}],
    "price?": {"remarks?": [{"text": str, "alarm": bool}]},
    "refused?": [{"pid": _NUMBER, "uid": _NUMBER, "reason": str}],
}
_NODE: Final = {
    "limit_s?": _NUMBER, "idle_s?": _NUMBER, "stops_in_s?": _NUMBER, "stop?": {"stage": str, "incident_id": str},
    "hold?": {"left_s": _NUMBER, "reason": str},
}  # fmt: skip
_BUDGET_ACT: Final = {
    "before_usd?": _NUMBER, "ceiling_usd?": _NUMBER, "spend_usd": _NUMBER, "reserve_usd": _NUMBER, "source?": str,
    "runs": [str], "observe": bool, "notes": [str],
}  # fmt: skip
_LISTED: Final = {
    "incident_id": str, "opened_wall_ns": _WALL_NS, "closed_wall_ns?": _WALL_NS, "run": str, "halt_stage": str,
    "reason": str, "checkpoint?": {}, "spend_usd_micros": _NUMBER, "spend_rate_usd_micros_per_hour?": _NUMBER,
}  # fmt: skip
# A whole incident, as `costgov incident show` tells it.
INCIDENT: Final = {
    **_LISTED,
    "uid?": _NUMBER,
    "operator_uid?": _NUMBER,
    "step?": _NUMBER,
    "timeline": [{"what": str, "wall_ns": _WALL_NS, "mono_ns": _NUMBER, "detail": {}}],
    "plan": {},
    "stays_billed": [str],
    "evidence": {},
    "node": str,
}
OF_RUN: Final = {"ranks": [{"rank": _NUMBER}]}  # The node's own stop has none.
# By the request's `cmd`.
ANSWERS: Final[Mapping[str, Any]] = {
    "ping": {},
    "status": {"governor": _GOVERNOR, "runs": [_RUN], "unwatched_gpu_processes?": [_GPU_PROCESS], "node?": _NODE},
    "halt": {"run": str, "incident_id?": str, "checkpoint?": str, "wait_s?": _NUMBER},
    "hold": {"run": str},
    "forget": {"run": str, "owner_uid": _NUMBER, "spend_usd": _NUMBER},
    "budget_set": _BUDGET_ACT,
    "budget_clear": _BUDGET_ACT,
    "incidents": [_LISTED],
    "reload": {},
}


# By one of these a row of a list says what it is of. One that does not is no governor's.
_NAMES: Final = ("incident_id", "run", "scope", "pid")


def sifted(value: Any, shape: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The answer without what of its rows is ill-shaped, and a line for each such row. None: no governor's answer.

    What another user's run says stands in its row alone: one that cannot be shown hides no other.
    """
    lines: list[str] = []
    found = _sifted(value, shape, lines)
    return (found, tuple(lines)) if is_shaped(found, shape) else None


def _sifted(value: Any, shape: Any, lines: list[str]) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, dict):
        inner = {key.removesuffix("?"): one for key, one in shape.items()}
        return {key: _sifted(one, inner[key], lines) if key in inner else one for key, one in value.items()}
    if not (isinstance(shape, list) and isinstance(value, list) and isinstance(shape[0], Mapping)):
        return value
    if (name := next((name for name in _NAMES if name in shape[0]), None)) is None:
        return value
    rows = [one if is_shaped(one, shape[0]) else _mended(one, shape[0], name, lines) for one in value]
    return [one for one in rows if one is not None]


def _mended(row: Any, shape: Mapping[str, Any], name: str, lines: list[str]) -> Any:
    """The row without the figures that are none; None where it cannot be shown. One without a name stays as it is."""
    if not isinstance(row, dict) or not is_shaped(row.get(name), shape[name]):
        return row
    ill = [key.removesuffix("?") for key, one in shape.items() if not _holds(row, key, one)]
    mended = {**row, **dict.fromkeys(ill)}
    is_shown = is_shaped(mended, shape)
    lines.append(
        f"{name.removesuffix('_id')} {row[name]}: not as this version has it, and left out"
        f"{': ' + ', '.join(ill) if is_shown else ''}"
    )
    return mended if is_shown else None


def is_shaped(value: Any, shape: Any) -> bool:
    """Whether it has that shape. More keys than it names may be there."""
    if isinstance(shape, Mapping):
        return isinstance(value, dict) and all(_holds(value, key, inner) for key, inner in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(is_shaped(one, shape[0]) for one in value)
    if shape is _MAYBE and value is None:
        return True
    if shape in (_NUMBER, _MAYBE):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    if shape is _WALL_NS:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return shape is _ANYTHING or isinstance(value, shape)


def _holds(value: Mapping[str, Any], key: str, shape: Any) -> bool:
    name = key.removesuffix("?")
    if value.get(name) is None and name != key:
        return True
    return name in value and is_shaped(value[name], shape)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value) and abs(value) < NUMBER_MAX
    except OverflowError:  # A whole number beyond every float.
        return False
