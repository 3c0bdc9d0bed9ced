"""The numbers of the run have broken: a loss that is NaN, infinite or gone, or updates that are skipped in a row."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event, Step
from governor.core.rules.trigger import Key, Trigger
from governor.core.rules.trigger_state import ADDED
from governor.core.runs.state import RANKS_MAX, Run

# After this many applied updates in a row the loss scale is found: a streak is no longer part of the search.
SCALE_FOUND_AFTER_STEPS = 20


@dataclass(slots=True)
class _Rank:
    """One rank's numbers: counters, never the broken values themselves, because the state must survive JSON."""

    step: int = -1
    records: int = 0  # Of this attempt.
    bad_loss: str = ""  # Of the newest record with a loss: "nan", "inf", "-inf" or "".
    loss_last_finite: float | None = None
    loss_last_finite_step: int | None = None
    losses: int = 0
    loss_absent: int = 0  # Records with an advancing step since the last loss.
    loss_gap_longest: int = 1  # A log that shows a loss every k records has not lost it.
    loss_expected: bool | None = None
    # The rank has no connection: a null in its log, not the trainer, says that a loss was due.
    is_log: bool = field(default=False, metadata=ADDED)
    # Its first records with a loss had another training value too.
    tells_beside_loss: bool = field(default=False, metadata=ADDED)
    loss_step: int | None = field(default=None, metadata=ADDED)  # Of its newest record of training.
    # Its newest record without a loss had no such value either, and nothing new.
    is_stripped: bool = field(default=False, metadata=ADDED)
    skipped_steps: int | None = None
    skipped_streak: int = 0
    applied_streak: int = 0
    scale_found: bool = False
    loss_scale: float | None = None
    gradient_streak: int = 0
    gradient: str = ""
    gradient_seen: bool = field(default=False, metadata=ADDED)  # A finite norm has come.
    masked: int = field(default=0, metadata=ADDED)  # Records in a row with a loss of 0 and a broken gradient.


@dataclass(slots=True)
class _State:
    ranks: defaultdict[int, _Rank] = field(default_factory=lambda: defaultdict(_Rank))


