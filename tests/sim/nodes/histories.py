"""Seeded histories of a run on several nodes: what goes wrong is drawn, and what must hold at the end is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros
from governor.core.events.operators import OperatorHalt
from tests.sim.nodes import halts, hangs, money
from tests.sim.nodes.machines import PRICE, RUN, STOP_BOUND_S, UID, Faults, Span, Watched
from tests.sim.nodes.ranks import Pause
from tests.sim.nodes.stage import TIGHT_S
from tests.sim.nodes.world import World

FAULT_S: Final = 6.0  # When the run goes wrong.
HEALED_S: Final = 45.0  # When every cut and every pause is over.
END_S: Final = 90.0
# A hang that any limit allows begins at HEALED_S at the latest.
HANG_END_S: Final = 150.0
SHORT_S: Final = (1, 3, 8)  # Of a healthy run, nothing is away for as long as the rule lets a silent node be.
KINDS: Final = ("clean", "net", "cut", "dead", "frozen", "governor", "deaf", "all")

MakeWorld = Callable[[int, int, Faults, Watched, "Pause | None"], World]


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    count: int
    faults: Faults
    # "nan": on one node. "both": people halt it on two nodes at once. "none": nothing is wrong with the run.
    # "hang": it stands still for ever. "pause": it does so for as long as it may. "ceiling": its money is spent.
    cause: str
    where: int
    watched: Watched = Watched()
    pause: Pause | None = None
    moved_s: float | None = None  # When its next launch begins, without the node `where`.
    end_s: float = END_S


class BrokenError(AssertionError):
    """An invariant did not hold: which one, in which history, and what happened in it."""

    def __init__(self, history: History, what: str, log: list[str]) -> None:
        super().__init__(f"{what}: {history}\nagain: python -m tests.sim.nodes --seed {history.seed}")
        self.log = log


# --- what goes wrong -----------------------------------------------------------------------------------------------


def draw(seed: int) -> History:
    rng = Random(seed)
    count = rng.randint(2, 5)
    cause = rng.choice(("nan", "nan", "nan", "both", "none", "hang", "hang", "pause", "pause", *("ceiling",) * 4))
    kinds = {"pause": ("clean", "net", "short"), "ceiling": (*KINDS, "slow", "slow", "slow")}.get(cause, KINDS)
    faults = _faults(rng, count, kinds, cause)
    where = rng.randrange(count)
    if cause == "ceiling":
        return _ceiling(rng, History(seed, count, faults, cause, where))
    if cause not in ("hang", "pause"):
        return History(seed, count, faults, cause, where)
    since = rng.uniform(FAULT_S, HEALED_S)
    lasts = rng.uniform(TIGHT_S, hangs.PAUSE_S) if cause == "pause" else HANG_END_S
    kind = rng.choice(hangs.HEALTHY if cause == "pause" else hangs.HUNG)
    if cause == "pause":
        lasts = min(lasts, hangs.QUIET_S if kind == "quiet" else hangs.PAUSE_S)
    pause = Pause(kind, where, since, since + lasts)
    return History(seed, count, faults, cause, where, Watched(hang=True), pause, end_s=HANG_END_S)


def _faults(rng: Random, count: int, kinds: tuple[str, ...], cause: str) -> Faults:
    kind = rng.choice(kinds)
    is_all = kind == "all"
    lengths = SHORT_S if kind == "short" else (2, 8, 30)
    healed_s = HEALED_S if kind != "short" else HANG_END_S

    def some(chance: float) -> list[int]:
        return [number for number in range(count) if rng.random() < chance]

    def spans(chance: float) -> tuple[Span, ...]:
        begins = [(number, rng.uniform(1, 20 if cause != "pause" else HANG_END_S / 2)) for number in some(chance)]
        return tuple((number, since, min(healed_s, since + rng.choice(lengths))) for number, since in begins)

    return Faults(
        lose=rng.uniform(0, 0.5) if kind == "net" or is_all else 0.0,
        double=rng.uniform(0, 0.5) if kind == "net" or is_all else 0.0,
        delay_s=rng.choice((0.01, 0.3, 2.0)) if kind == "net" or is_all else 0.01,
        cut=spans(0.4) if kind in ("cut", "short") or is_all else (),
        frozen=spans(0.3) if kind == "frozen" or is_all else (),
        dead=tuple((number, rng.uniform(2, 20)) for number in some(0.3)) if kind == "dead" or is_all else (),
        governor_down=spans(0.4) if kind in ("governor", "short") or is_all else (),
        clock_off_s=tuple(rng.choice((0.0, 3600.0, -3600.0)) for _ in range(count)),
        deaf=frozenset(some({"deaf": 0.4, "all": 0.4, "slow": 1.0}.get(kind, 0.0))),
        stop_s=rng.uniform(STOP_BOUND_S - 0.5, STOP_BOUND_S - 0.1) if kind == "slow" else 2.0,
    )


def _ceiling(rng: Random, history: History) -> History:
    """Nodes of several prices, and a ceiling that all of them reach after a minute or two."""
    prices = [UsdMicros(PRICE * rng.choice((1, 2, 5)) // 2) for _ in range(history.count)]
    lasts_s = rng.uniform(30, 110)
    ceiling = UsdMicros(round(sum(prices) * lasts_s / 3600))
    moved_s = rng.uniform(4, 25) if history.where != 0 and rng.random() < 0.4 else None
    return History(
        history.seed, history.count, history.faults, history.cause, history.where,
        Watched(ceiling_usd_micros=ceiling, prices=(*prices, prices[history.where])),
        moved_s=moved_s, end_s=lasts_s + 60,
    )  # fmt: skip


def calm(history: History) -> Faults:
    """The same history if only wall clocks are off."""
    return Faults(clock_off_s=history.faults.clock_off_s, delay_s=0.01)


# --- what happens, and what must hold --------------------------------------------------------------------------------


def play(seed: int, make_world: MakeWorld = World) -> World:
    """Raise BrokenError where something does not hold."""
    history = draw(seed)
    world = make_world(seed, history.count, history.faults, history.watched, history.pause)
    world.begin()
    for number, _, until in history.faults.governor_down:
        world.after(round(until * NS_PER_S), partial(world.restart, number))
    if history.moved_s is not None:
        world.after(round(history.moved_s * NS_PER_S), partial(world.move, history.where))
    world.run(FAULT_S)
    _go_wrong(world, history)
    world.run(history.end_s)
    is_calm = history.faults == calm(history)
    told = _first_that_fails(world, history, is_calm=is_calm)
    if told is not None:
        raise BrokenError(history, told, world.log)
    return world


def _first_that_fails(world: World, history: History, *, is_calm: bool) -> str | None:
    told: list[str | None] = []
    if history.cause in ("none", "pause"):
        told += [halts.nobody_halts(world)]
    else:
        told += [halts.ends(world, must=is_calm or history.cause in ("hang", "ceiling"))]
    if is_calm:
        told += [halts.goes_last(world)]
    if history.cause == "hang" and history.pause is not None:
        told += [hangs.in_its_time(world, history.pause, is_calm=is_calm)]
    told += [halts.says_one_name(world), halts.stops_once(world), money.adds_up(world)]
    told += [money.keeps_the_ceiling(world), money.uses_the_ceiling(world)]
    told += [halts.leaves_tomorrow_alone(world)]
    return next((one for one in told if one is not None), None)


def _go_wrong(world: World, history: History) -> None:
    machine = world.machines[history.where]
    if history.cause not in ("nan", "both") or not world.governs(machine.number):
        return
    if history.cause == "nan":
        world.ranks.tell_step(machine, float("nan"))
        return
    for one in (machine, world.machines[(history.where + 1) % history.count]):
        if world.governs(one.number):
            world.hear(one, OperatorHalt(MonoNs(world.now), RUN, "enough", UID))
