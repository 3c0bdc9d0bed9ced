"""What each run's dollars bought: training, or nothing that lasts, by cause. Sums are exact: each amount has one cause.

The money is the ledger's. What is spent after the latest step has no cause yet: another step makes it training, and
the end of the attempt makes it waste. Time for which no price is known has no amount here, and is counted beside them:
of a stage that has any, the amounts are the least that each cause can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, MonoNs

# Stages of one run name. The earliest becomes part of the rest without a name: the run's own sums stay exact.
STAGES_MAX: Final = 32
NO_STAGE: Final = ""


class SpentOn(Enum):
    """Where a run's money went. All but training and untold is waste."""

    TRAINING = "training"
    START_UP = "start_up"  # Until an attempt's first step has ended.
    AFTER_LAST_STEP = "after_last_step"  # Until the run lets go of the node.
    HALT = "halt"  # From the verdict until the halt is closed.
    TRAINED_TWICE = "trained_twice"  # Tokens of steps that were trained before: their share of the steps' money.
    # Spent before anybody counted this (an older version's journal, or a damaged one), and by an attempt that ended
    # with its governor (kill -9) after the journal's last commit: what it did then is not known.
    UNTOLD = "untold"


WASTE: Final = (SpentOn.START_UP, SpentOn.AFTER_LAST_STEP, SpentOn.HALT, SpentOn.TRAINED_TWICE)


@dataclass(slots=True)  # One is made at each tick: a frozen one takes three times as long.
class Seen:
    """What a run shows at one moment. Times are on the governor's clock."""

    spent_usd_micros: int
    spent_at: Callable[[MonoNs], int]  # What it had spent at an earlier moment since the last count.
    stage: str | None = None
    attempt_at: MonoNs = MonoNs(0)
    first_step_at: MonoNs | None = None  # Of this attempt.
    step_at: MonoNs | None = None  # The latest.
    halting_since: MonoNs | None = None  # None: no halt is open.
    has_ended: bool = False  # The run has, or all of its ranks have trained to the end.
    trained_tokens: int = 0  # Since metering began, repeated ones included.
    repeated_tokens: int = 0
    unpriced_ns: int = 0  # Of its time so far, what has no price.


