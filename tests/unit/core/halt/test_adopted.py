"""Whose the orphans are that come to `costgov run`, where they have dropped all that they had inherited."""

from __future__ import annotations

import pytest

from governor.core.base.identity import MARK_PART_BITS
from governor.core.halt.adopted import Adoption
from tests.contract.fakes import FakeProcesses

GOVERNOR, COMMAND, SINCE = 500, 600, 2_000
READER = 1_900
OUTER = 0x81234
OURS, MARK = OUTER << 2 * MARK_PART_BITS | 0x9ABCDEF012, OUTER << 2 * MARK_PART_BITS | 0x8123456789


@pytest.fixture
def processes() -> FakeProcesses:
    """`costgov run`, what it has started itself, and its command."""
    made = FakeProcesses()
    made.add(1, ppid=0, argv=["init"], sid=1)
    made.add(90, argv=["-bash"], sid=90, mark=OUTER)
    made.add(GOVERNOR, ppid=90, argv=["costgov", "run"], mark=OURS)
    made.add(501, ppid=GOVERNOR, argv=["reader"], sid=501, mark=OURS, start_ticks=READER)
    made.add(COMMAND, ppid=GOVERNOR, argv=["sh", "job.sh"], sid=COMMAND, mark=MARK, start_ticks=SINCE)
    made.add(601, ppid=COMMAND, mark=MARK, start_ticks=SINCE)
    return made


def adoption(*more: tuple[int, int], is_ours_alone: bool = True) -> Adoption:
    """`more`: what else we have started, and what that has left, by number and start."""
    own = frozenset({(501, READER), *more})
    return Adoption(GOVERNOR, COMMAND, MARK, SINCE, is_ours_alone, lambda: own)


def escape(processes: FakeProcesses, pid: int, mark: int = 0, *, ppid: int = GOVERNOR, start_ticks: int = 3_000) -> int:
    processes.add(pid, ppid=ppid, sid=pid, mark=mark, start_ticks=start_ticks)
    return pid


def marked(adopted: Adoption, processes: FakeProcesses) -> set[int]:
    table = adopted.marked(processes.table())
    return {pid for pid, facts in table.items() if facts.mark == MARK and facts != processes.facts(pid)}


# Unlimited, another limit, that of whoever started `costgov run`, and one of its own that a rank has set.
@pytest.mark.parametrize("mark", [0, 1024, OUTER, OUTER << MARK_PART_BITS | 0x80001])
def test_an_orphan_that_has_dropped_the_mark_is_the_commands_with_all_below_it(
    processes: FakeProcesses, mark: int
) -> None:
    escaped, below = escape(processes, 700, mark), escape(processes, 701, 0, ppid=700)
    assert marked(adoption(), processes) == {escaped, below}
    assert adoption().unsure(processes.table()) == ()


def test_what_we_have_started_and_what_that_has_left_behind_is_not_the_commands(processes: FakeProcesses) -> None:
    escape(processes, 502, OURS)  # An orphan of the command that stops the machine.
    escape(processes, 503, OURS << MARK_PART_BITS | 0x80001, ppid=502)
    ours = adoption((502, 3_000))
    ours.learn(processes.table())
    assert marked(ours, processes) == set()


@pytest.mark.parametrize("copied", [OURS, OURS << MARK_PART_BITS | 0x80001])
def test_our_own_limit_is_no_proof_of_what_we_have_started(processes: FakeProcesses, copied: int) -> None:
    """`prlimit --locks=…` with the number in /proc/$PPID/limits: it outlived the halt and was in no line."""
    copy = escape(processes, 700, copied)
    assert marked(adoption(), processes) == {copy}
    shared = adoption(is_ours_alone=False)
    assert marked(shared, processes) == set()
    assert [facts.process.pid for facts in shared.unsure(processes.table())] == [copy]


def test_what_is_in_our_session_is_never_the_commands(processes: FakeProcesses) -> None:
    """Which has a session of its own: a library that forks may be ours, whoever has not noted it."""
    processes.add(GOVERNOR, ppid=90, argv=["costgov", "run"], sid=90, mark=OURS, start_ticks=1_500)
    processes.add(700, ppid=GOVERNOR, sid=90, mark=OURS, start_ticks=3_000)
    assert marked(adoption(), processes) == set()


def test_a_command_that_looks_like_one_of_ours_is_the_command_with_all_below_it(processes: FakeProcesses) -> None:
    """It began while we started one, and no limit could be set."""
    below = escape(processes, 700, ppid=601)
    ours = adoption((COMMAND, SINCE))
    ours.learn(processes.table())
    assert marked(ours, processes) == {below}


