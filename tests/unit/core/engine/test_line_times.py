"""Lines of a log that come together: each window has the spend of its own time, by the lines' times, and no more.

$3.60 an hour is 1,000 micro-dollars a second. A step of ten seconds trains a window's million tokens for a cent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget, Policy
from governor.core.base.units import MTOK, NS_PER_S, MonoNs, UsdMicros
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.events.streams import StreamOpened
from governor.core.money.token_windows import Window
from governor.replay.play import Replay
from governor.wire.records import RecordReader
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import WALL, World
from tests.unit.core.engine.test_step import make_node, peer, play
from tests.unit.core.money.test_waste import until

HOURLY = UsdMicros(3_600_000)
CENT = 10_000


class Log:
    """One log on a machine that ticks each quarter second."""

    def __init__(self) -> None:
        self.world = World(make_node(cloud="none", budget=Budget(), price_usd_micros_per_hour=HOURLY))
        self.world.play(StreamOpened(MonoNs(0), "log", 1000))
        self.world.tick()
        self.reader = RecordReader("log")
        self._step = 0

    def flush(self, at_s: float, times: Iterable[object], **more: object) -> None:
        """The writer's buffer goes to disk: a line for each of these times, of the next million tokens each."""
        until(self.world, at_s)
        for time in times:
            self._step += 1
            record = {"step": self._step, "loss": 2.0, "tokens": MTOK, "timestamp": time, **more}
            line = json.dumps({key: value for key, value in record.items() if value is not None}).encode()
            events = self.reader.read_line(line, MonoNs(self.world.mono))
            assert isinstance(events, tuple)
            for event in events:
                self.world.play(event)

    @property
    def windows(self) -> list[Window]:
        return list(self.world.node.runs["log"].money.windows)

    @property
    def paid(self) -> list[tuple[float, int]]:
        """Seconds and micro-dollars of each window."""
        return [(window.duration_ns / NS_PER_S, window.usd_micros) for window in self.windows]


def epoch(seconds: float) -> float:
    """A wall clock's time, so long after the machine began to be metered."""
    return WALL / NS_PER_S + seconds


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(epoch(seconds), UTC).isoformat()


@pytest.mark.parametrize("clock", [epoch, iso, lambda s: round(epoch(s) * 1000), lambda s: str(epoch(s))])
def test_each_window_of_a_buffer_costs_its_own_time(clock: object) -> None:
    """Steps of 10, 10, 20, 10 and 10 s, then 5 s until the flush: a cent for ten seconds."""
    log = Log()
    log.flush(65, [clock(s) for s in (10, 20, 40, 50, 60)])  # type: ignore[operator]
    assert log.paid == [(10, CENT), (10, CENT), (20, 2 * CENT), (10, CENT), (10, CENT)]
    log.flush(80, [clock(70)])  # type: ignore[operator]
    assert log.paid[5:] == [(10, CENT)], "what passed before the flush is of the window that was trained then"
    assert log.world.node.runs["log"].run.paid_tokens.last() == CENT


def test_a_line_that_has_two_times_is_taken_by_the_one_of_the_wall_clock() -> None:
    log = Log()
    log.flush(30, [None], _runtime=10.0, _timestamp=epoch(10))
    log.flush(30, [None], _runtime=20.0, _timestamp=epoch(20))
    log.flush(40, [None], ts=epoch(30), step_time=10.0)
    assert log.paid == [(10, CENT), (10, CENT), (10, CENT)]


def zoneless(seconds: float) -> str:
    return iso(seconds).removesuffix("+00:00")


TIMES = (10, 20, 30, 40, 50)
WRONG: dict[str, list[object]] = {
    "none": [None] * 5,
    "no zone, and it is another": [zoneless(s - 5) for s in TIMES],
    "an hour ahead": [epoch(s + 3600) for s in TIMES],
    "behind": [epoch(s - 40) for s in TIMES],
    "2049": [epoch(s + 7e8) for s in TIMES],
    "1970": [epoch(s) - WALL / NS_PER_S for s in TIMES],
    "1995": [epoch(s - 1e9) for s in TIMES],
    "words": ["yesterday, at 10:00"] * 5,
    "no numbers": [1e300, float("nan"), float("inf"), True, [epoch(50)]],
    "below nothing": [-epoch(s) for s in TIMES],
}


@pytest.mark.parametrize("told", WRONG.values(), ids=WRONG)
def test_a_clock_that_cannot_be_right_leaves_the_lines_their_arrival(told: list[object]) -> None:
    """Lines of 10 to 40 s come together at 40 s, and nobody knows how the time divides: none of them is free."""
    log = Log()
    log.flush(40, told[:4])
    log.flush(50, told[4:])
    assert log.paid == [(40, 4 * CENT), (10, CENT)]
    assert [window.tokens for window in log.windows] == [MTOK, 4 * MTOK]


def test_a_clock_that_goes_back_is_not_followed() -> None:
    log = Log()
    log.flush(40, [epoch(10), epoch(5), epoch(20)])
    assert log.paid == [(10, CENT), (30, 3 * CENT)], "the second line came at 40 s, and the third not before it"


