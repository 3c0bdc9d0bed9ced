"""Saves and evaluations between two lines of steps: those that a console names, and what they took.

A line such as "saving checkpoint to out" names a pause: a dialect tells it as a record with a `phase`, and its end as
the phase `train`. Beside the phase it may tell exact seconds (`checkpoint_s`, `eval_s`). Where a step's own time has
the pause in it, what is beyond the usual is the pause's, and the step is told with it. Elsewhere the account finds the
pause by the distance of two lines, and the phase names it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from governor.core.events import step_parts

# The fields that tell them.
PAUSES: Final[Mapping[str, str]] = {phase: step_parts.PARTS[name][0] for phase, name in step_parts.PAUSES.items()}
SAVES: Final[Mapping[str, str]] = {"phase": "checkpoint"}
EVALUATES: Final[Mapping[str, str]] = {"phase": "eval"}
TRAINS: Final[Mapping[str, str]] = {"phase": "train"}
# So many ordinary lines tell what is usual. A step's time so many times beyond it has a named pause in it.
ORDINARY_LINES: Final = 3
TAKES_MORE: Final = 1.25
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


class Pauses:
    """What was named since the last line of a step."""

    def __init__(self) -> None:
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

    def of_line(self, took_s: float | None, steps: int) -> tuple[dict[str, float], float]:
        """The pauses of a line of a step, by field, and what of them is beside the line's own time.

        `took_s`: of one step, as the line tells, for so many `steps`.
        """
        named, self._named = self._named, set()
        told: dict[str, float] = {}
        for (field, _), seconds in self._told.items():  # Each process has told of the same pause.
            told[field] = max(told.get(field, 0.0), seconds)
        self._told.clear()
        more_s = self._beyond_s(took_s, sum(told.values()), steps) if named or told else 0.0
        if took_s is not None:
            self._usual.append(took_s - more_s / steps)
        if not more_s:
            return told, sum(told.values())
        unknown = [PAUSES[name] for name in named if PAUSES[name] not in told]
        rest_s = max(0.0, more_s - sum(told.values()))
        if len(unknown) > 1:
            # An evaluation of hundreds of batches is longer than a save, where the log has had none alone.
            told["eval_s"] = rest_s if self._eval_s is None else min(rest_s, self._eval_s)
            told["checkpoint_s"] = rest_s - told["eval_s"]
        elif unknown:
            told[unknown[0]] = rest_s
            self._eval_s = rest_s if named == {"eval"} else self._eval_s
        return {field: seconds for field, seconds in told.items() if seconds > 0}, 0.0

    def _beyond_s(self, took_s: float | None, told_s: float, steps: int) -> float:
        """What the line's own time has beyond the usual. 0: the pause is beside it, or nobody knows."""
        if took_s is None or len(self._usual) < ORDINARY_LINES:
            return 0.0
        usual_s = median(self._usual)
        more_s = (took_s - usual_s) * steps
        is_in = took_s > TAKES_MORE * usual_s and 2 * more_s > told_s
        return more_s if is_in else 0.0
