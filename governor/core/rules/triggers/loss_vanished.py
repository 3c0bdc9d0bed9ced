"""A log's records come as before, but the loss is gone from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, OneRank
from governor.core.rules.triggers.base import Key
from governor.core.runs.state import Run

_IRREGULAR = unknown("losses_come_irregularly")


class LossVanished(OneRank):
    """`absent_records` records have no loss that are like all before them, and all before them had one.

    Some trainers print no loss where it is not a number (Megatron-LM): the line comes as before, without the field, and
    its count of NaN iterations may stay 0. `nonfinite` sees that too, after three records and twenty losses; this one
    trusts a log whose every record so far, in steps of one size, carried a step time and a loss. fp16 explains a
    missing loss (Megatron-LM prints none for an update that it skipped): so nothing is said of logs that tell of a loss
    scale above 1 or of skipped updates, nor before step `settled_step`. Nor of trainers that say themselves whether a
    loss was due: `nonfinite` has those. UNKNOWN until `seen_records` losses, once any record was of another kind, and
    while no rank is connected. What it takes for one: fp16 runs whose log says nothing of it. Starts anew with each
    attempt, and where the steps go back.
    """

    KIND: ClassVar[str] = "loss_vanished"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Of 952 real logs with losses no healthy one has a single such record. The one of a broken run (Falcon-40B, as
        # quoted in an issue) ends with its first.
        Key("absent_records", "count", 1, "Records without a loss that fire, in a row.", 1),
        Key("seen_records", "count", 2, "Losses seen before their absence means anything.", 2),
        Key("settled_step", "count", 100, "Steps below this may be logged in another rhythm, or search a loss scale."),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("absent_records",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "the loss is gone from a log's records ({absent_records} in a row) that are otherwise like all before them, "
        "from step {settled_step} on and after {seen_records} losses",
        "Logs that tell of fp16 are left out: it leaves losses out where it skips an update.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._absent_records: int = params["absent_records"]
        self._seen_records: int = params["seen_records"]
        self._settled_step: int = params["settled_step"]
        self._rank: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._step = -1
        self._stride: int | None = None
        self._seen = 0
        self._absent = 0
        self._is_regular = True
        self._loss: float | None = None  # For the words only: after a restart unknown.
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        if event.rank != self._rank and (event.loss is None or not self._takes_over(event.rank, run)):
            return False
        advanced = event.step - self._step
        if advanced <= 0:
            if advanced == 0:
                return False  # A second word on the same step: evaluation, a summary.
            self._begin()
        if event.loss is not None:
            self._see_loss(event, advanced)
            return False
        if event.step_s is not None and event.loss_expected is None:
            self._see_absence(event, advanced)
        return self._finding.is_firing

    def _see_loss(self, event: Step, advanced: int) -> None:
        if self._seen == 1 and self._stride is None:
            self._stride = advanced
        if (self._seen and advanced != self._stride) or event.step_s is None or event.loss_expected is not None:
            self._is_regular = False
        self._step = event.step
        self._loss = event.loss
        self._seen += 1
        self._absent = 0
        self._finding = self._calm()

    def _see_absence(self, event: Step, advanced: int) -> None:
        if advanced != self._stride or _may_be_skipped(event):
            self._is_regular = False
        self._step = event.step
        if not self._is_regular or self._seen < self._seen_records or event.step < self._settled_step:
            self._is_regular = False  # It shows steps without a loss, so another one will mean nothing.
            self._finding = self._calm()
            return
        self._absent += 1
        if self._absent >= self._absent_records:
            self._finding = Finding(
                Reading.FIRING,
                "loss_vanished",
                f"the record of step {event.step} is like those before it, but has no loss{self._before()}",
                {
                    "rank": self._rank,
                    "step": event.step,
                    "records_without_loss": self._absent,
                    "losses_seen": self._seen,
                    "loss_last": None if self._loss is None else str(self._loss),
                },
            )

    def _before(self) -> str:
        return "" if self._loss is None else f"; the last was {self._loss:.4g}"

    def _calm(self) -> Finding:
        if not self._is_regular:
            return _IRREGULAR
        return QUIET if self._seen >= self._seen_records else WARMING_UP

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "rank": self._rank,
            "step": self._step,
            "stride": self._stride,
            "seen": self._seen,
            "absent": self._absent,
            "is_regular": self._is_regular,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._begin()
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._stride = snapshot["stride"]
        self._seen = int(snapshot["seen"])
        self._absent = int(snapshot["absent"])
        self._is_regular = bool(snapshot["is_regular"])
        if self._rank is not None:
            self._finding = WARMING_UP if self._absent else self._calm()


def _may_be_skipped(event: Step) -> bool:
    """Whether this log tells of fp16, which leaves a loss out where it skips an update."""
    scale = event.loss_scale
    return event.applied is not None or event.skipped_steps is not None or (scale is not None and scale > 1)
