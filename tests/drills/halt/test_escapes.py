"""Nothing that a run started outlives its halt, however it left the tree; what others started lives on."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.machine.control_group import PREFIX, Place, own_place
from tests.drills.halt.conftest import APART, HERE, SAFETY_S, Halted, Service, begin, end_of, is_alive, until_gone
from tests.drills.halt.escapes import EARLY, FOR_EVER, WAYS, is_hopping, living

ROOTLESS_UID = 1000
ROOTLESS = ("unshare", "--user", f"--map-user={ROOTLESS_UID}", f"--map-group={ROOTLESS_UID}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and other users")
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (Debian package tmux)")
pytestmark = [needs_tmux, pytest.mark.usefixtures("among_orphans")]
# As most containers have it, and a login without a systemd of its own: no control group may be made.
NO_GROUPS = (
    "unshare", "--mount", "/bin/sh", "-c",
    "for m in $(awk '$3 == \"cgroup2\" { print $2 }' /proc/mounts); do mount -o bind,remount,ro $m; done; exec \"$@\"",
    "sh",
)  # fmt: skip
USER = 12345
# Able to read the interpreter wherever root keeps it, and else without any right.
AS_USER = (
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)  # fmt: skip


class Bystanders:
    """What the same user, and another one, started beside the run, before it and with its command lines."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "bystanders"
        self.files.mkdir()
        sleep = ["sleep", FOR_EVER]
        self.started = {
            "shell": self._start(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE),
            "same command line": self._start(sleep),
        }
        if os.geteuid() == 0:
            other = ["setpriv", "--clear-groups", "--regid=1", "--reuid=1", *sleep]
            self.started["another user's"] = self._start(other)
        # Twice forked, as the run's own: an orphan of the same user.
        note = f"echo $! > {self.files}/orphan"
        subprocess.run(["/bin/sh", "-c", f"setsid sleep {FOR_EVER} >/dev/null 2>&1 & {note}"], check=True)
        pane = f"echo $$ > {self.files}/pane; exec sleep {FOR_EVER}"
        self.tmux = ["tmux", "-S", str(self.files / "socket"), "-f", "/dev/null"]
        subprocess.run([*self.tmux, "new-session", "-d", pane], check=True)
        ready = ["/bin/sh", "-c", f"until [ -s {self.files}/pane ]; do :; done"]
        subprocess.run(ready, check=True, timeout=SAFETY_S)
        asked = subprocess.run([*self.tmux, "display-message", "-p", "#{pid}"], check=True, capture_output=True)
        self.server = int(asked.stdout)
        self.pids = {name: process.pid for name, process in self.started.items()}
        self.pids |= {name: int((self.files / name).read_text()) for name in ("orphan", "pane")}

    @staticmethod
    def _start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, start_new_session=True, **options)

    def dead(self) -> list[str]:
        return [name for name, pid in self.pids.items() if not is_alive(pid)]

    def end(self) -> None:
        os.kill(self.server, signal.SIGCONT)  # One that a drill has stopped hears nothing.
        subprocess.run([*self.tmux, "kill-server"], check=False)
        os.kill(self.pids["orphan"], 9)
        for process in self.started.values():
            process.kill()
            process.wait(SAFETY_S)
            if process.stdin is not None:
                process.stdin.close()


Make = Callable[[Path], Bystanders]


@pytest.fixture
def bystanders() -> Iterator[Make]:
    made: list[Bystanders] = []

    def make(directory: Path) -> Bystanders:
        made.append(Bystanders(directory))
        return made[-1]

    yield make
    for one in made:
        one.end()


def assert_halted(halted: Halted) -> None:
    assert halted.code == 86, halted.output
    assert halted.incident["halt_stage"] == "HALTED"
    assert "exited" in halted.seen
    assert "unsure" not in halted.seen


def test_under_costgov_run(trainee: Callable[..., Halted], bystanders: Make, tmp_path: Path) -> None:
    others = bystanders(tmp_path)
    halted = trainee("escapes")
    assert living(tmp_path) == {}
    assert others.dead() == []
    assert_halted(halted)
    assert {target["pid"] for target in halted.incident["targets"]} >= _all_pids(tmp_path)


@needs_root
def test_under_costgov_run_without_root(costgov_run: Callable[..., Halted], bystanders: Make, tmp_path: Path) -> None:
    """By a user without any capability, and without a control group: by mark, tree and sessions."""
    others = bystanders(tmp_path)
    argv = [sys.executable, str(HERE / "trainee.py"), "escapes", str(tmp_path)]
    halted = costgov_run(argv, prefix=(*NO_GROUPS, *ROOTLESS))
    assert living(tmp_path) == {}
    assert others.dead() == []
    assert halted.incident["uid"] == ROOTLESS_UID
    assert_halted(halted)


