"""Whole runs worked out by hand, to the micro-dollar: what each did, and what it has cost.

Every figure is arithmetic on the page: seconds times price, over tokens. None of it is asked of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from governor.core.base.policy import Budget, Expected, PolicySet
from governor.core.base.units import BootNs, MonoNs, UsdMicros, WallNs
from governor.core.events.inputs import CommandLaunched
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt
from governor.core.money.lines import Lines
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, make_node, peer, rule
from tests.unit.core.money.test_waste import FEE, end, steps, until

STEP = 10_000  # Tokens. A window has two steps.
MILLION = 1_000_000
PLAN, PLAN_ALL_IN = 80_000, 200_000  # Micro-dollars a million tokens.
CEILING, GOAL = 1_000_000, 300 * STEP  # Of the plan alone: no rule halts at it.
UNSAID = -1  # A forecast with a trend in it is no arithmetic for a page.
NO_LINES = Lines()
# Micro-dollars, and millionths of a second, of an hour, and of a token a second.
AHEAD = ("reserve", "ceiling in", "ceiling early", "ceiling late", "hours left", "cost left", "tokens/s now")
CAUSES = ("start_up", "after_last_step", "halt", "trained_twice")

# Told of each stage, where a run has several.
STAGE_FIGURES = (
    "tokens", "tokens wasted", "spend", "usd_per_mtok_all_in", "usd_per_mtok_useful", "wasted",
)  # fmt: skip

Play = Callable[[World], None]


@dataclass(frozen=True)
class Window:
    """By hand: tokens of progress, micro-dollars, milliseconds. None: no price was known."""

    tokens: int
    usd: int | None
    ms: int


@dataclass(frozen=True)
class Stage:
    """By hand: tokens of progress and those trained again, micro-dollars, and of these the waste."""

    name: str
    tokens: int
    repeated: int
    spend: int
    waste: int

    @property
    def figures(self) -> dict[str, int | None]:
        trained = self.tokens + self.repeated
        all_in = self.spend * MILLION // trained if trained else None
        useful = self.spend * MILLION // self.tokens if self.tokens else None
        figures = (self.tokens, self.repeated, self.spend, all_in, useful, self.waste)
        return dict(zip(STAGE_FIGURES, figures, strict=True))


@dataclass(frozen=True)
class Case:
    """What a run did, and by hand: spend and tokens, windows, prices, and the waste by cause. In micro-dollars."""

    name: str
    play: Play
    spend: int
    trained: int
    windows: tuple[Window, ...]
    now: int | None
    steady: Fraction
    repeated: int = 0
    waste: dict[str, int] = field(default_factory=dict)
    lines: Lines = NO_LINES
    hourly: int | None = 3_600_000  # A tenth of a cent a second. None: no price is known at first.
    steady_stage: Fraction | None = None  # Of all windows. None: as that of the last 50.
    ms: int = 12_000  # Of the node, that it has paid for.
    unpriced_ms: int = 0  # Of its time, what has no price.
    speed: int = 10_000 * MILLION  # Millionths of a token a second, without starts.
    lands: int | None = UNSAID  # What it has spent at its goal. None is unknown.
    began: int = 0  # Tokens that it had trained when it first paid for any: its ceiling is for those after them.
    unpaid: int = 0  # Tokens of progress in no price: trained elsewhere, or while another run paid.
    others: int = 0  # Tokens of progress of other trainings than the last: its goal is of none of them.
    is_launched: bool = False  # By `costgov run`, whose time is the command's.
    is_held: bool = False  # To its ceiling, by a rule.
    ahead: dict[str, int] = field(default_factory=dict)  # While it trains: see AHEAD.
    stages: tuple[Stage, ...] = ()  # Where it has several.

    @property
    def all_in(self) -> int | None:
        """Of a stretch that has no price nobody knows what it cost, so it is unknown what all of it cost."""
        return self.spend * MILLION // self.trained if self.hourly is not None else None

    @property
    def useful(self) -> int | None:
        return self.spend * MILLION // (self.trained - self.repeated) if self.hourly is not None else None

    @property
    def used(self) -> int | None:
        return round(Fraction(self.spend * MILLION, CEILING)) if self.hourly is not None else None

    @property
    def burn(self) -> int | None:
        """What a useful token has cost over what the ceiling has for each: in millionths."""
        if self.hourly is None:
            return None
        a_token = Fraction(self.spend, self.trained - self.repeated)
        return round(MILLION * a_token / Fraction(CEILING, GOAL + self.others - self.began - self.unpaid))

    @property
    def by_cause(self) -> dict[str, int]:
        return dict.fromkeys(CAUSES, 0) | self.waste

    @property
    def steady_of_stage(self) -> Fraction:
        return self.steady if self.steady_stage is None else self.steady_stage

    @property
    def drift(self) -> int:
        """In millionths, as all ratios here."""
        return round(MILLION * (self.steady / PLAN - 1))

    @property
    def drift_stage(self) -> int:
        return round(MILLION * (self.steady_of_stage / PLAN - 1))

    @property
    def drift_all_in(self) -> int | None:
        if self.hourly is None:
            return None
        return round(MILLION * (Fraction(self.spend * MILLION, self.trained) / PLAN_ALL_IN - 1))


def played(case: Case) -> World:
    price = UsdMicros(case.hourly) if case.hourly is not None else None
    node = make_node(
        rule("budget") if case.is_held else rule(),
        budget=Budget(window_tokens=2 * STEP, ceiling_usd_micros=UsdMicros(CEILING), tokens=GOAL),
        lines=case.lines,
        cloud="none",
        exclusive=case.is_launched,
        price_usd_micros_per_hour=price,
    )
    expected = Expected(PLAN, None, PLAN_ALL_IN)
    node.policies = PolicySet((replace(node.policies.policies[0], expected=expected),), "digest")
    world = World(node)
    if case.is_launched:
        world.play(CommandLaunched(MonoNs(0), "job", 1000, (COMMAND,)))
    world.tick()
    case.play(world)
    world.tick()  # The views tell the spend of the last tick.
    return world


def plain_run(world: World) -> None:
    """2 s to the first step's end, 8 more steps of a second, 2 s to the end."""
    world.hear()
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)