class Nonfinite(Trigger):
    """The loss is NaN, infinite or has vanished, or optimizer updates are skipped in a row.

    Any rank's non-finite loss fires at once.

    *Vanished*: a loss is due but missing. It is due when the trainer says so, or when a log has shown `vanished_after`
    losses (two, if it shows a null in the loss's place). It fires when `vanished_records` training records with
    advancing steps lack it (times the longest gap seen before, for logs that show a loss every k steps). A record
    without norm, rate, time and tokens does not count if it has something that records with a loss lack, as an
    evaluation's results. If it has nothing of its own, and they have one of these, what broke has gone with the loss:
    it counts behind `vanished_after` losses.

    *Masked*: Hugging Face's Trainer shows NaN as a loss of exactly 0. `vanished_records` such losses beside a
    non-finite gradient norm fire, after any other loss.

    *Skipped*: DeepSpeed masks a non-finite gradient norm and skips the update, so the weights do not change while the
    cost grows. `skipped_streak` such steps in a row fire, and so do `gradient_streak` non-finite gradient norms in a
    row. fp16 searches its loss scale by skipping: `search_streak` in a row are needed in the first `search_steps`
    steps, and until 20 updates in a row have been applied (which a log may never show), unless the scale is known and
    cannot fall (bf16, fp32, or 1). A norm that was never a number, beside a loss that is one, is no evidence.

    Where no norm is known, a trainer may tell whether a sample of its gradient is finite; that counts like one.

    UNKNOWN until a loss or a finite gradient has been seen. Resets at each attempt.
    """

    KIND: ClassVar[str] = "nonfinite"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("vanished_after", "count", 20, "Losses seen before their absence means anything.", 1),
        Key("vanished_records", "count", 3, "Records in a row without a loss that make it vanished.", 1),
        Key(
            "skipped_streak",
            "count",
            5,
            "Skipped updates in a row. Healthy fp16 skips one or two now and then.",
            1,
            not_above="search_streak",
        ),
        Key("gradient_streak", "count", 5, "Non-finite gradient norms in a row. One alone means nothing.", 1),
        Key("search_steps", "count", 100, "First steps of an attempt, in which fp16 may still search its loss scale."),
        Key(
            "search_streak",
            "count",
            40,
            "Skipped updates in a row while it searches. From 2**32 down to 1 takes 33 (hysteresis included).",
            1,
        ),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step})
    LIMITS: ClassVar[tuple[str, ...]] = ("vanished_records", "skipped_streak", "gradient_streak", "search_streak")
    # What may last in a healthy run has a limit of its own. No `for` should pass over a loss that is NaN.
    FOR_IS_LIMIT: ClassVar[bool] = False
    MEANING: ClassVar[tuple[str, ...]] = (
        "the loss of a rank is NaN or infinite or has vanished ({vanished_records} records without one, after "
        "{vanished_after} that had it), {skipped_streak} updates in a row are skipped, or {gradient_streak} gradient "
        "norms in a row are not finite ({vanished_records} beside a loss of 0)",
        "While fp16 searches its loss scale, as in the first {search_steps} steps, it takes {search_streak} skipped "
        "updates in a row.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._vanished_after: int = params["vanished_after"]
        self._vanished_records: int = params["vanished_records"]
        self._skipped_streak: int = params["skipped_streak"]
        self._gradient_streak: int = params["gradient_streak"]
        self._search_steps: int = params["search_steps"]
        self._search_streak: int = params["search_streak"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return False
        ranks = self._state.ranks
        state = ranks.get(event.rank)
        if state is None:
            if len(ranks) >= RANKS_MAX:
                return False
            state = ranks[event.rank]
        steps_advanced = event.step - state.step if state.records else 1
        state.records += 1
        norm = event.grad_norm
        if norm is None and event.grad_finite is not None:
            norm = 1.0 if event.grad_finite else math.nan  # Only whether it is finite is asked of it.
        if norm is not None and (state.gradient_streak or not state.gradient_seen or not math.isfinite(norm)):
            self._see_gradient(state, norm, event.loss)
            if event.grad_norm is None:
                state.gradient = ""
        self._see_loss(state, event)
        says_update = event.applied is not None or event.skipped_steps is not None or event.loss_scale is not None
        if says_update or state.skipped_streak:
            self._see_update(state, event, steps_advanced)
        state.step = event.step
        return bool(state.bad_loss or state.loss_absent or state.skipped_streak or state.gradient_streak)

    def _see_loss(self, state: _Rank, event: Step) -> None:
        state.loss_expected = event.loss_expected
        # A record of something else may come before that of training, with the same step.
        is_other = event.loss is None and not _may_miss_loss(state, event)
        is_new = state.loss_step is None or event.step > state.loss_step
        if not is_other:
            state.loss_step = event.step
        if event.loss is None:
            state.is_log = event.connection is None
            # Evaluation and summary lines repeat the step. Only records of new steps can lack a loss.
            if is_new and event.loss_expected is not False and not is_other:
                state.loss_absent += 1
                state.is_stripped = state.tells_beside_loss and not event.reports_training
            return
        if not state.tells_beside_loss and state.losses < self._vanished_after:
            state.tells_beside_loss = event.reports_training
        if state.loss_absent >= state.loss_gap_longest and state.losses:
            state.loss_gap_longest = state.loss_absent + 1
        state.losses += 1
        state.loss_absent = 0
        state.bad_loss = "" if math.isfinite(event.loss) else str(event.loss)
        if not state.bad_loss:
            state.loss_last_finite = event.loss
            state.loss_last_finite_step = event.step

    def _see_update(self, state: _Rank, event: Step, steps_advanced: int) -> None:
        grown = None
        if event.skipped_steps is not None:
            if state.skipped_steps is not None:
                grown = event.skipped_steps - state.skipped_steps
            state.skipped_steps = event.skipped_steps
        if event.loss_scale is not None and math.isfinite(event.loss_scale):
            state.loss_scale = event.loss_scale
        skipped = event.applied is False or (event.applied is None and grown is not None and grown > 0)
        if skipped:
            # Frames may be lost in between. The count says whether the steps of the lost frames were skipped too.
            every_one = grown is not None and 1 < steps_advanced <= grown
            unbroken = steps_advanced <= 1 or every_one
            state.skipped_streak = (state.skipped_streak if unbroken else 0) + (steps_advanced if every_one else 1)
            state.applied_streak = 0
        elif event.applied is not None or grown is not None:
            state.skipped_streak = 0
            state.applied_streak += 1
            state.scale_found = state.scale_found or state.applied_streak >= SCALE_FOUND_AFTER_STEPS
        elif steps_advanced > 0:
            # Some logs mention only skipped updates; this step is not one of them.
            state.skipped_streak = 0

    def _see_gradient(self, state: _Rank, norm: float, loss: float | None) -> None:
        """Count a norm. An absent norm (the engine's value was stale) is no evidence."""
        if -math.inf < norm < math.inf:
            state.gradient_seen = True
            if state.gradient_streak:
                state.gradient_streak = state.masked = 0
            return
        if loss != 0:
            state.masked = 0
        # A loss that has always been 0 belongs to the objective (GRPO's, for example).
        elif state.masked or state.loss_last_finite:
            state.masked += 1
        if state.gradient_seen or not loss or not math.isfinite(loss):
            state.gradient_streak += 1
            state.gradient = str(norm)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        """The finding of the newest broken step of any rank."""
        worst: Finding | None = None
        worst_step = -1
        seen = False
        for rank, state in self._state.ranks.items():
            seen = seen or state.losses > 0 or state.gradient_seen
            if worst is not None and state.step <= worst_step:
                continue
            if state.bad_loss or state.loss_absent or state.skipped_streak or state.gradient_streak:
                finding = self._judge_rank(rank, state)
                if finding is not None:
                    worst, worst_step = finding, state.step
        if worst is not None:
            return worst
        return QUIET if seen else unknown("no_loss_seen")

    def _judge_rank(self, rank: int, state: _Rank) -> Finding | None:
        # Trainers that are asked to save know loss_nan, loss_inf and gradient_nonfinite: wire.REASONS_OF_VALUES.
        if state.bad_loss:
            return self._loss_finding(rank, state)
        if self._is_vanished(state):
            return self._vanished_finding(rank, state)
        if state.masked >= self._vanished_records:
            return self._streak_finding(rank, state, "loss_masked", state.masked)
        floor = self._search_streak if self._is_searching(state) else 0
        if state.skipped_streak >= max(floor, self._skipped_streak):
            return self._streak_finding(rank, state, "updates_skipped", state.skipped_streak)
        if state.gradient_streak >= max(floor, self._gradient_streak):
            return self._streak_finding(rank, state, "gradient_nonfinite", state.gradient_streak)
        return None

    def _is_vanished(self, state: _Rank) -> bool:
        if state.loss_absent < self._vanished_records or state.loss_expected is False:
            return False
        if state.loss_expected and not state.is_log:
            return state.losses > 0
        # A null in the loss's place says that it was due. Two losses show how many records lie between losses.
        is_due = state.loss_expected and not state.is_stripped
        seen_min = min(2, self._vanished_after) if is_due else self._vanished_after
        return state.losses >= seen_min and state.loss_absent >= self._vanished_records * state.loss_gap_longest

    def _is_searching(self, state: _Rank) -> bool:
        may_fall = state.loss_scale is None or state.loss_scale > 1
        return may_fall and (state.records <= self._search_steps or not state.scale_found)

    def _loss_finding(self, rank: int, state: _Rank) -> Finding:
        reason = "loss_nan" if state.bad_loss == "nan" else "loss_inf"
        return firing(
            reason,
            f"rank {rank} has loss {state.bad_loss} at step {state.step}{_before(state)}",
            {"rank": rank, "step": state.step, "loss": state.bad_loss, **_last_finite(state)},
        )

    def _vanished_finding(self, rank: int, state: _Rank) -> Finding:
        return firing(
            "loss_vanished",
            f"rank {rank} reports no loss for {state.loss_absent} steps, at step {state.step}{_before(state)}",
            {"rank": rank, "step": state.step, "records_without_loss": state.loss_absent, **_last_finite(state)},
        )

    def _streak_finding(self, rank: int, state: _Rank, reason: str, streak: int) -> Finding:
        gradient = f"gradient norm {state.gradient}" if state.gradient else "a gradient that is not finite"
        what = "skipped the update" if reason == "updates_skipped" else f"had {gradient}"
        if reason == "loss_masked":
            what += " and loss 0"
        return firing(
            reason,
            f"rank {rank} {what} {streak} times in a row, at step {state.step}",
            {
                "rank": rank,
                "step": state.step,
                "streak": streak,
                "skipped_steps": state.skipped_steps,
                "loss_scale": state.loss_scale,
                **_last_finite(state),
            },
        )


def _may_miss_loss(state: _Rank, record: Step) -> bool:
    """Whether the record is like those that have a loss, or what is left of such a one when its figures broke."""
    if record.reports_training or record.stripped:
        return True
    return record.stripped is None and not state.tells_beside_loss


def _before(state: _Rank) -> str:
    if state.loss_last_finite is None:
        return ""
    return f"; it was {state.loss_last_finite:.4g} at step {state.loss_last_finite_step}"


def _last_finite(state: _Rank) -> dict[str, float | int | None]:
    return {"loss_last_finite": state.loss_last_finite, "loss_last_finite_step": state.loss_last_finite_step}