@pytest.fixture
def delegated() -> Iterator[Place]:
    """A control group as a systemd unit with Delegate=yes is a user's."""
    place = own_place()
    if place is None or not os.access(place.directory, os.W_OK):
        pytest.skip("needs a control group of version 2 that may be written")
    path = f"{place.path.rstrip('/')}/drill-{os.getpid()}"
    user_s = Place(path, place.directory / path.rsplit("/", 1)[-1])
    user_s.directory.mkdir()
    try:
        for owned in (user_s.directory, user_s.directory / "cgroup.procs", user_s.directory / "cgroup.subtree_control"):
            os.chown(owned, USER, USER)
        yield user_s
    finally:
        (user_s.directory / "cgroup.kill").write_text("1")
        while "populated 1" in (user_s.directory / "cgroup.events").read_text():
            pass
        for below in user_s.directory.glob(f"{PREFIX}*"):
            below.rmdir()
        user_s.directory.rmdir()


@needs_root
def test_what_drops_its_mark_stays_in_a_control_group_of_its_own(
    public: Path, delegated: Place, bystanders: Make
) -> None:
    """By a user, in a unit that is delegated to them. What hops from fork to fork is never where it was just seen."""
    public.chmod(0o1777)  # Nobody may replace in it what is root's.
    others = bystanders(public)
    into = ("/bin/sh", "-c", f'echo $$ > {delegated.directory}/cgroup.procs && exec "$@"', "sh")
    leftover = delegated.directory / f"{PREFIX}killed-00000000"
    leftover.mkdir()
    os.chown(leftover, USER, USER)
    argv = [sys.executable, str(HERE / "trainee.py"), "unmarked", str(public)]
    halted = end_of(begin(public, argv, prefix=(*into, *AS_USER)), public)
    assert living(public) == {}
    assert not is_hopping(public)
    assert others.dead() == []
    assert halted.incident["uid"] == USER
    assert_halted(halted)
    assert list(delegated.directory.glob(f"{PREFIX}*")) == [], "its own is removed, and what a killed one has left"


@needs_root
def test_without_room_for_a_mark_the_environment_has_it(
    costgov_run: Callable[..., Halted], bystanders: Make, tmp_path: Path
) -> None:
    """Where a hard limit was lowered, and no control group may be made. What others started is not even named."""
    others = bystanders(tmp_path)
    left = f"setsid sh -c 'sleep {FOR_EVER} > /dev/null 2>&1 & echo $! > {tmp_path}/left'"
    script = f"{left}; exec {sys.executable} {HERE / 'trainee.py'} polite {tmp_path}"
    halted = costgov_run(["/bin/sh", "-c", script], prefix=(*NO_GROUPS, "prlimit", "--locks=1024:1024"))
    others.pids["left"] = int((tmp_path / "left").read_text())
    assert others.dead() == ["left"], halted.output
    del others.pids["left"]
    assert_halted(halted)


@needs_root
def test_an_orphan_that_dropped_all_that_it_had_inherited(
    costgov_run: Callable[..., Halted], bystanders: Make, tmp_path: Path
) -> None:
    """Limit, environment, session, launcher, and there is no control group: only its parent tells whose it is."""
    others = bystanders(tmp_path)
    stays = f"echo $$ > {tmp_path}/left; exec sleep {SAFETY_S}"  # Where it is not ended, nothing of ours ends it.
    leaves = f"(setsid prlimit --locks=unlimited env -i sh -c '{stays}' > /dev/null 2>&1 &)"
    waits = f"until [ -s {tmp_path}/left ]; do :; done"
    script = f"{leaves}; {waits}; exec {sys.executable} {HERE / 'trainee.py'} polite {tmp_path}"
    halted = costgov_run(["/bin/sh", "-c", script], prefix=NO_GROUPS)
    others.pids["left"] = int((tmp_path / "left").read_text())
    assert others.dead() == ["left"], halted.output
    del others.pids["left"]
    assert_halted(halted)


@needs_root
def test_what_has_become_another_users_ends_with_roots_command_and_that_with_it(public: Path) -> None:
    """As a container's entry point drops root: its shell would start the halted trainer again."""
    public.chmod(0o1777)  # Nobody may replace in it what is root's.
    trains = f"{shlex.join(AS_USER)} {sys.executable} {HERE / 'trainee.py'} polite {public}"
    helps = f"setpriv --reuid={USER + 1} --clear-groups sleep {FOR_EVER} > /dev/null 2>&1 & echo $! > {public}/helper"
    script = f"{helps}; {trains}; touch {public}/again; exec {trains}"
    halted = end_of(begin(public, ["/bin/sh", "-c", script], prefix=NO_GROUPS), public)
    assert_halted(halted)
    assert halted.incident["uid"] == USER
    assert not (public / "again").exists()
    assert not is_alive(int((public / "helper").read_text()))


