"""Whose the processes are that a killed `costgov run` has left, for the one that goes on with its halt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import MARK_PART_BITS, ProcessId
from governor.core.halt.adopted import REMEMBERED_MAX, Adoption
from governor.core.halt.inherited import Inherited, inherited
from governor.core.halt.left_launch import NEVER_LOOKED, Below, LeftLaunch
from tests.contract.fakes import FakeProcesses

GOVERNOR, COMMAND, MARK = 900, 600, 0x9ABCDEF012
ROOT, USER, OTHER = 0, 2001, 2002
GROUP = "/unit/costgov-drill-0badcafe"


@pytest.fixture
def processes() -> FakeProcesses:
    """The command of the killed one, which init has, and whoever goes on with its halt below a shell."""
    made = FakeProcesses()
    made.add(1, ppid=0, argv=["init"], sid=1, uid=ROOT)
    made.add(COMMAND, sid=COMMAND, argv=["sh", "job.sh"], uid=ROOT, mark=MARK)
    made.add(601, ppid=COMMAND, uid=USER, mark=MARK)
    made.add(90, sid=90, argv=["-bash"], uid=ROOT)
    made.add(GOVERNOR, ppid=90, argv=["costgov", "run"], uid=ROOT)
    made.add(901, ppid=GOVERNOR, argv=["reader"], uid=ROOT)
    return made


def left(processes: FakeProcesses, *below: ProcessId, own: frozenset[tuple[int, int]] = frozenset()) -> Inherited:
    return of_launch(left_launch(processes, *below), own)


def left_launch(processes: FakeProcesses, *below: ProcessId) -> LeftLaunch:
    command = processes.by_pid[COMMAND].facts.process
    return LeftLaunch("drill", ROOT, (command,), MARK, (GROUP,), Below(below))


def of_launch(launch: LeftLaunch, own: frozenset[tuple[int, int]] = frozenset()) -> Inherited:
    return inherited(launch, GOVERNOR, lambda: own, may_end_all=True)


def ended(adoption: Inherited, processes: FakeProcesses) -> set[int]:
    """Those that a halt of the trainer's user may end besides that user's."""
    table = processes.table()
    adoption.learn(table)
    return set(adoption.to_end(adoption.marked(table), (USER,), ()))


def unsure(adoption: Inherited, processes: FakeProcesses) -> list[int]:
    return [facts.process.pid for facts in adoption.unsure(processes.table())]


def test_the_command_and_all_below_it_is_the_launchs_whatever_user_that_is(processes: FakeProcesses) -> None:
    processes.add(602, ppid=601, uid=OTHER, sid=602)
    assert ended(left(processes), processes) == {COMMAND, 602}


def test_another_process_of_the_commands_number_is_not_the_command(processes: FakeProcesses) -> None:
    adoption = left(processes)
    processes.end(COMMAND)
    processes.end(601)
    processes.add(COMMAND, sid=COMMAND, argv=["sshd"], uid=ROOT)
    processes.add(603, ppid=COMMAND, uid=OTHER)
    assert ended(adoption, processes) == set()


def test_what_was_seen_below_it_is_its_own_and_so_is_what_that_starts_now(processes: FakeProcesses) -> None:
    seen = processes.add(700, sid=700, uid=OTHER)
    adoption = left(processes, seen, replace(seen, pid=710))
    processes.add(701, ppid=700, sid=701, uid=OTHER)
    processes.add(710, sid=710, uid=OTHER)  # Younger than what had this number.
    assert ended(adoption, processes) == {COMMAND, 700, 701}
    processes.end(700)  # Its child goes to init, and was seen.
    assert ended(adoption, processes) == {COMMAND, 701}


def test_its_users_mark_tells_and_another_users_copy_is_named_alone(processes: FakeProcesses) -> None:
    processes.add(700, sid=700, uid=ROOT, mark=MARK << MARK_PART_BITS | 0x80001)
    processes.add(701, sid=701, uid=OTHER, mark=MARK)
    adoption = left(processes)
    assert ended(adoption, processes) == {COMMAND, 700}
    assert unsure(adoption, processes) == [701]


def test_who_was_there_before_the_command_is_not_even_named(processes: FakeProcesses) -> None:
    processes.add(701, sid=701, uid=OTHER, mark=MARK, start_ticks=5)
    assert unsure(left(processes), processes) == []


def test_its_session_tells_while_somebody_who_is_known_is_in_it(processes: FakeProcesses) -> None:
    """The command has ended, and its number may have another owner."""
    known = processes.add(700, sid=COMMAND, uid=OTHER)
    processes.add(701, sid=COMMAND, uid=OTHER)
    processes.add(702, ppid=701, sid=702, uid=OTHER)
    adoption, unknown = left(processes, known), left(processes)
    processes.end(COMMAND)
    processes.end(601)
    assert ended(adoption, processes) == {700, 701, 702}
    assert ended(unknown, processes) == set()
    assert unsure(unknown, processes) == [700, 701]


def test_what_is_in_its_control_group_is_its_own(processes: FakeProcesses) -> None:
    processes.add(700, sid=700, uid=OTHER)
    processes.add(701, sid=701, uid=OTHER)
    for pid, cgroup in ((700, f"{GROUP}/inner"), (701, f"{GROUP}0")):
        processes.by_pid[pid].facts = replace(processes.by_pid[pid].facts, cgroup=cgroup)
    assert ended(left(processes), processes) == {COMMAND, 700}


def test_who_goes_on_ends_nothing_of_its_own_where_it_was_begun_inside_of_the_launch(processes: FakeProcesses) -> None:
    """In a terminal server that the command has opened: all of it has the mark."""
    reader = processes.add(902, ppid=1, uid=OTHER, mark=MARK)  # It has left us.
    for pid in (90, GOVERNOR, 901):
        processes.by_pid[pid].facts = replace(processes.by_pid[pid].facts, mark=MARK)
    adoption = left(processes, own=frozenset({(902, reader.start_ticks)}))
    assert ended(adoption, processes).isdisjoint((GOVERNOR, 901, 902))
    assert unsure(adoption, processes) == []


def test_roots_manager_with_what_it_has_begun_is_left_and_does_not_count_as_left(processes: FakeProcesses) -> None:
    processes.add(700, ppid=COMMAND, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"], mark=MARK)
    processes.add(701, ppid=700, sid=701, uid=OTHER, argv=["-bash"])
    adoption = left(processes)
    assert ended(adoption, processes) == {COMMAND}
    for pid in (601, COMMAND):
        processes.end(pid)
    assert adoption.living(processes.table(), (USER,), (), ()) == ()


def test_what_lives_when_the_halt_is_over_is_told_but_not_who_looks_nor_anothers_announced_run(
    processes: FakeProcesses,
) -> None:
    sandbox = processes.add(700, ppid=601, uid=OTHER)
    processes.add(701, ppid=700, uid=OTHER)
    processes.add(702, sid=702, uid=OTHER, mark=MARK)
    processes.add(703, ppid=COMMAND, uid=ROOT, mark=MARK, becomes_zombie=True)
    processes.end(703)
    processes.by_pid[90].facts = replace(processes.by_pid[90].facts, mark=MARK)  # The shell that has begun us.
    living = left(processes).living(processes.table(), (USER,), (), (sandbox,))
    assert [facts.process.pid for facts in living] == [COMMAND, 601, 702]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_remembered_is_what_no_mark_tells(processes: FakeProcesses, is_first: bool) -> None:
    other = processes.add(700, ppid=COMMAND, uid=OTHER, mark=MARK)
    dropped = processes.add(701, ppid=COMMAND, uid=ROOT)
    processes.add(702, ppid=COMMAND, uid=ROOT, mark=MARK)
    command = processes.by_pid[COMMAND].facts.process
    adoption: Adoption = left(processes)
    if is_first:
        processes.add(500, argv=["costgov", "run"], uid=ROOT, sid=90, start_ticks=5)
        processes.by_pid[COMMAND].facts = replace(processes.by_pid[COMMAND].facts, ppid=500)
        adoption = Adoption(500, COMMAND, MARK, command.start_ticks, is_ours_alone=True, uid=ROOT)
    trainer = processes.by_pid[601].facts.process
    assert adoption.to_remember(processes.table()) == Below((trainer, other, dropped))
    for pid in range(10_000, 10_000 + REMEMBERED_MAX):
        processes.add(pid, ppid=700, uid=OTHER)
    late = processes.add(20_000, ppid=700, uid=OTHER, sid=20_000)
    remembered = adoption.to_remember(processes.table())
    assert len(remembered.processes) == REMEMBERED_MAX
    assert {trainer, other, dropped, late} <= set(remembered.processes), "of each session the first"
    assert (remembered.shared, remembered.unlisted) == ((), 4)


def test_a_session_of_its_own_is_known_as_long_as_one_lives_in_it_that_was_seen(processes: FakeProcesses) -> None:
    """Of 320 workers in the sessions of eight ranks 64 were not listed, and lived on behind exit code 86."""
    listed = processes.add(700, sid=700, uid=OTHER)
    for pid in (701, 702):
        processes.add(pid, sid=700, uid=OTHER)  # No child of it.
    processes.add(703, ppid=702, sid=703, uid=OTHER)
    adoption = left(processes, listed)
    assert ended(adoption, processes) == {COMMAND, 700, 701, 702, 703}
    processes.end(700)
    processes.add(704, sid=700, uid=OTHER)
    assert ended(adoption, processes) == {COMMAND, 701, 702, 703, 704}
    unseen = left(processes, listed)
    assert ended(unseen, processes) == {COMMAND}


def test_a_session_that_others_were_in_too_tells_nothing(processes: FakeProcesses) -> None:
    """A shell that somebody has moved to the command's control group."""
    moved = processes.add(700, sid=690, uid=OTHER)
    processes.by_pid[700].facts = replace(processes.by_pid[700].facts, cgroup=GROUP)
    processes.add(690, sid=690, uid=OTHER)
    seen = left(processes).to_remember(processes.table())
    assert (seen.shared, moved in seen.processes) == ((moved,), True)
    known = replace(left_launch(processes), cgroups=(), below=seen)
    assert ended(of_launch(known), processes) == {COMMAND, 700}
    unlike = replace(known, below=Below(seen.processes))
    assert ended(of_launch(unlike), processes) == {COMMAND, 690, 700}


