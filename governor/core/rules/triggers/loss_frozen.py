"""The loss repeats one value to the last digit: nothing learns any more, or nobody writes down what it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, OneRank
from governor.core.rules.triggers.base import Key
from governor.core.runs.state import Run


class LossFrozen(OneRank):
    """One loss has stood for `frozen_records` records, steps advancing, and for `repeat_times` as many as ever before.

    Weights that no longer move, outputs that no longer depend on them, or NaN shown as a loss of exactly 0 (Hugging
    Face's Trainer). Healthy logs repeat themselves too: a table filled forward between two losses, figures of one
    decimal. Those have done so before: hence `repeat_times`, and `seen_values` changes that came first. A loss that
    became 0 by and by was learnt by heart, and one that has always been 0 is an objective's (GRPO's): so the loss or
    the one before it must be `floor` at least. Judged is the loss of one rank, the first that reports any; losses that
    are not finite are left out. UNKNOWN before `seen_values` and while no rank is connected. What it misses: losses
    that are frozen from the start. Starts anew with each attempt, and where the steps go back.
    """

    KIND: ClassVar[str] = "loss_frozen"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Of 1,650 healthy real logs the longest repetition is 4 in language models, translation and speech; 8 in any.
        Key("frozen_records", "count", 50, "Equal losses in a row, steps advancing, after which it fires.", 2),
        Key("repeat_times", "number", 4.0, "And so many times the longest repetition that came to an end.", 1),
        Key("seen_values", "count", 20, "Changes of the loss before its repetition means anything.", 1),
        Key("floor", "number", 0.1, "The loss, or the one before it, must be at least this far from 0."),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("frozen_records",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "the loss repeats one value exactly, {frozen_records} times and {repeat_times} times as long as ever before",
        "Nothing is judged before the loss has changed {seen_values} times, nor one that fell to 0 from below {floor}.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._frozen_records: int = params["frozen_records"]
        self._repeat_times: float = params["repeat_times"]
        self._seen_values: int = params["seen_values"]
        self._floor: float = params["floor"]
        self._rank: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._step = -1
        self._last: float | None = None
        self._equal = 0  # How often the last loss has stood there in a row.
        self._changes = 0
        self._longest = 1  # Repetition that came to an end.
        self._size = 0.0  # Of the last loss, or of the one before it: whichever is larger.
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        loss = event.loss
        if loss is None or not -math.inf < loss < math.inf:  # NaN fails too.
            return False
        if event.rank != self._rank and not self._takes_over(event.rank, run):
            return False
        step = event.step
        if step <= self._step:
            if step == self._step:
                return False  # Told twice: no repetition.
            self._begin()
        self._step = step
        last = self._last
        if loss != last:
            if last is not None:
                self._changes += 1
                if self._equal > self._longest:
                    self._longest = self._equal
            self._size = max(abs(loss), 0.0 if last is None else abs(last))
            self._last, self._equal = loss, 1
            self._finding = QUIET if self._changes >= self._seen_values else WARMING_UP
            return False
        self._equal += 1
        self._finding = self._repeated(loss)
        return self._finding.reading is Reading.FIRING

    def _repeated(self, loss: float) -> Finding:
        if self._changes < self._seen_values:
            return WARMING_UP
        is_short = self._equal < self._frozen_records or self._equal < self._repeat_times * self._longest
        if is_short or self._size < self._floor:
            return QUIET
        return Finding(
            Reading.FIRING,
            "loss_frozen",
            f"the loss has been exactly {loss!r} for {self._equal} records, at step {self._step}",
            {
                "rank": self._rank,
                "last_step": self._step,
                "loss": loss,
                "records": self._equal,
                "records_before": self._longest,
            },
        )

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "rank": self._rank,
            "step": self._step,
            "last": self._last,
            "equal": self._equal,
            "changes": self._changes,
            "longest": self._longest,
            "size": self._size,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._begin()
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._last = None if snapshot["last"] is None else float(snapshot["last"])
        self._equal = int(snapshot["equal"])
        self._changes = int(snapshot["changes"])
        self._longest = int(snapshot["longest"])
        self._size = float(snapshot["size"])
        # Until the next loss: what the last one led to is not kept.
        self._finding = self.NONE_SEEN if self._rank is None else WARMING_UP
