"""What is another run's is in no kill set, wherever it stands: a unit, a launcher, a terminal server in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from governor.core.base.identity import MARK_PART_BITS, ProcessId
from governor.core.halt.kill_set import KillSet, kill_set
from governor.core.halt.neighbours import Ties, own_ties, siblings
from governor.core.halt.programs import is_sibling, program_key
from tests.unit.core.halt.test_kill_set import GOVERNOR, PYTHON, RANK, TORCHRUN, USER, Tree, pids, tree

__all__ = ["tree"]
SCOPE = "/system.slice/run-u12.scope"
MARK = 0x9ABCDEF012
GOVERNING = (PYTHON, "/venv/bin/costgov", "run", "--name", "y", "--", "python", "t.py")


def marked(tree: Tree, pid: int, ppid: int, mark: int, argv: tuple[str, ...] = RANK) -> ProcessId:
    process = tree.add(pid, ppid, argv, session=True)
    tree.table[pid] = replace(tree.table[pid], mark=mark)
    return process


def own(number: int) -> int:
    """The mark of a rank within the launch."""
    return MARK << MARK_PART_BITS | 1 << (MARK_PART_BITS - 1) | number


def halted(
    tree: Tree, rank: ProcessId, others: Iterable[ProcessId] = (), *, launchers: tuple[ProcessId, ...] = (),
    marks: tuple[int, ...] = (), cgroups: tuple[str, ...] = (),
) -> tuple[KillSet, Ties]:  # fmt: skip
    ties = own_ties(tree.table, [rank], launchers, marks, cgroups, others, GOVERNOR, uids=[USER])
    made = kill_set(
        tree.table, [rank], GOVERNOR, launchers=launchers, marks=ties.marks, cgroups=ties.cgroups, spared=ties.spared
    )
    assert made is not None
    return made, ties


def test_runs_of_one_scope_whose_shell_is_gone_are_one_anothers_neighbours(tree: Tree) -> None:
    ranks = [tree.add(pid, 1, RANK, session=True) for pid in (201, 202)]
    tree.add(203, 202, RANK)
    tree.add(204, 201, RANK)
    tree.add(205, 1, ("redis-server",), session=True)
    for pid in range(201, 206):
        tree.table[pid] = replace(tree.table[pid], cgroup=SCOPE)
    made, ties = halted(tree, ranks[0], ranks[1:], cgroups=(SCOPE,))
    assert pids(made.members) == [201, 204]
    assert pids(ties.shared(tree.table, [USER])) == [201, 204, 205], "what neither run is known to have is named"
    assert sorted(pids(halted(tree, ranks[0], cgroups=(SCOPE,))[0].members)) == [201, 202, 203, 204, 205]
    tree.add(206, 1, ("httpd",), session=True)
    tree.table[206] = replace(tree.table[206], cgroup=SCOPE, uid=USER + 1)
    assert pids(ties.shared(tree.table, [USER])) == [201, 204, 205], "another user's is no halt's of this run"
    tree.table[205] = replace(tree.table[205], state="Z")
    assert pids(ties.shared(tree.table, [USER])) == [201, 204], "and not what is dead"


def test_a_launcher_in_common_and_its_mark_are_neither_runs(tree: Tree) -> None:
    """`costgov run -- sh sweep.sh`: the shell starts two runs, each with a daemon, and a daemon for both."""
    shell = marked(tree, 200, 100, MARK, ("sh", "sweep.sh"))
    ranks = [marked(tree, pid, 200, own(pid)) for pid in (201, 202)]
    for pid, mark in ((301, own(201)), (302, own(202)), (303, MARK)):
        marked(tree, pid, 1, mark, ("daemon",))
    made, _ = halted(tree, ranks[0], ranks[1:], launchers=(shell,), marks=(MARK,))
    assert pids(made.members) == [201, 301]
    assert sorted(pids(halted(tree, ranks[0], launchers=(shell,), marks=(MARK,))[0].members)) == [
        200, 201, 202, 301, 302, 303,
    ]  # fmt: skip


def test_a_run_inside_the_runs_own_tree_is_spared_and_the_runs_launcher_is_not(tree: Tree) -> None:
    agent = tree.add(200, 100, TORCHRUN, group=True)
    rank = tree.add(201, 200, RANK, session=True)
    tree.add(202, 201, ("sh", "eval.sh"))
    inner = tree.add(203, 202, RANK)
    tree.add(204, 203, RANK)
    made, _ = halted(tree, rank, [inner], launchers=(agent,))
    assert pids(made.members) == [200, 201]
    assert pids(halted(tree, rank, [rank], launchers=(agent,))[0].members) == [200, 201, 202, 203, 204]


def test_a_governor_that_works_in_the_runs_terminal_server_ends_no_more_than_what_is_beside_it(tree: Tree) -> None:
    rank = marked(tree, 201, 100, own(1))
    marked(tree, 300, GOVERNOR, MARK, ("tmux", "new"))  # The orphans of the command come to its governor.
    marked(tree, 301, 300, MARK, GOVERNING)
    marked(tree, 302, 301, own(7))
    marked(tree, 303, 1, own(7), ("redis-server",))  # It has left the other command's tree.
    marked(tree, 304, 300, MARK, ("vi",))
    made, ties = halted(tree, rank, marks=(MARK,))
    assert pids(made.members) == [201]
    assert pids(ties.shared(tree.table, [USER])) == [201, 304]
    tree.end(302)
    assert sorted(pids(halted(tree, rank, marks=(MARK,))[0].members)) == [201, 300, 301, 303, 304], "it has no command"


def test_a_governor_inside_the_tree_is_a_launcher_of_the_run(tree: Tree) -> None:
    command = marked(tree, 200, 100, MARK, ("sh", "job.sh"))
    marked(tree, 201, 200, MARK, GOVERNING)
    marked(tree, 202, 201, own(7))
    ties = own_ties(tree.table, [], [command], [MARK], [], [], GOVERNOR, uids=[USER])
    assert ties == Ties((MARK,), ())


def as_stranger(tree: Tree, pid: int) -> None:
    tree.table[pid] = replace(tree.table[pid], uid=USER + 1)


def test_another_users_copy_of_the_mark_saves_nothing_of_the_run(tree: Tree) -> None:
    """Everybody may read the mark and set it: the stranger's rank has the run's own, and says hello as its own run."""
    rank = marked(tree, 201, 100, own(1))
    stranger = marked(tree, 301, 1, own(1))
    as_stranger(tree, 301)
    for pid, mark in ((202, own(1)), (203, MARK)):
        marked(tree, pid, 1, mark, ("httpd",))
    made, ties = halted(tree, rank, [stranger], marks=(MARK, own(1)))
    assert sorted(pids(made.members)) == [201, 202, 203]
    assert (ties.shared_marks, 202 in ties.spared) == ((), False)
    tree.end(201)
    ties = own_ties(tree.table, [rank], [], [MARK, own(1)], [], [stranger], GOVERNOR, uids=[USER])
    assert (ties.marks, ties.spared) == ((MARK, own(1)), frozenset({301})), "its rank is gone, and its mark its own"


def test_a_strangers_setuid_program_with_a_copied_mark_saves_nothing_of_the_run(tree: Tree) -> None:
    """It said hello as the stranger and became `su`: the table shows the uid of the run, which is root's."""
    rank = marked(tree, 201, 100, own(1))
    became_su = marked(tree, 301, 1, own(1), ("su",))
    ties = own_ties(
        tree.table, [rank], [], [own(1)], [], [became_su], GOVERNOR, uids=[USER], strangers=[became_su]
    )  # fmt: skip
    assert (ties.marks, ties.shared_marks, ties.spared) == ((own(1),), (), frozenset({301}))


