"""A log's records come as before, but the loss is gone from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, OneRank, RankState
from governor.core.rules.trigger import Key
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import Run

_IRREGULAR = unknown("losses_come_irregularly")


@dataclass(slots=True)
class _State(RankState):
    stride: int | None = None
    seen: int = 0
    absent: int = 0
    is_regular: bool = True
    loss: float | None = field(default=None, metadata=UNKEPT)  # Only for the text.


class LossVanished(OneRank):
    """`absent_records` records lack a loss but are otherwise like all before them, and all before them had one.

    Some trainers print no loss when it is not a number (Megatron-LM): the line comes as before, without the field, and
    its count of NaN iterations may stay 0. `nonfinite` detects that too, after three records and twenty losses. This
    trigger trusts a log whose every record so far, in steps of one size, had a step time and a loss. fp16 explains a
    missing loss (Megatron-LM prints none for an update that it skipped). So logs that report a loss scale above 1 or
    skipped updates are not judged, nor any log before step `settled_step`. Trainers that report whether a loss was due
    are not judged either: `nonfinite` judges those.

    UNKNOWN until `seen_records` losses, once any record was of another kind, and while no rank is connected. False
    alarms: fp16 runs whose log does not show that they are. Resets at each attempt, and when the step goes back.
    """

    KIND: ClassVar[str] = "loss_vanished"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Of 952 real logs with losses no healthy one has a single such record. The log of a broken run (Falcon-40B, as
        # quoted in an issue) ends with its first.
        Key("absent_records", "count", 1, "Records without a loss that fire, in a row.", 1),
        Key("seen_records", "count", 2, "Losses seen before their absence means anything.", 2),
        Key("settled_step", "count", 100, "Steps below this may be logged in another rhythm, or search a loss scale."),
    )
    STEPPED: ClassVar[bool] = True
    IS_ONCE_A_STEP: ClassVar[bool] = True  # A second record of one step is an evaluation, or a summary.
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("absent_records",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the loss is gone from a log's records ({absent_records} in a row) that are otherwise like all before them, "
        "from step {settled_step} on and after {seen_records} losses",
        "Logs that tell of fp16 are left out: it leaves losses out where it skips an update.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._absent_records: int = params["absent_records"]
        self._seen_records: int = params["seen_records"]
        self._settled_step: int = params["settled_step"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(finding=self.NONE_SEEN)

    def _restored(self) -> None:
        state = self._state
        if state.rank is not None:
            state.finding = WARMING_UP if state.absent else self._calm()

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        state = self._state
        if event.rank != state.rank and event.loss is None:
            return False
        if event.rank != state.rank or event.step <= state.step:
            if not self._follows(event, run):
                return False
            state = self._state
        advanced = event.step - state.step
        if event.loss is not None:
            self._see_loss(event, advanced)
            return False
        if event.step_s is not None and event.loss_expected is None:
            self._see_absence(event, advanced)
        return state.finding.is_firing

    def _see_loss(self, event: Step, advanced: int) -> None:
        state = self._state
        if state.seen == 1 and state.stride is None:
            state.stride = advanced
        if (state.seen and advanced != state.stride) or event.step_s is None or event.loss_expected is not None:
            state.is_regular = False
        state.step = event.step
        state.loss = event.loss
        state.seen += 1
        state.absent = 0
        state.finding = self._calm()

    def _see_absence(self, event: Step, advanced: int) -> None:
        state = self._state
        if advanced != state.stride or _may_be_skipped(event):
            state.is_regular = False
        state.step = event.step
        if not state.is_regular or state.seen < self._seen_records or event.step < self._settled_step:
            # The log shows steps without a loss, so a later missing loss is no evidence.
            state.is_regular = False
            state.finding = self._calm()
            return
        state.absent += 1
        if state.absent >= self._absent_records:
            state.finding = firing(
                "loss_vanished",
                f"the record of step {event.step} is like those before it, but has no loss{self._before()}",
                {
                    "rank": state.rank,
                    "step": event.step,
                    "records_without_loss": state.absent,
                    "losses_seen": state.seen,
                    "loss_last": None if state.loss is None else str(state.loss),
                },
            )

    def _before(self) -> str:
        loss = self._state.loss
        return "" if loss is None else f"; the last was {loss:.4g}"

    def _calm(self) -> Finding:
        state = self._state
        if not state.is_regular:
            return _IRREGULAR
        return QUIET if state.seen >= self._seen_records else WARMING_UP


def _may_be_skipped(event: Step) -> bool:
    """Whether this log shows fp16, which omits the loss when it skips an update."""
    scale = event.loss_scale
    return event.applied is not None or event.skipped_steps is not None or (scale is not None and scale > 1)