def test_what_was_paid_before_a_price_rose_is_no_free_window() -> None:
    """$3.60/h for 20 s, then $7.20/h for 20 s, all in one buffer of four steps: six cents, and none for nothing."""
    log = Log()
    until(log.world, 20)
    now, boot, wall = MonoNs(log.world.mono), log.world.node.ledger.charged_to, log.world.node.metered_wall
    log.world.play(PriceRead(now, boot, wall, UsdMicros(2 * HOURLY), "x", "2026-11-01"))
    log.flush(40, [epoch(s) for s in (10, 20, 30, 40)])
    assert log.paid == [(10, CENT), (10, CENT), (10, 2 * CENT), (10, 2 * CENT)]


def test_what_was_paid_before_a_price_fell_is_of_the_lines_of_then() -> None:
    """$3.60/h for 20 s, then $1.80/h for 20 s. The last ten seconds cost half a cent, and those before the rest."""
    log = Log()
    until(log.world, 20)
    now, boot, wall = MonoNs(log.world.mono), log.world.node.ledger.charged_to, log.world.node.metered_wall
    log.world.play(PriceRead(now, boot, wall, UsdMicros(HOURLY // 2), "x", "2026-11-01"))
    log.flush(40, [epoch(s) for s in (30, 40)])
    assert log.paid == [(30, 25_000), (10, 5_000)]


def test_time_for_which_nobody_paid_costs_nothing() -> None:
    """The trainer ends at 20 s and is back at 100 s. What it trains then costs what it held since."""
    log = Log()
    log.flush(20, [epoch(10), epoch(20)])
    log.world.play(TrainerExited(MonoNs(log.world.mono), "log", 0))
    until(log.world, 100)
    before = log.world.node.ledger.spend("log")
    log.world.play(StreamOpened(MonoNs(log.world.mono), "log", 1000, processes=(peer(200).process,)))
    log.flush(130, [epoch(110), epoch(120), epoch(130)])
    spent = log.world.node.ledger.spend("log") - before
    assert [usd_micros for _, usd_micros in log.paid[2:]] == [CENT, CENT, CENT]
    assert spent == 3 * CENT


@settings(max_examples=share_of(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.floats(-50, 250) | st.none(), max_size=6)), max_size=8))
def test_no_line_changes_what_is_paid(flushes: list[tuple[int, list[float | None]]]) -> None:
    """Whatever the lines say, the windows have what was paid by the last of them, in order, each more than nothing."""
    log = Log()
    at_s = 1.0
    for later, times in flushes:
        at_s += later
        log.flush(at_s, [None if time is None else epoch(time) for time in times])
        meter, spent = log.world.node.runs["log"].history.meter, log.world.node.ledger.spend("log")
        if meter is None:
            continue
        assert meter.step_usd_micros <= spent
        assert sum(usd_micros for _, usd_micros in log.paid) == meter.from_usd_micros
        assert sum(seconds for seconds, _ in log.paid) <= at_s
        assert all(seconds > 0 for seconds, _ in log.paid)


@pytest.mark.parametrize("clock", [epoch, lambda s: int(epoch(s)), iso])
def test_a_replay_has_the_speed_that_the_daemon_had(clock: Callable[[float], object]) -> None:
    """Steps of 50 ms, five at each look: the daemon has them by their own clock, and so has a replay of the log."""
    records = [{"step": n, "loss": 2.0, "tokens": 20_000 + n % 7, "timestamp": clock(n * 0.05)} for n in range(1, 400)]
    daemon, replay = make_node(), Replay([Policy("p")])
    play(daemon, StreamOpened(MonoNs(0), "log", 1000))
    reader = RecordReader("log")
    for number, record in enumerate(records, 1):
        events = reader.read(record, MonoNs((number + 4) // 5 * NS_PER_S // 4))
        assert isinstance(events, tuple)
        play(daemon, *events)
        assert replay.read(record) is None
    live, again = daemon.runs["log"].run, replay._judges[0].node.runs["log"].run
    assert (live.tokens_per_s, live.step_times.median()) == (again.tokens_per_s, again.step_times.median())
    assert live.tokens_per_s == pytest.approx(400_000, rel=0.05)


@pytest.mark.parametrize("read_late", [(0,), (310, 290, 2_900_000, 305, 300)], ids=["clocks at once", "one by one"])
def test_who_joins_and_leaves_all_the_time_pushes_out_no_price_of_an_older_line(read_late: tuple[int, ...]) -> None:
    """Lines of a minute are read after two more in which another user's run comes and goes 200 times.

    The machine is the log's alone until 60 s. Then it pays for half of every other quarter second: three quarters.
    """
    log = Log()
    log.world.read_late = cycle(read_late)
    log.flush(10, [epoch(10)])
    until(log.world, 60)
    for number in range(200):
        guest = peer(9_000 + number, 2_000)
        log.world.hear(run="guest", attempt=f"a{number}", peer=guest, connection=ConnectionId(100 + number))
        until(log.world, 60.25 + number / 2)
        log.world.play(Disconnected(MonoNs(log.world.mono), ConnectionId(100 + number)))
        log.world.play(TrainerExited(MonoNs(log.world.mono), "guest", 0))
        until(log.world, 60.5 + number / 2)
    log.flush(160, [epoch(second) for second in range(20, 170, 10)])
    assert [usd for _, usd in log.paid[1:6]] == pytest.approx([CENT] * 5, abs=1)
    assert [usd for _, usd in log.paid[6:]] == pytest.approx([CENT * 3 // 4] * 10, rel=0.01)
    assert sum(usd for _, usd in log.paid) == pytest.approx(log.world.node.ledger.spend("log"), abs=2)
