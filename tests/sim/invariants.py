"""What must hold in every schedule: all checkers as one judge. A breach raises BrokenError with the checker's name."""

from __future__ import annotations

from governor.core.events.effects import HaltEffect
from governor.core.halt.table import Fact, Halt, HaltState
from tests.sim import invariants_money as money
from tests.sim import invariants_sequence as sequence
from tests.sim.checker import Checker
from tests.sim.governor import Step
from tests.sim.world import World

CHECKERS: tuple[type[Checker], ...] = (
    sequence.EscalationNeverGoesBack,
    sequence.HaltedIsTrue,
    sequence.JournalBeforeAct,
    sequence.SigkillAfterGrace,
    sequence.GraceIsKept,
    sequence.EveryStageDoesItsWork,
    sequence.DeadlinesMove,
    sequence.NewcomersAreAnswered,
    sequence.PagesOncePerEntry,
    sequence.EventuallyHalted,
    money.StopsAreBounded,
    money.NeverGivesUp,
    money.ReadsKeepComing,
    money.TheEndIsNoticed,
    money.NothingIsDestroyedBlindly,
    money.RefusalsAreReadBack,
    money.OnlyWhatIsOurs,
    money.MoneyIsReachedInTime,
)


class Invariants:
    """All checkers as one judge; also notes which cells of the table were visited."""

    def __init__(self, world: World) -> None:
        checkers = [checker(world) for checker in CHECKERS]
        self.cells: set[tuple[HaltState, Fact]] = set()
        # Most checkers watch one of these only, and there are thousands of steps in a schedule.
        self._on_step = [one.on_step for one in checkers if type(one).on_step is not Checker.on_step]
        self._on_effect = [one.on_effect for one in checkers if type(one).on_effect is not Checker.on_effect]
        self._on_resume = [one.on_resume for one in checkers if type(one).on_resume is not Checker.on_resume]
        self._on_end = [one.on_end for one in checkers if type(one).on_end is not Checker.on_end]

    def on_step(self, step: Step) -> None:
        self.cells.add((step.before.stage, step.fact))
        for check in self._on_step:
            check(step)

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None:
        for check in self._on_effect:
            check(effect, halt, journaled)

    def on_resume(self, halt: Halt) -> None:
        for check in self._on_resume:
            check(halt)

    def on_end(self, halt: Halt) -> None:
        for check in self._on_end:
            check(halt)
