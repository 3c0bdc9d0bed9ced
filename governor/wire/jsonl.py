"""Reads one line of a metrics stream: its record, time and step, and the names under which trainers log each field.

wire.records makes events of the records.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from governor.core.base.units import COUNT_MAX, NS_PER_S, MonoNs, WallNs, read_float

TIME_KEYS: Final = ("t", "elapsed_s", "_runtime", "_timestamp", "timestamp")
# Under these names a date is a time, or a number since 1970: a smaller one may be how long a step took.
DATE_KEYS: Final = ("time", "asctime", "ts", "@timestamp", "wall_time")
TIMES: Final = frozenset((*TIME_KEYS, *DATE_KEYS))
# The year 5138. Larger numbers are milliseconds since 1970, or micro- or nanoseconds.
EPOCH_BOUND_S: Final = 1e11
EPOCH_MIN_S: Final = 1e9  # A larger time counts from 1970, not from the start.
SUBUNITS: Final = 3
SECONDS_BOUND: Final = 1e20  # Above today's nanoseconds: not a time.
# Between two records of training. In more than the usual time it was evaluated, saved, or nothing was done.
GAP_FACTOR: Final = 3.0
GAP_MIN_S: Final = 5.0  # Lines come when their writer flushes them.
INTERVALS: Final = 15
EPOCH_KEYS: Final = ("epoch", "train/epoch")
EPOCHS_MAX: Final = 64  # Whose begin is kept. Of more, each second one goes.
EPOCH_NUMBER_BOUND: Final = 2.0**31
STEP_MAX: Final = COUNT_MAX


def time_of(record: Mapping[str, Any]) -> float | None:
    """A record's time in seconds, since its clock's start or since 1970. None if it has no time."""
    for key in TIME_KEYS:
        value = record.get(key)
        if value is not None:
            return date_seconds(value) if isinstance(value, str) and ":" in value else seconds_of(value)
    for key in DATE_KEYS:
        value = record.get(key)
        if isinstance(value, str) and ":" in value:
            return date_seconds(value)
        seconds = seconds_of(value)
        if seconds is not None and EPOCH_MIN_S <= seconds < EPOCH_BOUND_S:
            return seconds
    return None


def timed(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The record with its time as `t`, if it has one under these names, which may lead into an object."""
    for name in names:
        value = value_at(record, name)
        if value is not None:
            return {"t": value} | {key: other for key, other in record.items() if key not in TIMES}
    return record


def value_at(record: Mapping[str, Any], name: str, otherwise: object = None) -> Any:
    """The value under a name, or where "train.ce" leads: into {"train": {"ce": 2.0}}."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        value = value.get(part, otherwise) if isinstance(value, dict) else otherwise
    return value


def seconds_of(time: object) -> float | None:
    """A number of seconds, also as text. None for anything else."""
    if isinstance(time, bool) or not isinstance(time, int | float | str):
        return None
    try:
        seconds = read_float(time) if isinstance(time, str) else float(time)
    except ValueError:
        return None
    except OverflowError:  # An integer beyond every float.
        return math.inf
    for _ in range(SUBUNITS):
        if not EPOCH_BOUND_S <= seconds < SECONDS_BOUND:
            break
        seconds /= 1_000
    return seconds


def date_seconds(text: str) -> float | None:
    """Seconds since 1970 from ISO 8601, also as Python's logging writes it. None for anything else.

    A date without a time of day is not a time: it stands still for a day and then jumps.
    """
    when = _moment(text)
    if when is None:
        return None
    # Only differences count, so any zone will do where the text names none.
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _zoned_seconds(text: str) -> float | None:
    when = _moment(text)
    return None if when is None or when.tzinfo is None else when.timestamp()


def _moment(text: str) -> datetime | None:
    if ":" not in text:
        return None
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def clock_keys(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a record under which it may say when it was written."""
    return tuple(key for key in (*TIME_KEYS, *DATE_KEYS) if key in record)


