"""The windows of a run add up to what it has spent, to the micro-dollar: whatever its price and its neighbours do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_MS, NS_PER_S, TICK_NS, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.events.inputs import TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.money.expected import row_of
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_own_times import HOURLY, Live, frame, price, tell
from tests.unit.core.engine.test_step import hello, make_node, peer

Act = tuple[int, Callable[[World], None]]
MS = NS_PER_MS


def joins(world: World, ranks: int = 1) -> None:
    for rank in range(ranks):
        world.play(
            hello(rank, 0, at=MonoNs(world.mono), run="beside", attempt=f"a{world.mono}", peer=peer(900 + rank),
                  world_size=ranks, connection=ConnectionId(9 + rank))
        )  # fmt: skip


def leaves(world: World) -> None:
    world.play(TrainerExited(MonoNs(world.mono), "beside", 0))


def late_price(usd_micros: int, late_ns: int) -> Callable[[World], None]:
    """The source says since when."""

    def read(world: World) -> None:
        boot, wall = BootNs(world.boot), WallNs(world.boot + world.wall_offset)
        since = WallNs(wall - min(late_ns, world.boot))
        world.play(PriceRead(MonoNs(world.mono), boot, wall, UsdMicros(usd_micros), "x", "2026-11-01", since))

    return read


def is_in_windows(world: World) -> int:
    """What the windows of the run have cost, the open one by its last step."""
    node = world.node
    rows = [*world.windows, *(record.data for record in node.windows_uncommitted)]
    meter = node.runs["llama"].history.meter
    assert meter is not None
    return sum(row_of(row).window.usd_micros for row in rows) + meter.open_window.usd_micros


def spent(world: World) -> int:
    history = world.node.runs["llama"].history
    return world.node.ledger.spend(world.node.runs["llama"].run.run) - history.paid_before


def a_batch(steps: Sequence[tuple[int, int]]) -> Callable[[World], None]:
    """Steps of these numbers and times, read together."""

    def hear(world: World) -> None:
        for number, ended in steps:
            world.play(frame(number, ended, world.mono))

    return hear


def batches(ends: Sequence[int], every_ns: int) -> list[Act]:
    reads: dict[int, list[tuple[int, int]]] = {}
    for number, end in enumerate(ends, 1):
        reads.setdefault(-(-end // every_ns) * every_ns, []).append((number, end))
    return [(read, a_batch(steps)) for read, steps in reads.items()]


def last_step(number: int, after: int) -> tuple[int, Act]:
    """A step that ends with a tick, when all is charged."""
    then = (after // TICK_NS + 8) * TICK_NS
    return then, (then, tell(number, then))


def look(world: World) -> None:
    """At a tick."""
    if world.node.runs["llama"].history.meter is not None:
        assert is_in_windows(world) <= spent(world)


def act_of(kind: str, amount: int) -> Callable[[World], None]:
    match kind:
        case "price":
            return price(amount)
        case "late price":
            return late_price(amount, amount % (2 * NS_PER_S))
        case "joins":
            return lambda world: joins(world, amount)
        case _:
            return leaves


def some_events(random: Random) -> list[Act]:
    kinds = ["price", "late price", "joins", "leaves"]
    chosen = [random.choice(kinds) for _ in range(random.randint(1, 8))]
    amounts = [random.randint(1, 4) if kind == "joins" else random.randint(1, 10**10) for kind in chosen]
    return [(random.randint(1, 4 * NS_PER_S), act_of(*one)) for one in zip(chosen, amounts, strict=True)]


@pytest.mark.parametrize("seed", range(share_of(150)))
def test_windows_add_up_to_what_was_spent(seed: int) -> None:
    """Steps of their own times, read one by one or late and together, while the run's share of the money changes."""
    random = Random(seed)
    took = [random.randint(1, 120 * MS) for _ in range(random.randint(4, 40))]
    every_ns = random.choice([1, TICK_NS, 700 * MS, 3 * NS_PER_S])
    ends = [TICK_NS + sum(took[: place + 1]) for place in range(len(took))]
    others = some_events(random)
    steps = batches(ends, every_ns)
    # A source that says late that the price fell leaves a credit: time is free until it is worked off.
    then, last = last_step(len(ends) + 1, max([when for when, _ in [*steps, *others]]) + 3600 * NS_PER_S)
    live = Live()
    looks = [(ends[-1] * part // 32 // TICK_NS * TICK_NS, look) for part in range(1, 33)]
    live.play([*others, *looks, *steps])
    live.world.pass_time("run", then - TICK_NS - live.world.mono)
    live.world.tick()
    live.world.pass_time("run", TICK_NS)
    live.world.tick()
    last[1](live.world)
    assert is_in_windows(live.world) == spent(live.world)


def ended_at(milliseconds: Sequence[int]) -> list[Act]:
    return [(end * MS, tell(number, end * MS)) for number, end in enumerate(milliseconds, 1)]


@pytest.mark.parametrize(
    "changes",
    [
        [(3_100, price(HOURLY // 10))],
        [(3_100, late_price(HOURLY // 10, 1_000 * MS))],
        [(3_010, joins)],
        [(3_010, lambda world: joins(world, 3)), (3_120, leaves)],
    ],
    ids=["the price falls", "it fell a second ago", "a run joins", "one joins and leaves"],
)
def test_no_window_keeps_more_than_was_spent(changes: list[tuple[int, Callable[[World], None]]]) -> None:
    """Two steps close a window each after 3 s, within one tick in which the run's share of the money falls."""
    live = Live()
    live.play([*[(when * MS, act) for when, act in changes], *ended_at([2_000, 2_900, 3_130, 3_240])])
    live.world.pass_time("run", 10 * MS)
    live.world.tick()
    assert is_in_windows(live.world) <= spent(live.world)
    live.play(ended_at([0, 0, 0, 0, 3_260, 3_400])[4:])
    then, last = last_step(7, 3_400 * MS)
    live.play([last])
    assert live.world.mono == then
    assert is_in_windows(live.world) == spent(live.world)


@pytest.mark.parametrize(("has_neighbour", "share"), [(True, 2), (False, 1)])
def test_a_newcomer_s_windows_have_their_price_before_its_first_tick(has_neighbour: bool, share: int) -> None:
    """It comes at 2.01 s, and makes a step each 20 ms, two of them a window: $3,600 an hour are 40,000 a window."""
    live = Live() if has_neighbour else Live(World(make_node(budget=Budget(window_tokens=100_000), cloud="none",
                                                             price_usd_micros_per_hour=HOURLY)))  # fmt: skip
    ends = [2_010 * MS + 20 * MS * number for number in range(1, 31)]
    steps = [(end, its_step(number, end)) for number, end in enumerate(ends, 1)]
    live.play([(2_010 * MS, joins), *steps])
    windows = live.world.node.runs["beside"].money.windows
    assert len(windows) == 15
    for window in [*windows][1:]:
        assert window.usd_micros == pytest.approx(40_000 / share, abs=2)


def its_step(number: int, end: int) -> Callable[[World], None]:
    def hear(world: World) -> None:
        world.play(replace(frame(number, end, world.mono), run="beside", connection=ConnectionId(9)))

    return hear