def test_a_stop_command_that_goes_through_pam_stays_ours_with_all_below_it_also_when_its_parent_is_gone(
    processes: FakeProcesses,
) -> None:
    """`runuser -u nobody -- stop.sh`: PAM sets the limit that bears the mark to unlimited."""
    runuser = escape(processes, 700)
    escape(processes, 701, ppid=runuser)
    for is_ours_alone in (True, False):
        ours = adoption((runuser, 3_000), is_ours_alone=is_ours_alone)
        ours.learn(processes.table())
        assert marked(ours, processes) == set()
        assert ours.unsure(processes.table()) == ()
        left = FakeProcesses()
        for facts in processes.table().values():
            if facts.process.pid != runuser:
                ppid = GOVERNOR if facts.ppid == runuser else facts.ppid
                left.add(facts.process.pid, ppid=ppid, sid=facts.sid, mark=facts.mark,
                         start_ticks=facts.process.start_ticks)  # fmt: skip
        ours.learn(left.table())
        assert marked(ours, left) == set()
        assert ours.unsure(left.table()) == ()


def test_a_process_of_the_commands_with_the_number_that_one_of_ours_had_is_the_commands(
    processes: FakeProcesses,
) -> None:
    escaped = escape(processes, 700)
    ours = adoption((escaped, 2_999))
    ours.learn(processes.table())
    assert marked(ours, processes) == {escaped}


def test_nor_is_what_stands_beside_us_and_without_any_limit_our_own_is_told_too(processes: FakeProcesses) -> None:
    escape(processes, 91, 0, ppid=90)
    escape(processes, 92, 0, ppid=1)
    assert marked(adoption(), processes) == set()
    without = FakeProcesses()
    without.add(GOVERNOR, argv=["costgov", "run"])
    escape(without, 501, start_ticks=READER)
    assert marked(adoption(), without) == set()
    escape(without, 700)
    assert marked(adoption(), without) == {700}


def test_neither_a_reused_number_nor_a_circle_brings_a_stranger_below_us(processes: FakeProcesses) -> None:
    escape(processes, 700)
    escape(processes, 92, ppid=700, start_ticks=2_999)  # Its parent was another 700.
    processes.add(GOVERNOR, ppid=700, argv=["costgov", "run"], sid=90, mark=OURS, start_ticks=1_500)
    assert marked(adoption(), processes) == {700}


def test_where_others_orphans_come_too_what_was_not_seen_below_the_command_is_only_perhaps_its_own(
    processes: FakeProcesses,
) -> None:
    """As pid 1 of a container, or after `server & exec costgov run`."""
    shared = adoption(is_ours_alone=False)
    escape(processes, 400, start_ticks=SINCE - 1)  # Older than the command: nobody asks.
    seen, foreign = escape(processes, 700, ppid=601), escape(processes, 800)
    shared.learn(processes.table())
    processes.add(seen, ppid=GOVERNOR, sid=seen, start_ticks=3_000)  # Its parent is gone.
    below = escape(processes, 701, ppid=seen)
    in_session = processes.add(602, ppid=GOVERNOR, sid=COMMAND, start_ticks=3_000)
    assert marked(shared, processes) == {seen, below, in_session.pid}
    assert [facts.process.pid for facts in shared.unsure(processes.table())] == [foreign]


def test_a_number_that_was_given_again_is_not_the_one_that_was_seen(processes: FakeProcesses) -> None:
    shared = adoption(is_ours_alone=False)
    escape(processes, 700, ppid=601)
    shared.learn(processes.table())
    escape(processes, 700, start_ticks=3_001)
    assert marked(shared, processes) == set()
    assert [facts.process.pid for facts in shared.unsure(processes.table())] == [700]


TRAINER, SANDBOX, THIRD = 2001, 2002, 2003


def test_only_beside_strangers_runs_the_run_of_the_name_has_what_is_of_others_and_what_is_above_both(
    processes: FakeProcesses,
) -> None:
    """Beside a second run of our own user's or of the trainer's, what is of none of them may be that run's."""
    us = 1000
    trainer, helper, *others = (
        processes.add(700 + number, ppid=COMMAND, uid=uid, start_ticks=3_000)
        for number, uid in enumerate((TRAINER, THIRD, SANDBOX, TRAINER, us))
    )
    named = Adoption(GOVERNOR, COMMAND, MARK, SINCE, is_ours_alone=True, uid=us, may_end_all=True)
    table = processes.table()
    for other, is_strangers in zip(others, (True, False, False), strict=True):
        ended = named.to_end(table, {TRAINER}, [other], has_name=True)
        assert (helper.pid in ended, COMMAND in ended) == (is_strangers, is_strangers)
        assert (COMMAND in named.above_both(table, [trainer], {TRAINER}, [other])) is is_strangers
    assert named.above_both(table, [trainer], {TRAINER}, []) == frozenset(), "there is one run"