@needs_root
def test_as_pid_1_the_commands_orphans_are_told_from_those_of_others(public: Path) -> None:
    """As in a container: what `docker exec` leaves behind lives as long as we do, and is not even named.

    The trainer is another user's, has left its launcher, which ends before its hello, and beside it is one that has
    dropped all that it had inherited.
    """
    public.chmod(0o1777)  # Nobody may replace in it what is root's.
    foreign = f"until [ -e {public}/up ]; do sleep 0.02; done; setsid sleep {FOR_EVER} & echo $! > {public}/foreign"
    first = (*NO_GROUPS, *APART, "/bin/sh", "-c", 'sh -c "$0" & exec "$@"', foreign)
    stays = f"echo $$ > {public}/left; exec sleep {SAFETY_S}"
    leaves = f"(setsid prlimit --locks=unlimited env -i sh -c '{stays}' > /dev/null 2>&1 &)"
    waits = f"touch {public}/up; until [ -s {public}/foreign ] && [ -s {public}/left ]; do :; done"
    trains = f"setsid -f {sys.executable} {HERE / 'trainee.py'} polite {public}"
    argv = [*AS_USER, "/bin/sh", "-c", f"{leaves}; {waits}; {trains} < /dev/null"]
    halted = end_of(begin(public, argv, prefix=first), public)
    assert_halted(halted)
    assert halted.incident["uid"] == USER
    pids = {target["pid"] for target in halted.incident["targets"]}
    assert int((public / "left").read_text()) in pids
    assert int((public / "foreign").read_text()) not in pids
    assert "still runs" not in halted.output


def test_a_window_in_a_tmux_server_from_before(
    costgov_run: Callable[..., Halted], bystanders: Make, tmp_path: Path
) -> None:
    """With the run's mark in its environment it ends with the run. Without, it lives and is named.

    The server takes nobody who has ended before the drill is over, as on a busy machine.
    """
    others = bystanders(tmp_path)
    tmux = " ".join(others.tmux)
    files = tmp_path / "panes"
    files.mkdir()
    pane = f"echo $$ > {files}/.NAME; mv {files}/.NAME {files}/NAME; exec sleep {FOR_EVER}"
    script = "; ".join((
        f"{tmux} new-window -d '{pane.replace('NAME', 'plain')}'",
        f"{tmux} new-window -d -e COSTGOV_MARK=$COSTGOV_MARK '{pane.replace('NAME', 'marked')}'",
        f"until [ -e {files}/plain ] && [ -e {files}/marked ]; do :; done",
        f"kill -STOP {others.server}",
        f"exec {sys.executable} {HERE / 'trainee.py'} polite {tmp_path}",
    ))  # fmt: skip
    halted = costgov_run(["/bin/sh", "-c", script], environ={"SHELL": "/bin/sh"})
    plain, marked = (int((files / name).read_text()) for name in ("plain", "marked"))
    assert halted.code == 86, halted.output
    assert not is_alive(marked)
    assert is_alive(plain)
    assert others.dead() == []
    (named,) = [entry["detail"]["processes"] for entry in halted.incident["timeline"] if entry["what"] == "unsure"]
    assert named == [{"pid": plain, "command": f"sleep {FOR_EVER}"}]


@needs_root
def test_in_a_pid_namespace(costgov_run: Callable[..., Halted], tmp_path: Path) -> None:
    """As in a container, where a shell is PID 1, and inherits the orphans if nobody else does."""
    inside = (
        "/bin/sh",
        "-c",
        f'"$@"; code=$?; {sys.executable} {HERE}/escapes.py {tmp_path} --alive; exit $code',
        "sh",
    )
    halted = costgov_run([sys.executable, str(HERE / "trainee.py"), "escapes", str(tmp_path)], prefix=(*APART, *inside))
    alive = [line for line in halted.output.splitlines() if line.split()[:1] and line.split()[0] in (*WAYS, EARLY)]
    assert alive == []
    assert_halted(halted)


def test_under_the_daemon(service: Callable[..., Service], bystanders: Make, tmp_path: Path) -> None:
    """The daemon is nobody's parent, and another run of the same user trains beside it.

    What the script detached before it attached shows no sign of whose it is: it lives, and the incident says so.
    """
    others = bystanders(tmp_path)
    governor = service()
    governor.start()
    with tempfile.TemporaryDirectory() as beside:
        socket = str(tmp_path / "run" / "trainer.sock")
        other = subprocess.Popen(
            [sys.executable, str(HERE / "trainee.py"), "healthy", beside],
            env={**os.environ, "COSTGOV_SOCKET": socket, "COSTGOV_RUN": "other"}, start_new_session=True,
        )  # fmt: skip
        governor.trainees.append(other)
        governor.until(lambda: governor.step("other") > 0, "the other run trains")
        trainee = governor.trainee("escapes")
        until_gone(trainee.pid, lambda: None)
        trainee.wait(SAFETY_S)
        incident = governor.until_stage("HALTED")
        ((way, (early,)),) = living(tmp_path).items()
        assert way == EARLY
        assert others.dead() == []
        step = governor.step("other")
        governor.until(lambda: governor.step("other") > step, "the other run trains on")
    assert {target["pid"] for target in incident["targets"]} >= _all_pids(tmp_path)
    (unsure,) = [entry["detail"]["processes"] for entry in incident["timeline"] if entry["what"] == "unsure"]
    assert {"pid": early, "command": f"sleep {FOR_EVER}"} in unsure
    os.kill(early, signal.SIGKILL)


def _all_pids(work: Path) -> set[int]:
    return {int(pid) for way in WAYS for pid in (work / "escapes" / way).read_text().split()}
