"""Lines and prices that move, one by one, with figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.resume import ABSENCE_MAX_NS
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.effects import Alarm, Record
from governor.core.events.inputs import Ack
from governor.core.events.machine import PriceRead
from governor.core.money.charges import UNALLOCATED
from governor.core.money.lines import NODE_LINE
from tests.unit.billed import DISK, HOUR, LAUNCH, LINES, SUPPORT, UPLOAD, Billed, new_world
from tests.unit.core.engine.test_step import PRICE, hello, make_node, peer


def test_a_disk_costs_on_while_the_machine_is_off() -> None:
    """500 GB at $0.08 a GB-month: 73 of a month's 730 hours are $4.00."""
    world = new_world()
    world.at(20)
    world.keep()
    before = world.paid("vol-1 gp3")
    left, node_before = world.wall, world.paid(NODE_LINE)
    world.boot = world.mono = 0
    world.wall_offset = left + 73 * HOUR
    world.begin(replace(world.node.facts, boot_id="boot-2"))
    world.tick()
    world.keep()
    assert abs(world.paid("vol-1 gp3") - before - 4_000_000) <= 1, "the carry"
    gap = [charge for charge in world.of("vol-1 gp3") if charge.reconstructed]
    assert {charge.payer.run for charge in gap} == {UNALLOCATED}
    assert (min(charge.from_wall for charge in gap), max(charge.to_wall for charge in gap)) == (left, left + 73 * HOUR)
    assert world.paid(NODE_LINE) == node_before, "the machine itself was off"


def test_a_clock_that_went_back_or_a_year_ahead_is_no_witness() -> None:
    for wall, longest, said in (
        (-HOUR, 0, "1h 0m behind"),
        (HOUR, HOUR, None),
        (10 * 366 * 24 * HOUR, ABSENCE_MAX_NS, "for 366 days"),
    ):
        world = new_world()
        world.at(20)
        world.keep()
        left = world.wall
        world.boot = world.mono = 0
        world.wall_offset = left + wall
        told = world.begin(replace(world.node.facts, boot_id="boot-2"))
        alarms = [effect.text for effect in told if isinstance(effect, Alarm)]
        assert [said in text for text in alarms if said] == ([True] if said else [])
        assert len(alarms) == (said is not None)
        world.tick()
        world.keep()
        gap = [charge for charge in world.of("vol-1 gp3") if charge.reconstructed]
        assert sum(charge.quantity for charge in gap) == DISK.amount * longest


@pytest.mark.parametrize(("exclusive", "usd_micros"), [(False, 98_320_000), (True, 0)])
def test_an_instance_costs_from_its_launch_and_not_under_a_command_of_ones_own(
    exclusive: bool, usd_micros: int
) -> None:
    world = Billed(make_node(cloud="none", lines=LINES, exclusive=exclusive))
    world.boot = world.mono = HOUR + 30 * NS_PER_S
    world.begin(replace(world.node.facts, launched_at_wall=WallNs(world.wall - HOUR)))
    world.tick()
    world.keep()
    before_us = [charge for charge in world.charges.values() if charge.reconstructed]
    assert sum(charge.usd_micros for charge in before_us if charge.line.name == NODE_LINE) == usd_micros
    assert {charge.payer.run for charge in before_us} <= {UNALLOCATED}
    world.restart()
    world.tick()
    world.keep()
    again = [charge for charge in world.charges.values() if charge.reconstructed]
    assert sum(charge.usd_micros for charge in again) == sum(charge.usd_micros for charge in before_us), "once"