def written_at(record: Mapping[str, Any], keys: Sequence[str]) -> WallNs | None:
    """When a record was written, by a wall clock. None where none of its `keys` says so.

    A time since its clock's start says it not, nor does a date without a zone: the machine's may be another.
    """
    for key in keys:
        value = record[key]
        if type(value) is float and value < EPOCH_BOUND_S:  # Most are.
            seconds: float | None = value
        else:
            is_date = isinstance(value, str) and ":" in value
            seconds = _zoned_seconds(value) if is_date else seconds_of(value)
        if seconds is not None and EPOCH_MIN_S <= seconds < EPOCH_BOUND_S:
            whole = int(seconds)
            return WallNs(whole * NS_PER_S + round((seconds - whole) * NS_PER_S))
    return None


class RecordClock:
    """The time between a log's records, by its own clock where it has one, else by their arrival."""

    def __init__(self) -> None:
        self._last: tuple[int, float, bool] | None = None  # Step, seconds, and whether they are the log's own.
        self._intervals: deque[float] = deque(maxlen=INTERVALS)

    def new_launch(self) -> None:
        """What comes next is another process's."""
        self._last = None

    def since_last(self, record: Mapping[str, Any], step: int, at: MonoNs) -> float | None:
        """Seconds since the record before. None after a gap, a restart, or a step that was trained before."""
        own = time_of(record)
        is_own = own is not None and abs(own) < SECONDS_BOUND
        now = own if own is not None and is_own else at / NS_PER_S
        last, self._last = self._last, (step, now, is_own)
        if last is None or last[2] is not is_own or step <= last[0] or now <= last[1]:
            return None
        usual = median(self._intervals) if self._intervals else None
        self._intervals.append(now - last[1])
        is_usual = usual is not None and now - last[1] <= max(GAP_MIN_S, GAP_FACTOR * usual)
        return now - last[1] if is_usual else None


# --- steps of the run, of a log that counts samples or begins anew with each epoch -------------------------


class Samples:
    """Steps of a log that counts samples. Each new count is one step: DeepSpeed's monitor logs every step.

    The log has no batch size, which may also grow during a run.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None  # Samples, and our step.
        self._batch: int | None = None

    def step(self, samples: int) -> int:
        """The step, counted from 1. A relaunch from a checkpoint moves it back as far as the samples move."""
        if self._last is None:
            self._last = samples, 1
            return 1
        before, step = self._last
        if samples > before:
            self._batch = samples - before
            step += 1
        elif samples < before:
            step = max(1, step - max(1, round((before - samples) / (self._batch or before))))
        self._last = samples, step
        return step


class Epochs:
    """Makes steps of the whole run of those that begin anew with each epoch, of a log that says the epoch.

    Steps of the whole run never go back while the epoch goes on. So a step that goes back to the begin of an epoch, in
    one that the log has not had, is a new one. Back in an epoch that it has had, the run trains again.

    `are_the_epochs`: the log's steps are known to begin anew with each epoch, as those of a bar.
    """

    def __init__(self, *, are_the_epochs: bool = False) -> None:
        self._are_the_epochs = are_the_epochs
        self._last: tuple[int, int] | None = None  # Epoch, and the step in it.
        self._stride = 1  # Between the last two lines of an epoch.
        # The most steps between two lines: so far into its epoch the first one may be. An epoch's last is often nearer.
        self._reach = 1
        # Each epoch, and the steps of the run before it. One alone: the log's steps are the run's.
        self._begins: list[tuple[int, int]] = []
        self.before = 0  # Steps before the present one.

    def step(self, step: int, epoch: object, *, trains: bool) -> int:
        """The step of the run. `trains`: a record of training; of another one, neither step nor epoch begins one."""
        number = _epoch_number(epoch)
        if number is not None and trains:
            self._see(number, step)
        return min(self.before + step, STEP_MAX)

    def _see(self, number: int, step: int) -> None:
        last, self._last = self._last, (number, step)
        if last is None:
            self._begins, self._reach = [(number, 0)], max(self._reach, step)
        elif number == last[0]:
            self._stride = step - last[1] if step > last[1] else self._stride
            self._reach = max(self._reach, self._stride)
        elif number > last[0] and self._is_anew(step, last):
            # Counted from 0, an epoch's last step may be its last line, out of turn.
            since_last = self._stride if self._stride == self._reach else 1
            before = self.before + last[1] + (since_last if step == 0 else 0)
            if before <= STEP_MAX // 2:  # Nobody trains so many.
                self.before = before
                self._begins = [*(one for one in self._begins if one[0] < number), (number, before)]
            if len(self._begins) > EPOCHS_MAX:
                del self._begins[1:-1:2]
        elif number < last[0]:
            self.before = max((before for known, before in self._begins if known <= number), default=0)

    def _is_anew(self, step: int, last: tuple[int, int]) -> bool:
        """Whether the steps of a later epoch begin anew. Epochs of one line each go on so."""
        goes_back = step < last[1] or (len(self._begins) > 1 and step == last[1])
        return self._are_the_epochs or (step <= self._reach and goes_back)

    def state(self) -> list[Any] | None:
        """As plain JSON. None while steps are the run's."""
        return [*(self._last or ()), self._reach, self.before, *self._begins] if len(self._begins) > 1 else None

    def resume(self, state: Any) -> None:
        """Go on from a `state`. What is none changes nothing."""
        try:
            epoch, step, reach, before = (int(value) for value in state[:4])
            begins = [(int(number), int(steps)) for number, steps in state[4:]]
        except (TypeError, ValueError, OverflowError, KeyError):
            return
        if len(begins) <= EPOCHS_MAX and all(
            0 <= one < 2**62 for one in (epoch, step, reach, before, *sum(begins, ()))
        ):
            self._last, self.before, self._begins = (epoch, step), before, begins
            self._stride = self._reach = reach


