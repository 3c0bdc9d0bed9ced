"""Each cell of a run's life, reached through the engine: what it then does, and that any other content is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import pytest

from governor.core.base.units import BootNs, MonoNs, WallNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import PersistIncident
from governor.core.events.inputs import CommandLaunched, ProcessesSeen, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.runs.life import TRANSITIONS, Cell, Life, LifeFact
from governor.core.runs.state import Run
from governor.core.views.status import run_status
from tests.unit.core.engine.test_launched_command import COMMAND, STREAMED, launched, stream
from tests.unit.core.engine.test_on_trainer import opened
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

Key = tuple[Life, LifeFact]
WALL = WallNs(10**18)
# The callers of these act on `begins`.
BEGINNING = frozenset(LifeFact) - {
    LifeFact.RUN_REPORTS, LifeFact.REPLACED, LifeFact.GONE, LifeFact.HALTED, LifeFact.HALT_RESUMED,
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What the engine makes of it: the run's state, who holds the node, and what its journal has of the run."""

    state: str
    holders: tuple[str, ...]
    attempt_at: float
    ended_at: float | None = None
    is_kept_alive: bool = True
    is_unattached: bool = False


def seen(node: Node, name: str) -> Seen:
    managed, now = node.runs[name], at(1_000)
    kept = run_snapshot(node, managed, now)["alive"]
    ended_at = managed.run.ended_at
    return Seen(
        str(run_status(managed, at(50))["state"]), tuple(node.holders()), managed.run.attempt_at / at(1),
        ended_at / at(1) if ended_at is not None else None, kept, managed.is_unattached,
    )  # fmt: skip


def ranks(*attempts: str, end_at: float | None = None) -> tuple[Node, str]:
    """Rank 0 of each attempt says hello, ten seconds apart; the run ends in between, if told so."""
    node = make_node(cloud="none")
    play(node, tick(0))
    for number, attempt in enumerate(attempts):
        play(node, hello(0, 10 * number, attempt=attempt, world_size=1, peer=peer(100)))
        if end_at is not None:
            play(node, TrainerExited(at(end_at), "llama", 0))
            end_at = None
    return node, "llama"


def logs(*pids: tuple[int, ...], end_at: float | None = None, dies: bool = False) -> tuple[Node, str]:
    """A log is opened, ten seconds apart, each time with these processes; in between the governor dies, the run ends"""
    node = make_node(cloud="none")
    play(node, tick(0))
    for number, named in enumerate(pids):
        play(node, opened(10 * number, *named))
        if dies:
            node, dies = reborn(node, 3), False
        if end_at is not None:
            play(node, TrainerExited(at(end_at), "log", 0))
            end_at = None
    return node, "log"


def reborn(node: Node, when: int) -> Node:
    """What a new governor has of the node's runs."""
    kept = [run_snapshot(node, managed, at(when)) for managed in node.runs.values()]
    new = make_node(cloud="none", boot=when)
    restore_runs(new, kept, BootNs(at(when)), at(when))
    return new


def a_line() -> tuple[Node, str]:
    node, name = logs((), end_at=5)
    play(node, a_step(1, when=12, run=name, connection=None))
    return node, name


def stands_in(*, first: str | None = None) -> Node:
    """A command of which no run speaks: from its launch, or behind a run that has trained from 1 s to 2 s."""
    node = launched()
    if first is not None:
        play(node, hello(0, 1, run=first, world_size=1), TrainerExited(at(2), first, None), tick(3))
    return node


def named_log(*pids: int) -> tuple[Node, str]:
    node = stands_in()
    stream(node, "job", 5, *([STREAMED] if pids else []))
    return node, "job"


def said_hello(node: Node, when: int, name: str = "job", **changes: object) -> tuple[Node, str]:
    play(node, hello(0, when, run=name, world_size=1, peer=peer(300), **changes))
    return node, name