def test_a_gap_is_charged_at_both_its_prices_in_rows_of_their_own() -> None:
    """The governor died at ten seconds; at an hour the price doubled; it came back an hour later."""
    world = new_world()
    world.at(10)
    world.keep()
    world.boot = world.mono = 2 * HOUR + 10 * NS_PER_S
    since = WallNs(world.wall - HOUR)
    doubled = UsdMicros(2 * PRICE)
    world.begin(replace(world.node.facts, price_usd_micros_per_hour=doubled, price_since_wall=since))
    world.tick()
    world.keep()
    priced = {charge.line.price_usd_micros: 0 for charge in world.of(NODE_LINE)}
    for charge in world.of(NODE_LINE):
        priced[charge.line.price_usd_micros] += charge.quantity
    assert priced == {PRICE: HOUR + 10 * NS_PER_S, doubled: HOUR}
    assert world.paid(NODE_LINE) == PRICE * (HOUR + 10 * NS_PER_S) // HOUR + doubled


@pytest.mark.parametrize(("factor", "row", "worth"), [(2, "price read late", PRICE // 12), (0.5, "credited", 0)])
def test_a_price_that_is_read_five_minutes_late_is_put_right(factor: float, row: str, worth: int) -> None:
    world = new_world()
    world.speak("run1", "a1", 100)
    world.at(3600)
    world.reprice(round(PRICE * factor), 300 * NS_PER_S, said=True)
    world.boot = world.mono = 2 * HOUR
    world.tick()
    world.keep()
    assert world.paid(NODE_LINE) == pytest.approx(PRICE * (55 / 60 + factor * 65 / 60), abs=1)
    [found] = {charge.line.name: charge for charge in world.of(NODE_LINE) if row in charge.line.name}.values()
    assert found.payer.run == "run1"
    assert found.usd_micros == pytest.approx(worth, abs=1)
    if not worth:
        assert found.quantity == 300 * NS_PER_S * (1 / factor - 1), "time at nothing, until it is worked off"


def test_a_change_of_price_is_said_recorded_and_reserved_for() -> None:
    world = new_world()
    world.speak("run1", "a1", 100)
    world.boot = world.mono = 10 * NS_PER_S
    world.tick()
    run = world.node.runs["run1"].run
    before, held = run.spend_rate_usd_micros_per_hour, run.reserve_usd_micros
    assert before == PRICE + DISK.usd_micros_per_hour + SUPPORT.usd_micros_per_hour
    assert held is not None
    told = PriceRead(
        MonoNs(world.mono), BootNs(world.boot), WallNs(world.wall), UsdMicros(2 * PRICE), "spot", "2026-11-21",
        alarms=(("price_contradiction", "x"),),
    )  # fmt: skip
    effects = world.play(told)
    assert [effect.name for effect in effects if isinstance(effect, Alarm)] == ["price_contradiction"]
    [record] = [effect for effect in effects if isinstance(effect, Record)]
    assert (record.kind, record.durable, record.data["to_usd_micros_per_hour"]) == ("price", True, 2 * PRICE)
    assert [type(effect) for effect in world.play(told) if not isinstance(effect, Alarm)] == [], "told twice"
    world.tick()
    assert run.spend_rate_usd_micros_per_hour == before + PRICE
    assert run.reserve_usd_micros is not None
    assert run.reserve_usd_micros > held


def test_an_unknown_price_that_becomes_known_is_charged_from_its_own_time() -> None:
    world = new_world(price_usd_micros_per_hour=None)
    world.at(3600)
    assert (world.paid(NODE_LINE), world.node.ledger.unpriced_ns) == (0, HOUR)
    assert world.paid("support") == SUPPORT.line.price_usd_micros, "what is known is charged"
    told = WallNs(world.wall - HOUR // 2)
    world.play(PriceRead(MonoNs(world.mono), BootNs(world.boot), WallNs(world.wall), PRICE, "spot", "2026", told))
    assert (world.paid(NODE_LINE), world.node.ledger.unpriced_ns) == (PRICE // 2, HOUR // 2)
    assert {charge.reconstructed for charge in world.of(NODE_LINE)} == {True}


def test_how_a_price_is_paid_for_stands_in_the_charges_from_then_on() -> None:
    world = new_world()
    world.at(1800)
    now = MonoNs(world.mono), BootNs(world.boot), WallNs(world.wall)
    world.play(PriceRead(*now, UsdMicros(PRICE // 2), "Vast API", "2026-11-21", kind="spot"))
    world.at(3600)
    assert {charge.line.price_kind for charge in world.of(NODE_LINE)} == {"", "spot"}


def test_a_halt_reserves_for_the_upload_of_its_own_checkpoint() -> None:
    world = new_world()
    world.speak("run1", "a1", 100)
    world.at(3600)
    run = world.node.runs["run1"].run
    before = run.reserve_usd_micros
    world.upload(10**12)
    world.tick()
    assert before is not None
    assert run.reserve_usd_micros == before + 90_000_000, "a terabyte at 9 cents a GB"


@pytest.mark.parametrize("size", [None, True, "1", 0, -5, 10**30, 1.5])
def test_a_checkpoint_of_no_honest_size_costs_nothing(size: object) -> None:
    world = new_world()
    world.speak("run1", "a1", 100)
    world.at(3600)
    world.upload(size)  # type: ignore[arg-type]
    world.tick()
    assert world.paid("to the archive") == 0


def test_a_journal_from_before_there_were_lines_is_taken_up() -> None:
    world = new_world()
    world.at(20)
    world.keep()
    old = {"run", "boot_id", "boot_ns", "wall_ns", "carry", "unallocated_usd_micros", "unpriced_ns"}
    world.runs[UNALLOCATED] = {key: value for key, value in world.runs[UNALLOCATED].items() if key in old}
    world.boot = world.mono = 3600 * NS_PER_S
    world.restart()
    world.tick()
    world.keep()
    assert world.paid(NODE_LINE) == PRICE, "to the micro-dollar, the carry included"


def test_what_is_too_little_for_a_micro_dollar_is_carried_over_restarts() -> None:
    """5 KB at 9 cents a GB are 0.45 of a micro-dollar; three of them are one."""
    world = new_world()
    for second, size in enumerate((5_000, 5_000, 5_000), 1):
        world.speak("run1", "a1", 100)
        world.at(second)
        world.upload(size)
        world.restart()
        world.tick()
    world.keep()
    assert world.paid("to the archive") == 1


def test_a_commands_start_up_is_its_own_with_every_line() -> None:
    """Under `costgov run`: two hours of imports, and then the first rank."""
    world = Billed(make_node(cloud="none", lines=LINES, exclusive=True))
    world.tick()
    for hour in (1, 2):
        world.at(hour * 3600)
    world.speak("run1", "a1", 100)
    world.at(3 * 3600)
    world.keep()
    assert world.charged(UNALLOCATED) == world.node.ledger.spend(UNALLOCATED) == 0
    by_time = PRICE * 3 + SUPPORT.line.price_usd_micros * 3 + 500 * 80_000 * 3 // 730
    assert world.charged("run1") == world.node.ledger.spend("run1") == by_time + LAUNCH.price_usd_micros
    assert {charge.payer.run for charge in world.charges.values()} == {"run1"}


@pytest.mark.parametrize("away", [False, True])
def test_each_rank_tells_of_each_checkpoint_and_its_bytes_are_charged_once(away: bool) -> None:
    """Ranks that were cut off tell all that they have kept, one rank after the other; also to a governor after us."""
    world = new_world()
    saved = [(step, SavedCheckpoint(f"/ckpt/{step}", "m", "good", bytes=10**12)) for step in range(16)]
    for rank in (0, 1, 2):
        said = hello(rank, 0, run="run1", attempt="a1", peer=peer(100 + rank), world_size=3)
        world.play(said)
        world.at((rank + 1) * 7200)
        for step, record in saved:
            world.on_disk[f"/ckpt/{step}"] = 10**12
            world.play(
                Ack(MonoNs(world.mono), said.connection, "run1", rank, step, f"own-{step}", "saved", step=step,
                    checkpoint=record)
            )  # fmt: skip
        if away:
            world.restart()
            world.tick()
    world.keep()
    assert world.paid("to the archive") == 16 * 1_000 * UPLOAD.price_usd_micros
