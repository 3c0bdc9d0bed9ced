"""A price that moves while runs go on, as the look-up's own server tells it: asked beside the loop, told as events."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from governor.app import pricing
from governor.app.pricing import DOUBT_PERIOD_NS, DOUBTS_MAX, SPOT_PERIOD_NS, STALE_AFTER_PERIODS, PriceWatch
from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.events.inputs import Event
from governor.core.events.machine import PriceRead
from governor.core.money.prices import Day, Origin, PriceAnswer, PriceKind, Quote
from governor.remote_ports import PriceSource
from tests.contract.prices import rigs
from tests.contract.prices.rigs import WALL_NS, Loopback, Rig
from tests.contract.prices.test_choice import settings

ASKS_FOR = 20.0  # Seconds until a test gives up on the thread that asks: the look-up's own bound is half of it.


@dataclass
class Performer:
    """The clocks as they stand; all of them are moved together."""

    ns: int = 0
    boot_id: str = "boot-1"

    def mono(self) -> MonoNs:
        return MonoNs(self.ns)

    def boot(self) -> BootNs:
        return BootNs(self.ns)

    def wall(self) -> WallNs:
        return WallNs(WALL_NS + self.ns)


@dataclass
class Slow:
    """A look-up that hands its answer over only once it may."""

    source: PriceSource
    released: threading.Event
    name: str = "slow"

    @property
    def bound_s(self) -> float:
        return self.source.bound_s

    def ask(self) -> PriceAnswer:
        answer = self.source.ask()
        assert self.released.wait(ASKS_FOR)
        return answer


@dataclass
class Watched:
    watch: PriceWatch
    clock: Performer

    def after(self, ns: int) -> list[Event]:
        """So much later: whoever is asked then has answered."""
        self.clock.ns += ns
        events = self.watch.poll(self.clock.mono())
        if self.watch.asking is None:
            return events
        assert events == []
        self.watch.asking.join(ASKS_FOR)
        assert not self.watch.asking.is_alive()
        return self.watch.poll(self.clock.mono())


def watched(directory: Path, rig: Rig, text: str = "", given: int | None = None) -> Watched:
    read, clock, source = settings(directory, text), Performer(), rig.source()
    command_line = UsdMicros(given) if given is not None else None
    answer = pricing.ask(source)
    chosen = pricing.price_of(read, None, command_line, Day(clock.wall() // NS_PER_DAY), answer)
    watch = PriceWatch(read, clock, source, None, command_line, chosen, answer)
    assert watch.poll(clock.mono()) == []
    return Watched(watch, clock)


def prices(events: Sequence[Event]) -> list[int]:
    return [event.usd_micros_per_hour for event in events if isinstance(event, PriceRead)]


def alarms(events: Sequence[Event]) -> list[str]:
    return [name for event in events if isinstance(event, PriceRead) for name, _ in event.alarms]


def runpod(directory: Path, server: Loopback, text: str = "") -> tuple[Rig, Watched]:
    rig = rigs.runpod(server)
    rig.costs(2.99)
    return rig, watched(directory, rig, f'[price]\nsource = "runpod"\n{text}')


def test_a_changed_price_is_told_once(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server)
    assert told.after(NS_PER_HOUR) == []
    rig.costs(3.49)
    assert prices(told.after(NS_PER_HOUR)) == [3_490_000]
    assert told.after(NS_PER_HOUR) == []
    assert told.watch.chosen.usd_micros_per_hour == 3_490_000


def test_a_spot_price_is_asked_for_every_five_minutes_and_says_since_when(tmp_path: Path, server: Loopback) -> None:
    rig = rigs.aws(server)
    rig.costs(17.5)
    told = watched(tmp_path, rig, '[price]\nsource = "aws"\n')
    rig.costs(19.25)
    [event] = told.after(SPOT_PERIOD_NS)
    assert isinstance(event, PriceRead)
    assert (event.usd_micros_per_hour, event.kind) == (19_250_000, "spot")
    assert event.since is not None
    assert event.since < event.wall, "in force before anybody asked"
    assert (event.boot, event.wall) == (told.clock.boot(), told.clock.wall())


def test_half_an_answer_makes_no_on_demand_machine_of_a_spot_one(tmp_path: Path, server: Loopback) -> None:
    """Nobody says for a while how the machine is paid for; the table's price is three times its own."""
    rig = rigs.aws(server)
    rig.costs(17.5)
    told = watched(tmp_path, rig, '[price]\nsource = "aws"\n')
    lifecycle = "/latest/meta-data/instance-life-cycle"
    said = server.answers[lifecycle]
    server.answers[lifecycle] = lambda _: (404, b"")
    assert told.after(SPOT_PERIOD_NS) == []
    assert told.watch.chosen.usd_micros_per_hour == 17_500_000
    server.answers[lifecycle] = said
    rig.costs(19.25)
    assert prices(told.after(SPOT_PERIOD_NS)) == [19_250_000], "asked again at a spot price's pace"