def _restarted(world: World) -> None:
    """As above; 5 s later another launch: 3 s to its first step's end; it trains steps 6 to 9 again, and 10 to 12."""
    plain_run(world)
    until(world, 17)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 17.25)
    steps(world, range(6, 13), began=20)
    until(world, 27)
    end(world)


def _dearer(world: World) -> None:
    """The price doubles after the fifth of nine steps, at 6 s."""
    world.hear()
    steps(world, range(1, 6), began=2)
    now, boot, wall = MonoNs(world.mono), world.node.ledger.charged_to, world.node.metered_wall
    world.play(PriceRead(now, boot, wall, UsdMicros(7_200_000), "x", "2026-11-01"))
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    end(world)


def _beside_another(world: World) -> None:
    """Two runs hold the node for all the time: half of it each."""
    world.hear(run="other", peer=peer(300), connection=hello(7).connection)
    plain_run(world)


def _without_a_governor(world: World) -> None:
    """Steps go on, 5 to 14, while no governor runs; it comes back at 14 s and hears of 15."""
    world.hear()
    steps(world, range(1, 5), began=2)
    until(world, 5.25)
    world.pass_time("run", 8_750_000_000)
    world.restart()
    world.tick()
    world.hear()
    steps(world, range(15, 18), began=16, first=15)
    until(world, 20)
    end(world)


def _priced_late(world: World) -> None:
    """Five of nine steps end before a price is known, at 6.5 s."""
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.5)
    learn_price(world)
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    end(world)


def _priced_while_it_starts(world: World) -> None:
    """The price is known at 1 s, a second before the first step's end."""
    world.hear()
    until(world, 1)
    learn_price(world)
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)


def learn_price(world: World, since: WallNs | None = None, hourly: int = 3_600_000) -> None:
    now, boot, wall = MonoNs(world.mono), BootNs(world.boot), WallNs(world.boot + world.wall_offset)
    world.play(PriceRead(now, boot, wall, UsdMicros(hourly), "x", "2026-11-01", since))


def _halted(world: World) -> None:
    """A person halts it 0.5 s after its ninth step; the processes are not gone 3 s later."""
    world.hear()
    steps(world, range(1, 10), began=2)
    until(world, 10.5)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    until(world, 13.5)


def _uneven(world: World) -> None:
    """At $3,600/h, a dollar a second: steps of 0.2 and 3 s, which end between the ticks of a quarter second."""
    world.hear()
    for number, ends in enumerate((2.0, 2.2, 2.4, 5.4, 5.6, 5.8, 8.8, 9.0, 9.2, 9.4), start=1):
        until(world, int(4 * ends) / 4)
        world.mono = world.boot = round(ends * 1e9)
        world.play(a_step(number, when=ends, run="llama", tokens=STEP, tokens_total=number * STEP))
        world.mono = world.boot = int(4 * ends) * 250_000_000  # Ticks go on as before.
    until(world, 12)
    end(world)


def _slower(world: World) -> None:
    """4 s to the end of the first two steps, 158 more of a second, then 60 of two seconds, and 2 s to the end."""
    world.hear()
    steps(world, range(1, 161), began=3)
    for number in range(161, 221):
        steps(world, range(number, number + 1), began=162 + 2 * (number - 160), first=number)
    until(world, 284)
    end(world)


def windows(*usd: int | None, ms: tuple[int, ...] = (3_000, 2_000, 2_000, 2_000)) -> tuple[Window, ...]:
    return tuple(Window(2 * STEP, one, long) for one, long in zip(usd, ms, strict=True))


