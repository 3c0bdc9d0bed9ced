"""Run one seeded schedule from the verdict to the end: first under faults, then healed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from governor.core.base.units import NS_PER_S
from governor.core.halt.table import Fact, HaltPlan, HaltState
from tests.sim.faults import Schedule, draw_schedule
from tests.sim.governor import Driver, Governor, TableDriver
from tests.sim.invariants import Invariants
from tests.sim.world import START, World

AFTER_HALT_NS = 60 * NS_PER_S  # Late answers must find a halt that nothing moves.

MakeDriver = Callable[[World], Driver]
DrawSchedule = Callable[[Random], Schedule]


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    schedule: Schedule
    stage: HaltState
    dark: bool
    cells: frozenset[tuple[HaltState, Fact]]
    took_ns: int  # Simulated.
    log: tuple[str, ...]


class FailedError(AssertionError):
    """A schedule broke something: says what, under which seed, and how to see it again."""

    def __init__(self, seed: int, error: Exception, log: list[str]) -> None:
        super().__init__(
            f"{type(error).__name__} {error}\nreproduce: make sim-one SEED={seed}   (python -m tests.sim --seed {seed})"
        )
        self.seed = seed
        self.log = log


class _Reported:
    """Whatever goes wrong inside is told with its seed and its log."""

    def __init__(self, seed: int, world: World) -> None:
        self.seed = seed
        self.world = world

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            raise FailedError(self.seed, error, self.world.log) from error


def run_schedule(
    seed: int,
    make_driver: MakeDriver = TableDriver,
    make_governor: type[Governor] = Governor,
    draw: DrawSchedule = draw_schedule,
) -> Result:
    """Raise FailedError when an invariant or an assertion of the code under test breaks."""
    rng = Random(seed)
    schedule = draw(rng)
    world = World(schedule, rng)
    invariants = Invariants(world)
    governor = make_governor(world, make_driver, invariants, rng)
    with _Reported(seed, world):
        _play(world, governor)
        invariants.on_end(governor.driver.halt)
    return Result(
        seed,
        schedule,
        governor.driver.halt.stage,
        world.performer.dark,
        frozenset(invariants.cells),
        world.now - START,
        tuple(world.log),
    )


@cache
def sound(seed: int) -> Result:
    """What a schedule comes to with the table as it stands, played once; without its log."""
    return replace(run_schedule(seed), log=())


def _play(world: World, governor: Governor) -> None:
    world.start(governor)
    governor.verdict(asked=world.schedule.asked)
    end_at = START + world.schedule.healed_after_ns + liveness_ns(world.schedule.plan)
    while not world.performer.dark:
        if world.performer.closed:
            end_at = min(end_at, world.now + AFTER_HALT_NS)
        event_at, clock_at = world.next_at(), governor.next_clock_at()
        if event_at is not None and (clock_at is None or event_at <= clock_at):
            if event_at > end_at:
                return
            world.run_next()
        elif clock_at is not None and clock_at <= end_at:
            world.advance(clock_at)
            governor.clock()
        else:
            return


def liveness_ns(plan: HaltPlan) -> int:
    """How long a halt may take from the moment at which everything obeys, wherever it stood."""
    before_stop = plan.grace_ns + plan.others_ns + plan.term_grace_ns + plan.kill_grace_ns
    ladder = (plan.rung_max + 1) * (plan.stop_reply_ns + plan.verify_ns)
    # One retry may have begun just before, and stops that were slow keep their pace.
    return before_stop + 2 * ladder + 2 * plan.retry_max_ns + 4 * plan.verify_ns + 60 * NS_PER_S
