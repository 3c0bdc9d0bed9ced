"""fp16 keeps overflowing: its loss scale has collapsed, or too many updates are skipped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import OneRank
from governor.core.rules.triggers.base import Key
from governor.core.runs.state import Run

_SEARCHING = unknown("searching_the_scale")

# It is tried doubled, once in hundreds of steps. One that jumps is that of a trainer which began its search again, at
# the step at which it was resumed.
SEARCH_RISE: Final = 16
FOUND_AFTER: Final = 20  # Updates in a row without an overflow: the scale has been found. As `nonfinite` has it.


class OverflowStorm(OneRank):
    """The loss scale has fallen to `fall` times below where it was, or `skipped` of `window` updates overflowed.

    A healthy fp16 run overflows once or twice each time that the scale is tried doubled, some 2 % of its steps, and its
    scale stays within a factor of four or so. When gradients grow, every step overflows, each overflow halves the
    scale, and at its least the weights stand still or break. An overflow is an update that the trainer says it skipped,
    or, where a log shows the scale alone, each halving of it. Nothing counts until 20 updates in a row went well: at
    the start fp16 searches its scale. Overflows in a row are `nonfinite`'s. bf16 and fp32 keep a scale of 1, which
    never falls. Judged is one rank, the first that tells of scale or skips. UNKNOWN until then, while the scale is
    searched, and while no rank is connected. What it misses: overflows that a sparse log does not show. Starts anew
    with each attempt, where the steps go back, and where the scale jumps up.
    """

    KIND: ClassVar[str] = "overflow_storm"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("fall", "number", 256.0, "Fires when the scale is so many times below its highest since it was found.", 2),
        # A real DeepSpeed-Chat run in fp16 (OPT-1.3B, 875 records): two in a row every hundred steps, none else.
        Key("skipped", "count", 25, "Overflows among the last `window` updates that fire.", 2),
        Key("window", "count", 100, "Updates among which they are counted.", 2),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_scale_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("fall", "skipped")
    SAYS: ClassVar[tuple[str, ...]] = (
        "fp16's loss scale falls to {fall} times below its highest, or {skipped} of {window} updates overflow, once "
        "the scale has been found",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._fall: float = params["fall"]
        self._window: int = params["window"]
        # Where the last overflows lie, counted in updates: with as many as fire, the oldest tells how close they are.
        self._overflows: deque[int] = deque(maxlen=params["skipped"])
        self._rank: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._step = -1
        self._updates = 0
        self._well = 0  # Updates in a row without an overflow.
        self._is_found = False
        self._scale: float | None = None
        self._scale_highest = 0.0  # Since it was found.
        self._skipped_steps: int | None = None
        self._overflows.clear()
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        if event.rank != self._rank:
            if event.loss_scale is None and event.skipped_steps is None and event.applied is None:
                return False  # Most trainers: nothing of this, ever.
            if not self._takes_over(event.rank, run):
                return False
        if event.step < self._step:
            self._begin()
        advanced = max(1, event.step - self._step) if self._updates else 1
        self._step = event.step
        self._updates += advanced
        overflows = self._overflows_of(event, advanced)
        if overflows:
            self._well = 0
            if self._is_found:
                self._overflows.extend([self._updates] * min(overflows, self._window))
        else:
            self._well += advanced
            self._is_found = self._is_found or self._well >= FOUND_AFTER
        if self._is_found and self._scale is not None:
            self._scale_highest = max(self._scale_highest, self._scale)
        self._finding = self._judge()
        return self._finding.is_firing

    def _search_anew(self) -> None:
        self._is_found, self._well, self._scale_highest = False, 0, 0.0
        self._overflows.clear()

    def _overflows_of(self, event: Event, advanced: int) -> int:
        """How many updates this record says were skipped."""
        assert isinstance(event, Step)
        told = halvings = 0
        if event.skipped_steps is not None:
            if self._skipped_steps is not None:
                told = max(0, event.skipped_steps - self._skipped_steps)
            self._skipped_steps = event.skipped_steps
        scale = event.loss_scale
        if scale is not None and 0 < scale < math.inf:
            if self._scale is not None and scale > SEARCH_RISE * self._scale:
                self._search_anew()
            if self._scale is not None and scale < self._scale:
                halvings = max(1, round(math.log2(self._scale) - math.log2(scale)))
            self._scale = scale
        if event.applied is not None:
            halvings = 0 if event.applied else 1
        # Megatron-LM counts the skipped ones of each interval anew: there the scale tells more.
        return min(max(told, halvings), advanced)

    def _judge(self) -> Finding:
        if not self._is_found:
            return _SEARCHING
        scale, highest = self._scale, self._scale_highest
        if scale is not None and scale * self._fall <= highest:
            return self._storm(
                "loss_scale_collapsed",
                f"loss scale {scale:g}, {highest / scale:,.0f} times below its {highest:g}",
            )
        overflows = self._overflows
        if len(overflows) == overflows.maxlen and self._updates - overflows[0] < self._window:
            return self._storm("overflow_storm", f"{len(overflows)} of the last {self._window} updates overflowed")
        return QUIET

    def _storm(self, reason: str, text: str) -> Finding:
        return Finding(
            Reading.FIRING,
            reason,
            f"rank {self._rank}: {text}, at step {self._step}",
            {
                "rank": self._rank,
                "last_step": self._step,
                "loss_scale": self._scale,
                "loss_scale_highest": self._scale_highest,
                "skipped_steps": self._skipped_steps,
                "overflows": len(self._overflows),
                "window": self._window,
            },
        )

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "rank": self._rank,
            "step": self._step,
            "updates": self._updates,
            "well": self._well,
            "is_found": self._is_found,
            "scale": self._scale,
            "scale_highest": self._scale_highest,
            "skipped_steps": self._skipped_steps,
            "overflows": list(self._overflows),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._begin()
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._updates = int(snapshot["updates"])
        self._well = int(snapshot["well"])
        self._is_found = bool(snapshot["is_found"])
        self._scale = None if snapshot["scale"] is None else float(snapshot["scale"])
        self._scale_highest = float(snapshot["scale_highest"])
        self._skipped_steps = snapshot["skipped_steps"]
        self._overflows.extend(int(update) for update in snapshot["overflows"])
        self._finding = self.NONE_SEEN if self._rank is None else self._judge()
