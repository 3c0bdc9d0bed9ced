"""Who of a launch lives is known by the lock that it holds: inherited, or taken by a rank whose launcher closed it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from governor.adapters.command import launch_lock
from trainer_shim.mark import LAUNCH_LOCK

SAFETY_S = 30.0


def test_where_there_was_no_launch_nothing_is_known(tmp_path: Path) -> None:
    assert launch_lock.is_held(tmp_path) is None
    assert launch_lock.join(tmp_path / "missing") is None


@pytest.mark.parametrize("script", ["read line", "exec 3>/dev/null 4>&3; (read line)"])
def test_it_is_held_as_long_as_somebody_lives_who_has_inherited_it(script: str, tmp_path: Path) -> None:
    fd = launch_lock.join(tmp_path)
    assert fd is not None
    child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, pass_fds=(fd,))
    os.close(fd)
    assert launch_lock.is_held(tmp_path)
    child.communicate(b"\n", SAFETY_S)
    assert launch_lock.is_held(tmp_path) is False


def test_who_holds_it_is_found_among_those_that_we_may_look_into(tmp_path: Path) -> None:
    """Not who has a file of that name that is another one, nor somebody who has ended."""
    (tmp_path / "other").mkdir()
    fds = [launch_lock.join(directory) for directory in (tmp_path, tmp_path / "other")]
    assert None not in fds
    children = [
        subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE, pass_fds=passed)
        for passed in (fds[:1], fds[1:], ())
    ]
    for fd in fds:
        os.close(fd)  # type: ignore[arg-type]
    pids = [child.pid for child in children]
    assert launch_lock.holders(tmp_path, [*pids, 2**22 + 1]) == {pids[0]}
    for child in children:
        child.communicate(b"\n", SAFETY_S)
    assert launch_lock.holders(tmp_path, pids) == launch_lock.holders(tmp_path / "missing", pids) == frozenset()


RANK = """
import os
from trainer_shim.mark import join_launch
join_launch(os.environ)
join_launch(os.environ)
print(flush=True)
input()
"""


def test_a_rank_that_inherits_no_descriptor_takes_it_by_its_name(tmp_path: Path) -> None:
    fd = launch_lock.join(tmp_path)
    assert fd is not None
    os.close(fd)
    environ = {**os.environ, **launch_lock.told(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", RANK], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        assert launch_lock.is_held(tmp_path)
        rank.communicate(b"\n", SAFETY_S)
    assert launch_lock.is_held(tmp_path) is False


@pytest.mark.parametrize("environ", [{}, {LAUNCH_LOCK: "/missing/launch.lock"}])
def test_a_rank_without_one_trains_all_the_same(environ: dict[str, str]) -> None:
    whole = {name: value for name, value in os.environ.items() if name != LAUNCH_LOCK} | environ
    done = subprocess.run([sys.executable, "-c", RANK], env=whole, input=b"\n", capture_output=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (0, b"")


def test_two_launches_hold_it_together(tmp_path: Path) -> None:
    """What an ended launch has left in our own namespace is seen, and is no reason to do without a lock."""
    fds = [launch_lock.join(tmp_path), launch_lock.join(tmp_path)]
    for fd in fds:
        assert fd is not None
        assert launch_lock.is_held(tmp_path)
        os.close(fd)
    assert launch_lock.is_held(tmp_path) is False


def test_who_has_it_alone_for_good_has_the_next_launch_take_a_new_file(tmp_path: Path) -> None:
    """Another user below the command may lock the descriptor that it has inherited. Later launches had no lock."""
    first = launch_lock.join(tmp_path)
    assert first is not None
    before = launch_lock.stamp(tmp_path)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = launch_lock.join(tmp_path)
    assert second is not None
    assert (launch_lock.is_held(tmp_path), launch_lock.stamp(tmp_path) == before) == (True, False)
    assert launch_lock.holders(tmp_path, [os.getpid()]) == {os.getpid()}
    os.close(second)
    assert launch_lock.is_held(tmp_path) is False
    assert [path.name for path in tmp_path.iterdir()] == [launch_lock.NAME]
    os.close(first)


JOINS = """
import sys
from pathlib import Path
from governor.adapters.command import launch_lock
state = Path(sys.argv[1])
before = launch_lock.stamp(state)
joined = launch_lock.join(state)
print(joined is not None, launch_lock.is_held(state), launch_lock.stamp(state) != before)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away and to do without a capability")
def test_a_file_of_another_user_is_a_lock_too(tmp_path: Path) -> None:
    """So it is on a squashed NFS. Its times can only be set to the present: the launch had no lock for that."""
    path = launch_lock.path_of(tmp_path)
    path.touch()
    path.chmod(0o666)
    os.utime(path, ns=(1, 1))
    os.chown(path, 2001, 2001)
    argv = ["setpriv", "--bounding-set=-fowner", "--inh-caps=-fowner", sys.executable, "-c", JOINS, str(tmp_path)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() == ["True"] * 3


STARTS = """
import sys
from contextlib import nullcontext
from pathlib import Path
from governor.adapters.command.child import start_command
from governor.adapters.command.orphans import BeforeChildren
command = start_command(["true"], "socket", "r", None, nullcontext(), BeforeChildren.look(), Path(sys.argv[1]))
command.process.wait()
if command.group is not None:
    command.group.remove()
print(command.has_lock)
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_command_that_begins_without_one_is_known_as_that(is_there: bool, tmp_path: Path) -> None:
    """It is told then."""
    place = tmp_path if is_there else tmp_path / "missing"
    done = subprocess.run([sys.executable, "-c", STARTS, str(place)], capture_output=True, timeout=SAFETY_S)
    assert (done.stdout.decode().strip(), done.stderr) == (str(is_there), b"")


ASKED = """
import fcntl, os, sys, time
from trainer_shim.mark import LAUNCH_LOCK, join_launch
asks = os.open(os.environ[LAUNCH_LOCK], os.O_RDWR)
fcntl.flock(asks, fcntl.LOCK_EX)
slept = []

def sleep(seconds):
    slept.append(seconds)
    if sys.argv[1] == "for a moment":
        fcntl.flock(asks, fcntl.LOCK_UN)

time.sleep = sleep
join_launch(os.environ)
os.close(asks)
print(sum(slept) < 0.06, flush=True)
input()
"""


@pytest.mark.parametrize("asks", ["for a moment", "for good"])
def test_a_rank_takes_it_while_others_ask_who_holds_it(asks: str, tmp_path: Path) -> None:
    """A `costgov status` at that moment, and the rank held nothing as long as it lived. It does not wait for ever."""
    fd = launch_lock.join(tmp_path)
    assert fd is not None
    os.close(fd)
    environ = {**os.environ, **launch_lock.told(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ASKED, asks], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"True\n"
        assert launch_lock.is_held(tmp_path) == (asks == "for a moment")
        rank.communicate(b"\n", SAFETY_S)


def test_a_launch_takes_it_while_others_ask_who_holds_it(tmp_path: Path) -> None:
    """Who asks has it alone for a moment, and a launch that failed then was held by nobody."""
    first = launch_lock.join(tmp_path)
    assert first is not None
    os.close(first)
    asks = (
        "import sys, pathlib; from governor.adapters.command import launch_lock\n"
        "print(flush=True)\n"
        "while True: launch_lock.is_held(pathlib.Path(sys.argv[1]))"
    )
    asking = subprocess.Popen([sys.executable, "-c", asks, str(tmp_path)], stdout=subprocess.PIPE)
    assert asking.stdout is not None
    try:
        asking.stdout.readline()
        for _ in range(500):
            fd = launch_lock.join(tmp_path)
            assert fd is not None
            os.close(fd)
    finally:
        asking.kill()
        asking.communicate()
