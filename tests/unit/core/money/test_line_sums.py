"""Several lines and a price that moves: each line's charges are its price over the time that it was billed for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, accrue
from governor.core.events.inputs import TrainerExited
from governor.core.money.charges import UNALLOCATED, Line, LineKind, Unit
from governor.core.money.lines import NODE_LINE, LineMeter, Metered
from tests.sweeps import share_of
from tests.unit.billed import DISK, HOUR, LAUNCH, SUPPORT, UPLOAD, Billed, new_world


def by_meter(metered: Metered, ns: int) -> int:
    return accrue(metered.line.price_usd_micros, metered.amount * ns, 0, metered.line.unit.base_units)[0]


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 20 * NS_PER_S)),
    st.tuples(st.just("suspend"), st.integers(1, 3 * HOUR)),
    st.tuples(st.just("set_clock"), st.integers(-2 * HOUR, 2 * HOUR)),
    st.tuples(st.just("restart"), st.integers(0, HOUR)),
    st.tuples(st.just("restart_dearer"), st.integers(1, 50_000_000)),
    st.tuples(st.just("stop"), st.integers(-HOUR, 500 * HOUR)),
    st.tuples(st.just("reboot"), st.integers(0, HOUR)),
    st.tuples(st.just("hello"), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(0, 3)),
    st.tuples(st.just("exit"), st.integers(0, 3)),
    st.tuples(st.just("price_now"), st.integers(1, 200_000_000)),
    st.tuples(st.just("price_late"), st.integers(1, 200_000_000)),
    st.tuples(st.just("upload"), st.integers(1, 10**13)),
    st.tuples(st.just("die_saving"), st.integers(1, 10**13)),  # And no moment passes before the next governor,
    st.tuples(st.just("told_again"), st.integers(0, 3)),  # whom the rank tells what nobody has confirmed to it.
)


def act(world: Billed, name: str, amount: int, *, tells: bool) -> None:
    match name:
        case "run" | "suspend" | "set_clock" | "restart" | "restart_dearer":
            world.pass_time(name, amount)
        case "stop" | "reboot":
            world.reboot(amount, 30 * NS_PER_S, stopped=name == "stop", tells=tells)
        case "hello" | "again":
            attempt, pid = ("a1", 100 + amount) if name == "hello" else (f"a{world.wall}", 1000 + world.wall % 10**6)
            world.speak(f"run{amount}", attempt, pid)
        case "exit":
            world.play(TrainerExited(MonoNs(world.mono), f"run{amount}", 0))
        case "price_now" | "price_late":
            world.reprice(amount, amount * 10_000, said=name == "price_late")  # Up to half an hour ago.
        case "upload":
            world.upload(amount)
        case "told_again":
            world.tell_again()
        case "die_saving":
            world.upload(amount)
            world.bill()
            world.restart()
    world.bill()
    if name.startswith("restart"):
        world.restart(amount if name == "restart_dearer" else 0)
    world.tick()


@settings(max_examples=share_of(200), deadline=None)
@given(st.lists(ACTS, max_size=50), st.booleans())
def test_each_lines_charges_are_its_price_over_its_time(acts: list[tuple[str, int]], tells: bool) -> None:
    world = new_world()
    for name, amount in acts:
        act(world, name, amount, tells=tells)
    world.boot, world.mono = world.boot + 10 * NS_PER_S, world.mono + 10 * NS_PER_S
    world.bill()
    world.tick()
    meter = world.node.ledger.compute
    assert world.paid(NODE_LINE) * HOUR + meter.carry - meter.credit == world.compute
    assert world.paid("vol-1 gp3") == by_meter(DISK, world.disk_ns)
    assert world.paid("support") == by_meter(SUPPORT, world.support_ns)
    assert world.paid("to the archive") == accrue(UPLOAD.price_usd_micros, world.uploaded, 0, 10**9)[0]
    assert world.paid("launch fee") == LAUNCH.price_usd_micros * sum(world.launches.values())
    assert sum(charge.quantity for charge in world.of("vol-1 gp3")) == DISK.amount * world.disk_ns
    hours = [charge.quantity for charge in world.of(NODE_LINE) if charge.line.unit is Unit.HOUR]
    assert sum(hours) == world.compute_ns
    assert min(charge.usd_micros for charge in world.charges.values()) >= 0, "a counter never goes back"
    for run in ("run0", "run1", "run2", "run3", UNALLOCATED):
        assert world.charged(run) == world.node.ledger.spend(run)
    assert sum(charge.usd_micros for charge in world.charges.values()) == world.node.ledger.total()
    assert world.node.ledger.groups.node_usd_micros == world.node.ledger.total()
    for charge in world.charges.values():  # A row is its price times its quantity, but for shares and carries.
        exact = charge.line.price_usd_micros * charge.quantity / charge.line.unit.base_units
        assert abs(charge.usd_micros - exact) < 4


@settings(max_examples=share_of(300))
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 10**6), st.integers(0, 2000)), min_size=1, max_size=30),
    st.integers(1, 999),
)
def test_a_meter_owes_nothing_to_the_nanosecond(moves: list[tuple[int, int, int]], amount: int) -> None:
    """Of a line whose price of a nanosecond is far above its base unit's grain, so that every remainder shows."""
    line = Line(LineKind.STORAGE, "d", Unit.GB, UsdMicros(1), "", "")
    meter, at, exact, paid = LineMeter(Metered(line, amount)), 0, 0, 0
    for elapsed, price, late in moves:
        before = meter.metered
        assert before is not None
        splits = meter.charge(BootNs(at), DurationNs(elapsed), {"a": 2, "b": 1}, reconstructed=False)
        at += elapsed
        span = min(late, elapsed)
        splits += meter.reprice(
            Metered(replace(line, price_usd_micros=UsdMicros(price)), amount), BootNs(at), span, {"a": 1}
        )
        exact += amount * (before.line.price_usd_micros * (elapsed - span) + price * span)
        paid += sum(sum(split.amounts.values()) for split in splits)
        assert min((min(split.amounts.values()) for split in splits), default=0) >= 0
        assert paid * 10**9 + meter.carry - meter.credit == exact
        assert sum(sum(split.quantities.values()) for split in splits if split.elapsed) == amount * elapsed
