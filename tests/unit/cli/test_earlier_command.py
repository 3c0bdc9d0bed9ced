"""What a command has left of whose end no governor has seen: its next launch waits for that."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.command import launch_lock
from governor.cli.run.relaunch import ALSO_NAMED_MAX, launched_before, taken_for_no_trainer
from governor.core.base.identity import Peer, ProcessId
from governor.core.base.units import BootNs, UsdMicros
from governor.core.engine.managed_run import PreviousCommand
from governor.core.halt.left_launch import LeftLaunch
from tests.unit.cli.test_supervise import OWN_PID, Beside
from tests.unit.core.engine.test_step import hello, play

MARK, USER, OTHER = 0x9ABCDEF012, 1000, 2001


@pytest.fixture
def beside() -> Beside:
    return Beside()


@pytest.fixture
def holder(beside: Beside, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has inherited the lock, and which nothing else ties to the earlier launch."""
    beside.state_dir = tmp_path
    fd = launch_lock.join(tmp_path)
    assert fd is not None
    with subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE, pass_fds=(fd,)) as child:
        os.close(fd)
        yield child
        child.kill()


@pytest.mark.parametrize("is_seen_to_end", [True, False])
@pytest.mark.parametrize("of", ["its user", "another", "nobody that is seen", "an ended one", "a sandbox", "above us"])
def test_who_holds_the_lock_of_the_earlier_launch_refuses_the_next(
    of: str, is_seen_to_end: bool, beside: Beside, holder: subprocess.Popen[bytes]
) -> None:
    """The trainer of another user, for one, when its launcher had been ended as advised."""
    beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=1000, ppid=holder.pid if of == "above us" else 1)
    beside.node.ended_lock = launch_lock.stamp(beside.state_dir)
    if not is_seen_to_end:
        previous(beside)
        beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=1000, ppid=holder.pid if of == "above us" else 1)
    uid = os.getuid() if of in ("its user", "above us") else 2001
    if of not in ("nobody that is seen", "an ended one"):
        process = beside.processes.add(holder.pid, uid=uid, argv=["python", "train.py"], start_ticks=1)
        if of == "a sandbox":
            play(beside.node, hello(0, 1, run="other", world_size=1, peer=Peer(process, 2001)))
            beside.node.runs["other"].is_separate = True
    if of == "an ended one":
        holder.kill()
        holder.wait()
    told = launched_before(beside.governor, "run-1") or ""
    holds = of in ("another", "nobody that is seen", "its user")
    refuses = holds and not is_seen_to_end
    assert bool(told) == refuses, told
    begun_beside = taken_for_no_trainer(beside.governor, "run-1") or ""
    assert ("it is taken for no trainer" in begun_beside) == (holds and is_seen_to_end)
    if of in ("another", "its user") and refuses:
        assert f"perhaps of it: pid {holder.pid} of uid {uid}: python train.py" in told
        assert f"end it with `kill {holder.pid}`" in told
    assert ("cannot be seen from here" in told + begun_beside) == (of == "nobody that is seen")
    if told:
        assert f"holds {beside.state_dir / 'launch.lock'}" in told
        assert "the journal does not know" not in told, "it knows that nobody has seen it"
        launch_lock.path_of(beside.state_dir).unlink()
        assert launched_before(beside.governor, "run-1") is None, "as the line says"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a user who cannot look into another's processes")