def test_that_the_list_was_cut_is_not_forgotten_by_who_goes_on(processes: FakeProcesses) -> None:
    """However many go on, one after the other: of those that were not listed nobody knows any more."""
    launch = LeftLaunch.of(replace(left_launch(processes), cgroups=(), below=Below(unlisted=3)).row())
    for _ in range(2):
        seen = of_launch(launch).to_remember(processes.table())
        launch = LeftLaunch.of(replace(launch, below=seen).row())
        assert (launch.below.unlisted, launch.below.missed) == (0, 3)


def test_that_nobody_has_looked_is_not_taken_for_nothing_to_see(processes: FakeProcesses) -> None:
    launch = replace(left_launch(processes), below=NEVER_LOOKED)
    for _ in range(2):
        launch = LeftLaunch.of(replace(launch, below=of_launch(launch).to_remember(processes.table())).row())
        assert not launch.below.is_looked
    assert LeftLaunch.of({**launch.row(), **Below().row(), "below_never_looked": False}).below == Below()


def test_a_launch_is_the_same_behind_the_journal(processes: FakeProcesses) -> None:
    command, below = (processes.by_pid[pid].facts.process for pid in (COMMAND, 601))
    launch = LeftLaunch("drill", ROOT, (command,), MARK, (GROUP,), Below((below,), (below,), missed=3))
    assert LeftLaunch.of(launch.row()) == launch
    with pytest.raises(ValueError, match="command"):
        LeftLaunch.of({**launch.row(), "processes": []})
