"""Frames that come together: each step is valued at its own time, whenever it is read.

$3,600 an hour is a micro-dollar each microsecond. A rank's frames leave four times a second (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_MS, NS_PER_S, TICK_NS, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.events.inputs import PriceRead, Step, TrainerExited
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import Lines
from governor.core.money.token_windows import Window
from governor.core.money.waste import SpentOn
from governor.core.runs.own_time import AGE_MAX_NS, CLOCK_BEHIND_MAX_NS, of_frame
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, make_node, peer

HOURLY = UsdMicros(3_600_000_000)
WINDOW = 100_000
STEP_TOKENS = 50_000


def a_world(**facts: Any) -> World:
    budget = Budget(window_tokens=WINDOW)
    facts = {"price_usd_micros_per_hour": HOURLY, "cloud": "none"} | facts
    world = World(make_node(budget=budget, **facts))
    world.tick()
    world.hear()
    return world


def frame(number: int, ended: int | None, at: int, **more: Any) -> Step:
    told = {"tokens": STEP_TOKENS, "tokens_total": number * STEP_TOKENS, **more}
    return a_step(number, at=MonoNs(at), ended=None if ended is None else MonoNs(ended), **told)


@dataclass
class Live:
    """A governor that ticks each quarter second, hears each frame at its time, and each price."""

    world: World = field(default_factory=a_world)

    def play(self, acts: Sequence[tuple[int, Callable[[World], None]]]) -> None:
        """Acts in the order of their times. At a tick's own time the tick comes first."""
        for when, act in sorted(acts, key=lambda one: one[0]):
            while self.world.mono // TICK_NS < when // TICK_NS:
                self.world.pass_time("run", TICK_NS - self.world.mono % TICK_NS)
                self.world.tick()
            self.world.pass_time("run", when - self.world.mono)
            act(self.world)

    @property
    def windows(self) -> list[Window]:
        return list(self.world.node.runs["llama"].money.windows)


def tell(number: int, ended: int | None, **more: Any) -> Callable[[World], None]:
    def hear(world: World) -> None:
        world.play(frame(number, ended, world.mono, **more))

    return hear


def price(usd_micros: int) -> Callable[[World], None]:
    def read(world: World) -> None:
        boot, wall = BootNs(world.boot), WallNs(world.boot + world.wall_offset)
        world.play(PriceRead(MonoNs(world.mono), boot, wall, UsdMicros(usd_micros), "x", "2026-11-01"))

    return read


