"""The loss has stopped falling: the run learns nothing any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, LevelBlocks, OneRank
from governor.core.rules.triggers.base import Key
from governor.core.runs.state import Run


class LossStall(OneRank):
    """No block of losses has been `improve_frac` below the best for `stall_records` losses and `stall_steps` steps.

    A block is the median of `block_records` losses, so that one lucky batch is no progress. Every run stalls when it
    has converged, so alone this is for a person to look at; `loss_frozen` has a loss that repeats one value exactly.
    Judged is the loss of one rank, the first that reports any; losses that are not finite are left out. UNKNOWN until
    there is a block and while no rank is connected. What it misses: a loss that falls and learns nothing useful. Starts
    anew with each attempt, and where the steps go back.
    """

    KIND: ClassVar[str] = "loss_stall"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("improve_frac", "number", 0.005, "Less than this part below the best block is no progress."),
        Key("stall_records", "count", 2000, "Losses without progress after which it fires.", 1),
        Key("stall_steps", "count", 5000, "Steps without progress that must have passed as well."),
        Key("block_records", "count", 50, "Losses whose median is one block.", 1),
        Key("floor", "number", 0.1, "The best block counts as at least this: near 0 progress is small."),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("stall_records",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "no block of {block_records} losses has been {improve_frac} below the best one for {stall_records} losses and "
        "{stall_steps} steps",
        "The best block counts as {floor} at least.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._improve_frac: float = params["improve_frac"]
        self._stall_records: int = params["stall_records"]
        self._stall_steps: int = params["stall_steps"]
        self._floor: float = params["floor"]
        self._blocks = LevelBlocks(params["block_records"], 1)
        self._rank: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._step = -1
        self._best: float | None = None
        self._best_step = 0  # At its end.
        self._since = 0  # Losses since the best block.
        self._blocks.clear()
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        loss = event.loss
        if loss is None or not math.isfinite(loss):
            return False
        if event.rank != self._rank and not self._takes_over(event.rank, run):
            return False
        step = event.step
        if step <= self._step:
            if step == self._step:
                return False  # Told twice: no repetition.
            self._begin()
        self._step = step
        self._since += 1
        if self._blocks.add(loss, step):
            self._see_block(self._blocks.medians[-1])
        elif self._finding is self.NONE_SEEN:
            self._finding = WARMING_UP
        return self._finding.is_firing

    def _see_block(self, block: float) -> None:
        best = self._best
        if best is None or block <= best - self._improve_frac * max(abs(best), self._floor):
            self._best, self._best_step, self._since = block, self._step, 0
        stalled = self._since >= self._stall_records and self._step - self._best_step >= self._stall_steps
        self._finding = self._stalled() if stalled else QUIET

    def _stalled(self) -> Finding:
        return Finding(
            Reading.FIRING,
            "loss_stalled",
            f"the loss has not fallen below {self._best:.4g} since step {self._best_step}: {self._since} records, "
            f"now {self._blocks.medians[-1]:.4g} at step {self._step}",
            {
                "rank": self._rank,
                "last_step": self._step,
                "loss_median": self._blocks.medians[-1],
                "loss_best": self._best,
                "best_step": self._best_step,
                "records": self._since,
            },
        )

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "rank": self._rank,
            "step": self._step,
            "best": self._best,
            "best_step": self._best_step,
            "since": self._since,
            "blocks": self._blocks.snapshot(),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._begin()
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._best = None if snapshot["best"] is None else float(snapshot["best"])
        self._best_step = int(snapshot["best_step"])
        self._since = int(snapshot["since"])
        self._blocks.restore(snapshot["blocks"])
        # Until the next loss or block: what the last one led to is not kept.
        self._finding = self.NONE_SEEN if self._rank is None else WARMING_UP