def another_reports() -> tuple[Node, str]:
    node, _ = said_hello(stands_in(first="first"), 5, "second", attempt="b")
    return node, "first"


def stand_in_halted() -> tuple[Node, str]:
    node = stands_in()
    play(node, OperatorHalt(at(5), "job", "enough", 0))
    return node, "job"


def launched_late() -> tuple[Node, str]:
    node = make_node(cloud="none", exclusive=True)
    play(node, tick(0), CommandLaunched(at(2), "job", 1000, (COMMAND,)), tick(3))
    return node, "job"


def launched_anew() -> tuple[Node, str]:
    """The machine was rebooted, and the command launched again."""
    node = stands_in()
    play(node, TrainerExited(at(5), "job", 0))
    kept = [run_snapshot(node, node.runs["job"], at(5))]
    new = make_node(cloud="none", exclusive=True, boot_id="boot-2", boot=7)
    restore_runs(new, kept, BootNs(at(7)), at(7))
    play(new, CommandLaunched(at(8), "job", 1000, (COMMAND,)), tick(9))
    return new, "job"


def late_line() -> tuple[Node, str]:
    """The run has ended, and the last lines of its log bring a verdict. Nobody is left to end."""
    node, name = logs((100,), end_at=5)
    play(node, a_step(1, when=10, run=name, connection=None, loss=float("nan")))
    play(node, ProcessesSeen(at(11), "log.node-a.1", ()))
    return node, name


def halted() -> tuple[Node, str]:
    node, name = logs((100,))
    play(node, OperatorHalt(at(5), name, "enough", 0), ProcessesSeen(at(6), "log.node-a.1", ()))
    return node, name


def resumed(node: Node, name: str) -> tuple[Node, str]:
    """A halt begins, and the governor dies before the next commit of its runs."""
    kept = [run_snapshot(node, node.runs[name], at(4))]
    persisted = [one for one in play(node, OperatorHalt(at(5), name, "enough", 0)) if isinstance(one, PersistIncident)]
    new = make_node(cloud="none", boot=6)
    restore_runs(new, kept, BootNs(at(6)), at(6))
    restore_incidents(new, [persisted[-1].snapshot], at(6), WALL)
    return new, name