STEADY = Fraction(100_000)  # 2,000 micro-dollars for two steps.
# To its goal a run that has trained nine steps has 291 s more, at the rate and in the time of its last windows.
CASES = [
    Case(
        "seconds times price", plain_run, 12_000, 9 * STEP, windows(3_000, 2_000, 2_000, 2_000), 100_000, STEADY,
        waste={"start_up": 2_000, "after_last_step": 2_000}, lands=12_000 + 291_000,
    ),
    Case(
        "an odd price",
        plain_run,
        12 * 98_320_000 // 3_600,
        9 * STEP,
        # $98.32/h are $0.0273111 a second. By 3, 5, 7 and 9 s that is 81,933, 136,555, 191,177 and 245,800.
        windows(81_933, 54_622, 54_622, 54_623),
        2_731_150,
        Fraction(2_731_100),
        # 2 s are $0.054622…; each amount is what the ledger had at that moment, rounded down.
        waste={"start_up": 54_622, "after_last_step": 327_733 - 273_111},
        hourly=98_320_000,
        lands=(12 + 291) * 98_320_000 // 3_600,
    ),
    Case(
        "uneven steps at a high price",
        _uneven,
        12_000_000,
        10 * STEP,
        windows(2_200_000, 3_200_000, 400_000, 3_200_000, 400_000, ms=(2_200, 3_200, 400, 3_200, 400)),
        20_000_000,
        Fraction(160_000_000 + 20_000_000, 2),  # Two of each but for the first, which has the start.
        waste={"start_up": 2_000_000, "after_last_step": 2_600_000},
        hourly=3_600_000_000,
        speed=90_000 * MILLION * 10 // 74,  # Nine steps in 7.4 s.
        lands=12_000_000 + 145 * 1_800_000,  # Four windows in 7.2 s, and 145 to come.
    ),
    Case(
        "another launch",
        _restarted,
        12_000 + 10_000,
        16 * STEP,
        # The fifth has 1 s and 2 s of the first launch, and 7 s of the second, which began 5 s later.
        windows(3_000, 2_000, 2_000, 2_000, 10_000, 2_000, ms=(3_000, 2_000, 2_000, 2_000, 15_000, 2_000)),
        100_000,
        STEADY,
        4 * STEP,
        # Of the steps that are trained again the first one is part of the start.
        {"start_up": 2_000 + 3_000, "after_last_step": 2_000 + 1_000, "trained_twice": 3_000},
        ms=22_000,
        lands=22_000 + 288_000,  # 288 steps of a second are left. No start comes again.
    ),
    Case(
        "a price that doubles", _dearer, 6_000 + 12_000, 9 * STEP, windows(3_000, 2_000, 3_000, 4_000), 200_000,
        Fraction(150_000), 0, {"start_up": 2_000, "after_last_step": 4_000}, lands=18_000 + 291 * 2_000,
    ),
    Case(
        "a fee", plain_run, 17_000, 9 * STEP, windows(8_000, 2_000, 2_000, 2_000), 100_000, STEADY, 0,
        {"start_up": 7_000, "after_last_step": 2_000}, lines=Lines(per_launch=(FEE,)), lands=291_000 + 17_000,
    ),
    Case(
        "beside another run", _beside_another, 6_000, 9 * STEP, windows(1_500, 1_000, 1_000, 1_000), 50_000,
        Fraction(50_000), 0, {"start_up": 1_000, "after_last_step": 1_000}, ms=6_000, lands=6_000 + 291 * 500,
    ),
    Case(
        "downtime",
        _without_a_governor,
        20_000,
        17 * STEP,
        # No commit had the two windows of before (one comes every 10 s): their tokens, money and time are in the next.
        (Window(15 * STEP, 16_000, 16_000), Window(2 * STEP, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 2_000, "after_last_step": 2_000},
        ms=20_000,
        lands=20_000 + 283_000,
    ),
    Case(
        "a price learned late", _priced_late, 5_500, 9 * STEP, windows(None, None, None, 2_000), 100_000, STEADY, 0,
        {"after_last_step": 2_000}, hourly=None, ms=5_500, unpriced_ms=6_500, lands=None,
    ),
    Case(
        "a price learned while it starts", _priced_while_it_starts, 11_000, 9 * STEP,
        windows(None, 2_000, 2_000, 2_000), 100_000, STEADY, 0, {"start_up": 1_000, "after_last_step": 2_000},
        hourly=None, ms=11_000, unpriced_ms=1_000, lands=None,
    ),
    Case(
        "a hundred windows, the last ones slower", _slower, 284_000, 220 * STEP,
        # Of the last 50, 30 are of 4 s; of all, 79 of 2 s.
        windows(4_000, *[2_000] * 79, *[4_000] * 30, ms=(4_000, *[2_000] * 79, *[4_000] * 30)), 200_000,
        Fraction(200_000), 0, {"start_up": 3_000, "after_last_step": 2_000}, steady_stage=STEADY,
        ms=284_000, speed=2_190_000 * MILLION // 279,
    ),
    Case(
        "a halt", _halted, 13_500, 9 * STEP, windows(3_000, 2_000, 2_000, 2_000), 100_000, STEADY, 0,
        {"start_up": 2_000, "halt": 3_000}, ms=13_500, lands=13_500 + 291_000,
    ),
]  # fmt: skip