@pytest.mark.parametrize("of", ["its user", "above us"])
@pytest.mark.parametrize(("is_seen_to_end", "is_beside"), [(True, True), (False, True), (False, False)])
def test_a_holder_who_is_spared_hides_none_that_cannot_be_looked_into(
    of: str, is_seen_to_end: bool, is_beside: bool, beside: Beside, tmp_path: Path
) -> None:
    """A terminal server above us held the lock, and so did another user's trainer: nobody did, it was told."""
    beside.state_dir = Path()
    with two_users(tmp_path, both_hold=True) as (spared, hidden):
        beside.node.ended_lock = launch_lock.stamp(tmp_path)
        if not is_seen_to_end:
            previous(beside)
        ppid = spared.pid if of == "above us" else 1
        beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=USER, ppid=ppid)
        beside.processes.add(1, uid=0, argv=["init"], start_ticks=1)  # Which no user may look into.
        beside.processes.add(spared.pid, uid=USER, argv=["tmux"], start_ticks=1)
        if is_beside:
            beside.processes.add(hidden.pid, uid=OTHER, argv=["python", "train.py"], start_ticks=9, mark=MARK)
        told = as_user(tmp_path, lambda: launched_before(beside.governor, "run-1") or "")
    if is_seen_to_end or (of == "above us" and not is_beside):
        assert told == "", "a terminal server that the user has opened holds up nothing"
    else:
        assert "somebody of an earlier launch of run-1 still lives and holds" in told
        assert (f"pid {spared.pid} of uid" in told, f"pid {hidden.pid} of uid" in told) == (of == "its user", is_beside)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a user who cannot look into another's processes")
def test_a_holder_who_is_spared_is_named_where_another_may_hold_it_too(beside: Beside, tmp_path: Path) -> None:
    """Else nobody sees why his own terminal cannot launch."""
    beside.state_dir = Path()
    with two_users(tmp_path, both_hold=False) as (spared, hidden):
        previous(beside)
        beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=USER, ppid=spared.pid)
        beside.processes.add(spared.pid, uid=USER, argv=["tmux"], start_ticks=1)
        beside.processes.add(hidden.pid, uid=OTHER, argv=["python", "train.py"], start_ticks=9)
        told = as_user(tmp_path, lambda: launched_before(beside.governor, "run-1") or "")
    assert f"who that is cannot be seen from here; pid {spared.pid}, which holds it too, is above this launch" in told


@contextmanager
def two_users(place: Path, *, both_hold: bool) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """A process of the user that has inherited the lock, and one of another user, who may have it too."""
    fd = launch_lock.join(place)
    assert fd is not None
    read = ["sh", "-c", "read line"]
    with (
        subprocess.Popen(read, stdin=subprocess.PIPE, pass_fds=(fd,), user=USER, group=USER) as first,
        subprocess.Popen(read, stdin=subprocess.PIPE, pass_fds=(fd,) if both_hold else (), user=OTHER) as second,
    ):
        os.close(fd)
        yield first, second
        for child in (first, second):
            child.kill()


def as_user(place: Path, look: Callable[[], str]) -> str:
    """What another user than root sees, in a directory that is his."""
    for path in (place, launch_lock.path_of(place)):
        os.chown(path, USER, USER)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(place)
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            os.write(writes, look().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as said:
        told = said.read()
    os.waitpid(child, 0)
    return told


def test_who_is_not_named_is_counted_and_the_line_says_how_to_end_them_too(beside: Beside) -> None:
    """It named 64 of 301 as if these were all."""
    launch = previous(beside)
    for pid in range(700, 700 + ALSO_NAMED_MAX + 3):
        beside.processes.add(pid, sid=pid, mark=launch.mark)
    told = launched_before(beside.governor, "run-1") or ""
    assert f"pid 700, 701, 702, 703, 704, 705, 706, 707 and {ALSO_NAMED_MAX - 5} more" in told
    assert f" {700 + ALSO_NAMED_MAX - 1}` and launch again: 3 more are named then," in told


@pytest.mark.parametrize("has", ["no row of any launch", "an older launch's"])
def test_a_journal_that_does_not_say_that_this_launch_was_seen_to_its_end_lets_nobody_begin_beside_a_holder(
    has: str, beside: Beside, holder: subprocess.Popen[bytes]
) -> None:
    """It was full, lost or put back: what it did not know was taken for over, and a second trainer began."""
    beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=1000)
    beside.processes.add(holder.pid, uid=os.getuid())
    stamp = launch_lock.stamp(beside.state_dir)
    assert stamp is not None
    beside.node.ended_lock = stamp - 1 if has == "an older launch's" else None
    told = launched_before(beside.governor, "run-1") or ""
    assert f"pid {holder.pid} of uid" in told
    assert "the journal does not know how that launch ended" in told
    assert taken_for_no_trainer(beside.governor, "run-1") is None
    beside.node.ended_lock = stamp
    assert launched_before(beside.governor, "run-1") is None
    launch = launch_lock.join(beside.state_dir)
    assert launch is not None
    os.close(launch)
    assert f"pid {holder.pid} of uid" in (launched_before(beside.governor, "run-1") or ""), "of another one since"


