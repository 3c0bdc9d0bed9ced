"""One name is one budget: a command that is launched again and again passes its ceiling by nobody's other run names.

Below it are runs of other users (sandboxes) that have new names in each launch, or it has become another user itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from governor.app.before_launch import refusal
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, usd
from governor.core.events.effects import Effect
from governor.core.events.inputs import (
    CommandExited,
    CommandLaunched,
    Disconnected,
    Event,
    LauncherExited,
    LaunchersSeen,
    ProcessesSeen,
    TrainerExited,
)
from tests.unit.core.engine.test_launched_command import PRICE
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, make_node, peer, rule

OWNER, GOSU, BOX, OTHER_BOX = 1000, 1001, 12345, 12346
CEILING_S = 100  # As many dollars: one a second.
LAUNCHES = 8


@dataclass
class Launches:
    """One command's name: its launches, who runs below it, and what the machine has cost while any of it ran."""

    world: World
    number: int = 0
    is_over: bool = True  # The command's own process has ended.
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    alive: dict[str, tuple[ConnectionId, int, int]] = field(default_factory=dict)  # By run: its rank, pid and uid.
    killed: list[str] = field(default_factory=list)
    used_s: int = 0
    halted: list[str] = field(default_factory=list)

    @property
    def now(self) -> MonoNs:
        return MonoNs(self.world.mono)

    @property
    def command(self) -> ProcessId:
        return ProcessId(4321, self.number, "boot-1")

    def launch(self) -> bool:
        """Start the command again, unless it is refused."""
        if refusal(self.world.node, "job", OWNER, BootNs(self.world.boot), self.now) is not None:
            return False
        self.number, self.is_over = self.number + 1, False
        self.play(CommandLaunched(self.now, "job", OWNER, (self.command,)))
        for run in self.killed:  # Those of the journal whose processes are gone.
            self.play(TrainerExited(self.now, run, None))
        self.killed.clear()
        self.world.tick()
        return True

    def attach(self, run: str, uid: int) -> None:
        number = next(self.ids)
        self.alive[run] = ConnectionId(100 + number), 10_000 + number, uid
        self.say_hello(run)

    def say_hello(self, run: str) -> None:
        link, pid, uid = self.alive[run]
        said = {"run": run, "attempt": f"a{pid}", "world_size": 1, "connection": link, "peer": peer(pid, uid)}
        self.play(hello(0, 0, at=self.now, of_command=uid != OWNER, **said))
        if uid == OWNER:
            self.play(LaunchersSeen(self.now, run, (self.command,)))

    def exit(self, run: str) -> None:
        link, *_ = self.alive.pop(run)
        self.play(Disconnected(self.now, link))
        self.play(TrainerExited(self.now, run, None))

    def end(self) -> None:
        """The command and all below it exit, and its governor after them. A command may be over already."""
        for run in list(self.alive):
            self.exit(run)
        if not self.is_over:
            self.is_over = True
            self.play(LauncherExited(self.now))
            self.play(CommandExited(self.now, "job", 1))
        self.world.at(self.world.boot // NS_PER_S + 11)  # Its last commit. This time is nobody's.
        self.govern_anew()

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        self.killed += self.alive
        self.alive.clear()
        self.is_over = True
        self.govern_anew()

    def govern_anew(self) -> None:
        self.world.restart()

    def crash(self) -> None:
        """The governor alone is killed, and comes back beside the same command, whose ranks connect again."""
        self.govern_anew()
        if not self.is_over:
            self.play(CommandLaunched(self.now, "job", OWNER, (self.command,)))
            self.world.tick()
            for run in list(self.alive):
                self.say_hello(run)
            self.seconds(4)
        self.end()

    def seconds(self, length: int) -> None:
        """A tick a second. Whoever is told to end has ended a second later, with his rank."""
        for _ in range(length):
            if self.is_over and not self.alive:
                return
            self.world.boot = self.world.mono = self.world.boot + NS_PER_S
            self.used_s += 1
            self.world.tick()
            self._end_the_halted()

    def _end_the_halted(self) -> None:
        for run, managed in list(self.world.node.runs.items()):
            incident = managed.incident
            if incident is None or incident.is_closed:
                continue
            self.halted.append(run)
            if run in self.alive:
                self.play(Disconnected(self.now, self.alive.pop(run)[0]))
            self.is_over = self.is_over or self.command in (*incident.rank_processes, *incident.launchers)
            for _ in range(2):  # The ranks are gone, and then what they left.
                self.play(ProcessesSeen(self.now, incident.incident_id, ()))
            assert incident.is_closed
        if self.is_over and self.world.node.launched is not None:
            self.play(LauncherExited(self.now))

    def play(self, event: Event) -> list[Effect]:
        return self.world.play(event)


def a_sandbox(one: Launches) -> None:
    """Of root's command only a sandbox speaks. The kernel does not tell it from a command that has become that user."""
    one.seconds(2)
    one.attach(f"box{one.number}", BOX)
    one.seconds(18)


def sandboxes_of_two_users(one: Launches) -> None:
    one.seconds(2)
    one.attach(f"box{one.number}", BOX)
    one.seconds(3)
    one.attach(f"other{one.number}", OTHER_BOX)
    one.seconds(15)


def four_of_one_user(one: Launches) -> None:
    for number in range(4):
        one.attach(f"box{one.number}-{number}", BOX)
        one.seconds(1)
    one.seconds(16)


def beside_the_owners_rank(one: Launches) -> None:
    one.seconds(1)
    one.attach(f"box{one.number}", BOX)
    one.seconds(3)
    one.attach("job", OWNER)
    one.seconds(16)


def behind_the_owners_rank(one: Launches) -> None:
    """Its own rank fails early in each launch, and the sandbox goes on."""
    one.attach(f"box{one.number}", BOX)
    one.seconds(2)
    one.attach("own", OWNER)
    one.seconds(5)
    if "own" in one.alive:
        one.exit("own")
    one.seconds(13)


def around_two_owners_ranks(one: Launches) -> None:
    one.attach("own", OWNER)
    one.seconds(2)
    if "own" in one.alive:
        one.exit("own")
    one.attach(f"box{one.number}", BOX)
    one.seconds(3)
    one.attach("own", OWNER)
    one.seconds(5)
    if "own" in one.alive:
        one.exit("own")
    one.seconds(10)


def beside_gosu(one: Launches) -> None:
    """Root's command has become a user that trains under the command's name."""
    one.seconds(2)
    one.attach("job", GOSU)
    one.seconds(2)
    for number in range(3):
        one.attach(f"box{one.number}-{number}", BOX)
    one.seconds(16)


def beside_gosu_of_another_name(one: Launches) -> None:
    one.seconds(2)
    one.attach("exp", GOSU)
    one.attach(f"box{one.number}", BOX)
    one.seconds(18)


def gosu_of_new_names(one: Launches) -> None:
    one.seconds(2)
    one.attach(f"exp{one.number}", GOSU)
    one.seconds(18)


def by_turns(one: Launches) -> None:
    """Nobody, then a sandbox, then gosu, then the owner's own rank."""
    match one.number % 4:
        case 1:
            one.seconds(20)
        case 2:
            a_sandbox(one)
        case 3:
            beside_gosu(one)
        case _:
            behind_the_owners_rank(one)


def nobody_before_the_owners_rank(one: Launches) -> None:
    """Launches that die in their imports cost money too, whatever the script calls itself later."""
    one.seconds(20)
    if one.number > 2 and not one.is_over:
        one.attach("exp", OWNER)
        one.seconds(5)


def so_many_sandboxes_that_the_owners_run_has_no_place(one: Launches) -> None:
    one.attach("exp", OWNER)
    one.seconds(5)
    if "exp" in one.alive:
        one.exit("exp")
    for number in range(70):
        if one.is_over:
            return
        name = f"box{one.number}-{number}"
        one.attach(name, BOX)
        if number % 5 == 0:
            one.seconds(1)
        if name in one.alive:
            one.exit(name)


def the_sandbox_says_the_commands_name(one: Launches) -> None:
    one.attach("job", BOX)
    one.seconds(10)
    one.attach(f"box{one.number}", OTHER_BOX)
    one.seconds(10)


SCENES = (
    a_sandbox,
    sandboxes_of_two_users,
    four_of_one_user,
    beside_the_owners_rank,
    behind_the_owners_rank,
    around_two_owners_ranks,
    beside_gosu,
    beside_gosu_of_another_name,
    gosu_of_new_names,
    by_turns,
    nobody_before_the_owners_rank,
    so_many_sandboxes_that_the_owners_run_has_no_place,
    the_sandbox_says_the_commands_name,
)


def a_name() -> Launches:
    budget = Budget(ceiling_usd_micros=usd(CEILING_S))
    node = make_node(
        rule(), rule("budget"), budget=budget, cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE
    )
    return Launches(World(node))


def assert_sums_are_exact(world: World) -> None:
    """Charges and counters are equal, by run, in all and for the command's name."""
    ledger, runs = world.node.ledger, world.node.ledger.book.runs
    names = [*world.node.runs, *world.node.past]
    assert {name: ledger.spend(name) for name in names} == {name: world.charged(name) for name in names}
    assert ledger.total() == sum(charge.usd_micros for charge in world.charges.values())
    assert runs.of_command("job") == sum(world.charged(name) for name in names if runs.part_of(name) is not None)


@pytest.mark.parametrize("ends", [Launches.end, Launches.kill, Launches.crash], ids=["end", "kill", "crash"])
@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
def test_one_name_is_one_ceiling_whatever_its_launches_are_called_below(
    scene: Callable[[Launches], None], ends: Callable[[Launches], None]
) -> None:
    one = a_name()
    for _ in range(LAUNCHES):
        if not one.launch():
            break
        scene(one)
        ends(one)
    assert CEILING_S * 0.7 <= one.used_s <= CEILING_S
    assert_sums_are_exact(one.world)
