"""A control group that the configuration names: what is the run, what manages it, who of several users is ended."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ProcessId
from governor.core.halt.kill_set import kill_set, managers
from tests.unit.core.halt.test_kill_set import GOVERNOR, RANK, USER, Tree

ROOT = 0


@pytest.fixture
def tree() -> Tree:
    tree = Tree()
    tree.add(GOVERNOR, 1, ("costgov", "daemon"), uid=64, session=True)
    return tree


def managing(tree: Tree, *named: ProcessId, run_uid: int | None = USER) -> set[int]:
    rows = [tree.table[process.pid] for process in named]
    return {process.pid for process in managers(tree.table, rows, run_uid)}


def test_what_began_the_task_as_another_user_manages_it(tree: Tree) -> None:
    step = tree.add(200, 1, ("/opt/own-manager",), uid=ROOT)
    task = tree.add(201, 200, RANK)
    beside = tree.add(202, 1, ("exporter",), uid=ROOT)
    assert managing(tree, step, task, beside) == {200}
    assert managing(tree, step, task, run_uid=None) == {200}, "in doubt it manages"


def test_a_trainer_does_not_hide_as_the_manager_of_what_it_begins_as_root(tree: Tree) -> None:
    trainer = tree.add(200, 1, RANK)
    assert managing(tree, trainer, tree.add(201, 200, ("sudo", "nvidia-smi"), uid=ROOT)) == set()
    named_so = tree.add(202, 1, ("slurmstepd: [7.0]",))
    assert managing(tree, named_so) == set(), "only root's process is believed by its name"


def test_roots_own_run_may_begin_workers_as_another_user(tree: Tree) -> None:
    trainer = tree.add(200, 1, RANK, uid=ROOT)
    worker = tree.add(201, 200, RANK)
    assert managing(tree, trainer, worker, run_uid=ROOT) == set()
    slurm = tree.add(199, 1, ("slurmstepd: [4711.0]",), uid=ROOT)
    assert managing(tree, slurm, trainer, run_uid=ROOT) == {199}


def test_named_processes_of_several_users_are_ended_and_nobody_elses(tree: Tree) -> None:
    task, beside = tree.add(200, 1, RANK, session=True), tree.add(201, 1, ("exporter",), uid=ROOT, session=True)
    tree.add(202, 1, RANK, uid=65534, session=True)
    killed = kill_set(tree.table, [task, beside], GOVERNOR, uid=USER, other_uids=[ROOT])
    assert killed is not None
    assert set(killed.members) == {task, beside}
    alone = kill_set(tree.table, [task, beside], GOVERNOR, uid=USER)
    assert alone is not None
    assert set(alone.members) == {task}
