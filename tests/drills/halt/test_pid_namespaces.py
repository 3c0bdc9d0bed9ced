"""One name and one state directory, and each launch in a PID namespace of its own, as in containers.

What cannot be seen from the second one is neither gone nor taken for another process: what its processes hold says
whether somebody lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from governor.adapters.machine.pid_namespace import INITIAL
from tests.drills.halt.conftest import APART, HERE, POLICY, Service, begin, end_of, until_gone
from tests.drills.halt.test_ends import knows_of
from tests.drills.halt.test_governor_dies import stage_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a PID namespace"),
    pytest.mark.usefixtures("among_orphans"),
]
needs_initial = pytest.mark.skipif(
    os.stat("/proc/self/ns/pid").st_ino != INITIAL,
    reason="needs the machine's own PID namespace, which sees all others",
)
# The container outlives its `costgov run`, as one does in which others work too, or whose first process is a shell.
CONTAINER = (*APART, "sh", "-c", '"$@" & echo; wait; exec sleep 3600', "sh")
TRAINER = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
UNSEEN = "in another PID namespace (a container, or the host around this one), and is not seen from here"
OVER = "an earlier launch of drill was in another PID namespace (a container), which is not seen from here"
SLOW = POLICY.replace('grace = "10s"', 'grace = "90s"', 1)


class Left:
    """A launch whose governor was killed, and what lives on of it: `pid` as its own namespace numbers it."""

    def __init__(self, work: Path, prefix: tuple[str, ...], argv: list[str], *, policy: str = POLICY) -> None:
        self.work, self.prefix = work, prefix
        self.run = begin(work, argv, prefix=prefix, policy=policy)
        assert self.run.stdout is not None
        if prefix:
            self.run.stdout.readline()  # The shell has started it.
        self.first_line = self.run.stdout.readline() if argv[1] == "-c" else ""

    def kill_governor(self, when: Callable[[], bool]) -> None:
        pid = self.run.pid
        for _ in range(2 if self.prefix else 0):  # unshare, its shell, costgov.
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        until_gone(pid, lambda: os.kill(pid, signal.SIGKILL) if when() else None)

    def end(self) -> None:
        """All that is in its namespace ends with it, or what is left of it outside of one."""
        with self.run:
            if self.prefix:
                shell = Path(f"/proc/{self.run.pid}/task/{self.run.pid}/children").read_text().split()
                self.run.kill()
                for pid in shell:
                    until_gone(int(pid), lambda: None)
            elif self.first_line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(self.first_line), signal.SIGKILL)
                until_gone(int(self.first_line), lambda: None)
            self.run.kill()


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Callable[..., Left]]:
    made: list[Left] = []

    def leave(prefix: tuple[str, ...], argv: list[str] | None = None, *, until: str = "", policy: str = POLICY) -> Left:
        one = Left(tmp_path, prefix, argv or [sys.executable, "-c", TRAINER], policy=policy)
        made.append(one)
        pid = int(one.first_line or 0)
        one.kill_governor(lambda: stage_of(tmp_path) == until if until else knows_of(tmp_path, pid))
        return one

    yield leave
    for one in made:
        if one.run.poll() is None or not one.prefix:
            one.end()


@pytest.mark.parametrize("first", [CONTAINER, ()], ids=["container", "host"])
def test_beside_a_trainer_that_lives_where_nothing_is_seen_nothing_is_launched_until_it_ends(
    first: tuple[str, ...], left: Callable[..., Left], tmp_path: Path
) -> None:
    earlier = left(first)
    second = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert second.code == 1, second.output
    assert f"not launched: an earlier launch of drill still runs {UNSEEN}: its processes hold" in second.output
    assert str(tmp_path / "state" / "launch.lock") in second.output
    earlier.end()
    requeued = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert requeued.code == 0, requeued.output
    assert f"{OVER}; nobody holds" in requeued.output
    again = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert (again.code, OVER in again.output) == (0, False), "the one before has ended as one should"


@needs_initial
def test_around_a_container_its_trainer_is_known_by_the_hosts_number_and_its_end_is_seen(
    left: Callable[..., Left], tmp_path: Path
) -> None:
    earlier = left(CONTAINER)
    second = end_of(begin(tmp_path, ["true"]), tmp_path)
    assert second.code == 1, second.output
    known = second.output.partition("still runs, unwatched (pid ")[2].partition(":")[0]
    status = Path(f"/proc/{known}/status").read_text()
    assert f"NSpid:\t{known}\t{earlier.first_line.strip()}\n" in status, second.output
    earlier.end()
    third = end_of(begin(tmp_path, ["true"]), tmp_path)
    assert (third.code, OVER in third.output) == (0, False), third.output


def test_who_knows_better_removes_the_lock(left: Callable[..., Left], tmp_path: Path) -> None:
    left(CONTAINER)
    (tmp_path / "state" / "launch.lock").unlink()
    done = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert done.code == 0, done.output
    assert f"{OVER}; nothing tells whether it still runs" in done.output


def test_a_rank_whose_launcher_has_closed_its_descriptors_and_left_is_noticed_too(
    left: Callable[..., Left], tmp_path: Path
) -> None:
    """As torchrun, killed: subprocess closes for the ranks whatever it has inherited."""
    argv = [sys.executable, str(HERE / "trainee.py"), "slow_save", str(tmp_path), "600"]
    launch = f"import subprocess, json; print(subprocess.Popen(json.loads({json.dumps(argv)!r})).pid)"
    left(CONTAINER, [sys.executable, "-c", launch], until="SAVING", policy=SLOW)
    second = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert second.code == 1, second.output
    (halt,) = second.incidents
    assert f"{UNSEEN} (nor can its open halt {halt['incident_id']} be ended)" in second.output
    assert halt["halt_stage"] == "SAVING", "nothing was claimed of it"


def test_a_halt_whose_container_is_gone_is_closed_as_not_seen_and_the_launch_is_its_own(
    left: Callable[..., Left], tmp_path: Path
) -> None:
    argv = [sys.executable, str(HERE / "trainee.py"), "slow_save", str(tmp_path), "600"]
    earlier = left(CONTAINER, argv, until="SAVING", policy=SLOW)
    earlier.end()
    done = end_of(begin(tmp_path, ["true"], prefix=APART), tmp_path)
    assert done.code == 0, done.output
    assert done.incident["halt_stage"] == "left_unseen"
    assert "exited" not in done.seen
    assert done.seen[-1] == "left_unseen"
    assert "their end was not observed" in done.output
    report = next((tmp_path / "state" / "incidents").glob("*.md")).read_text()
    assert "no process of the run is left" not in report
    assert "their end was not observed" in report


def test_a_service_in_another_container_claims_nothing_of_the_processes_that_it_does_not_see(
    service: Callable[..., Service], tmp_path: Path
) -> None:
    governor = service(prefix=APART, policy=SLOW)
    governor.start()
    governor.trainee("slow_save", 600)
    governor.until_stage("SAVING")
    governor.kill9()  # And with it all that was in its container.
    governor.start()
    closed = governor.until_stage("left_unseen")
    assert "exited" not in [entry["what"] for entry in closed["timeline"]]
    governor.until_said("whether they live is not known")
    assert not governor.run().get("alive"), "it is over for this governor, and pays nothing"
