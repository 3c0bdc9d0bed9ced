"""A halt that the next launch goes on with ends what the first one would have: whatever user the command has become.

costgov is killed in the middle of it, and what it had below it goes to init. Root's entry point starts the trainer of
another user again and again, beside helpers of a third one.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.halt.conftest import HERE, POLICY, SAFETY_S, begin, end_of, is_alive, until_gone
from tests.drills.halt.escapes import FOR_EVER
from tests.drills.halt.test_ends import knows_of
from tests.drills.halt.test_escapes import AS_USER, NO_GROUPS, USER, Bystanders
from tests.drills.halt.test_governor_dies import stage_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and other users"),
    pytest.mark.usefixtures("among_orphans"),
]
HELPER, LOGIN = USER + 1, USER + 2
# How a trainee makes the stage last until costgov is killed in it.
LASTING = {"SAVING": "slow_save", "TERMED": "deaf_term"}
POLICIES = {
    "SAVING": POLICY.replace('grace = "10s"', 'grace = "90s"', 1),
    "TERMED": POLICY.replace('term_grace = "1s"', 'term_grace = "5s"'),
}
SHELL = ("/bin/sh", "-c", '"$@"; code=$?; echo "the shell lives"; exit $code', "sh")


# More than a list of theirs once had room for, in a session of their own. Whoever has started them is gone.
CROWD = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
pids = []
for _ in range(300):
    if (pid := os.fork()) == 0:
        time.sleep({SAFETY_S})
        os._exit(0)
    pids.append(pid)
print(*pids, file=open(sys.argv[1], "w"))
"""


def as_user(uid: int) -> str:
    return f"setpriv --reuid={uid} --regid={uid} --clear-groups"


def entry_point(work: Path, mode: str) -> list[str]:
    """Each of its processes writes its pid to a file before it does nothing for ever."""
    work.chmod(0o1777)
    waits = f"exec sleep {FOR_EVER}"
    train = f"echo $$ >> {work}/trainers; exec {sys.executable} {HERE / 'trainee.py'} {mode} {work} 600"
    login = f"{as_user(LOGIN)} sh -c 'echo $$ > {work}/login; {waits}'"
    sshd = (
        f"echo $BASHPID > {work}/sshd; exec -a 'sshd: /usr/sbin/sshd [listener]' bash -c {shlex.quote(f'{login}; :')}"
    )
    # It has left the tree, and kept neither the limit nor the environment.
    stays = f"echo $$ > {work}/left; exec sleep {SAFETY_S}"
    left = f"(setsid prlimit --locks=unlimited env -i {as_user(HELPER)} sh -c {shlex.quote(stays)} &)"
    script = "\n".join((
        f"prlimit --locks=unlimited env -i {as_user(HELPER)} {sys.executable} -Sc {shlex.quote(CROWD)} {work}/crowd",
        "exec > /dev/null 2>&1",  # With costgov their reader is gone.
        "umask 000",
        "trap : TERM",  # It outlives the trainer.
        f"{as_user(HELPER)} sleep {FOR_EVER} & echo $! > {work}/helper",
        f"({sshd}) &",
        left,
        f"echo $$ > {work}/entry",
        f"until [ -s {work}/login ] && [ -s {work}/left ]; do :; done",
        f"while :; do {shlex.join(AS_USER)} sh -c {shlex.quote(train)}; done",
    ))  # fmt: skip
    return ["bash", "-c", script]


def pids_in(work: Path, *names: str) -> list[int]:
    return [int(pid) for name in names for pid in (work / name).read_text().split()]