def test_another_users_costgov_run_with_a_copied_mark_saves_nothing_of_the_run(tree: Tree) -> None:
    rank = marked(tree, 201, 100, own(1))
    marked(tree, 202, 1, MARK, ("httpd",))
    marked(tree, 301, 1, MARK, GOVERNING)
    marked(tree, 302, 301, MARK)
    for pid in (301, 302):
        as_stranger(tree, pid)
    made, ties = halted(tree, rank, marks=(MARK,))
    assert (sorted(pids(made.members)), ties) == ([201, 202], Ties((MARK,), ()))


def in_scope(tree: Tree, *of: int) -> None:
    for pid in of:
        tree.table[pid] = replace(tree.table[pid], cgroup=SCOPE)


def test_another_users_run_in_the_unit_saves_itself_and_nothing_of_the_run(tree: Tree) -> None:
    rank = tree.add(201, 1, RANK, session=True)
    stray = tree.add(202, 1, ("redis-server",), session=True)
    stranger = tree.add(301, 1, RANK, session=True, uid=USER + 1)
    through_sudo = tree.add(302, 301, RANK)  # Nobody but the stranger has started it.
    in_scope(tree, 201, 202, 301, 302)
    made, ties = halted(tree, rank, [stranger], cgroups=(SCOPE,))
    assert made.members == (rank, stray)
    assert (ties.cgroups, ties.shared_cgroups, through_sudo.pid in ties.spared) == ((SCOPE,), (), True)


