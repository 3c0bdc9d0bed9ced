"""What comes to a run's session and group when its parents are gone, and what a later look still knows of it."""

from __future__ import annotations

import pytest

from governor.core.halt.kill_set import kill_set, remaining, strays
from tests.unit.core.halt.test_kill_set import (
    GOVERNOR,
    PYTHON,
    RANK,
    USER,
    Tree,
    deepspeed_tree,
    pids,
    torchrun_tree,
    tree,
)

__all__ = ["tree"]
SUBREAPER = 90  # In a session of its own.


def test_workers_that_outlive_their_rank_are_found_by_its_session(tree: Tree) -> None:
    ranks = torchrun_tree(tree)
    killed = kill_set(tree.table, ranks, GOVERNOR)
    assert killed is not None
    tree.add(250, 211, RANK)  # Forked in the last moment by a worker.
    for pid in (200, 201, 202, 211, 221):
        tree.end(pid)
    assert pids(strays(tree.table, killed, GOVERNOR)) == [250]
    assert pids(remaining(tree.table, killed)) == [212, 222]


def test_workers_of_a_rank_that_was_gone_before_the_kill_set(tree: Tree) -> None:
    ranks = torchrun_tree(tree)
    tree.end(201, reaper=90)
    killed = kill_set(tree.table, ranks, GOVERNOR)
    assert killed is not None
    assert {211, 221} <= set(pids(killed.members))


@pytest.mark.parametrize("reaper", [1, SUBREAPER])
def test_last_moment_orphans_under_deepspeed_are_found_by_its_group(tree: Tree, reaper: int) -> None:
    ranks = deepspeed_tree(tree)
    killed = kill_set(tree.table, ranks, GOVERNOR)
    assert killed is not None
    tree.add(350, 302, (PYTHON, "-c", "from multiprocessing.spawn import spawn_main"))
    for member in killed.members:
        tree.end(member.pid, reaper)
    assert pids(strays(tree.table, killed, GOVERNOR)) == [350]


def test_a_second_look_keeps_what_the_first_knew(tree: Tree) -> None:
    """SIGTERM took launchers and ranks; the worker that a rank forked meanwhile is an orphan of their group."""
    ranks = deepspeed_tree(tree)
    first = kill_set(tree.table, ranks, GOVERNOR)
    assert first is not None
    tree.add(350, 302, (PYTHON, "-c", "from multiprocessing.spawn import spawn_main"))
    for member in first.members:
        tree.end(member.pid)
    second = kill_set(tree.table, ranks, GOVERNOR, uid=USER)
    assert second is not None
    assert strays(tree.table, second, GOVERNOR) == ()
    assert pids(strays(tree.table, second.joined(first), GOVERNOR)) == [350]
    assert second.joined(first).members == first.members


def test_a_last_moment_orphan_in_a_wholly_shared_session_needs_the_ranks_command_line(tree: Tree) -> None:
    tree.add(700, 100, ("bash", "job.sh"), group=True)
    rank = tree.add(701, 700, RANK)
    killed = kill_set(tree.table, [rank], GOVERNOR)
    assert killed is not None
    tree.add(702, 701, RANK)
    tree.add(703, 701, ("tensorboard",))
    tree.end(701)
    assert pids(strays(tree.table, killed, GOVERNOR)) == [702]


def test_an_orphan_of_the_tick_in_which_the_first_look_was_is_found_by_the_second_look_too(tree: Tree) -> None:
    tree.add(700, 100, ("bash", "job.sh"), group=True)
    rank = tree.add(701, 700, RANK)
    first = kill_set(tree.table, [rank], GOVERNOR)
    assert first is not None
    tree.add(702, 701, RANK, ticks=first.as_of_ticks)
    tree.end(701)
    assert pids(strays(tree.table, first, GOVERNOR)) == [702]
    tree.add(900, 100, ("vi",), ticks=first.as_of_ticks + 1)
    second = kill_set(tree.table, [rank], GOVERNOR, uid=USER)
    assert second is not None
    assert pids(strays(tree.table, second.joined(first), GOVERNOR)) == [702]