S, L, E = Life
F = LifeFact
REACHED: dict[Key, tuple[Callable[[], tuple[Node, str]], Seen]] = {
    (S, F.RANK_OF_NEW_ATTEMPT): (lambda: said_hello(stands_in(), 5), Seen("starting", ("job",), 5)),
    (S, F.RANK): (lambda: said_hello(stands_in(first="job"), 5), Seen("starting", ("job",), 5)),
    (S, F.LOG_OF_PROCESSES): (lambda: named_log(999), Seen("starting", ("job",), 5)),
    (S, F.LOG): (named_log, Seen("starting", ("job",), 5)),
    (S, F.RUN_REPORTS): (stand_in_halted, Seen("halting", ("job",), 0)),
    (S, F.REPLACED): (another_reports, Seen("finished", ("second",), 1, 5, is_kept_alive=False)),
    (L, F.RANK_OF_NEW_ATTEMPT): (lambda: ranks("a1", "a2"), Seen("starting", ("llama",), 10)),
    (L, F.RANK): (lambda: ranks("a1", "a1"), Seen("starting", ("llama",), 0)),
    (L, F.LOG_OF_NEW_PROCESSES): (lambda: logs((100,), (200,), dies=True), Seen("starting", ("log",), 10)),
    (L, F.LOG_OF_PROCESSES): (lambda: logs((), (100,)), Seen("starting", ("log",), 0)),
    (L, F.LOG): (lambda: logs((), ()), Seen("starting", ("log",), 0)),
    (L, F.COMMAND_BEGINS): (launched_late, Seen("starting", (), 2, is_kept_alive=False, is_unattached=True)),
    (L, F.GONE): (lambda: ranks("a1", end_at=5), Seen("finished", (), 0, 5, is_kept_alive=False)),
    (L, F.HALTED): (halted, Seen("halted", (), 0, 6, is_kept_alive=False)),
    (L, F.HALT_RESUMED): (lambda: resumed(*ranks("a1")), Seen("halting", ("llama",), 6)),
    (E, F.RANK_OF_NEW_ATTEMPT): (lambda: ranks("a1", "a2", end_at=5), Seen("starting", ("llama",), 10)),
    (E, F.RANK): (lambda: ranks("a1", "a1", end_at=5), Seen("starting", ("llama",), 10)),
    (E, F.LOG_OF_NEW_PROCESSES): (lambda: logs((100,), (200,), end_at=5, dies=True), Seen("starting", ("log",), 10)),
    (E, F.LOG_OF_PROCESSES): (lambda: logs((100,), (100,), end_at=5), Seen("starting", ("log",), 10)),
    (E, F.LOG): (lambda: logs((), (), end_at=5), Seen("finished", (), 0, 5, is_kept_alive=False)),
    (E, F.LINE): (a_line, Seen("training", ("log",), 12)),
    (E, F.COMMAND_BEGINS): (launched_anew, Seen("starting", (), 8, is_kept_alive=False, is_unattached=True)),
    (E, F.COMMAND_GOES_ON): (
        lambda: (stands_in(first="job"), "job"), Seen("starting", (), 1, is_kept_alive=False, is_unattached=True)
    ),
    (E, F.HALTED): (late_line, Seen("halted", (), 0, 11, is_kept_alive=False)),
    (E, F.HALT_RESUMED): (lambda: resumed(stands_in(), "job"), Seen("halting", ("job",), 6)),
}  # fmt: skip


@contextmanager
def noted() -> Iterator[list[Key]]:
    """The cells that are reached meanwhile."""
    cells: list[Key] = []
    move = Run.move

    def noting(self: Run, fact: LifeFact, when: MonoNs) -> Cell:
        cells.append((self.life, fact))
        return move(self, fact, when)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "move", noting)
        yield cells


def test_every_cell_is_reached_by_the_engine_or_marked_with_why_it_cannot_come() -> None:
    marked = {key for key, cell in TRANSITIONS.items() if cell.cannot_come}
    assert {(life.name, fact.name) for life, fact in TRANSITIONS.keys() - marked - REACHED.keys()} == set()
    assert not marked & REACHED.keys()


def test_an_attempt_begins_only_where_the_caller_asks_whether_one_does() -> None:
    assert {fact for (_, fact), cell in TRANSITIONS.items() if cell.begins} <= BEGINNING


@pytest.mark.parametrize("key", REACHED, ids=lambda key: f"{key[0].name}-{key[1].name}")
def test_what_the_engine_does_behind_a_cell_and_that_another_content_is_noticed(key: Key) -> None:
    history, expected = REACHED[key]
    with noted() as sound:
        node, name = history()
    assert key in sound
    assert seen(node, name) == expected
    for other in others(key):
        assert is_noticed(key, other, sound), f"{other} instead of {TRANSITIONS[key]}"


def others(key: Key) -> Iterator[Cell]:
    """Every other content of a cell that its callers can see."""
    cell = TRANSITIONS[key]
    for to, begins, ends in product(Life, (False, True), (False, True)):
        made = replace(cell, to=to, begins=begins, ends=ends)
        if made != cell and (key[1] in BEGINNING or begins is cell.begins):
            yield made


def is_noticed(key: Key, other: Cell, sound: list[Key]) -> bool:
    history, expected = REACHED[key]
    cell, TRANSITIONS[key] = TRANSITIONS[key], other
    try:
        with noted() as cells:
            node, name = history()
        return (cells, seen(node, name)) != (sound, expected)
    except (AssertionError, KeyError):
        return True
    finally:
        TRANSITIONS[key] = cell
