"""One line of a metrics stream → event. Either our own frames, one per line, or any flat JSON with a field map."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from governor.core.events import Event, PhaseChange, Step
from governor.core.units import MonoNs
from governor.wire.frames import step_values
from trainer_shim.wire import FRAMES, PHASES, WIRE_VERSION, faults, number

# Our field -> the names under which trainers commonly log it, in order of preference. Keys that end in `_ms` hold
# milliseconds. A bare "tokens" is this step's, as on our own wire; totals have names of their own.
DEFAULT_FIELDS: Mapping[str, Sequence[str]] = {
    "step": ("step", "global_step", "global_steps", "iteration", "iter", "train/step", "train/global_step", "_step"),
    "attempt_step": ("attempt_step", "relative_step"),
    "loss": ("loss", "train_loss", "lm_loss", "lm loss", "train/loss", "train/lm_loss", "training_loss"),
    "grad_norm": ("grad_norm", "gnorm", "gradient_norm", "grad-norm", "train/grad_norm", "global_grad_norm"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "loss_scale": ("loss_scale", "scale"),
    "skipped_steps": ("skipped_steps", "skipped_iterations"),
    "tokens": ("tokens", "tokens_per_step", "step_tokens", "batch_tokens"),
    "tokens_total": ("tokens_total", "total_tokens", "tokens_seen", "consumed_tokens", "num_input_tokens_seen"),
    "step_s": (
        "step_s", "step_time_s", "step_time", "iter_time_s", "iter_time", "iteration_time", "time_per_step",
        "step_ms", "step_time_ms", "iter_time_ms",
    ),
    "data_s": ("data_s", "data_time_s", "data_time", "data_wait_s", "data_ms", "data_time_ms"),
    "forward_s": ("forward_s", "forward_time_s", "forward_ms", "fwd_ms"),
    "backward_s": ("backward_s", "backward_time_s", "backward_ms", "bwd_ms"),
    "optimizer_s": ("optimizer_s", "optimizer_time_s", "optimizer_ms"),
    "checkpoint_s": ("checkpoint_s", "checkpoint_time_s", "checkpoint_ms"),
    "comm_s": ("comm_s", "comm_time_s", "comm_ms"),
    "mem_allocated_bytes": ("mem_allocated_bytes",),
    "mem_reserved_bytes": ("mem_reserved_bytes",),
    "rss_bytes": ("rss_bytes",),
    "tokens_per_second": ("tokens_per_second", "tokens_per_sec", "tok/s", "tokens/s", "tps", "throughput_tokens"),
    "overflow": ("overflow",),
    "phase": ("phase",),
}  # fmt: skip

_WHOLE = frozenset((
    "step", "attempt_step", "skipped_steps", "tokens", "tokens_total",
    "mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes",
))  # fmt: skip
_WORDS = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "-inf": -math.inf}
_PHASE_WORDS = {
    **{phase: phase for phase in PHASES},
    **{phase + begin: phase for phase in PHASES for begin in ("_start", "_begin")},
    **{phase + end: "train" for phase in PHASES for end in ("_stop", "_end", "_done")},  # Then it trains again.
}
_ASIDE = ("val", "eval", "test")  # Keys of records that validate and do not train.


def field_map(overrides: Mapping[str, str | Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the defaults with the user's names in front. ValueError names a field that we do not have."""
    merged = dict(DEFAULT_FIELDS)
    for field, names in overrides.items():
        if field not in merged:
            raise ValueError(f'"{field}" is not a field of a step; known: {", ".join(sorted(merged))}')
        merged[field] = (names,) if isinstance(names, str) else tuple(names)
    return merged


def read_line(line: bytes, at: MonoNs, run: str, fields: Mapping[str, Sequence[str]]) -> Event | list[str] | None:
    """Return the line's event, its faults, or None for a line that is no step (metadata, validation, blank)."""
    if not line.strip():
        return None
    try:
        record = json.loads(line.decode("utf-8"))  # The stdlib reads bare NaN and Infinity, which trainers write.
    except (ValueError, RecursionError) as error:
        return [f"not JSON: {type(error).__name__}"]
    if not isinstance(record, dict):
        return ["not an object"]
    if record.get("v") == WIRE_VERSION and record.get("kind") in FRAMES:
        return _own(record, at, run)
    return _foreign(record, at, run, fields)


def _own(frame: dict[str, Any], at: MonoNs, run: str) -> Event | list[str] | None:
    found = faults(frame, FRAMES)
    if found:
        return found
    if frame["kind"] == "step":
        if frame["step"] < 0 or frame["rank"] < 0:
            return ["step or rank is negative"]
        return Step(at=at, connection=None, run=run, rank=frame["rank"], step=frame["step"], **step_values(frame))
    if frame["kind"] == "phase" and frame["phase"] in PHASES:
        return PhaseChange(at=at, connection=None, run=run, rank=frame["rank"], phase=frame["phase"])
    return None  # Beats, hellos and acks mean something only on a connection.


def _foreign(
    record: dict[str, Any], at: MonoNs, run: str, fields: Mapping[str, Sequence[str]]
) -> Event | list[str] | None:
    values: dict[str, Any] = {}
    for field, names in fields.items():
        name = next((name for name in names if name in record), None)
        if name is not None and field != "phase":
            values[field] = _value(field, name, record[name])
    step = values.pop("step", None)
    word = next((record[name] for name in fields["phase"] if name in record), None)
    if isinstance(word, str) and word in _PHASE_WORDS:
        return PhaseChange(at=at, connection=None, run=run, rank=0, phase=_PHASE_WORDS[word], step=step)
    if step is None or ("loss" not in values and any(name.startswith(_ASIDE) for name in record)):
        return None
    if word is not None and not values:
        return None  # A mark that we do not know, not a step.
    if step < 0:
        return ["step is negative"]
    tokens_per_second = values.pop("tokens_per_second", None)
    if values.pop("overflow", None):
        values["applied"] = False
    if "loss" in values and values["loss"] is None:
        values["loss_expected"] = True  # The key is there and its value has vanished: some loggers turn NaN into null.
    _derive(values, tokens_per_second)
    return Step(at=at, connection=None, run=run, rank=0, step=step, **step_values(values))


def _value(field: str, name: str, value: Any) -> Any:
    """Return a number fit for the field, or None when it is not one."""
    if field == "overflow":
        return value is True or value == 1
    if isinstance(value, str):
        word = _WORDS.get(value.strip().lower())
        value = word if word is not None else _number(value)
    try:
        value = number(value)
        if value is None:
            return None
        if field in _WHOLE:
            return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**63 else None
        return float(value) / 1000 if field.endswith("_s") and name.endswith("_ms") else float(value)
    except (ValueError, OverflowError):  # Not a number at all, or an integer beyond every float.
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _derive(values: dict[str, Any], tokens_per_second: float | None) -> None:
    """Of tokens, seconds and their quotient two are enough."""
    if tokens_per_second is None or not 0 < tokens_per_second < math.inf:
        return
    tokens, step_s = values.get("tokens"), values.get("step_s")
    if tokens is None and step_s is not None and 0 <= step_s < math.inf:
        product = tokens_per_second * step_s
        values["tokens"] = round(product) if product < 2**63 else None
    elif step_s is None and tokens is not None:
        values["step_s"] = tokens / tokens_per_second