def test_another_users_costgov_run_in_the_unit_saves_its_command_and_nothing_of_the_run(tree: Tree) -> None:
    """Root's has a command of the run's user. The stranger's has one that is a setuid program with a copied mark."""
    rank = marked(tree, 201, 1, own(1))
    strays = [marked(tree, 202, 1, MARK, ("httpd",)), tree.add(203, 1, ("redis-server",), session=True)]
    for governor, command, mark in ((300, 301, MARK + 1), (400, 401, MARK)):
        tree.add(governor, 1, GOVERNING, session=True, uid=0)
        marked(tree, command, governor, mark)
    marked(tree, 302, 1, MARK + 1, ("redis-server",))  # It has left the other command's tree.
    in_scope(tree, 201, 202, 203, 300, 301, 302, 400, 401)
    tree.end(201)
    ties = own_ties(tree.table, [rank], [], [MARK], [SCOPE], [], GOVERNOR, uids=[USER])
    made = kill_set(tree.table, [rank], GOVERNOR, uid=USER, marks=ties.marks, cgroups=ties.cgroups, spared=ties.spared)
    assert made is not None
    assert list(made.members) == strays
    assert ties.spared == {300, 301, 302, 400, 401}


def test_another_users_run_below_the_runs_launcher_saves_neither_it_nor_what_it_has_started(tree: Tree) -> None:
    """Root's job has dropped to a user for a part of its work. Only `su` lives: it would pass the signal on."""
    shell = tree.add(200, 100, ("sh", "job.sh"), group=True)
    rank = tree.add(201, 200, RANK)
    dropped = tree.add(202, 200, ("data-server",))
    strangers = [tree.add(203, 202, ("loader",), uid=USER + 1)]
    tree.add(204, 203, ("sudo", "convert"))
    tree.add(205, 200, ("su", "other"))
    strangers.append(tree.add(206, 205, RANK, uid=USER + 1))
    strangers.append(tree.add(207, 200, ("passwd",)))  # Setuid: the stranger that had announced it ran it then.
    ties = own_ties(
        tree.table, [rank], [shell], [], [], strangers, GOVERNOR, uids=[USER], strangers=strangers
    )  # fmt: skip
    made = kill_set(tree.table, [rank], GOVERNOR, launchers=[shell], spared=ties.spared)
    assert made is not None
    assert pids(made.members) == [200, 201, dropped.pid, 204]


def test_another_users_process_is_no_sibling_of_the_sweep(tree: Tree) -> None:
    rank = tree.add(201, 1, (PYTHON, "train.py", "--lr", "1"), session=True)
    other = tree.add(202, 1, (PYTHON, "train.py", "--lr", "2"), session=True)
    tree.add(203, 1, (PYTHON, "train.py", "--lr", "3"), session=True, uid=USER + 1)
    in_scope(tree, 201, 202, 203)
    assert siblings(tree.table, [rank], [], [], [SCOPE], uids=[USER]) == (other,)
    assert siblings(tree.table, [rank], [other], [], [SCOPE], uids=[USER]) == ()


def test_what_the_halt_has_known_as_the_runs_is_given_up_to_another_runs_announcement_alone(tree: Tree) -> None:
    """Its launcher and its rank are gone. It looks like a `costgov run` in the unit, or like a run of the sweep."""
    worker = tree.add(202, 1, GOVERNING, session=True)
    command = tree.add(203, 202, RANK, session=True)
    stranger = tree.add(300, 1, RANK, session=True, uid=USER + 1)
    below = tree.add(301, 300, RANK)
    in_scope(tree, 202, 203, 300, 301)

    def spared(others: Iterable[ProcessId], kept: Iterable[ProcessId]) -> set[int]:
        return set(
            own_ties(
                tree.table, [], [], [], [SCOPE], others, GOVERNOR, uids=[USER], guesses=[command], kept=kept
            ).spared
        )  # fmt: skip

    assert spared([], []) == {202, 203}
    assert spared([], [worker]) == set(), "what is below it is the run's too"
    assert spared([command], [worker, command]) == {202, 203}
    assert spared([stranger], [below]) == {202, 203, 300}


