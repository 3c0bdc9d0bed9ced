"""What every invariant of the simulation is: a checker with a name that sees all that happens in one schedule."""

from __future__ import annotations

from typing import NoReturn

from governor.core.base.units import NS_PER_S
from governor.core.events.effects import HaltEffect
from governor.core.halt.table import Halt, HaltPlan, HaltState
from tests.sim.governor import Step
from tests.sim.world import World

RANK = {stage: n for n, stage in enumerate(HaltState)}
DOWN_NS = 10 * NS_PER_S  # The longest restart.


class BrokenError(AssertionError):
    """An invariant does not hold; the first word is its name."""


class Checker:
    """Sees every step, effect and restart of one schedule."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def plan(self) -> HaltPlan:
        """Of the halt: it is known from the verdict on."""
        return self.world.plan

    def broken(self, text: str) -> NoReturn:
        raise BrokenError(f"{type(self).__name__}: {text}")

    def on_step(self, step: Step) -> None: ...

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None: ...

    def on_resume(self, halt: Halt) -> None: ...

    def on_end(self, halt: Halt) -> None: ...
