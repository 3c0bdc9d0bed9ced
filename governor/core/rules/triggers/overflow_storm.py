"""fp16 keeps overflowing: its loss scale has collapsed, or too many updates are skipped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import OneRank, RankState
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run

_SEARCHING = unknown("searching_the_scale")

# A trainer doubles the scale once in hundreds of steps. A larger jump means that it began its search again, at the step
# at which it resumed.
SEARCH_RISE: Final = 16
# After this many updates in a row without an overflow the scale is found. As in `nonfinite`.
FOUND_AFTER: Final = 20


@dataclass(slots=True, kw_only=True)
class _State(RankState):
    updates: int = 0
    well: int = 0  # Updates in a row without an overflow.
    is_found: bool = False
    scale: float | None = None
    scale_highest: float = 0.0  # Since the scale was found.
    skipped_steps: int | None = None
    # The update numbers of the last overflows, at most `skipped`: the oldest shows how close together they are.
    overflows: deque[int]


class OverflowStorm(OneRank):
    """The loss scale has fallen to `fall` times below where it was, or `skipped` of `window` updates overflowed.

    A healthy fp16 run overflows once or twice each time the scale is doubled, in about 2 % of its steps, and its scale
    stays within a factor of about four. When gradients grow, every step overflows and each overflow halves the scale.
    At its minimum the weights stop changing or break. An overflow is an update that the trainer reports as skipped, or,
    if a log shows only the scale, each halving of it. Nothing counts until 20 updates in a row succeeded: at the start
    fp16 searches its scale. `nonfinite` counts overflows in a row. bf16 and fp32 keep a scale of 1, which never falls.
    One rank is judged, the first that reports scale or skips.

    UNKNOWN until then, while the scale is searched, and while no rank is connected. Misses: overflows that a sparse log
    does not show. Resets at each attempt, when the step goes back, and when the scale jumps up.
    """

    KIND: ClassVar[str] = "overflow_storm"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("fall", "number", 256.0, "Fires when the scale is so many times below its highest since it was found.", 2),
        # A real DeepSpeed-Chat run in fp16 (OPT-1.3B, 875 records) overflowed twice in a row every hundred steps, and
        # never else.
        Key("skipped", "count", 25, "Overflows among the last `window` updates that fire.", 2),
        Key("window", "count", 100, "Updates among which they are counted.", 2),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_scale_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("fall", "skipped")
    MEANING: ClassVar[tuple[str, ...]] = (
        "fp16's loss scale falls to {fall} times below its highest, or {skipped} of {window} updates overflow, once "
        "the scale has been found",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._fall: float = params["fall"]
        self._window: int = params["window"]
        self._skipped: int = params["skipped"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(finding=self.NONE_SEEN, overflows=deque(maxlen=self._skipped))

    def _restored(self) -> None:
        if self._state.rank is not None:
            self._state.finding = self._judge()

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        state = self._state
        tells = event.loss_scale is not None or event.skipped_steps is not None or event.applied is not None
        if not tells and event.rank != state.rank:
            return False  # Most trainers report none of these.
        if event.rank != state.rank or event.step <= state.step:
            if not self._follows(event, run):
                return False
            state = self._state
        advanced = max(1, event.step - state.step) if state.updates else 1
        state.step = event.step
        state.updates += advanced
        overflows = self._overflows_of(event, advanced)
        if overflows:
            state.well = 0
            if state.is_found:
                state.overflows.extend([state.updates] * min(overflows, self._window))
        else:
            state.well += advanced
            state.is_found = state.is_found or state.well >= FOUND_AFTER
        if state.is_found and state.scale is not None:
            state.scale_highest = max(state.scale_highest, state.scale)
        state.finding = self._judge()
        return state.finding.is_firing

    def _search_anew(self) -> None:
        state = self._state
        state.is_found, state.well, state.scale_highest = False, 0, 0.0
        state.overflows.clear()

    def _overflows_of(self, event: Event, advanced: int) -> int:
        """The number of updates that this record reports as skipped."""
        assert isinstance(event, Step)
        state = self._state
        told = halvings = 0
        if event.skipped_steps is not None:
            if state.skipped_steps is not None:
                told = max(0, event.skipped_steps - state.skipped_steps)
            state.skipped_steps = event.skipped_steps
        scale = event.loss_scale
        if scale is not None and 0 < scale < math.inf:
            if state.scale is not None and scale > SEARCH_RISE * state.scale:
                self._search_anew()
            if state.scale is not None and scale < state.scale:
                halvings = max(1, round(math.log2(state.scale) - math.log2(scale)))
            state.scale = scale
        if event.applied is not None:
            halvings = 0 if event.applied else 1
        # Megatron-LM counts skipped updates per interval, from 0 each time. There the scale says more.
        return min(max(told, halvings), advanced)

    def _judge(self) -> Finding:
        state = self._state
        if not state.is_found:
            return _SEARCHING
        scale, highest = state.scale, state.scale_highest
        if scale is not None and scale * self._fall <= highest:
            return self._storm(
                "loss_scale_collapsed",
                f"loss scale {scale:g}, {highest / scale:,.0f} times below its {highest:g}",
            )
        overflows = state.overflows
        if len(overflows) == overflows.maxlen and state.updates - overflows[0] < self._window:
            return self._storm("overflow_storm", f"{len(overflows)} of the last {self._window} updates overflowed")
        return QUIET

    def _storm(self, reason: str, text: str) -> Finding:
        state = self._state
        return firing(
            reason,
            f"rank {state.rank}: {text}, at step {state.step}",
            {
                "rank": state.rank,
                "last_step": state.step,
                "loss_scale": state.scale,
                "loss_scale_highest": state.scale_highest,
                "skipped_steps": state.skipped_steps,
                "overflows": len(state.overflows),
                "window": self._window,
            },
        )