MADE = "/system.slice/costgov-x-0a1b2c3d"


def test_no_guess_gives_up_the_group_that_was_made_for_the_command(tree: Tree) -> None:
    """All of these were detached by the rank and have dropped its mark: only the group still tells whose they are."""
    rank = tree.add(201, 100, (PYTHON, "train.py", "--lr", "1"), session=True)
    sibling = tree.add(301, 1, (PYTHON, "train.py", "decoy"), session=True)
    apart = tree.add(302, 1, ("httpd3",), session=True)
    tree.add(303, 1, ("/usr/bin/costgov", "sh", "run"), session=True)
    tree.add(304, 303, ("httpd2",), session=True)
    tree.add(305, 1, ("httpd",), session=True)
    for pid in (201, 301, 302, 303, 304, 305):
        tree.table[pid] = replace(tree.table[pid], cgroup=MADE)
    ties = own_ties(tree.table, [rank], [], [], [MADE], [], GOVERNOR, uids=[USER], guesses=(sibling, apart), made=MADE)
    assert ties == Ties((), (MADE,))
    assert own_ties(tree.table, [rank], [], [], [MADE], [sibling], GOVERNOR, uids=[USER], made=MADE).shared_cgroups == (
        MADE,
    ), "it has said hello"
    others_halt = own_ties(tree.table, [], [], [], [SCOPE], [], GOVERNOR, uids=[USER], guesses=(sibling,), made=MADE)
    assert others_halt.spared == {sibling.pid}, "another run's halt takes nothing from it"


@pytest.mark.parametrize("own_group", [True, False])
def test_another_costgov_run_has_a_group_of_its_own_for_its_command(tree: Tree, own_group: bool) -> None:
    rank = tree.add(201, 100, RANK, session=True)
    tree.add(300, 1, ("tmux", "new"), session=True)
    tree.add(301, 300, GOVERNING, session=True)
    tree.add(302, 301, RANK, session=True)
    for pid in (201, 300, 301, 302):
        tree.table[pid] = replace(tree.table[pid], cgroup=MADE)
    if own_group:
        tree.table[302] = replace(tree.table[302], cgroup=f"{MADE}/costgov-y-12345678")
    ties = own_ties(tree.table, [rank], [], [], [MADE], [], GOVERNOR, uids=[USER], made=MADE)
    assert ties.spared == (frozenset((300, 301, 302)) if own_group else frozenset())
    assert ties.cgroups == (() if own_group else (MADE,))


def test_a_process_that_was_replaced_is_nobodys_neighbour(tree: Tree) -> None:
    rank, other = tree.add(201, 1, RANK, session=True), tree.add(202, 1, RANK, session=True)
    gone = replace(other, start_ticks=other.start_ticks - 1)
    assert own_ties(tree.table, [rank], [], [], [SCOPE], [gone], GOVERNOR, uids=[USER]) == Ties((), (SCOPE,))


def test_runs_of_a_sweep_in_one_scope_are_neighbours_before_their_hello(tree: Tree) -> None:
    """The shell that began them is gone. One is a rank's fork, and one has the rank's mark: they are the run's."""
    above = tree.add(200, 1, (PYTHON, "train.py"), session=True)
    rank = tree.add(201, 200, (PYTHON, "train.py", "--lr", "1", "--local_rank=0"), session=True)
    other = tree.add(202, 1, (PYTHON, "-u", "train.py", "--lr", "2"), session=True)
    behind = tree.add(203, 1, TORCHRUN, session=True)
    of_torchrun = tree.add(204, 203, RANK)
    tree.add(205, 1, (PYTHON, "train.py", "--lr", "1", "--local_rank", "1"), session=True)
    tree.add(206, 201, (PYTHON, "train.py", "--worker"))
    marked(tree, 207, 1, MARK, (PYTHON, "train.py", "--worker"))
    for pid in range(200, 208):
        tree.table[pid] = replace(tree.table[pid], cgroup=SCOPE)
    tree.add(208, 1, (PYTHON, "train.py", "--lr", "3"), session=True)
    found = siblings(tree.table, [rank], [], [MARK], [SCOPE], uids=[USER])
    assert found == (other, of_torchrun)
    made, ties = halted(tree, rank, found, marks=(MARK,), cgroups=(SCOPE,))
    assert pids(made.members) == [201, 206, 207]
    assert above not in found
    assert behind.pid in ties.spared
    assert pids(ties.shared(tree.table, [USER])) == [200, 201, 205, 206, 207]
    assert siblings(tree.table, [rank], [], [MARK], [], uids=[USER]) == ()