def _epoch_number(value: object) -> int | None:
    """The whole epoch of "1", 1 or 1.99. None for what is none."""
    try:
        number = float(value) if isinstance(value, int | float) else read_float(str(value))
    except (ValueError, OverflowError):
        return None
    return math.floor(number) if 0 <= number < EPOCH_NUMBER_BOUND else None


# --- one line -> a record; which names fields have ------------------------------------------------------


# A text, which is left as it is, or a number that is none. A text without an end goes to the line's: one pass.
_PRINTED: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([-+]?)\b(nan|inf|infinity)\b', re.IGNORECASE)
# DeepSpeed's monitor: records with these keys count samples, not steps.
SAMPLED: Final = "Train/Samples/"
ELAPSED: Final = SAMPLED + "elapsed_time_ms_"
OWN: Final = "time/"  # A part of a step's time, as `costgov export` names it.

# Our field -> the names under which trainers commonly log it, in order of preference. Keys that end in `_ms` hold
# milliseconds, and so do DeepSpeed's timers. A bare "tokens" counts one step, as on our own wire; totals have their own
# names. Names with a slash, a dash or a bracket are tags of TensorBoard and W&B.
DEFAULT_FIELDS: Mapping[str, Sequence[str]] = {
    "t": (),  # Its usual names are TIME_KEYS and DATE_KEYS. One that is named here may be a number or a date.
    "step": (
        "step", "global_step", "global_steps", "iteration", "iter", "train/step", "train/global_step",
        "trainer/global_step", "_step",
    ),
    "attempt_step": ("attempt_step", "relative_step"),
    "loss": (
        "loss", "train_loss", "lm_loss", "lm loss", "train/loss", "train/lm_loss", "training_loss",
        "train_loss_step", "train/loss_step", "lm-loss-training/lm loss", "loss_metrics/global_avg_loss",
        "reduced_train_loss", SAMPLED + "train_loss",
    ),
    "grad_norm": (
        "grad_norm", "gnorm", "gradient_norm", "grad-norm", "train/grad_norm", "global_grad_norm",
        "grad-norm/grad-norm",
    ),
    "lr": (
        "lr", "learning_rate", "train/learning_rate", "train/lr", "learning-rate", "learning-rate/learning-rate",
        SAMPLED + "lr",
    ),
    "loss_scale": ("loss_scale", "scale", "loss-scale", "loss-scale/loss-scale", SAMPLED + "loss_scale"),
    "skipped_steps": ("skipped_steps", "skipped_iterations"),
    "line_steps": ("line_steps",),  # How many steps the tokens of a line are of.
    "tokens": ("tokens", "tokens_per_step", "step_tokens", "batch_tokens"),
    "tokens_total": ("tokens_total", "total_tokens", "tokens_seen", "consumed_tokens", "num_input_tokens_seen",
                     "train/num_input_tokens_seen"),
    "step_s": (
        "step_s", "step_time_s", "step_time", "iter_time_s", "iter_time", "iteration_time", "time_per_step",
        "iteration-time", "iteration-time/iteration-time", "time_metrics/end_to_end(s)", "train_step_timing in s",
        "step_ms", "step_time_ms", "iter_time_ms", OWN + "step_s",
    ),
    "data_s": ("data_s", "data_time_s", "data_time", "data_wait_s", "data_ms", "data_time_ms",
               "time_metrics/data_loading(s)", OWN + "data_s"),
    "loop_s": ("loop_s", OWN + "loop_s"),
    "forward_s": ("forward_s", "forward_time_s", "forward_ms", "fwd_ms", ELAPSED + "forward",
                  OWN + "forward_s"),
    "backward_s": ("backward_s", "backward_time_s", "backward_ms", "bwd_ms", ELAPSED + "backward",
                   OWN + "backward_s"),
    "optimizer_s": ("optimizer_s", "optimizer_time_s", "optimizer_ms", ELAPSED + "step", OWN + "optimizer_s"),
    "checkpoint_s": ("checkpoint_s", "checkpoint_time_s", "checkpoint_ms", OWN + "checkpoint_s"),
    "checkpoint_bound": ("checkpoint_bound",),  # checkpoint_s, or eval_s, is what the step had beyond the usual.
    "eval_bound": ("eval_bound",),
    "hold_s": ("hold_s", OWN + "hold_s"),
    # Within a line of training. Alone it is an evaluation's result.
    "eval_s": ("eval_s", "eval_time_s", "eval_ms", OWN + "eval_s"),
    "bubble_s": ("bubble_s", OWN + "bubble_s"),
    "comm_s": ("comm_s", "comm_time_s", "comm_ms", OWN + "comm_s"),
    "comm_between_s": ("comm_between_s", OWN + "comm_between_s"),
    "recompute_s": ("recompute_s", OWN + "recompute_s"),
    "offload_s": ("offload_s", OWN + "offload_s"),
    "mem_allocated_bytes": ("mem_allocated_bytes", "mem-allocated-bytes"),
    "mem_reserved_bytes": ("mem_reserved_bytes", "mem-reserved-bytes"),
    "rss_bytes": ("rss_bytes",),
    "tokens_per_second": ("tokens_per_second", "tokens_per_sec", "tok/s", "tokens/s", "tps", "throughput_tokens"),
    "overflow": ("overflow",),
    "loss_expected": ("loss_expected",),  # False where a record without a loss lacks none.
    "phase": ("phase",),
    # Percent: a list for all GPUs, or one number, their mean.
    "gpu_util": ("gpu_util_each", "gpu_util"),
}  # fmt: skip


