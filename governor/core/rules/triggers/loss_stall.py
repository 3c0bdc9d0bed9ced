"""The loss has stopped falling: the run learns nothing any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, LevelBlocks, OneRank, RankState
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run


@dataclass(slots=True, kw_only=True)
class _State(RankState):
    best: float | None = None
    best_step: int = 0  # The last step of the best block.
    since: int = 0  # Losses since the best block.
    blocks: LevelBlocks


class LossStall(OneRank):
    """No block of losses has been `improve_frac` below the best for `stall_records` losses and `stall_steps` steps.

    A block is the median of `block_records` losses, so that one lucky batch is no progress. Every run stalls when it
    has converged, so alone this is for a person to look at. `loss_frozen` covers a loss that repeats one value exactly.
    The loss of one rank is judged, the first that reports any; losses that are not finite are left out. UNKNOWN before
    the first block and while no rank is connected. Misses: a loss that falls while the run learns nothing useful.
    Resets at each attempt, and when the step goes back.
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
    IS_ONCE_A_STEP: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("stall_records",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "no block of {block_records} losses has been {improve_frac} below the best one for {stall_records} losses and "
        "{stall_steps} steps",
        "The best block counts as {floor} at least.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._improve_frac: float = params["improve_frac"]
        self._stall_records: int = params["stall_records"]
        self._stall_steps: int = params["stall_steps"]
        self._floor: float = params["floor"]
        self._block_records: int = params["block_records"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(finding=self.NONE_SEEN, blocks=LevelBlocks(self._block_records, 1))

    def observe(self, event: Event, run: Run) -> bool:
        loss = self._next_loss(event, run)
        if loss is None:
            return False
        state = self._state
        state.since += 1
        if state.blocks.add(loss, state.step):
            self._see_block(state.blocks.medians[-1])
        elif state.finding is self.NONE_SEEN:
            state.finding = WARMING_UP
        return state.finding.is_firing

    def _see_block(self, block: float) -> None:
        state = self._state
        best = state.best
        if best is None or block <= best - self._improve_frac * max(abs(best), self._floor):
            state.best, state.best_step, state.since = block, state.step, 0
        stalled = state.since >= self._stall_records and state.step - state.best_step >= self._stall_steps
        state.finding = self._stalled() if stalled else QUIET

    def _stalled(self) -> Finding:
        state = self._state
        return firing(
            "loss_stalled",
            f"the loss has not fallen below {state.best:.4g} since step {state.best_step}: {state.since} records, "
            f"now {state.blocks.medians[-1]:.4g} at step {state.step}",
            {
                "rank": state.rank,
                "last_step": state.step,
                "loss_median": state.blocks.medians[-1],
                "loss_best": state.best,
                "best_step": state.best_step,
                "records": state.since,
            },
        )