@pytest.mark.parametrize(
    ("rank", "other", "expected"),
    [
        ("train.py --lr 1", "train.py --lr 2", True),
        ("train.py --lr=0.1", "train.py --lr=0.2", True),
        ("train.py --lr 1", "-u train.py", True),
        ("train.py --seed 1", "train.py --seed 2", True),
        ("train.py --out a", "train.py --out b", True),
        ("train.py 0", "train.py 1", True),
        ("train.py --lr 1", "train.py --lr 1 --seed 7", True),
        ("train.py --lr 1", "train.py --lr 1", False),
        ("train.py --lr 1", "-u train.py --lr 1 --local_rank=3", False),
        ("train.py --lr 1", "train.py --node-rank 3 --lr 1", False),
        ("train.py --rank 0 --lr 1", "train.py --rank 1 --lr 1", False),
        ("train.py --rank 0 --lr 1", "train.py --rank 1 --lr 2", True),
        ("train.py --rank=0", "train.py --rank=1", False),
        ("train.py rank=0", "train.py rank=1", False),
        ("train.py --rank 8", "train.py --rank 16", True),
        ("train.py --rank 0 --lora.rank 8", "train.py --rank 1 --lora.rank 8", False),
        ("train.py --process_id 0", "train.py --process_id 1", False),
        ("train.py --process-id=0", "train.py --process-id=12", False),
        ("train.py +trainer.global_rank=0", "train.py +trainer.global_rank=1", False),
        ("train.py --world_rank 0", "train.py --world_rank 1", False),
        ("train.py --machineRank 0", "train.py --machineRank 1", False),
        ("train.py --gpu 0", "train.py --gpu 1", False),
        ("train.py --gpu 3", "train.py --gpu 4", True),
        ("train.py --device cuda:0", "train.py --device cuda:1", False),
        ("train.py --device cuda", "train.py --device cpu", True),
        ("train.py --cuda=0", "train.py --cuda=1", False),
        ("train.py --local_rank 0.1", "train.py --local_rank 0.2", True),
        ("train.py --lr 1", "eval.py --lr 2", False),
        ("train.py --lr 1", "-m train.py --lr 1", False),
        ("train.py --lr 1", "-c pass", False),
    ],
)
def test_a_sibling_has_the_program_and_other_arguments_but_for_the_number_of_a_rank(
    rank: str, other: str, expected: bool
) -> None:
    """The rank has said that it is number 0."""
    key = program_key((PYTHON, *rank.split()), (0, 0))
    assert key is not None
    assert is_sibling((PYTHON, *other.split()), [key]) is expected


def test_what_has_the_arguments_of_any_rank_is_no_sibling_and_secrets_are_not_kept() -> None:
    roles = [(PYTHON, "train.py", "--role", role, "--api_key", "SECRETCANARY12") for role in ("actor", "learner")]
    keys = [key for role in roles if (key := program_key(role)) is not None]
    assert len(keys) == 2
    assert [is_sibling(role, keys) for role in (*roles, (*roles[0], "--lr", "2"))] == [False, False, True]
    assert "SECRETCANARY12" not in str(keys)


def test_what_has_no_program_is_nobodys_sibling() -> None:
    script = (PYTHON, "-c", "train()", "1")
    assert program_key(script) is None
    assert program_key(()) is None
    key = program_key((PYTHON, "train.py"))
    assert key is not None
    assert not is_sibling((*script[:-1], "2"), [key])
    assert not is_sibling((), [key])