def field_map(overrides: Mapping[str, str | Sequence[str]]) -> Mapping[str, Sequence[str]]:
    """Return the defaults with the user's names in front. ValueError names an unknown field."""
    merged = dict(DEFAULT_FIELDS)
    for field, names in overrides.items():
        if field not in merged:
            raise ValueError(f'"{field}" is not a field of a step; known: {", ".join(sorted(merged))}')
        merged[field] = (names,) if isinstance(names, str) else tuple(names)
    return merged


def _with_printed(line: bytes) -> Any:
    """A line whose numbers were printed, as Python and C do it: nan, -nan, inf. None if it is no JSON even so."""
    told = _PRINTED.sub(_named, line)
    if told == line:
        return None
    try:
        return json.loads(told.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _named(found: re.Match[bytes]) -> bytes:
    sign, word = found[1], (found[2] or b"").lower()
    if not word:
        return found[0]
    return b"NaN" if word == b"nan" else (b"-Infinity" if sign == b"-" else b"Infinity")


def parse_line(line: bytes) -> dict[str, Any] | list[str] | None:
    """Return the line's record, a list of its faults, or None for a blank line."""
    if not line.strip():
        return None
    try:
        # The stdlib reads bare NaN and Infinity, which Python's json writes.
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        record = _with_printed(line)
        if record is None:
            return [f"not JSON: {type(error).__name__}"]
    return record if isinstance(record, dict) else ["not an object"]
