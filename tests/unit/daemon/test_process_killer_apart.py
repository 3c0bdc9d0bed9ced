"""Ending processes beside others: what only bears the mark, what another launch began, the other runs of a sweep."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from governor.core.base.identity import MARK_PART_BITS, Clue, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.halt.adopted import Adoption
from governor.core.halt.programs import program_key
from governor.daemon.process_killer import EMPTY_SCANS, ProcessKiller
from tests.contract.fakes import FakeProcesses
from tests.unit.daemon.test_process_killer import MARK, OWN, grouped, scans


class FakeSurroundings:
    """What the environments and directories of processes say, by pid."""

    directory = "/work"

    def __init__(self, **clues: Clue) -> None:
        self.by_pid = {int(pid.removeprefix("p")): clue for pid, clue in clues.items()}

    def clues(self, of: Iterable[ProcessId]) -> Mapping[ProcessId, Clue]:
        return {process: self.by_pid[process.pid] for process in of if process.pid in self.by_pid}


def test_what_bears_the_mark_in_its_environment_ends_and_what_began_beside_is_named() -> None:
    processes = FakeProcesses()
    server = processes.add(50, argv=["tmux: server"], sid=50)
    marked_before = processes.add(51, ppid=50, sid=51)
    rank = processes.add(100)
    deaf = processes.add(201, ppid=50, sid=201, dies_of=frozenset({signal.SIGKILL}))
    beside = processes.add(202, ppid=50, sid=202, argv=["tensorboard"])
    elsewhere, strangers = processes.add(203, ppid=50, sid=203), processes.add(204, ppid=50, sid=204, uid=7)
    at_a_terminal = processes.add(205, sid=205)
    top = processes.add(206, ppid=50, sid=206, argv=["/venv/bin/python3", "/venv/bin/costgov", "top"])
    mark, other = Clue(MARK << MARK_PART_BITS | 1, "/"), Clue(MARK + 1, "/work")
    clues = FakeSurroundings(
        p51=mark, p201=mark, p202=other, p203=Clue(0, "/"), p204=mark, p205=Clue(0, "/work"), p206=other
    )
    process_killer = ProcessKiller(processes, OWN, surroundings=clues)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        rows = process_killer.begin("i", [rank], [], 1000, signum, marks=[MARK])
    assert [row["pid"] for row in rows] == [deaf.pid]
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure) == ((), ((beside.pid, "tensorboard"),))
    assert set(processes.table()) == {
        p.pid for p in (server, marked_before, beside, elsewhere, strangers, at_a_terminal, top)
    }


def test_one_that_comes_late_with_the_mark_is_ended_too() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    process_killer = ProcessKiller(processes, OWN, surroundings=FakeSurroundings(p201=Clue(MARK, "/")))
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM, marks=[MARK])
    late = processes.add(201, argv=["late"])
    assert scans(process_killer, EMPTY_SCANS + 3) == [()]
    assert late.pid not in processes.table()


GOVERNING = ["/venv/bin/python", "/venv/bin/costgov", "run", "--", "python", "t.py"]


def test_another_launch_in_the_runs_terminal_server_lives_before_it_says_hello() -> None:
    """Where no limit has the mark, the server and the other governor have it in their environment."""
    processes = FakeProcesses()
    rank = processes.add(100)
    server = processes.add(50, argv=["tmux: server"], sid=50)
    governor = processes.add(51, ppid=50, sid=51, argv=GOVERNING)
    command = processes.add(52, ppid=51, sid=52)
    window = processes.add(53, ppid=50, sid=53, argv=["vi"])
    mark, other = Clue(MARK, "/"), Clue(MARK + 1, "/")
    clues = FakeSurroundings(p50=mark, p51=mark, p52=other, p53=mark)
    process_killer = ProcessKiller(processes, OWN, surroundings=clues)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process_killer.begin("i", [rank], [], 1000, signum, marks=[MARK])
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure) == ((), ((window.pid, "vi"),))
    assert set(processes.table()) == {p.pid for p in (server, governor, command, window)}


def test_another_launchs_command_whose_governor_is_gone_lives_and_the_runs_own_windows_end() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    server = processes.add(50, argv=["tmux: server"], sid=50)
    command = processes.add(52, ppid=50, sid=52)
    window = processes.add(53, ppid=50, sid=53)
    inner = processes.add(101, ppid=100, argv=GOVERNING)
    processes.add(102, ppid=101, sid=102, dies_of=frozenset({signal.SIGKILL}))
    mark, other = Clue(MARK, "/"), Clue(MARK + 1, "/")
    clues = FakeSurroundings(p50=mark, p52=other, p53=mark, p102=other)
    process_killer = ProcessKiller(processes, OWN, surroundings=clues)
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM, marks=[MARK])
    assert {inner.pid, window.pid}.isdisjoint(processes.table())
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, marks=[MARK])
    assert scans(process_killer, EMPTY_SCANS + 3) == [()]
    assert set(processes.table()) == {server.pid, command.pid}, "what a launch within the run has left is the run's"


def test_what_has_inherited_the_mark_is_the_runs_whatever_its_environment_says() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    liar = processes.add(201, sid=201)
    processes.by_pid[201].facts = replace(processes.by_pid[201].facts, mark=MARK)
    process_killer = ProcessKiller(processes, OWN, surroundings=FakeSurroundings(p201=Clue(MARK + 1, "/")))
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, marks=[MARK])
    assert liar.pid not in processes.table()


@pytest.mark.parametrize("when", ["the rank is gone before the halt", "the governor is another one"])
def test_a_run_of_the_sweep_lives_though_no_rank_is_left_to_compare_it_with(when: str) -> None:
    """A script may raise at a NaN, and a governor may be killed between SIGTERM and the end."""
    processes = FakeProcesses()
    rank = processes.add(100, argv=["python", "train.py", "--lr", "0.1"])
    other = processes.add(200, argv=["python", "train.py", "--lr", "0.2"])
    key = program_key(("python", "train.py", "--lr", "0.1"))
    assert key is not None
    if when == "the rank is gone before the halt":
        processes.end(100)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process_killer = ProcessKiller(processes, OWN)  # It remembers nothing of an earlier one.
        process_killer.begin("i", [rank], [], 1000, signum, cgroups=["/fake"], programs=[key])
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure) == ((), ((other.pid, "python train.py --lr 0.2"),))
    assert processes.by_pid[other.pid].received == []


@pytest.mark.parametrize("announced", [False, True])
def test_what_an_earlier_governor_has_signalled_is_the_runs_unless_another_run_announces_it(announced: bool) -> None:
    processes = FakeProcesses()
    rank, deaf = ProcessId(100, 7, processes.boot_id), processes.add(300, argv=["httpd"])
    others, reused = (deaf,) if announced else (), processes.add(301)
    foreign = processes.add(302, uid=7)
    signalled = (rank, deaf, replace(reused, start_ticks=1), foreign)
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, signalled=signalled, others=lambda: others)
    assert set(processes.table()) == {301, 302, *((300,) if announced else ())}


@pytest.mark.parametrize("governor", ["the same", "another one"])
def test_a_worker_that_the_halt_has_signalled_is_no_run_of_a_sweep_when_its_launcher_is_gone(governor: str) -> None:
    """It ignores SIGTERM, and only the unit still ties it to the run. So is what it starts then."""
    processes = FakeProcesses()
    launcher = processes.add(100, argv=["torchrun"])
    rank = processes.add(101, ppid=100, argv=["python", "train.py", "--shard", "0"])
    deaf = processes.add(
        102, ppid=100, argv=["python", "train.py", "--shard", "1"], dies_of=frozenset({signal.SIGKILL})
    )  # fmt: skip
    key = program_key(("python", "train.py", "--shard", "0"))
    assert key is not None
    process_killer, signalled = ProcessKiller(processes, OWN), [launcher, rank, deaf]
    process_killer.begin("i", [rank], [launcher], 1000, signal.SIGTERM, cgroups=["/fake"], programs=[key])
    assert set(processes.table()) == {deaf.pid}
    scans(process_killer, 2)
    processes.add(103, ppid=102, argv=["python", "train.py", "--shard", "1", "--loader"])
    if governor == "another one":
        process_killer = ProcessKiller(processes, OWN)
    process_killer.begin(
        "i", [rank], [launcher], 1000, signal.SIGKILL, cgroups=["/fake"], programs=[key], signalled=signalled
    )  # fmt: skip
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure, processes.table()) == ((), (), {})


def test_a_costgov_run_inside_the_command_ends_with_it_also_when_the_command_is_gone_first() -> None:
    processes = FakeProcesses()
    command = processes.add(100, argv=["sh", "job.sh"], mark=MARK)
    processes.add(101, ppid=100, argv=GOVERNING, mark=MARK, dies_of=frozenset({signal.SIGKILL}))
    processes.add(102, ppid=101, sid=102, dies_of=frozenset({signal.SIGKILL}))
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [], [command], 1000, signal.SIGTERM, marks=[MARK])
    assert scans(process_killer, EMPTY_SCANS + 3) == []
    process_killer.begin("i", [], [command], 1000, signal.SIGKILL, marks=[MARK])
    assert (scans(process_killer, EMPTY_SCANS + 3, begin=10), processes.table()) == ([()], {})


@pytest.mark.parametrize("announced", [False, True])
def test_another_user_in_the_unit_lives_and_saves_nothing_of_the_run(announced: bool) -> None:
    processes = FakeProcesses()
    rank = processes.add(100, argv=["python", "train.py", "1"])
    processes.add(101, argv=["sleep", "321"])
    other = processes.add(200, argv=["python", "train.py", "2"], uid=1001)
    others = [other] if announced else []
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM, cgroups=["/fake"], others=lambda: others)
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.unsure, set(processes.table()), processes.by_pid[200].received) == ((), {200}, [])


def test_another_users_run_in_the_group_of_the_command_is_not_ended_with_the_group() -> None:
    processes = FakeProcesses()
    rank, other = processes.add(100), processes.add(200, uid=1001)
    processes.add(101, argv=["sleep", "321"])
    process_killer, group = grouped(processes)
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, cgroups=[group.path], others=lambda: [other])
    assert (scans(process_killer, EMPTY_SCANS + 3), group.kills, set(processes.table())) == ([()], 0, {200})


@pytest.mark.parametrize("says_hello", [False, True])
def test_what_may_be_another_run_of_the_sweep_lives_on_when_the_rank_is_gone(says_hello: bool) -> None:
    processes = FakeProcesses()
    rank = processes.add(100, argv=["python", "train.py", "1"])
    other = processes.add(200, argv=["python", "train.py", "2"])
    others = (other,) if says_hello else ()
    process_killer = ProcessKiller(processes, OWN)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process_killer.begin("i", [rank], [], 1000, signum, cgroups=["/fake"], others=lambda: others)
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure) == ((), () if others else ((other.pid, "python train.py 2"),))
    assert set(processes.table()) == {other.pid}


def test_what_the_rank_detached_into_the_runs_own_group_ends_whatever_it_looks_like() -> None:
    """It has dropped the mark. One looks like a run of a sweep, one like another `costgov run`, one like another's."""
    processes = FakeProcesses()
    rank = processes.add(100, argv=["python", "train.py", "1"])
    processes.add(200, argv=["python", "train.py", "decoy"], dies_of=frozenset({signal.SIGKILL}))
    processes.add(201, argv=GOVERNING, sid=201)
    processes.add(202, ppid=201, sid=202)
    bearer = processes.add(203, argv=["httpd"])
    process_killer, group = grouped(processes)
    process_killer.surroundings = FakeSurroundings(p203=Clue(MARK + 1, "/"))
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM, marks=[MARK], cgroups=[group.path])
    assert set(processes.table()) == {200}, f"{bearer.pid} too has got its signal"
    assert scans(process_killer, EMPTY_SCANS + 3) == [], "the group is not empty"
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, marks=[MARK], cgroups=[group.path])
    (seen,) = [seen for n in range(10, 20) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure, processes.table()) == ((), (), {})


