"""Kill sets of the trees that launchers really build, and of those who must never be in one."""

from __future__ import annotations

import itertools

import pytest

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.halt.kill_set import find_launchers, kill_set, remaining, strays
from governor.core.halt.known_names import is_launcher

USER = 1000
PYTHON = "/venv/bin/python"
TORCHRUN = (PYTHON, "/venv/bin/torchrun", "--nproc_per_node", "2", "train.py")
RANK = (PYTHON, "-u", "train.py")


class Tree:
    """A process table under construction; start ticks count up, sessions and groups are inherited as by fork."""

    def __init__(self) -> None:
        self.table: dict[int, ProcessFacts] = {}
        self._ticks = itertools.count(100)
        self.add(1, 0, ("/sbin/init",), uid=0, session=True)

    def add(
        self, pid: int, ppid: int, argv: tuple[str, ...], *, uid: int = USER, session: bool = False,
        group: bool = False, ticks: int | None = None,
    ) -> ProcessId:  # fmt: skip
        parent = self.table.get(ppid)
        process = ProcessId(pid, next(self._ticks) if ticks is None else ticks, "boot")
        sid = pid if session or parent is None else parent.sid
        pgid = pid if session or group or parent is None else parent.pgid
        self.table[pid] = ProcessFacts(process, ppid, uid, pgid, sid, "S", argv, "/")
        return process

    def end(self, pid: int, reaper: int = 1) -> None:
        del self.table[pid]
        for child, facts in list(self.table.items()):
            if facts.ppid == pid:
                self.table[child] = ProcessFacts(
                    facts.process, reaper, facts.uid, facts.pgid, facts.sid, facts.state, facts.argv, facts.cgroup
                )

    def zombie(self, pid: int) -> None:
        facts = self.table[pid]
        self.table[pid] = ProcessFacts(facts.process, facts.ppid, facts.uid, facts.pgid, facts.sid, "Z", (), "/")


GOVERNOR = 50


@pytest.fixture
def tree() -> Tree:
    """A machine with a governor of its own user and a login shell of the trainer's."""
    tree = Tree()
    tree.add(GOVERNOR, 1, ("costgov", "daemon"), uid=64, session=True)
    tree.add(90, 1, ("sshd: user",), uid=0, session=True)
    tree.add(100, 90, ("-bash",), session=True)
    return tree


def pids(processes: tuple[ProcessId, ...]) -> list[int]:
    return [process.pid for process in processes]


def torchrun_tree(tree: Tree, base: int = 200, parent: int = 100) -> list[ProcessId]:
    """torchrun gives each rank a session of its own; each rank has two data loader workers."""
    tree.add(base, parent, TORCHRUN, group=True)
    ranks = [tree.add(base + 1 + n, base, RANK, session=True) for n in range(2)]
    for rank in ranks:
        tree.add(rank.pid + 10, rank.pid, RANK)
        tree.add(rank.pid + 20, rank.pid, (PYTHON, "-c", "from multiprocessing.resource_tracker import main"))
    return ranks