@pytest.mark.parametrize(("asked", "period_ns"), [('"10m"', 10 * NS_PER_MINUTE), ('"off"', None)])
def test_how_often_is_configured(tmp_path: Path, server: Loopback, asked: str, period_ns: int | None) -> None:
    rig, told = runpod(tmp_path, server, f"ask_again = {asked}\n")
    rig.costs(3.49)
    questions = len(server.asked)
    if period_ns is None:
        assert [told.after(NS_PER_HOUR) for _ in range(30)] == [[]] * 30
        assert len(server.asked) == questions
    else:
        assert told.after(period_ns // 2) == []
        assert len(server.asked) == questions, "the first one may come a quarter earlier, and no more"
        assert prices(told.after(period_ns)) == [3_490_000]


def test_a_failed_answer_changes_nothing_and_is_alarmed_once_it_is_stale(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server, "ask_again = '1h'\n")
    rig.says(500)
    for _ in range(STALE_AFTER_PERIODS - 1):
        assert told.after(NS_PER_HOUR) == []
    [event] = told.after(NS_PER_HOUR)
    assert (prices([event]), alarms([event])) == ([2_990_000], ["price_stale"])
    assert isinstance(event, PriceRead)
    assert "runpod has not confirmed $2.99/h" in event.alarms[0][1]
    assert [told.after(NS_PER_HOUR) for _ in range(5)] == [[]] * 5, "once"
    rig.costs(2.99)
    assert alarms(told.after(NS_PER_HOUR)) == []
    rig.says(500)
    later = [alarms(told.after(NS_PER_HOUR)) for _ in range(STALE_AFTER_PERIODS)]
    assert later[-1] == ["price_stale"], "confirmed in between, and stale anew"


def test_who_did_not_answer_at_the_start_is_asked_again_soon(tmp_path: Path, server: Loopback) -> None:
    rig = rigs.runpod(server)
    rig.says(500)
    told = watched(tmp_path, rig, '[price]\nsource = "runpod"\n')
    assert told.watch.chosen.quote is None
    rig.costs(2.99)
    assert prices(told.after(SPOT_PERIOD_NS)) == [2_990_000]


def test_a_price_of_before_the_start_counts_on_until_somebody_answers(tmp_path: Path, server: Loopback) -> None:
    rig = rigs.runpod(server)
    rig.says(500)
    read, clock, source = (
        settings(tmp_path, '[price]\nsource = "runpod"\nask_again = "1h"\n'),
        Performer(),
        rig.source(),
    )
    left = Quote(UsdMicros(2_990_000), "RunPod", "2026-11-01", PriceKind.ON_DEMAND, "", Origin.LEFT)
    answer = pricing.ask(source)
    chosen = pricing.price_of(read, None, None, Day(clock.wall() // NS_PER_DAY), answer, left)
    told = Watched(PriceWatch(read, clock, source, None, None, chosen, answer), clock)
    assert told.watch.poll(clock.mono()) == []
    asked = [alarms(told.after(NS_PER_HOUR)) for _ in range(STALE_AFTER_PERIODS)]
    assert [names for names in asked if names] == [["price_stale"]], "once"
    rig.costs(3.49)
    assert prices(told.after(NS_PER_HOUR)) == [3_490_000]


def test_a_price_of_nothing_does_not_replace_what_was_said(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server)
    rig.costs(0)
    assert told.after(NS_PER_HOUR) == []
    assert told.watch.chosen.usd_micros_per_hour == 2_990_000


def test_a_users_price_stands_over_a_list_and_below_the_machines_own(tmp_path: Path, server: Loopback) -> None:
    azure = rigs.azure(server)
    azure.costs(98.32)
    told = watched(tmp_path, azure, '[price]\nsource = "azure"\n', given=40_000_000)
    azure.costs(99.99)
    assert prices(told.after(NS_PER_HOUR)) == []
    rig = rigs.runpod(server)
    rig.says(500)
    told = watched(tmp_path, rig, '[price]\nsource = "runpod"\n', given=2_500_000)
    rig.costs(2.99)
    events = told.after(NS_PER_HOUR)
    assert (prices(events), alarms(events)) == ([2_990_000], ["price_contradiction"])


def test_nobody_is_waited_for(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server)
    rig.says(rigs.HANG)
    told.clock.ns += NS_PER_HOUR
    assert told.watch.poll(told.clock.mono()) == []
    assert told.watch.asking is not None
    told.clock.ns += round(2 * rig.source().bound_s * NS_PER_S)
    assert told.watch.poll(told.clock.mono()) == []
    assert told.watch.asking is None, "given up"


def test_an_answer_that_comes_after_it_was_given_up_is_not_taken_for_the_next_one(
    tmp_path: Path, server: Loopback
) -> None:
    """As where a name is looked up for longer than any time-out of ours. It would be one question late for good."""
    rig, told = runpod(tmp_path, server, "ask_again = '1h'\n")
    source, released = told.watch.source, threading.Event()
    assert source is not None
    told.watch.source = Slow(source, released)
    rig.costs(3.49)
    told.clock.ns += NS_PER_HOUR
    assert told.watch.poll(told.clock.mono()) == []
    slow = told.watch.asking
    assert slow is not None
    told.clock.ns += round(2 * source.bound_s * NS_PER_S)
    assert told.watch.poll(told.clock.mono()) == []
    released.set()
    slow.join(ASKS_FOR)
    told.watch.source = source
    rig.costs(3.99)
    assert prices(told.after(SPOT_PERIOD_NS)) == [3_990_000]


def test_a_dated_price_that_nobody_is_asked_for_grows_stale_in_mid_run(tmp_path: Path) -> None:
    read = settings(tmp_path, '[node]\nprice_usd_per_hour = 22.0\nprice_as_of = "2026-11-01"\n')
    clock = Performer()
    chosen = pricing.price_of(read, None, None, Day(clock.wall() // NS_PER_DAY), None)
    told = Watched(PriceWatch(read, clock, None, None, None, chosen), clock)
    assert told.after(0) == []
    assert told.after(NS_PER_HOUR) == []
    assert alarms(told.after(200 * NS_PER_DAY)) == ["price_stale"]
    assert told.after(NS_PER_HOUR) == []


# --- one answer that contradicts all that was known ------------------------------------------------------------------

OWN = "[node]\nprice_usd_per_hour = 3.0\n"


@pytest.mark.parametrize("lie", [900_000, 0.01])
@pytest.mark.parametrize("own", ["", OWN])
def test_one_answer_that_is_far_from_all_others_does_not_count(
    tmp_path: Path, server: Loopback, lie: float, own: str
) -> None:
    rig, told = runpod(tmp_path, server, own)
    rig.costs(lie)
    events = told.after(NS_PER_HOUR)
    assert (prices(events), alarms(events)) == ([2_990_000], ["price_doubted"])
    assert isinstance(events[0], PriceRead)
    assert "node.price_usd_per_hour" not in events[0].alarms[0][1], "the user's own is right"
    rig.costs(2.99)
    assert told.after(DOUBT_PERIOD_NS) == []
    assert told.watch.chosen.usd_micros_per_hour == 2_990_000
    rig.costs(lie)
    assert alarms(told.after(NS_PER_HOUR)) == ["price_doubted"], "doubted anew"


def test_what_is_said_again_a_minute_later_counts(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server, OWN)
    rig.costs(900)
    assert prices(told.after(NS_PER_HOUR)) == [2_990_000]
    events = told.after(DOUBT_PERIOD_NS)
    assert (prices(events), alarms(events)) == ([900_000_000], ["price_contradiction"])
    assert isinstance(events[0], PriceRead)
    assert "correct node.price_usd_per_hour" not in events[0].alarms[0][1]
    rig.costs(2.99)
    assert prices(told.after(NS_PER_HOUR)) == [2_990_000], "back to what the user says: at once"


def test_a_price_that_is_another_at_each_answer_is_doubted_a_bounded_time(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server)
    rig.costs(900)
    told.after(NS_PER_HOUR)
    for more in range(1, DOUBTS_MAX - 1):
        rig.costs(900 + 100 * more)
        assert told.after(DOUBT_PERIOD_NS) == []
    rig.costs(2_000)
    assert prices(told.after(DOUBT_PERIOD_NS)) == [2_000_000_000]


def test_a_spot_price_that_rises_tenfold_counts_at_once(tmp_path: Path, server: Loopback) -> None:
    rig, told = runpod(tmp_path, server)
    rig.costs(29.9)
    assert prices(told.after(NS_PER_HOUR)) == [29_900_000]


def test_a_first_answer_far_from_the_users_price_counts_at_once(tmp_path: Path, server: Loopback) -> None:
    """Whoever typed $3 for a machine of $98 would else pass his own --max-rate, and his ceiling for a minute."""
    rig = rigs.runpod(server)
    rig.costs(98.32)
    told = watched(tmp_path, rig, f'[price]\nsource = "runpod"\n{OWN}')
    assert told.watch.chosen.usd_micros_per_hour == 98_320_000


def test_a_first_answer_with_nothing_to_compare_counts(tmp_path: Path, server: Loopback) -> None:
    rig = rigs.runpod(server)
    rig.costs(900_000)
    told = watched(tmp_path, rig, '[price]\nsource = "runpod"\n')
    assert told.watch.chosen.usd_micros_per_hour == 900_000_000_000
