"""A governor that dies beside a command of which nobody speaks: what had been spent by then is the command's."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.command.ceilings import counted
from governor.core.engine.node_journal import persist
from governor.core.events.effects import Effect, Term
from governor.core.events.inputs import CommandExited, CommandLaunched, Disconnected, Tick, TrainerExited
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_MAX
from tests.sweeps import share_of
from tests.unit.core.engine.test_launched_command import CEILING, COMMAND
from tests.unit.core.engine.test_launched_command import PRICE as A_SECOND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, hello, make_node, peer, rule

ANOTHER = ProcessId(4321, 2, "boot-1")  # The same number, begun later.
SECOND = 1_000_000


def launch(world: World, process: ProcessId = COMMAND, name: str = "job") -> None:
    world.play(CommandLaunched(MonoNs(world.mono), name, 1000, (process,)))
    world.tick()


def beside(*, ceiling: UsdMicros = CEILING) -> World:
    """`costgov run` at $1 a second, and a command of which nobody has said hello."""
    node = make_node(
        rule(), rule("budget"), budget=Budget(ceiling_usd_micros=ceiling), cloud="none", exclusive=True,
        price_usd_micros_per_hour=A_SECOND,
    )  # fmt: skip
    world = World(node)
    launch(world)
    return world


def crash(world: World, until: int, process: ProcessId = COMMAND, name: str = "job") -> None:
    """Nobody governs until then; what comes back is told what is launched."""
    world.boot = world.mono = until * NS_PER_S
    world.restart()
    launch(world, process, name)


def termed(world: World, since: int, until: int) -> list[int]:
    """At which seconds somebody was ended."""
    found = []
    for second in range(since, until):
        world.boot = world.mono = second * NS_PER_S
        effects: list[Effect] = world.play(tick_of(world))
        found += [second for effect in effects if isinstance(effect, Term)]
    return found


def tick_of(world: World) -> Tick:
    return Tick(MonoNs(world.mono), BootNs(world.boot), WallNs(world.boot + world.wall_offset))


def behind_a_training() -> World:
    """The run that attached has ended after 100 s, and the command goes on for 50 s."""
    world = beside()
    world.play(hello(0, 0, run="trained", world_size=1))
    world.at(100)
    world.play(Disconnected(at(100), ConnectionId(1)))
    world.play(TrainerExited(at(100), "trained", None))
    world.at(150)
    return world


def test_what_was_spent_before_the_crash_counts_towards_the_ceiling() -> None:
    (ended,) = termed(beside(), 1, 700)
    world = beside()
    assert termed(world, 1, 400) == []
    crash(world, 430)
    assert world.node.runs["job"].run.spend_usd_micros == 430 * SECOND, "the time in which nobody governed, too"
    assert termed(world, 431, 700) == [ended]
    assert world.node.ledger.spend(UNALLOCATED) == 0
    world.take([persist(world.node, MonoNs(world.mono))])
    assert world.node.ledger.spend("job") == world.charged("job") == 699 * SECOND
    gap = sum(charge.usd_micros for charge in world.charges.values() if charge.reconstructed)
    assert 30 * SECOND <= gap <= 41 * SECOND, "marked: nobody metered it"


def test_what_a_launch_of_another_name_has_spent_is_not_this_commands() -> None:
    world = beside()
    assert termed(world, 1, 400) == []
    crash(world, 430, ANOTHER, "other")
    assert world.node.runs["other"].run.spend_usd_micros == 0
    world.at(440)
    world.play(hello(0, 440, run="other", world_size=1))
    world.at(450)
    assert world.node.ledger.spend("other") == world.charged("other") == 20 * SECOND
    assert world.node.ledger.spend(UNALLOCATED) == world.charged(UNALLOCATED), "between the two nobody was charged"


def test_one_name_is_one_budget_also_where_each_launch_dies_with_its_governor() -> None:
    """As a scheduler ends a job: SIGKILL for everybody. What the launches had cost by then is in no run's charges."""
    world = beside()
    assert termed(world, 1, 400) == []
    kept = world.charged(UNALLOCATED)
    assert 390 * SECOND <= kept <= 400 * SECOND
    crash(world, 430, ANOTHER)
    assert world.node.runs["job"].run.spend_usd_micros == kept
    assert (world.node.ledger.spend("job"), world.charged("job"), world.charged(UNALLOCATED)) == (kept, kept, 0)
    (ended,) = termed(world, 431, 700)
    assert 430 < ended < 430 + 600 - kept // SECOND
    assert world.node.ledger.groups.node_usd_micros == world.node.ledger.total()


def test_what_followed_a_training_is_its_runs_also_where_the_next_launch_finds_it() -> None:
    world = behind_a_training()
    kept = world.charged("trained") + world.charged(UNALLOCATED)
    for second in (200, 250):  # Kept with the run, which has ended: the next crash finds it there, and once.
        crash(world, second, ANOTHER if second == 200 else COMMAND)
        assert world.node.ledger.spend("trained") == world.charged("trained") == kept >= 140 * SECOND