def portioned(ends: Sequence[int], every_ns: int) -> list[int]:
    """When each step is read: its portion leaves at the next multiple."""
    return [-(-end // every_ns) * every_ns for end in ends]


def played(ends: Sequence[int], reads: Sequence[int], *others: tuple[int, Callable[[World], None]]) -> Live:
    live = Live()
    told = [(read, tell(number, end)) for number, (end, read) in enumerate(zip(ends, reads, strict=True), 1)]
    live.play([*others, *told])
    return live


def test_equal_steps_have_equal_windows() -> None:
    """Sixty steps of 0.11 s, 50,000 tokens each: two of them a window, of $0.22."""
    ends = [2 * NS_PER_S + 110 * NS_PER_MS * number for number in range(60)]
    windows = played(ends, portioned(ends, TICK_NS)).windows
    assert {window.usd_micros for window in windows[1:]} == {220_000}
    assert {window.duration_ns for window in windows[1:]} == {220 * NS_PER_MS}


@settings(max_examples=share_of(150), deadline=None)
@given(
    took=st.lists(st.integers(1, 900 * NS_PER_MS), min_size=1, max_size=60),
    every_ns=st.integers(1, 3 * NS_PER_S),
    prices=st.lists(st.tuples(st.integers(1, 20 * NS_PER_S), st.integers(1, 10**10)), max_size=3),
)
def test_how_frames_are_portioned_changes_no_window(
    took: list[int], every_ns: int, prices: list[tuple[int, int]]
) -> None:
    """To the micro-dollar, also where a tick or another price came between a step's end and its reading."""
    ends = [TICK_NS + sum(took[: place + 1]) for place in range(len(took))]  # The first tick charges the hello.
    others = [(when, price(usd_micros)) for when, usd_micros in prices]
    alone = played(ends, ends, *others)
    assert played(ends, portioned(ends, every_ns), *others).windows == alone.windows


def test_a_launch_fee_and_another_price_are_of_their_own_moment() -> None:
    """$3,600/h until 3.10 s, then twice that. The steps end at 3.05, 3.15 and 3.20 s, and are read at 3.25 s."""
    ends = [3_000, 3_050, 3_150, 3_200]
    steps = [end * NS_PER_MS for end in ends]
    live = Live(a_world(lines=Lines(per_launch=(Line(LineKind.FIXED, "fee", Unit.PIECE, 5_000, "x", "2026-11-01"),))))
    reads = [3_000 * NS_PER_MS, *[3_250 * NS_PER_MS] * 3]
    told = [(read, tell(number, end, tokens=WINDOW, tokens_total=number * WINDOW))
            for number, (end, read) in enumerate(zip(steps, reads, strict=True), 1)]  # fmt: skip
    live.play([*told, (3_100 * NS_PER_MS, price(2 * HOURLY))])
    assert [window.duration_ns for window in live.windows[1:]] == [DurationNs(n * NS_PER_MS) for n in (50, 100, 50)]
    # The engine goes on at a run's old rate until the next tick. None of what that leaves out is lost.
    assert sum(window.usd_micros for window in live.windows[:2]) == 3_055_000
    live.play([(3_300 * NS_PER_MS, tell(5, 3_300 * NS_PER_MS, tokens=WINDOW, tokens_total=5 * WINDOW))])
    assert sum(window.usd_micros for window in live.windows) == 3_105_000 + 2 * 200_000


def test_what_was_slept_is_of_the_step_that_slept() -> None:
    """An hour's suspend between two steps. Both are read after it."""
    live = Live()
    live.play([(when * NS_PER_S, tell(when, when * NS_PER_S)) for when in (1, 2)])
    live.world.pass_time("run", 100 * NS_PER_MS)
    first = live.world.mono
    live.world.pass_time("suspend", 3_600 * NS_PER_S)
    live.world.pass_time("run", 100 * NS_PER_MS)
    live.world.tick()
    second = live.world.mono
    for number, ended in ((3, first), (4, second)):
        live.world.play(frame(number, ended, second, tokens=WINDOW, tokens_total=(number - 1) * WINDOW))
    assert [window.duration_ns for window in live.windows[1:]] == [
        100 * NS_PER_MS,
        3_600 * NS_PER_S + 100 * NS_PER_MS,
    ]
    assert [window.usd_micros for window in live.windows[1:]] == [100_000, 3_600_100_000]


def since(ends: Sequence[int], shift_ns: int) -> list[int | None]:
    return [end + shift_ns for end in ends]


SECOND = NS_PER_S
WRONG: dict[str, Callable[[list[int]], list[int | None]]] = {
    "none": lambda ends: [None] * len(ends),
    "ahead": lambda ends: since(ends, 3_600 * SECOND),
    "another time namespace, behind": lambda ends: since(ends, -CLOCK_BEHIND_MAX_NS - SECOND),
    "below nothing": lambda ends: [-(2**63)] * len(ends),
    "the end of time": lambda ends: [2**63 - 1] * len(ends),
    "once ahead": lambda ends: [2**62, *ends[1:]],
}


@pytest.mark.parametrize("clock", WRONG.values(), ids=WRONG)
def test_a_clock_that_cannot_be_right_leaves_its_steps_their_arrival(
    clock: Callable[[list[int]], list[int | None]],
) -> None:
    ends = [2 * SECOND + 300 * NS_PER_MS * number for number in range(40)]
    reads = portioned(ends, SECOND)
    live = Live()
    live.play([(read, tell(number, end)) for number, (end, read) in enumerate(zip(clock(ends), reads, strict=True), 1)])
    assert live.windows == played(reads, reads).windows


def test_no_step_is_believed_to_be_older_than_a_stopped_governor_makes_it() -> None:
    """A rank whose clock stands still: after ten minutes of it its steps are valued as they come."""
    minute = 60 * SECOND
    ends = [minute] * 15
    reads = [minute * number for number in range(1, 16)]
    windows = played(ends, reads).windows
    assert sum(window.usd_micros for window in windows) == 14 * 60_000_000, "the open one has the rest"
    assert [window.duration_ns // minute for window in windows] == [1, 1 + AGE_MAX_NS // minute, 2]


def test_a_flood_is_valued_once_each_and_adds_up() -> None:
    """4,096 frames with hostile times between honest ones: sums are the ledger's."""
    live = Live()
    told = [(2 * SECOND + number, tell(number, (number * 7_919) % (3 * SECOND))) for number in range(1, 4_097)]
    live.play([*told, (3 * SECOND, tell(4_097, 3 * SECOND))])
    meter = live.world.node.runs["llama"].history.meter
    assert meter is not None
    assert meter.step_usd_micros == pytest.approx(3_000_000, abs=2)
    assert all(window.usd_micros >= 0 and window.duration_ns > 0 for window in live.windows)


def test_start_and_end_of_training_are_the_steps_own() -> None:
    """The first step ends at 2.10 s and the last at 3.05 s. They are read at the ticks after; the run goes at 4 s."""
    live = Live()
    ends = [2_100 * NS_PER_MS, 3_050 * NS_PER_MS]
    live.play([(2_250 * NS_PER_MS, tell(1, ends[0])), (3_250 * NS_PER_MS, tell(2, ends[1]))])
    live.play([(4 * SECOND, lambda world: world.tick())])
    live.world.play(TrainerExited(MonoNs(live.world.mono), "llama", 0))
    told = live.world.node.runs["llama"].history.split.wasted_usd_micros()
    assert told is not None
    assert told["start_up"] == pytest.approx(2_100_000, abs=1)
    assert told["after_last_step"] == pytest.approx(950_000, abs=1)


@pytest.mark.parametrize("every_ns", [1, TICK_NS])
def test_what_a_command_cost_before_its_run_spoke_is_start_up_also_of_a_first_step_within_the_tick(
    every_ns: int,
) -> None:
    """It attaches at 6.01 s, and makes a step each 50 ms: the six seconds were handed over with the hello."""
    world = World(make_node(budget=Budget(window_tokens=WINDOW), cloud="none", exclusive=True,
                            price_usd_micros_per_hour=HOURLY))  # fmt: skip
    world.tick()
    live = Live(world)
    begun, ends = 6_010 * NS_PER_MS, [(6_010 + 50 * number) * NS_PER_MS for number in range(1, 41)]
    steps = [(-(-end // every_ns) * every_ns, tell(number, end)) for number, end in enumerate(ends, 1)]
    live.play([(begun, lambda world: world.hear()), *steps])
    live.play([(9 * SECOND, lambda world: world.tick())])
    told = world.node.runs["llama"].history.split.by_cause()
    assert told[SpentOn.START_UP] == pytest.approx(6_060_000, abs=2)
    assert {window.steady_usd_micros for window in [*live.windows][1:]} == {100_000}


def test_a_step_that_waits_for_other_ranks_is_of_its_own_time() -> None:
    """Two ranks' portions of three steps come one after the other: a step counts when both have told it."""
    live = Live()
    world = live.world
    shares = {"data_parallel_size": 2, "world_size": 2, "tokens_per_step": None}
    for rank in (0, 1):
        world.play(replace(hello(rank), at=MonoNs(world.mono), data_parallel_rank=rank, **shares))  # type: ignore[arg-type]
    ends = [100 * NS_PER_MS, 200 * NS_PER_MS, 240 * NS_PER_MS]

    def portion(rank: int) -> Callable[[World], None]:
        def read(world: World) -> None:
            for number, ended in enumerate(ends, 1):
                own = number * WINDOW // 2
                world.play(frame(number, ended, world.mono, tokens=WINDOW, tokens_total=number * WINDOW,
                                 tokens_own_total=own, rank=rank, connection=hello(rank).connection))  # fmt: skip

        return read

    live.play([(250 * NS_PER_MS, portion(0)), (250 * NS_PER_MS + 1, portion(1))])
    assert [window.duration_ns for window in live.windows] == [n * NS_PER_MS for n in (100, 100, 40)]


@pytest.mark.parametrize(("behind_s", "is_believed"), [(4, True), (6, False)])
def test_a_clock_that_was_never_within_five_seconds_of_ours_is_another_machines(
    behind_s: int, is_believed: bool
) -> None:
    ends = [10 * SECOND + 300 * NS_PER_MS * number for number in range(40)]
    reads = [end + behind_s * SECOND for end in ends]
    assert (played(ends, reads).windows == played(reads, reads).windows) is not is_believed


def test_a_step_that_ended_before_its_attempt_began_ended_with_that_begin() -> None:
    """Its process had trained on before it said hello: that is not charged to it."""
    rank = a_world().node.runs["llama"].run.ranks[0]
    step = frame(1, 1 * SECOND, 3 * SECOND)
    assert of_frame(rank, step, MonoNs(2 * SECOND)) == 2 * SECOND
    assert of_frame(rank, step, MonoNs(1 * SECOND)) == 1 * SECOND
    assert of_frame(rank, step, MonoNs(4 * SECOND)) == 3 * SECOND, "nor after it was read"


@pytest.mark.parametrize(("waited_s", "ended_s"), [(0, 1), (4, 1), (6, 20), (-1, 20), (None, 20)])
def test_a_hello_shows_the_clock_of_a_rank_whose_frames_have_waited_for_a_governor(
    waited_s: int | None, ended_s: int
) -> None:
    """The step ended 19 s before any governor read it. A hello of long ago says nothing, nor does one of later."""
    world = a_world()
    sent = None if waited_s is None else MonoNs((20 - waited_s) * SECOND)
    world.play(replace(hello(0), at=MonoNs(20 * SECOND), world_size=1, attempt="a2", peer=peer(300), sent=sent))
    rank = world.node.runs["llama"].run.ranks[0]
    assert of_frame(rank, frame(1, 1 * SECOND, 20 * SECOND), MonoNs(0)) == ended_s * SECOND


def test_a_later_hello_that_has_waited_longer_makes_no_clock_another_machines() -> None:
    world = a_world()
    said = {"world_size": 1, "attempt": "a2", "peer": peer(300)}
    for at_s, waited_s in ((20, 1), (30, 9)):
        world.play(replace(hello(0), at=MonoNs(at_s * SECOND), sent=MonoNs((at_s - waited_s) * SECOND), **said))  # type: ignore[arg-type]
    rank = world.node.runs["llama"].run.ranks[0]
    assert of_frame(rank, frame(1, 21 * SECOND, 30 * SECOND), MonoNs(0)) == 21 * SECOND


@pytest.mark.parametrize("lead_first", [True, False])
def test_steps_of_two_ranks_that_waited_for_the_next_governor_have_their_own_times(*, lead_first: bool) -> None:
    """A dollar a second, a step a second. Twenty of them are read half a minute later."""
    world = a_world()
    ranks = (0, 1) if lead_first else (1, 0)

    def hear() -> None:
        for rank in (0, 1):
            said = {"world_size": 2, "data_parallel_size": 2, "data_parallel_rank": rank, "tokens_per_step": None}
            world.play(replace(hello(rank), at=MonoNs(world.mono), sent=MonoNs(world.mono), attempt="a2",
                               peer=peer(300 + rank), **said))  # type: ignore[arg-type]  # fmt: skip

    def tell(number: int, ended: int) -> None:
        for rank in ranks:
            world.play(frame(number, ended, world.mono, tokens=WINDOW, tokens_total=number * WINDOW,
                             tokens_own_total=number * WINDOW // 2, rank=rank,
                             connection=hello(rank).connection))  # fmt: skip

    hear()
    for number in range(1, 15):
        world.pass_time("run", SECOND)
        world.tick()
        tell(number, world.mono)
    killed = world.mono
    world.pass_time("run", 30 * SECOND)
    world.restart()
    world.tick()
    hear()
    for number in range(15, 35):
        tell(number, killed + (number - 14) * SECOND)
    windows = list(world.node.runs["llama"].money.windows)[-19:]  # The journal has no more than every tenth second.
    assert [window.duration_ns // SECOND for window in windows] == [1] * 19
    assert max(window.usd_micros for window in windows) == pytest.approx(1_000_000, rel=0.05)


def test_a_step_of_before_our_restart_has_its_own_time() -> None:
    """Its frame has waited for the next governor. That one's start is no begin of the attempt."""
    world = a_world()
    again = {"world_size": 1, "attempt": "a2", "peer": peer(300)}
    world.hear(sent=MonoNs(world.mono), **again)
    for number in range(1, 15):
        world.pass_time("run", SECOND)
        world.tick()
        world.play(frame(number, world.mono, world.mono))
    ended = world.mono + SECOND // 2
    world.pass_time("run", 30 * SECOND)
    world.restart()
    world.tick()
    world.hear(sent=MonoNs(world.mono), **again)
    world.play(frame(15, ended, world.mono))
    assert world.node.runs["llama"].run.step_ended_at == ended
