"""Saves and evaluations between two lines of steps: those that a console names, and what they took.

A line such as "saving checkpoint to out" names a pause: a dialect tells it as a record with a `phase`, and its end as
the phase `train`. Beside the phase it may tell exact seconds (`checkpoint_s`, `eval_s`). Where a step's own time has
the pause in it, what is beyond the usual is the pause's: the step is told with it, and with a flag that it is a bound.
Elsewhere the account finds the pause by the distance of two lines, and the phase names it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from governor.core.events import step_parts

# The fields that tell them.
PAUSES: Final[Mapping[str, str]] = {phase: step_parts.PARTS[name][0] for phase, name in step_parts.PAUSES.items()}
# Beside the seconds that no word told.
BOUNDS: Final[Mapping[str, str]] = {"checkpoint_s": "checkpoint_bound", "eval_s": "eval_bound"}
SAVES: Final[Mapping[str, str]] = {"phase": "checkpoint"}
EVALUATES: Final[Mapping[str, str]] = {"phase": "eval"}
TRAINS: Final[Mapping[str, str]] = {"phase": "train"}
# So many ordinary lines tell what is usual. A step's time so many times beyond it has a named pause in it.
ORDINARY_LINES: Final = 3
TAKES_MORE: Final = 1.25
# The same, by fewer lines. One alone may be the first, which has warmed up.
EARLY_TAKES_MORE: Final = 2
WARMED_LINES: Final = 2
USUAL_KEPT: Final = 15
VOICES_MAX: Final = 64
SECONDS_MAX: Final = 1e6

# deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py since 0.7, and engine.py before: a line names the file.
_DEEPSPEED: Final = re.compile(
    r"(?:Checkpoint \S{1,400} is (?:(?P<done>ready now!)|about to be saved!|begin to save!)"
    r"|Saving model checkpoint: \S{1,4000})$"
)


def deepspeed_save(text: str) -> dict[str, Any] | None:
    """A save that DeepSpeed's engine tells of, beside whatever trainer."""
    found = _DEEPSPEED.match(text) if text.startswith(("Checkpoint ", "Saving model ")) else None
    if found is None:
        return None
    return dict(TRAINS if found["done"] else SAVES)


def pause_of(record: Mapping[str, Any]) -> str | None:
    """Which pause a record names."""
    phase = record.get("phase")
    if "val_loss" in record or (isinstance(phase, str) and phase.startswith("eval")):
        return "eval"
    return phase if phase in PAUSES else None


class Paused(NamedTuple):
    """What a line of a step has of pauses."""

    fields: dict[str, float]  # For its record: seconds, and which of them are a bound.
    beside_s: float  # Of these, what is beside the line's own time.
    own_s: float | None  # Of one step, without pauses. None: nobody knows.


class Pauses:
    """What was named since the last line of a step. `are_in_steps`: its pauses are always in the next step's time."""

    def __init__(self, *, are_in_steps: bool = False) -> None:
        self._are_in_steps = are_in_steps
        self._named: set[str] = set()
        self._told: dict[tuple[str, str | None], float] = {}  # Exact seconds, by field and by process.
        self._usual: deque[float] = deque(maxlen=USUAL_KEPT)  # What a step takes without a pause.
        self._eval_s: float | None = None  # Of the last evaluation without a save.

    def new_launch(self) -> None:
        self._named.clear()
        self._told.clear()

    def see(self, record: dict[str, Any], voice: str | None) -> None:
        """Note the pause that a record names, and take its seconds: they are told with the next step."""
        if (name := pause_of(record)) is not None:
            self._named.add(name)
        for field in PAUSES.values():
            seconds = record.pop(field, None)
            if seconds is not None and 0 <= seconds < SECONDS_MAX and len(self._told) < VOICES_MAX:
                self._told[field, voice] = self._told.get((field, voice), 0.0) + seconds

    def of_line(self, took_s: float | None, steps: int, *, is_first: bool = False) -> Paused:
        """The pauses of a line of a step. `took_s`: of one step, as the line tells, for so many `steps`.

        `is_first`: of its launch. What is beyond the usual then has the warm-up in it, and is not told as a pause.
        """
        named, self._named = self._named, set()
        told: dict[str, float] = {}
        for (field, _), seconds in self._told.items():  # Each process has told of the same pause.
            told[field] = max(told.get(field, 0.0), seconds)
        self._told.clear()
        unknown = [PAUSES[name] for name in named if PAUSES[name] not in told]
        if is_first and unknown:
            return Paused(told, sum(told.values()), None)
        more_s = self._beyond_s(took_s, sum(told.values()), steps) if named or told else 0.0
        own_s = took_s - more_s / steps if took_s is not None else None
        if own_s:
            self._usual.append(own_s)
        if not more_s:
            return Paused(told, sum(told.values()), own_s)
        rest_s = max(0.0, more_s - sum(told.values()))
        if len(unknown) > 1:
            # An evaluation of hundreds of batches is longer than a save, where the log has had none alone.
            told["eval_s"] = rest_s if self._eval_s is None else min(rest_s, self._eval_s)
            told["checkpoint_s"] = rest_s - told["eval_s"]
        elif unknown:
            told[unknown[0]] = rest_s
            self._eval_s = rest_s if named == {"eval"} else self._eval_s
        told = {field: seconds for field, seconds in told.items() if seconds > 0}
        bounds = {BOUNDS[field]: True for field in unknown if field in told}
        return Paused({**told, **bounds}, 0.0, own_s or None)

    def _beyond_s(self, took_s: float | None, told_s: float, steps: int) -> float:
        """What the line's own time has beyond the usual. 0: the pause is beside it, or nobody knows.

        Before enough lines tell what is usual, the shortest one does, and the first one may have warmed up. Where
        pauses are in the steps all the same, all of the step's time is a bound.
        """
        if took_s is None:
            return 0.0
        is_early = len(self._usual) < ORDINARY_LINES
        if self._usual:
            usual_s = min(self._usual) if is_early else median(self._usual)
            more_s = (took_s - usual_s) * steps
            if took_s > (EARLY_TAKES_MORE if is_early else TAKES_MORE) * usual_s and 2 * more_s > told_s:
                return more_s
        return took_s * steps if self._are_in_steps and len(self._usual) < WARMED_LINES else 0.0