def test_the_first_rank_behind_a_crash_takes_over_what_was_before_it() -> None:
    for crashes in (1, 2):
        world = beside()
        for number in range(crashes):
            world.at(100 + 100 * number)
            crash(world, 150 + 100 * number)
        world.at(400)
        world.play(hello(0, 400, run="named-by-the-script", world_size=1))
        world.at(410)
        assert world.node.ledger.spend("named-by-the-script") == world.charged("named-by-the-script") == 410 * SECOND
        assert (world.node.ledger.spend(UNALLOCATED), world.charged(UNALLOCATED)) == (0, 0)
        assert world.node.runs["named-by-the-script"].history.paid_from == 0, "and its first window begins there"


def test_a_crash_behind_a_training_leaves_the_rest_on_its_budget() -> None:
    world = behind_a_training()
    crash(world, 160)
    assert world.node.runs["trained"].is_unattached
    assert not world.node.runs["job"].run.alive, "which stood in until the first rank said hello"
    (ended,) = termed(world, 161, 700)
    assert ended < 600
    world.take([persist(world.node, MonoNs(world.mono))])
    assert world.node.ledger.spend("trained") == world.charged("trained") == 699 * SECOND


def test_a_run_that_ended_while_nobody_governed_leaves_the_rest_on_its_budget() -> None:
    world = beside()
    world.play(hello(0, 0, run="trained", world_size=1))
    world.at(100)
    world.boot = world.mono = 130 * NS_PER_S
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (COMMAND,)))
    world.play(TrainerExited(MonoNs(world.mono), "trained", None))
    world.tick()
    world.at(140)
    assert world.node.runs["trained"].run.spend_usd_micros == 140 * SECOND


def test_a_journal_of_before_is_taken_up_without_it() -> None:
    world = beside()
    world.at(20)
    world.runs[UNALLOCATED] = {k: v for k, v in world.runs[UNALLOCATED].items() if k != "launched"}
    crash(world, 30)
    world.at(40)
    assert world.node.runs["job"].run.spend_usd_micros == 10 * SECOND


def test_more_hours_than_are_moved_are_counted_all_the_same() -> None:
    """The ceiling of a command that never attaches holds over a crash in its third week, too."""
    hours = 2 * UNALLOCATED_MAX
    world = beside(ceiling=UsdMicros((hours + 20) * 3600 * SECOND))
    for hour in range(1, hours):
        world.at(hour * 3600)
    crash(world, hours * 3600)
    world.tick()
    assert world.node.runs["job"].run.spend_usd_micros == hours * 3600 * SECOND


def test_more_hours_than_are_moved_are_counted_where_the_launch_dies_with_its_governor() -> None:
    """The next launch of the name has another process: its ceiling is what the first has left of it."""
    hours = UNALLOCATED_MAX + 5
    world = beside(ceiling=UsdMicros((hours + 20) * 3600 * SECOND))
    for hour in range(1, hours + 1):
        world.at(hour * 3600)
    kept = world.charged(UNALLOCATED)
    assert kept == hours * 3600 * SECOND
    crash(world, hours * 3600 + 60, ANOTHER)
    assert (counted(world.node, "job"), world.node.runs["job"].run.spend_usd_micros) == (kept, kept - 5 * 3600 * SECOND)


def say_hello(world: World, name: str, attempt: int) -> None:
    who = peer(100 + attempt)
    world.play(hello(0, run=name, attempt=f"a{attempt}", world_size=1, peer=who, at=MonoNs(world.mono)))


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 5_000)),  # Time passes,
    st.tuples(st.just("crash"), st.integers(0, 500)),  # also while nobody governs.
    st.tuples(st.just("hello"), st.just(0)),
    st.tuples(st.just("exit"), st.just(0)),
)


@settings(max_examples=share_of(100), deadline=None)
@given(st.lists(ACTS, max_size=25), st.sampled_from(["job", "named-by-the-script"]))
def test_every_second_of_a_command_counts_towards_one_budget(acts: list[tuple[str, int]], name: str) -> None:
    """Whoever speaks for it, or nobody, and however often its governor dies."""
    world = beside(ceiling=UsdMicros(10**12))
    attempts, is_attached = 0, False
    for act, seconds in acts:
        until = world.boot // NS_PER_S + seconds
        match act:
            case "run":
                world.at(until)
            case "crash":
                crash(world, until)
                if is_attached:  # Its shim connects again.
                    say_hello(world, name, attempts)
            case "hello" if not is_attached:
                attempts, is_attached = attempts + 1, True
                say_hello(world, name, attempts)
            case "exit" if is_attached:
                is_attached = False
                world.play(Disconnected(MonoNs(world.mono), ConnectionId(1)))
                world.play(TrainerExited(MonoNs(world.mono), name, None))
        world.tick()
        its = world.node.runs[name if attempts else "job"].run
        assert its.alive
        assert its.spend_usd_micros == world.boot // 1_000, "a dollar a second"
    world.play(CommandExited(MonoNs(world.mono), "job", 0))
    if is_attached:
        world.play(TrainerExited(MonoNs(world.mono), name, None))
    world.at(world.boot // NS_PER_S + 11)
    spent = world.charged(name if attempts else "job")
    assert spent == world.node.ledger.spend(name if attempts else "job") == world.boot // 1_000 - 11 * SECOND
