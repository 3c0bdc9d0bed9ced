"""The loss repeats one value to the last digit: nothing learns any more, or nobody writes down what it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, OneRank, RankState
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run


@dataclass(slots=True)
class _State(RankState):
    last: float | None = None
    equal: int = 0  # Records in a row with the last loss.
    changes: int = 0
    longest: int = 1  # The longest repetition that has ended.
    size: float = 0.0  # The larger of the last loss and the one before it.


class LossFrozen(OneRank):
    """One loss has stood for `frozen_records` records, steps advancing, and for `repeat_times` as many as ever before.

    Causes: weights that no longer change, outputs that no longer depend on them, or NaN shown as a loss of exactly 0
    (Hugging Face's Trainer). Healthy logs repeat values too: a table filled forward between two losses, figures of one
    decimal. Those have repeated values before: hence `repeat_times`, and `seen_values` changes that must come first. A
    loss that falls to 0 gradually was learnt by heart, and a loss that has always been 0 belongs to the objective
    (GRPO's). So the loss or the one before it must be at least `floor`. The loss of one rank is judged, the first that
    reports any; losses that are not finite are left out. UNKNOWN before `seen_values` and while no rank is connected.
    Misses: losses that are frozen from the start. Resets at each attempt, and when the step goes back.
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
    IS_ONCE_A_STEP: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("frozen_records",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the loss repeats one value exactly, {frozen_records} times and {repeat_times} times as long as ever before",
        "Nothing is judged before the loss has changed {seen_values} times, nor one that fell to 0 from below {floor}.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._frozen_records: int = params["frozen_records"]
        self._repeat_times: float = params["repeat_times"]
        self._seen_values: int = params["seen_values"]
        self._floor: float = params["floor"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(finding=self.NONE_SEEN)

    def observe(self, event: Event, run: Run) -> bool:
        loss = self._next_loss(event, run)
        if loss is None:
            return False
        state = self._state
        last = state.last
        if loss != last:
            if last is not None:
                state.changes += 1
                if state.equal > state.longest:
                    state.longest = state.equal
            state.size = max(abs(loss), 0.0 if last is None else abs(last))
            state.last, state.equal = loss, 1
            state.finding = QUIET if state.changes >= self._seen_values else WARMING_UP
            return False
        state.equal += 1
        state.finding = self._repeated(loss)
        return state.finding.is_firing

    def _repeated(self, loss: float) -> Finding:
        state = self._state
        if state.changes < self._seen_values:
            return WARMING_UP
        is_short = state.equal < self._frozen_records or state.equal < self._repeat_times * state.longest
        if is_short or state.size < self._floor:
            return QUIET
        return firing(
            "loss_frozen",
            f"the loss has been exactly {loss!r} for {state.equal} records, at step {state.step}",
            {
                "rank": state.rank,
                "last_step": state.step,
                "loss": loss,
                "records": state.equal,
                "records_before": state.longest,
            },
        )