@pytest.mark.parametrize("is_ours_alone", [True, False])
def test_an_orphan_that_dropped_the_mark_ends_or_is_named_and_what_the_governor_started_lives(
    is_ours_alone: bool,
) -> None:
    """Where another's orphans come to `costgov run` too, as to pid 1 of a container, it may be theirs."""
    processes = FakeProcesses()
    governor = processes.add(OWN, argv=GOVERNING, mark=MARK + 1)
    command = processes.add(100, ppid=OWN, sid=100, mark=MARK)
    escaped = processes.add(200, ppid=OWN, sid=200, argv=["python", "train.py"])
    stops_machine = processes.add(300, ppid=OWN, sid=300, mark=MARK + 1)
    process_killer = ProcessKiller(processes, OWN)
    own = frozenset({(stops_machine.pid, stops_machine.start_ticks)})
    process_killer.attend(None, None, Adoption(OWN, 100, MARK, command.start_ticks, is_ours_alone, lambda: own))
    process_killer.begin("i", [], [command], 1000, signal.SIGTERM, marks=[MARK])
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.alive, seen.unsure) == ((), () if is_ours_alone else ((200, "python train.py"),))
    assert set(processes.table()) - {governor.pid, stops_machine.pid} == (set() if is_ours_alone else {200})
    assert processes.by_pid[300].received == []
    # To a run beside the command its orphans are nothing.
    process_killer.end("i")
    processes.add(escaped.pid, ppid=OWN, sid=200)
    process_killer.begin("j", [processes.add(400)], [], 1000, signal.SIGTERM)
    (seen,) = [seen for n in range(10, 15) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert (seen.unsure, 200 in processes.table()) == ((), True)


def test_an_orphan_that_dropped_the_mark_may_be_either_runs_where_the_command_has_two() -> None:
    processes = FakeProcesses()
    processes.add(OWN, argv=GOVERNING, mark=MARK + 1)
    command = processes.add(100, ppid=OWN, sid=100, mark=MARK)
    one, other = (processes.add(pid, ppid=100, mark=MARK << MARK_PART_BITS | pid) for pid in (101, 102))
    processes.add(200, ppid=OWN, sid=200, argv=["python", "train.py"])
    process_killer = ProcessKiller(processes, OWN)
    process_killer.attend(None, None, Adoption(OWN, 100, MARK, 0, True))
    process_killer.begin("i", [one], [command], 1000, signal.SIGTERM, marks=[MARK], others=lambda: [other])
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert seen.unsure == ((200, "python train.py"),)
    assert {200, other.pid} <= set(processes.table())


def test_a_strangers_setuid_program_with_a_copied_mark_keeps_nothing_of_the_run_alive() -> None:
    """It said hello as the stranger: the table shows the uid of the run, which is root's, and a mark of the run."""
    processes = FakeProcesses()
    rank = processes.add(100, mark=MARK)
    left = processes.add(201, sid=201, argv=["httpd"], mark=MARK)
    became_su = processes.add(301, sid=301, argv=["su"], mark=MARK)
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin(
        "i", [rank], [], 1000, signal.SIGKILL, marks=[MARK], others=lambda: [became_su], strangers=lambda: [became_su]
    )  # fmt: skip
    assert (left.pid in processes.table(), set(processes.table())) == (False, {301})
