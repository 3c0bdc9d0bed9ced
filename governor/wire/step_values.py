"""What a step says beside its number, whoever says it: a frame, or a line of a stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from governor.core.base.units import COUNT_MAX, TOKENS_OF_A_STEP_MAX
from governor.core.events.step_parts import TIME_FIELDS
from trainer_shim.wire import number

_STEP_NUMBERS = ("loss", "grad_norm", "lr", "loss_scale")
_STEP_COUNTS = (
    "attempt_step", "tokens", "tokens_total", "tokens_nonpad", "tokens_own_total", "nonpad_own_total", "skipped_steps",
    "mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes", "progress_seq",
)  # fmt: skip

_STEP_TRUTHS = ("loss_expected", "grad_finite", "applied", "data_bound")
# Fields of the wire's step of which nothing is kept: a recording has them.
NOT_KEPT = frozenset(("device_timed",))

_OF_A_STEP = frozenset(("tokens", "tokens_nonpad"))


def step_values(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optional fields of a step whose kinds were checked.

    Losses, norms and scales retain NaN and infinities, which matter. A duration or a count that is negative or not
    finite carries no information and becomes absent, so that one bad clock does not cost the loss beside it. So does a
    count that is more than any training has; `left_out` says so.
    """
    values: dict[str, Any] = {}
    get = frame.get
    for name in _STEP_NUMBERS:
        value = get(name)
        if value is not None:
            values[name] = value if type(value) is float else number(value)
    for name in TIME_FIELDS:
        value = get(name)
        if value is not None and type(value) is not str and 0 <= value < math.inf:
            values[name] = value
    for name in _STEP_COUNTS:
        value = get(name)
        if value is not None and value >= 0:
            values[name] = value
            if value > TOKENS_OF_A_STEP_MAX:
                leave_out_absurd(values, name)
    for name in _STEP_TRUTHS:
        value = get(name)
        if value is not None:
            values[name] = value
    return values


def leave_out_absurd(values: dict[str, Any], name: str) -> None:
    """Leave a count out that cannot be, and say so in `left_out`."""
    count = values[name]
    if count > (TOKENS_OF_A_STEP_MAX if name in _OF_A_STEP else COUNT_MAX):
        del values[name]
        values.setdefault("left_out", f"{name} {count}")


def derive(values: dict[str, Any], since_last_s: float | None) -> None:
    """Derive the missing one of tokens, seconds and tokens per second. A rate alone lasts since the last record."""
    tokens_per_second = values.pop("tokens_per_second")
    if not 0 < tokens_per_second < math.inf:
        return
    is_of_one_step = "step_s" in values
    if since_last_s is not None and values.keys().isdisjoint(("tokens", "tokens_total", "step_s")):
        values["step_s"] = since_last_s
    tokens, step_s = values.get("tokens"), values.get("step_s")
    if tokens is None and step_s is not None:
        product = tokens_per_second * step_s
        if product <= TOKENS_OF_A_STEP_MAX:
            values["tokens"] = round(product)
            if is_of_one_step:
                values["line_steps"] = 1
    elif step_s is None and tokens is not None:
        values["step_s"] = tokens / tokens_per_second
