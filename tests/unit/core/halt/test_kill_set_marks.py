"""What carries the mark of a run's launch is the run's, wherever it stands; what carries another's is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import MARK_PART_BITS, ProcessId, carries
from governor.core.halt.kill_set import KillSet, kill_set, marked_of_others, strays, unsure
from tests.unit.core.halt.test_kill_set import GOVERNOR, RANK, TORCHRUN, USER, Tree, pids, tree

__all__ = ["tree"]
MARK = 0x9ABCDEF012
OTHERS = 0x8123456789
WITHIN = MARK << MARK_PART_BITS | 0x91234  # A launch within the run's.


def add(
    tree: Tree, pid: int, ppid: int, mark: int, argv: tuple[str, ...] = ("sleep", "1"), uid: int = USER
) -> ProcessId:
    """A process in a session of its own that has inherited this mark."""
    process = tree.add(pid, ppid, argv, session=True, uid=uid)
    tree.table[pid] = replace(tree.table[pid], mark=mark)
    return process


def killed(tree: Tree, *ranks: ProcessId, marks: tuple[int, ...] = (MARK,)) -> KillSet:
    made = kill_set(tree.table, ranks, GOVERNOR, marks=marks)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("its", "mark", "is_its"),
    [
        (MARK, MARK, True), (WITHIN, MARK, True), (MARK, WITHIN, False), (OTHERS, MARK, False), (0, MARK, False),
        (0, 0, False), (MARK, 0, False), (1000, 1000, True), (MARK + 1, MARK, False), (MARK >> 20, MARK, False),
    ],
)  # fmt: skip
def test_a_launch_has_what_it_started_and_the_launches_within_it(its: int, mark: int, is_its: bool) -> None:
    assert carries(its, mark) is is_its


def test_who_left_the_tree_with_a_session_of_its_own_is_found_by_its_mark(tree: Tree) -> None:
    rank = add(tree, 201, 100, MARK, RANK)
    add(tree, 300, 1, MARK)
    add(tree, 301, 1, WITHIN, ("httpd",))
    tree.add(302, 301, ("sh",))  # Whatever a marked one has started, mark or not.
    add(tree, 310, 1, OTHERS)
    add(tree, 311, 1, 0)
    assert pids(killed(tree, rank).members) == [201, 300, 301, 302]


def test_it_is_found_after_the_ranks_are_gone_and_by_a_second_look(tree: Tree) -> None:
    rank = add(tree, 201, 100, MARK, RANK)
    first = killed(tree, rank)
    tree.end(201)
    add(tree, 300, 1, MARK)
    assert pids(strays(tree.table, first, GOVERNOR)) == [300]
    again = kill_set(tree.table, [rank], GOVERNOR, uid=USER)
    assert again is not None
    assert pids(strays(tree.table, again, GOVERNOR)) == []
    assert pids(strays(tree.table, again.joined(first), GOVERNOR)) == [300]


def test_a_run_without_marks_has_nobody_by_them(tree: Tree) -> None:
    rank = add(tree, 201, 100, 0, RANK)
    add(tree, 300, 1, MARK)
    add(tree, 301, 1, 0)
    assert pids(killed(tree, rank, marks=()).members) == [201]


def test_the_governor_and_what_is_above_it_are_protected_with_the_mark_too(tree: Tree) -> None:
    """A governor that was started from within the run."""
    add(tree, 400, 1, MARK, ("tmux",))
    add(tree, 401, 400, MARK, ("costgov", "daemon"))
    rank = add(tree, 201, 100, MARK, RANK)
    made = kill_set(tree.table, [rank], 401, marks=[MARK])
    assert made is not None
    assert pids(made.members) == [201]


def test_one_that_became_another_users_is_not_ended_and_is_named(tree: Tree) -> None:
    rank = add(tree, 201, 100, MARK, RANK)
    add(tree, 300, 1, MARK, ("sudo", "sleep"), uid=0)
    add(tree, 301, 1, OTHERS, ("sleep",), uid=0)
    made = killed(tree, rank)
    assert pids(made.members) == [201]
    assert pids(marked_of_others(tree.table, made)) == [300]
    tree.zombie(300)
    assert marked_of_others(tree.table, made) == ()


def test_orphans_from_before_the_hello_are_unsure_and_no_others(tree: Tree) -> None:
    add(tree, 150, 1, 0, ("tmux",))  # Before the run.
    agent = tree.add(200, 100, TORCHRUN, group=True)
    rank = add(tree, 201, 200, MARK, RANK)
    add(tree, 300, 1, 0, ("redis-server",))
    add(tree, 301, 300, 0)  # No orphan.
    add(tree, 302, 1, MARK)  # The run's own.
    add(tree, 303, 1, 0, uid=0)
    add(tree, 304, 1, 0)
    tree.zombie(304)
    add(tree, 305, 1, 0)
    tree.table[305] = replace(tree.table[305], cgroup="/user.slice/session-2.scope")
    assert pids(unsure(tree.table, [rank], [agent], GOVERNOR, [MARK])) == [300]
    assert unsure({}, [rank], [agent], GOVERNOR, [MARK]) == ()