def deepspeed_tree(tree: Tree, base: int = 300) -> list[ProcessId]:
    """`deepspeed` runs launch.py, which runs the ranks: one session and one process group for all."""
    tree.add(base, 100, (PYTHON, "/venv/bin/deepspeed", "--num_gpus", "2", "t.py"), group=True)
    tree.add(base + 1, base, (PYTHON, "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "t.py"))
    return [tree.add(base + 2 + n, base + 1, (PYTHON, "-u", "t.py", f"--local_rank={n}")) for n in range(2)]


def test_torchrun_agent_first_then_ranks_then_their_workers(tree: Tree) -> None:
    killed = kill_set(tree.table, torchrun_tree(tree), GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [200, 201, 202, 211, 221, 212, 222]


def test_deepspeed_runner_and_launcher_first(tree: Tree) -> None:
    ranks = deepspeed_tree(tree)
    assert pids(find_launchers(tree.table, ranks[0])) == [300, 301]
    killed = kill_set(tree.table, ranks, GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [300, 301, 302, 303]


def test_accelerate_launch_with_a_shell_in_between(tree: Tree) -> None:
    tree.add(400, 100, (PYTHON, "/venv/bin/accelerate", "launch", "train.py"), group=True)
    tree.add(401, 400, ("/bin/sh", "-c", "exec stuff"))
    tree.add(402, 401, (PYTHON, "-m", "torch.distributed.run", "train.py"))
    rank = tree.add(403, 402, RANK, session=True)
    assert pids(find_launchers(tree.table, rank)) == [400, 402]
    killed = kill_set(tree.table, [rank], GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [400, 402, 403, 401]


def test_a_shell_that_forks_has_its_command_line_twice_and_launches_nothing(tree: Tree) -> None:
    """`( python train.py … ) &` in a sweep's script: its other runs stand below the same two shells."""
    tree.add(300, 100, ("bash", "sweep.sh"))
    ranks = []
    for pid in (310, 320):
        tree.add(pid, 300, ("bash", "sweep.sh"))
        ranks.append(tree.add(pid + 1, pid, (PYTHON, "train.py", f"--seed={pid}")))
    killed = kill_set(tree.table, ranks[:1], GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [311]


def test_a_script_that_spawns_its_ranks_is_their_launcher(tree: Tree) -> None:
    tree.add(500, 100, (PYTHON, "train.py"), group=True)
    spawned = tree.add(501, 500, (PYTHON, "-c", "from multiprocessing.spawn import x", "--multiprocessing-fork"))
    assert pids(find_launchers(tree.table, spawned)) == [500]
    tree.add(510, 100, (PYTHON, "fork.py"), group=True)
    assert pids(find_launchers(tree.table, tree.add(511, 510, (PYTHON, "fork.py")))) == [510]


@pytest.mark.parametrize(
    "argv",
    [
        ("torchrun", "x.py"),
        (PYTHON, "/venv/bin/torchrun", "x.py"),
        ("python3.11", "-X", "dev", "-u", "-m", "torch.distributed.run", "x.py"),
        (PYTHON, "-u", "/venv/lib/python3.11/site-packages/deepspeed/launcher/launch.py"),
        (PYTHON, "/venv/bin/accelerate", "launch", "x.py"),
        ("/usr/bin/mpirun", "-np", "8", "python", "x.py"),
        ("srun", "python", "x.py"),
    ],
)
def test_launchers_are_told_by_their_program(argv: tuple[str, ...]) -> None:
    assert is_launcher(argv)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        (PYTHON,),
        (PYTHON, "-m"),
        (PYTHON, "-c", "torchrun"),
        (PYTHON, "train.py", "torchrun"),
        (PYTHON, "-m", "mypkg.train", "-m", "torch.distributed.run"),
        ("vim", "torchrun"),
        ("bash", "-c", "torchrun x.py"),
        ("grep", "deepspeed.launcher.launch"),
        (PYTHON, "/venv/bin/accelerate", "config"),
        ("/home/me/torchrun/train",),
    ],
)
def test_others_are_not(argv: tuple[str, ...]) -> None:
    assert not is_launcher(argv)


def test_a_sibling_run_of_the_same_shell_script_and_command_line_is_untouched(tree: Tree) -> None:
    ours, theirs = torchrun_tree(tree, 200), torchrun_tree(tree, 600)
    killed = kill_set(tree.table, ours, GOVERNOR)
    assert killed is not None
    assert all(process.pid < 600 for process in killed.members)
    for member in killed.members:
        tree.end(member.pid)
    assert strays(tree.table, killed, GOVERNOR) == ()
    tree.end(100)  # Its shell goes too, and nohup keeps the sibling: an orphan with our argv, not ours.
    assert strays(tree.table, killed, GOVERNOR) == ()
    assert theirs


def test_a_sibling_without_launcher_in_the_same_script_is_untouched_even_as_an_orphan(tree: Tree) -> None:
    """SEED=1 python train.py & SEED=2 python train.py &: same session, group, parent, uid and command line."""
    tree.add(700, 100, ("bash", "sweep.sh"), group=True)
    ours, theirs = tree.add(701, 700, RANK), tree.add(702, 700, RANK)
    killed = kill_set(tree.table, [ours], GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [701]
    tree.end(701)
    tree.end(700)
    assert strays(tree.table, killed, GOVERNOR) == ()
    assert theirs.pid in tree.table


def test_the_next_run_of_a_sweep_is_not_a_respawn(tree: Tree) -> None:
    tree.add(700, 100, ("bash", "sweep.sh"), group=True)
    ours = torchrun_tree(tree, 200, parent=700)
    killed = kill_set(tree.table, ours, GOVERNOR)
    assert killed is not None
    for member in killed.members:
        tree.end(member.pid)
    torchrun_tree(tree, 800, parent=700)
    assert strays(tree.table, killed, GOVERNOR) == ()


def test_a_restarting_agent_brings_its_new_ranks_and_their_children_with_it(tree: Tree) -> None:
    killed = kill_set(tree.table, torchrun_tree(tree), GOVERNOR)
    assert killed is not None
    for pid in (201, 202, 211, 212, 221, 222):
        tree.end(pid)
    tree.add(231, 200, RANK, session=True)
    tree.add(232, 231, RANK)
    found = strays(tree.table, killed, GOVERNOR)
    assert pids(found) == [231, 232]
    wider = killed.widened(found)
    tree.end(200)
    tree.end(231)
    tree.add(233, 232, ("sh",))
    assert pids(strays(tree.table, wider, GOVERNOR)) == [233]


def test_a_reused_pid_is_neither_rank_nor_member_nor_session(tree: Tree) -> None:
    ranks = torchrun_tree(tree)
    killed = kill_set(tree.table, ranks, GOVERNOR)
    assert killed is not None
    for member in killed.members:
        tree.end(member.pid)
    tree.add(201, 100, RANK, session=True)
    tree.add(261, 201, RANK)
    assert strays(tree.table, killed, GOVERNOR) == ()
    assert remaining(tree.table, killed) == ()
    again = kill_set(tree.table, ranks, GOVERNOR, uid=USER)
    assert again is not None
    assert again.members == ()


def test_when_nobody_is_left_and_no_uid_is_told_there_is_no_kill_set(tree: Tree) -> None:
    assert kill_set(tree.table, [ProcessId(201, 5, "boot")], GOVERNOR) is None


def test_another_uid_is_left_out_and_its_children_of_ours_are_not(tree: Tree) -> None:
    rank = tree.add(700, 100, RANK, session=True)
    tree.add(701, 700, ("sudo", "nvidia-smi"), uid=0)
    tree.add(702, 701, ("helper",))
    killed = kill_set(tree.table, [rank], GOVERNOR)
    assert killed is not None
    assert pids(killed.members) == [700, 702]


def test_an_announced_rank_of_another_uid_is_left_out(tree: Tree) -> None:
    rank = tree.add(700, 100, RANK, uid=0, session=True)
    killed = kill_set(tree.table, [rank], GOVERNOR, uid=USER)
    assert killed is not None
    assert killed.members == ()


def test_a_launcher_recorded_at_hello_counts_after_it_lost_its_ranks(tree: Tree) -> None:
    ranks = deepspeed_tree(tree)
    launchers = find_launchers(tree.table, ranks[0])
    tree.end(301)
    killed = kill_set(tree.table, ranks, GOVERNOR, launchers=launchers)
    assert killed is not None
    assert pids(killed.members)[0] == 300
    assert pids(killed.members)[1:] == [302, 303]


def test_launchers_come_outermost_first_in_whatever_order_they_were_recorded(tree: Tree) -> None:
    ranks = deepspeed_tree(tree)
    launchers = tuple(reversed(find_launchers(tree.table, ranks[0])))
    killed = kill_set(tree.table, ranks, GOVERNOR, launchers=launchers)
    assert killed is not None
    assert pids(killed.members) == [300, 301, 302, 303]


def test_what_launched_through_another_user_is_not_ours(tree: Tree) -> None:
    tree.add(700, 100, TORCHRUN, group=True)
    tree.add(701, 700, ("sudo", "-u", "user", "python", "train.py"), uid=0)
    rank = tree.add(702, 701, RANK)
    assert find_launchers(tree.table, rank) == ()


def test_a_reused_parent_number_launches_nobody(tree: Tree) -> None:
    rank = tree.add(700, 701, RANK, ticks=500)
    tree.add(701, 100, TORCHRUN, ticks=501)
    assert find_launchers(tree.table, rank) == ()


def test_a_launcher_may_start_a_rank_within_one_tick_of_the_clock(tree: Tree) -> None:
    agent = tree.add(701, 100, TORCHRUN, ticks=500)
    assert find_launchers(tree.table, tree.add(700, 701, RANK, ticks=500)) == (agent,)


def test_a_late_child_that_is_a_zombie_keeps_nobody_waiting(tree: Tree) -> None:
    killed = kill_set(tree.table, torchrun_tree(tree), GOVERNOR)
    assert killed is not None
    tree.add(250, 211, RANK)
    tree.zombie(250)
    assert strays(tree.table, killed, GOVERNOR) == ()


def test_under_costgov_run_the_command_is_ours_and_the_governor_is_not(tree: Tree) -> None:
    tree.add(800, 100, ("costgov", "run", "--", "bash", "go.sh"), group=True)
    tree.add(801, 800, (PYTHON, "-m", "governor.adapters.machine.nvml"))
    command = tree.add(802, 800, ("bash", "go.sh"))
    tree.add(803, 802, TORCHRUN)
    rank = tree.add(804, 803, RANK, session=True)
    assert pids(find_launchers(tree.table, rank, own_pid=800)) == [803]
    killed = kill_set(tree.table, [rank], 800, launchers=[command])
    assert killed is not None
    assert pids(killed.members) == [802, 803, 804]
    for pid in (802, 803, 804):
        tree.end(pid)
    assert strays(tree.table, killed, 800) == ()


def test_our_own_ancestors_are_never_members_even_if_they_launch(tree: Tree) -> None:
    tree.add(900, 100, ("srun", "costgov", "run"), group=True)
    tree.add(901, 900, ("costgov", "run", "--", *TORCHRUN))
    agent = tree.add(902, 901, TORCHRUN)
    rank = tree.add(903, 902, RANK, session=True)
    assert find_launchers(tree.table, rank, own_pid=901) == (agent,)
    killed = kill_set(tree.table, [rank], 901, launchers=[agent, tree.table[900].process])
    assert killed is not None
    assert pids(killed.members) == [902, 903]


def test_pid_1_and_kernel_threads_are_never_members(tree: Tree) -> None:
    tree.add(2, 0, (), uid=0, ticks=2)
    tree.add(3, 2, (), uid=0, ticks=3)
    tree.table[2] = ProcessFacts(ProcessId(2, 2, "boot"), 0, 0, 0, 0, "S", (), "/")
    tree.table[3] = ProcessFacts(ProcessId(3, 3, "boot"), 2, 0, 0, 0, "I", (), "/")
    announced = [facts.process for facts in tree.table.values() if facts.process.pid in (1, 2, 3)]
    killed = kill_set(tree.table, announced, GOVERNOR, uid=0)
    assert killed is not None
    assert killed.members == ()


def test_zombies_are_members_no_scan_waits_for(tree: Tree) -> None:
    killed = kill_set(tree.table, torchrun_tree(tree), GOVERNOR)
    assert killed is not None
    for member in killed.members:
        tree.zombie(member.pid)
    assert remaining(tree.table, killed) == ()
    assert strays(tree.table, killed, GOVERNOR) == ()


def test_a_circle_in_a_torn_table_ends(tree: Tree) -> None:
    rank = tree.add(700, 701, RANK, ticks=500)
    tree.add(701, 700, TORCHRUN, ticks=500)
    killed = kill_set(tree.table, [rank], GOVERNOR)
    assert killed is not None
    assert set(pids(killed.members)) == {700, 701}
