"""What a run cannot leave behind, wherever it stands: the mark of its launch, and a control group of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import MARK_PART_BITS, ProcessId, carries
from governor.core.halt.kill_set import (
    KillSet,
    begun_beside,
    kill_set,
    marked_of_others,
    own_cgroups,
    strays,
    unsure,
)
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
    tree.add(151, 1, ("redis-server",), session=True, ticks=agent.start_ticks)  # Begun within the agent's tick.
    add(tree, 300, 1, 0, ("redis-server",))
    add(tree, 301, 300, 0)  # No orphan.
    add(tree, 302, 1, MARK)  # The run's own.
    add(tree, 303, 1, 0, uid=0)
    add(tree, 304, 1, 0)
    tree.zombie(304)
    add(tree, 305, 1, 0)
    tree.table[305] = replace(tree.table[305], cgroup="/user.slice/session-2.scope")
    assert pids(unsure(tree.table, [rank, agent], GOVERNOR, [MARK], [])) == [151, 300]
    assert unsure({}, [rank, agent], GOVERNOR, [MARK], []) == ()
    assert unsure(tree.table, [rank, agent], GOVERNOR, [MARK], ["/"]) == ()


def test_what_began_beside_a_run_is_of_its_first_tick_or_later(tree: Tree) -> None:
    made = killed(tree, add(tree, 201, 100, MARK, RANK))
    for pid, ticks in ((301, 5_000), (302, 5_001), (303, 5_002)):
        tree.add(pid, 1, ("window",), session=True, ticks=ticks)
    assert pids(tuple(facts.process for facts in begun_beside(tree.table, made, GOVERNOR, 5_001))) == [302, 303]


SCOPE = "/system.slice/run-r1.scope"


def into(tree: Tree, cgroup: str, *pids: int) -> None:
    for pid in pids:
        tree.table[pid] = replace(tree.table[pid], cgroup=cgroup)


@pytest.mark.parametrize(
    "cgroup",
    [
        SCOPE, "/system.slice/train.service", "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r2.scope",
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
    ],
)  # fmt: skip
def test_a_unit_or_step_that_began_with_the_run_is_the_runs_with_all_in_it(tree: Tree, cgroup: str) -> None:
    agent = tree.add(200, 1, TORCHRUN, session=True)
    rank = tree.add(201, 200, RANK, session=True)
    tree.add(300, 1, ("redis-server",), session=True)
    tree.add(301, 1, ("redis-server",), session=True)
    into(tree, cgroup, 200, 201)
    into(tree, f"{cgroup}/below", 300)
    found = own_cgroups(tree.table, [rank, agent])
    assert found == (cgroup,)
    made = kill_set(tree.table, [rank], GOVERNOR, cgroups=found)
    assert made is not None
    assert pids(made.members) == [200, 201, 300]
    assert pids(unsure(tree.table, [rank], GOVERNOR, [], found)) == []


@pytest.mark.parametrize(
    "cgroup",
    [
        "/", "", "/user.slice/user-1000.slice/session-3.scope", "/init.scope", "/docker/0123", "/user.slice",
        "/system.slice/docker-0123.scope", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123.scope",
        "/user.slice/user-1000.slice/user@1000.service", "/machine.slice/machine-box.scope/system.slice/a.service",
    ],
)  # fmt: skip
def test_logins_and_containers_are_shared_even_if_the_run_is_the_first_there(tree: Tree, cgroup: str) -> None:
    rank = tree.add(201, 1, RANK, session=True)
    into(tree, cgroup, 201)
    assert own_cgroups(tree.table, [rank]) == ()


def test_a_unit_whose_shell_started_the_run_may_have_other_runs(tree: Tree) -> None:
    """Also where the shell started it within the same tick of the clock."""
    shell = tree.add(200, 1, ("bash", "job.sh"), session=True)
    for pid, ticks in ((201, None), (202, shell.start_ticks)):
        rank = tree.add(pid, 200, RANK, session=True, ticks=ticks)
        into(tree, SCOPE, 200, pid)
        assert own_cgroups(tree.table, [rank]) == ()


def test_the_step_daemon_of_another_user_takes_no_unit_from_the_run(tree: Tree) -> None:
    tree.add(150, 1, ("slurmstepd",), uid=0)
    rank = tree.add(201, 150, RANK, session=True)
    into(tree, SCOPE, 150, 201)
    assert own_cgroups(tree.table, [rank]) == (SCOPE,)
    made = kill_set(tree.table, [rank], GOVERNOR, cgroups=[SCOPE])
    assert made is not None
    assert pids(made.members) == [201]


def test_a_step_is_not_the_step_whose_number_begins_alike(tree: Tree) -> None:
    """Slurm's step_1 and step_10 of one job and user."""
    job = "/system.slice/slurmstepd.scope/job_4711"
    rank = tree.add(201, 1, RANK, session=True)
    for pid, step in ((201, "step_1"), (301, "step_10"), (302, "step_10/user/task_0"), (303, "step_1/user/task_0")):
        if pid != rank.pid:
            tree.add(pid, 1, ("python", "other.py"), session=True)
        into(tree, f"{job}/{step}", pid)
    made = kill_set(tree.table, [rank], GOVERNOR, cgroups=[f"{job}/step_1"])
    assert made is not None
    assert pids(made.members) == [201, 303]