def previous(beside: Beside, **over: Any) -> LeftLaunch:
    """A command that has ended, and whose end no governor has seen."""
    beside.processes.add(OWN_PID, argv=["costgov", "run"], uid=1000)
    gone = ProcessId(600, 5, beside.processes.boot_id)
    launch = replace(LeftLaunch("run-1", USER, (gone,), MARK, ("/run-1.scope",)), **over)
    beside.node.previous_command = PreviousCommand(
        "run-1", (gone,), None, BootNs(0), (), UsdMicros(0), is_unattached=True, launch=launch
    )
    return launch


def test_a_rank_in_a_session_of_its_own_is_of_the_earlier_launch_when_its_launcher_is_gone(beside: Beside) -> None:
    """The advised `kill` of the launcher alone had the next launch train beside it."""
    launch = previous(beside)
    beside.processes.add(700, sid=700, argv=["python", "rank.py"], mark=launch.mark)
    beside.processes.add(701, ppid=700, sid=701, uid=2001)
    beside.processes.add(702, sid=702)
    beside.processes.by_pid[702].facts = replace(beside.processes.by_pid[702].facts, cgroup="/run-1.scope/0")
    told = launched_before(beside.governor, "run-1") or ""
    assert "(pid 700, 701, 702: python rank.py)" in told
    assert "`kill 700 701 702`" in told
    for pid in (702, 701, 700):
        beside.processes.end(pid)
    assert launched_before(beside.governor, "run-1") is None


def test_a_rank_whose_launcher_had_ended_before_costgov_was_killed_is_of_the_earlier_launch(beside: Beside) -> None:
    """The living governor waited for its hello, and the journal had forgotten it."""
    launch = previous(beside)
    beside.node.previous_command, beside.node.left = None, launch
    beside.processes.add(700, sid=700, mark=launch.mark)
    assert "`kill 700`" in (launched_before(beside.governor, "run-1") or "")
    beside.processes.end(700)
    assert launched_before(beside.governor, "run-1") is None


@pytest.mark.parametrize("why", ["another boot", "another user's copy", "where we are", "an end that was seen"])
def test_no_sign_of_the_earlier_launch_refuses_a_launch_of_itself(beside: Beside, why: str) -> None:
    launch = previous(beside)
    ppid, uid = (OWN_PID, 1000) if why == "where we are" else (1, 2001 if why == "another user's copy" else 1000)
    beside.processes.add(700, ppid=ppid, sid=700, uid=uid, mark=launch.mark)
    if why == "where we are":  # A terminal that the command has opened.
        beside.processes.by_pid[OWN_PID].facts = replace(beside.processes.by_pid[OWN_PID].facts, mark=launch.mark)
    if why == "another boot":
        previous(beside, processes=(replace(launch.processes[0], boot_id="boot-0"),))
    if why == "an end that was seen":
        beside.node.previous_command = None
    assert launched_before(beside.governor, "run-1") is None


def test_a_sandbox_below_the_earlier_launch_refuses_no_launch(beside: Beside) -> None:
    launch = previous(beside)
    sandbox = beside.processes.add(700, sid=700, mark=launch.mark)
    play(beside.node, hello(0, 1, run="other", world_size=1, peer=Peer(sandbox, 2001)))
    beside.node.runs["other"].is_separate = True
    assert beside.node.runs["other"].is_strangers
    assert launched_before(beside.governor, "run-1") is None