class Beside(Bystanders):
    """Also the trainer's user, the helper's and a login's, with command lines of the run's."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        sleep = f"sleep {FOR_EVER}"
        trains = f"{sys.executable} {HERE / 'trainee.py'} healthy {self.files}"
        manager = f"exec -a 'sshd: /usr/sbin/sshd [listener]' bash -c '{as_user(LOGIN)} {sleep}; :'"
        self.files.chmod(0o777)
        more = {
            "the trainer's user's": ["sh", "-c", f"exec {as_user(USER)} {sleep}"],
            "the helper's user's": ["sh", "-c", f"exec {as_user(HELPER)} {sleep}"],
            "another user's run": [*AS_USER, "sh", "-c", f"exec {trains}"],
            "root's manager": ["bash", "-c", manager],
        }
        for name, argv in more.items():
            self.started[name] = self._start(argv)
            self.pids[name] = self.started[name].pid

    def end(self) -> None:
        manager = self.pids["root's manager"]
        for child in Path(f"/proc/{manager}/task/{manager}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        super().end()


@pytest.fixture
def beside(public: Path) -> Iterator[Beside]:
    made = Beside(public)
    yield made
    made.end()


def kill_in(work: Path, stage: str, run: subprocess.Popen[str]) -> None:
    """SIGKILL to costgov once its halt is there, or is "restored"."""
    with run:
        until_gone(run.pid, lambda: run.kill() if stage in (stage_of(work), *noted(work)) else None)


def noted(work: Path) -> list[str]:
    reports = (work / "state" / "incidents").glob("*.json")
    return [entry["what"] for report in reports for entry in json.loads(report.read_text())["timeline"]]


def test_a_rank_that_the_launcher_has_left_refuses_the_next_launch(public: Path) -> None:
    """Nobody has attached, and the launcher was ended as advised."""
    rank = f"[{sys.executable!r}, '-c', 'import time; time.sleep({SAFETY_S})']"
    launch = f"import os, subprocess as s; r = s.Popen({rank}, start_new_session=True); print(os.getpid(), r.pid)"
    first = begin(public, [sys.executable, "-uc", f"{launch}; r.wait()"], prefix=NO_GROUPS)
    assert first.stdout is not None
    launcher, rank_pid = map(int, first.stdout.readline().split())
    with first:
        until_gone(first.pid, lambda: first.kill() if knows_of(public, launcher) else None)
    try:
        for advised in ([launcher, rank_pid], [rank_pid]):
            told = end_of(begin(public, ["true"], prefix=NO_GROUPS), public)
            assert told.code == 1, told.output
            assert f"end it with `kill {' '.join(map(str, advised))}`" in told.output
            until_gone(advised[0], lambda pid=advised[0]: os.kill(pid, signal.SIGKILL))
        assert end_of(begin(public, ["true"], prefix=NO_GROUPS), public).code == 0
    finally:
        for pid in (launcher, rank_pid):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_rank_that_a_launcher_has_left_before_costgov_was_killed_refuses_the_next_launch(public: Path) -> None:
    """It was waited for, and the journal had forgotten its launch."""
    rank = f"[{sys.executable!r}, '-c', 'import time; time.sleep({SAFETY_S})']"
    launch = f"import os, subprocess as s; r = s.Popen({rank}, start_new_session=True); print(os.getpid(), r.pid)"
    first = begin(public, [sys.executable, "-uc", launch], prefix=NO_GROUPS)
    assert first.stdout is not None
    launcher, rank_pid = map(int, first.stdout.readline().split())
    try:
        with first:
            until_gone(first.pid, lambda: first.kill() if not knows_of(public, launcher) else None)
        for code, expected in ((1, f"end it with `kill {rank_pid}`"), (0, "")):
            told = end_of(begin(public, ["true"], prefix=NO_GROUPS), public)
            assert told.code == code, told.output
            assert expected in told.output
            if is_alive(rank_pid):
                until_gone(rank_pid, lambda: os.kill(rank_pid, signal.SIGKILL))
    finally:
        if is_alive(rank_pid):
            os.kill(rank_pid, signal.SIGKILL)


def test_another_users_trainer_that_the_launcher_has_left_refuses_the_next_launch(public: Path) -> None:
    """Its mark, which everybody can copy, ties it to nothing, and the launcher was ended as advised."""
    rank = f"[*{list(AS_USER)!r}, 'sleep', '{SAFETY_S}']"
    launch = (
        "import os, subprocess as s; "
        f"r = s.Popen({rank}, start_new_session=True, close_fds=False); print(os.getpid(), r.pid)"
    )
    first = begin(public, [sys.executable, "-uc", f"{launch}; r.wait()"], prefix=NO_GROUPS)
    assert first.stdout is not None
    launcher, rank_pid = map(int, first.stdout.readline().split())
    with first:
        until_gone(first.pid, lambda: first.kill() if knows_of(public, launcher) else None)
    try:
        os.kill(launcher, signal.SIGKILL)
        until_gone(launcher, lambda: None)
        told = end_of(begin(public, ["true"], prefix=NO_GROUPS), public)
        assert told.code == 1, told.output
        assert f"perhaps of it: pid {rank_pid} of uid {USER}" in told.output
        assert f"end it with `kill {rank_pid}`" in told.output
        os.kill(rank_pid, signal.SIGKILL)
        until_gone(rank_pid, lambda: None)
        assert end_of(begin(public, ["true"], prefix=NO_GROUPS), public).code == 0
    finally:
        for pid in (launcher, rank_pid):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


# With a control group for the command, where one may be made, and without. Who goes on may be killed too.
@pytest.mark.parametrize(("stage", "prefix", "kills"), [("SAVING", NO_GROUPS, 2), ("TERMED", (), 1)])
def test_what_starts_the_halted_trainer_again_ends_with_the_halt_and_so_do_helpers(
    stage: str, prefix: tuple[str, ...], kills: int, public: Path, beside: Beside
) -> None:
    policy = POLICIES[stage]
    first = begin(public, entry_point(public, LASTING[stage]), policy=policy, prefix=prefix)
    try:
        kill_in(public, stage, first)
        for _ in range(1, kills):
            kill_in(public, "restored", begin(public, ["true"], policy=policy, prefix=prefix))
        (public / "go_on").touch()
        halted = end_of(begin(public, ["true"], policy=policy, prefix=(*prefix, *SHELL)), public)
        alive = [
            name
            for name in ("entry", "trainers", "helper", "left", "crowd")
            if any(map(is_alive, pids_in(public, name)))
        ]
        assert alive == [], halted.output
        assert beside.dead() == []
        assert [is_alive(pid) for pid in pids_in(public, "sshd", "login")] == [True, True], "root's, and another's"
        assert halted.code == 86, halted.output
        assert halted.incident["halt_stage"] == "HALTED"
        assert "the shell lives" in halted.output
    finally:
        first.kill()
        for pid in pids_in(public, "entry", "helper", "left", "login", "sshd", "trainers", "crowd"):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
