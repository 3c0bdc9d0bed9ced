"""The loss has risen above the best that the run had reached, stays there, and is not on its way back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.one_rank import WARMING_UP, LevelBlocks, OneRank, RankState
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run

# This many blocks must all lie above. Fewer can be one spike; more find a divergence later.
KEEP: Final = 5
RECOVERED_TIMES: Final = 2  # As in `hang` for pauses that ended well.
# From the middle of the first two to the middle of the last two.
_BLOCKS_BETWEEN: Final = 3
# The weight of the newest difference between two blocks in their running mean.
_WOBBLE_WEIGHT: Final = 0.1


@dataclass(slots=True, kw_only=True)
class _State(RankState):
    losses: int = 0
    lowest: float | None = None  # The level, and the step at which it began.
    lowest_step: int = 0
    scale: float = 0.0  # The lowest level counts as at least this.
    wobble: float = 0.0  # Running mean of the differences between neighbouring blocks.
    # Blocks above the limit in a row, and the step at which the first of them began.
    above: int = 0
    above_step: int = 0
    peak: float = -math.inf  # The highest block among those above.
    # The longest row of blocks above the limit from which the loss came back, and the highest of all such blocks.
    recovered: int = 0
    recovered_peak: float = -math.inf
    blocks: LevelBlocks


class LossDivergence(OneRank):
    """Five blocks of losses in a row lie above the lowest level by `rise_frac`, and the loss is not falling back.

    A block is the median of `block_records` losses, so single spikes do not count, however high. A level is the median
    of five blocks: the lowest of thousands of noisy blocks is luck, and ordinary blocks always lie above it. Spikes and
    jumps that recover are healthy; a slow drift upwards does not come back. So all five blocks must lie above for at
    least `least_steps` steps (healthy spikes are back within about 120). If the loss is no higher than the highest
    block that the run has recovered from, it takes twice the blocks of the longest recovered rise (data of two kinds,
    cycles of the learning rate). The rise must not shrink by `recover_frac` from block to block. The lowest level stays
    the reference: a slow drift does not move it. Losses that are not finite are not counted. The loss of one rank is
    judged, the first that reports any.

    UNKNOWN before six blocks and while no rank is connected. Misses: rises below `rise_frac`; a run that never learned.
    False alarms: a loss that rises by design (PPO's, a changed objective or data mix); use observe mode there, or raise
    `rise_frac`. Resets at each attempt, and when the step goes back (a run resumed at an earlier step had a higher loss
    there).
    """

    KIND: ClassVar[str] = "loss_divergence"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("rise_frac", "number", 0.25, "Fires above the lowest level by this part of it.", 0.01),
        Key("recover_frac", "frac", 0.02, "No divergence while the rise shrinks by this part from block to block."),
        Key("least_steps", "count", 150, "Steps for which it must have lasted, however often losses are logged."),
        Key("block_records", "count", 10, "Losses whose median is one block.", 3),
        Key("warmup_records", "count", 20, "First losses, which are left out: initial values and warm starts."),
        Key("noise", "number", 3.0, "And by so many times the mean difference between neighbouring blocks below it."),
        Key("floor", "number", 0.1, "The lowest level counts as at least this: near 0 every ratio is large."),
        Key("floor_frac", "number", 0.1, "And as at least this part of the first block, whatever the unit."),
    )
    STEPPED: ClassVar[bool] = True
    NONE_SEEN: ClassVar[Finding] = unknown("no_loss_seen")
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("rise_frac",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the loss stays above the lowest that it had reached by {rise_frac} of it, for at least 5 blocks of "
        "{block_records} losses and {least_steps} steps, and is not falling back by {recover_frac} of the rise a block",
        "The first {warmup_records} losses are left out. The rise must also be {noise} times what neighbouring blocks "
        "differ by; the lowest counts as {floor} at least, and as {floor_frac} of the first one.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._rise_frac: float = params["rise_frac"]
        self._recover_frac: float = params["recover_frac"]
        self._least_steps: int = params["least_steps"]
        self._warmup_records: int = params["warmup_records"]
        self._noise: float = params["noise"]
        self._floor: float = params["floor"]
        self._floor_frac: float = params["floor_frac"]
        self._block_records: int = params["block_records"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(finding=self.NONE_SEEN, blocks=LevelBlocks(self._block_records, KEEP))

    def observe(self, event: Event, run: Run) -> bool:
        loss = self._next_loss(event, run)
        if loss is None:
            return False
        state = self._state
        if state.losses < self._warmup_records:
            state.losses += 1
            state.finding = WARMING_UP
            return False
        if state.blocks.add(loss, state.step):
            self._see_block()
        return state.finding.is_firing

    def _see_block(self) -> None:
        state = self._state
        medians = state.blocks.medians
        block = medians[-1]
        lowest = state.lowest
        if lowest is None:
            state.scale = max(self._floor, self._floor_frac * abs(block))
            state.lowest, state.lowest_step = block, state.blocks.starts[-1]
            return
        limit = lowest + max(self._rise_frac * max(abs(lowest), state.scale), self._noise * state.wobble)
        if block <= limit:
            state.recovered = max(state.recovered, state.above)
            state.recovered_peak = max(state.recovered_peak, state.peak)
            state.above, state.peak = 0, -math.inf
            state.wobble += _WOBBLE_WEIGHT * (abs(block - medians[-2]) - state.wobble)
            level = median(medians)
            if level < lowest:
                state.lowest, state.lowest_step = level, state.blocks.starts[0]
            state.finding = QUIET if len(medians) == KEEP else WARMING_UP
            return
        if not state.above:
            state.above_step = state.blocks.starts[-1]
        state.above += 1
        state.peak = max(state.peak, block)
        state.finding = QUIET
        is_known = median(medians) <= state.recovered_peak
        keep = max(KEEP, RECOVERED_TIMES * state.recovered) if is_known else KEEP
        if state.above >= keep and state.step - state.above_step >= self._least_steps:
            risen = (medians[0] + medians[1]) / 2 - lowest
            now = (medians[-1] + medians[-2]) / 2 - lowest
            if now > risen * (1 - self._recover_frac) ** _BLOCKS_BETWEEN:
                state.finding = self._diverged(lowest, limit)

    def _diverged(self, lowest: float, limit: float) -> Finding:
        state = self._state
        blocks = state.blocks
        records = state.above * blocks.size
        return firing(
            "loss_diverged",
            f"loss {blocks.medians[-1]:.4g} at step {state.step}, above {limit:.4g} for {records} records; "
            f"the best was {lowest:.4g} at step {state.lowest_step}",
            {
                "rank": state.rank,
                "last_step": state.step,
                "loss_median": blocks.medians[-1],
                "limit": limit,
                "loss_lowest": lowest,
                "lowest_step": state.lowest_step,
                "records_above": records,
                "blocks": list(blocks.medians),
            },
        )