@dataclass(slots=True)
class SpendSplit:
    """One run's spend by what it bought, over all attempts and restarts of the governor."""

    by_stage: dict[str, dict[SpentOn, int]] = field(default_factory=dict)
    # Since the latest step of the attempt, and of a start the last tick's: it has no cause yet.
    open_usd_micros: int = 0
    stage: str = NO_STAGE  # Of the open money.
    counted_usd_micros: int = 0  # What the run had spent when it was last counted: the sum of all of the above.
    first_step_at: int | None = None  # Of the counted attempt.
    step_at: int | None = None  # The latest counted step.
    trained_tokens: int = 0
    repeated_tokens: int = 0
    unpriced_ns: dict[str, int] = field(default_factory=dict)  # Of each stage's time, what has no price.
    has_begun: bool = False
    # Of the open money, what no governor has counted: it was charged from its ticks after a kill -9.
    unstored_usd_micros: int = 0
    unstored_to: int = field(default=0, compare=False)  # What the run had spent by the end of that. Not kept.
    # Another launch has begun, and nobody saw the attempt end: the open money is no more of that, unless it steps on.
    is_left: bool = False
    left_at: MonoNs | None = field(default=None, compare=False)  # Until the next count. Not kept.
    # What the run had spent when its last attempt ended. None: none has, or it has stepped on.
    ended_usd_micros: int | None = None
    # What the run had spent by the end of the open money: a step may be told after that was counted. Not kept.
    open_to: int = field(default=0, compare=False)

    def begin_untold(self, usd_micros: int, trained_tokens: int = 0, repeated_tokens: int = 0) -> None:
        """Count from here on. What was spent before has no known cause."""
        self._put(SpentOn.UNTOLD, usd_micros)
        self.counted_usd_micros, self.has_begun = usd_micros, True
        self.trained_tokens, self.repeated_tokens = trained_tokens, repeated_tokens

    def wait(self, usd_micros: int, stage: str | None) -> None:
        """Nobody has reported for the run yet. Once somebody does, what was spent before was its start."""
        self.stage, self.counted_usd_micros = stage or NO_STAGE, usd_micros
        self._put(SpentOn.START_UP, usd_micros)

    def count(self, seen: Seen) -> None:
        """Give what was spent since the last count its causes."""
        self.has_begun = True
        if self.left_at is not None:
            self._put(SpentOn.UNTOLD, self._until(seen.spent_at(self.left_at), seen))
            self.left_at = None
        if self.first_step_at is not None and seen.first_step_at != self.first_step_at:
            self._open(self._until(seen.spent_at(seen.attempt_at), seen))
            self._end_attempt()
        if self.first_step_at is None and self.stage != (seen.stage or NO_STAGE):
            self._close_open(SpentOn.START_UP)
        self.stage = seen.stage or NO_STAGE
        self._count_unpriced(seen.unpriced_ns - sum(self.unpriced_ns.values()))
        if self.first_step_at is None and seen.first_step_at is not None:
            spent = _spent_by(seen.first_step_at, seen)
            self._open(self._until(spent, seen))
            after = self._after(spent)
            self._close_open(SpentOn.START_UP, but=after)
            self.first_step_at = self.step_at = seen.first_step_at
            self.ended_usd_micros = None
            if seen.step_at is None or seen.step_at <= seen.first_step_at:
                self._take_tokens(seen)
        if seen.step_at is not None and (self.step_at is None or seen.step_at > self.step_at):
            spent = _spent_by(seen.step_at, seen)
            self._open(self._until(spent, seen))
            self.step_at = seen.step_at
            self._train(seen, self._after(spent))
        if seen.halting_since is not None:
            spent = seen.spent_at(seen.halting_since)
            self._halt_unstored(spent)
            self._open(self._until(spent, seen))
            self._put(SpentOn.HALT, self._rest(seen))
        else:
            if self.first_step_at is None:
                self._close_open(SpentOn.START_UP)
            self._open(self._rest(seen))
        if seen.has_ended:
            self._close_attempt()

    def leave(self, spent_usd_micros: int, at: MonoNs | None = None) -> None:
        """Another launch begins, and the run has spent so much: what the attempt before has had is told by now.

        `at`: what may yet be charged for the time before that moment, nobody can tell either.
        """
        if self.has_begun:
            self.open_usd_micros += max(0, spent_usd_micros - self.counted_usd_micros)
            self.counted_usd_micros = max(spent_usd_micros, self.counted_usd_micros)
            self._close_attempt()
            self.is_left, self.left_at = self.first_step_at is not None, at

    def pass_unstored(self, spent_usd_micros: int) -> None:
        """The run was charged up to here for time of which the journal has no step. Another step makes it training."""
        if self.has_begun:
            self.unstored_usd_micros += max(0, spent_usd_micros - self.counted_usd_micros)
            self.unstored_to = spent_usd_micros
            self.open_usd_micros += spent_usd_micros - self.counted_usd_micros
            self.counted_usd_micros = spent_usd_micros

    def _halt_unstored(self, spent_usd_micros: int) -> None:
        """The verdict came (by then: this) before the governor was killed: what is not stored was the halt's, too."""
        halt = min(self.unstored_usd_micros, self.open_usd_micros, max(0, self.unstored_to - spent_usd_micros))
        self._put(SpentOn.HALT, halt)
        self.unstored_usd_micros -= halt
        self.open_usd_micros -= halt

    def launch(self, usd_micros: int, stage: str | None) -> None:
        """Count what was charged for an attempt's launch."""
        self._end_attempt()
        self.stage, self.has_begun = stage or NO_STAGE, True
        self._put(SpentOn.START_UP, usd_micros)
        self.counted_usd_micros += usd_micros

    def by_cause(self) -> dict[SpentOn, int]:
        """The whole spend. What has no cause yet, as since the latest step of an attempt, counts as training."""
        return sum_by_cause(self.of_stages().values())

    def wasted_usd_micros(self) -> dict[str, int] | None:
        """The waste alone, every cause by its name. None: nothing was counted yet."""
        return wasted_of(self.by_cause()) if self.has_begun else None

    def of_stages(self) -> dict[str, dict[SpentOn, int]]:
        """As by_cause(), of each stage; NO_STAGE is none."""
        told = {stage: dict(amounts) for stage, amounts in self.by_stage.items()}
        if self.open_usd_micros:
            mine = told.setdefault(self.stage, {})
            mine[SpentOn.TRAINING] = mine.get(SpentOn.TRAINING, 0) + self.open_usd_micros
        return told

    def _count_unpriced(self, passed_ns: int) -> None:
        """Below zero: a price that was read late reaches back, the newest stage first."""
        if passed_ns > 0:
            self.unpriced_ns[self.stage] = self.unpriced_ns.get(self.stage, 0) + passed_ns
            if len(self.unpriced_ns) > STAGES_MAX:
                earliest = next(stage for stage in self.unpriced_ns if stage not in (NO_STAGE, self.stage))
                self.unpriced_ns[NO_STAGE] = self.unpriced_ns.get(NO_STAGE, 0) + self.unpriced_ns.pop(earliest)
        for stage in [*reversed(self.unpriced_ns)] if passed_ns < 0 else ():
            known = min(-passed_ns, self.unpriced_ns[stage])
            self.unpriced_ns[stage] -= known
            passed_ns += known

    def _until(self, spent_usd_micros: int, seen: Seen) -> int:
        """What of this is not counted: it was spent by some moment. One before the last count has nothing left."""
        amount = max(0, min(spent_usd_micros, seen.spent_usd_micros) - self.counted_usd_micros)
        self.counted_usd_micros += amount
        return amount

    def _rest(self, seen: Seen) -> int:
        amount = seen.spent_usd_micros - self.counted_usd_micros
        self.counted_usd_micros = seen.spent_usd_micros
        return amount

    def _open(self, usd_micros: int) -> None:
        self.open_usd_micros += usd_micros
        self.open_to = self.counted_usd_micros

    def _after(self, spent_usd_micros: int) -> int:
        """Of the open money, what was spent after a step had ended (by then: this), and counted before it was told."""
        return min(max(0, self.open_to - spent_usd_micros), self.open_usd_micros)

    def _train(self, seen: Seen, after_usd_micros: int) -> None:
        """Steps have ended: the open money was theirs but for what came after, and a share of it trained again."""
        self.open_usd_micros -= after_usd_micros
        self.is_left, self.ended_usd_micros = False, None
        trained = seen.trained_tokens - self.trained_tokens
        repeated = min(seen.repeated_tokens - self.repeated_tokens, trained)
        self._take_tokens(seen)
        if trained > 0 and repeated > 0:
            twice = self.open_usd_micros * repeated // trained
            self._put(SpentOn.TRAINED_TWICE, twice)
            self.open_usd_micros -= twice
        self._close_open(SpentOn.TRAINING)
        self.open_usd_micros = after_usd_micros

    def _take_tokens(self, seen: Seen) -> None:
        self.trained_tokens, self.repeated_tokens = seen.trained_tokens, seen.repeated_tokens

    def _end_attempt(self) -> None:
        if not self.is_left:
            self._close_attempt()
        self.first_step_at = self.step_at = None
        self.is_left = False

    def _close_attempt(self) -> None:
        if self.first_step_at is not None and not self.is_left and self.ended_usd_micros is None:
            self.ended_usd_micros = self.counted_usd_micros
        untold = min(self.unstored_usd_micros, self.open_usd_micros)
        self._put(SpentOn.UNTOLD, untold)
        self.open_usd_micros -= untold
        is_start = self.first_step_at is None or self.is_left
        self._close_open(SpentOn.START_UP if is_start else SpentOn.AFTER_LAST_STEP)

    def _close_open(self, cause: SpentOn, but: int = 0) -> None:
        self._put(cause, self.open_usd_micros - but)
        self.open_usd_micros = but
        self.unstored_usd_micros = 0

    def _put(self, cause: SpentOn, usd_micros: int) -> None:
        if not usd_micros:
            return
        mine = self.by_stage.setdefault(self.stage, {})
        mine[cause] = mine.get(cause, 0) + usd_micros
        while len(self.by_stage) > STAGES_MAX:
            earliest = next(stage for stage in self.by_stage if stage not in (NO_STAGE, self.stage))
            self.by_stage[NO_STAGE] = sum_by_cause((self.by_stage.get(NO_STAGE, {}), self.by_stage.pop(earliest)))

    def snapshot(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "by_stage": {
                stage: {cause.value: amount for cause, amount in told.items()} for stage, told in self.by_stage.items()
            },
            "open_usd_micros": self.open_usd_micros,
            "stage": self.stage,
            "counted_usd_micros": self.counted_usd_micros,
            "first_step_at": self.first_step_at,
            "step_at": self.step_at,
            "trained_tokens": self.trained_tokens,
            "repeated_tokens": self.repeated_tokens,
            **({"unstored_usd_micros": self.unstored_usd_micros} if self.unstored_usd_micros else {}),
            **({"unpriced_ns": dict(self.unpriced_ns)} if self.unpriced_ns else {}),
            **({"is_left": True} if self.is_left else {}),
            **({"ended_usd_micros": self.ended_usd_micros} if self.ended_usd_micros is not None else {}),
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> SpendSplit:
        """Restore a snapshot. KeyError, TypeError, ValueError or AttributeError when it is not one of ours."""
        moments = (snapshot["first_step_at"], snapshot["step_at"])
        first_step_at, step_at = (int(at) if at is not None else None for at in moments)
        return cls(
            by_stage={
                str(stage): {SpentOn(cause): int(amount) for cause, amount in told.items()}
                for stage, told in snapshot["by_stage"].items()
            },
            open_usd_micros=int(snapshot["open_usd_micros"]),
            stage=str(snapshot["stage"]),
            counted_usd_micros=int(snapshot["counted_usd_micros"]),
            first_step_at=first_step_at,
            step_at=step_at,
            trained_tokens=int(snapshot["trained_tokens"]),
            repeated_tokens=int(snapshot["repeated_tokens"]),
            unstored_usd_micros=int(snapshot.get("unstored_usd_micros", 0)),
            unpriced_ns={str(stage): int(ns) for stage, ns in snapshot.get("unpriced_ns", {}).items()},
            has_begun=True,
            is_left=bool(snapshot.get("is_left")),
            ended_usd_micros=int(ended) if (ended := snapshot.get("ended_usd_micros")) is not None else None,
        )


def wasted_of(by_cause: Mapping[SpentOn, int]) -> dict[str, int]:
    return {cause.value: by_cause.get(cause, 0) for cause in WASTE}


def wasted_usd(by_cause: Mapping[str, int] | None) -> dict[str, Any]:
    """In dollars, as `status` tells of a run that is watched and of one that has ended. None: nobody has reported."""
    dollars = {cause: amount / MICROS_PER_USD for cause, amount in (by_cause or {}).items()}
    return {
        "wasted_usd": sum(by_cause.values()) / MICROS_PER_USD if by_cause is not None else None,
        "wasted_usd_by_cause": dollars if by_cause is not None else None,
    }


def _spent_by(step_at: MonoNs, seen: Seen) -> int:
    """What it had spent when a step ended. Behind a verdict that is the halt's, with what is charged later."""
    if seen.halting_since is None:
        return seen.spent_at(step_at)
    by_verdict = seen.spent_at(seen.halting_since)
    return min(by_verdict, seen.spent_at(step_at)) if step_at < seen.halting_since else by_verdict


def sum_by_cause(told: Iterable[Mapping[SpentOn, int]]) -> dict[SpentOn, int]:
    total: dict[SpentOn, int] = {}
    for amounts in told:
        for cause, amount in amounts.items():
            total[cause] = total.get(cause, 0) + amount
    return total
