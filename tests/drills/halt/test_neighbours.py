"""A halt ends one run: not those that share its unit, and not what works in a terminal server that it has opened."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.halt.conftest import (
    BIN,
    POLICY,
    SAFETY_S,
    Service,
    begin,
    configuration,
    end_of,
    is_alive,
    until_gone,
)
from tests.drills.halt.puppet import RANK, Puppet
from tests.drills.halt.test_escapes import NO_GROUPS
from trainer_shim import wire

QUICK = (
    POLICY.replace('term_grace = "1s"', 'term_grace = "200ms"')
    .replace('kill_grace = "5s"', 'kill_grace = "1s"')
    .replace('grace = "10s"', 'grace = "1s"', 1)
)


@pytest.fixture
def scope(tmp_path: Path) -> Iterator[Path]:
    """A unit for one command, which has started more than one."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    made = Path(f"{root}/drill-{os.getpid()}-{tmp_path.name}.scope")
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no writable cgroup2: {error}")
    yield made
    for pid in (made / "cgroup.procs").read_text().split():
        until_gone(int(pid), lambda: None)
    made.rmdir()


def test_a_halt_ends_no_other_run_of_the_unit_nor_what_has_the_unit_later(
    scope: Path, service: Callable[..., Service]
) -> None:
    governor = service(policy=QUICK)
    governor.start()
    puppets = []

    def rank(run: str, attempt: str, *, inside: bool) -> Puppet:
        enter = ["sh", "-c", f'echo $$ > {scope}/cgroup.procs; exec "$@"', "-"] if inside else []
        puppets.append(Puppet(governor.work / "run" / "trainer.sock", prefix=(*enter, sys.executable)))
        assert puppets[-1].hello(run=run, attempt=attempt)["kind"] == "confirm"
        return puppets[-1]

    def diverge(run: str, puppet: Puppet) -> None:
        puppet.steps(1, 3, loss="nan")
        governor.until(lambda: governor.stage(run) == "HALTED", f"{run} is halted")
        assert puppet.process.wait(SAFETY_S) != 0

    try:
        rank("first", "a", inside=True).process.kill()
        governor.until(lambda: governor.run("first").get("state") in ("finished", "failed", "ended"), "it has ended")
        later = rank("later", "a", inside=True)
        diverge("first", rank("first", "b", inside=False))
        assert later.process.poll() is None, "the unit is another run's by now"
        diverge("beside", rank("beside", "a", inside=True))
        assert later.process.poll() is None, "the unit has two runs"
        diverge("later", later)
    finally:
        for puppet in puppets:
            puppet.end()


def test_a_run_of_the_sweep_that_has_not_said_hello_lives_and_is_named(
    scope: Path, service: Callable[..., Service]
) -> None:
    """Both were begun by a shell that is gone: the unit began with the first, as far as anybody can see."""
    governor = service(policy=QUICK)
    governor.start()
    (governor.work / "train.py").write_text(RANK)
    puppets = []

    def begin_rank(*arguments: str) -> Puppet:
        enter = ["sh", "-c", f'echo $$ > {scope}/cgroup.procs; exec "$@"', "-"]
        puppet = Puppet(
            governor.work / "run" / "trainer.sock", prefix=(*enter, sys.executable),
            program=(str(governor.work / "train.py"),), arguments=arguments,
        )  # fmt: skip
        puppets.append(puppet)
        proc = Path(f"/proc/{puppet.process.pid}")
        interpreter = os.fsencode(sys.executable)
        governor.until(lambda: (proc / "cmdline").read_bytes().startswith(interpreter), "it is itself")
        began = int((proc / "stat").read_text().rpartition(")")[2].split()[19])
        ticks = os.sysconf("SC_CLK_TCK")
        governor.until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * ticks > began + 1, "another one is younger")
        return puppet

    try:
        first, second = begin_rank("--lr", "1"), begin_rank("--lr", "2")
        first.hello(run="first")
        first.steps(1, 3, loss="nan")
        governor.until(lambda: governor.stage("first") == "HALTED", "it is halted")
        assert first.process.wait(SAFETY_S) != 0
        assert second.process.poll() is None
        (incident,) = governor.incidents()
        named = next(entry["detail"]["processes"] for entry in incident["timeline"] if entry["what"] == "unsure")
        assert [row["pid"] for row in named] == [second.process.pid]
    finally:
        for puppet in puppets:
            puppet.end()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (Debian package tmux)")
@pytest.mark.parametrize("prefix", [(), (*NO_GROUPS, "prlimit", "--locks=1024:1024")], ids=["marked", "by environment"])
def test_what_works_in_a_terminal_server_that_the_run_has_opened_lives(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    """Another `costgov run`, and a window: these belong to whoever came to that server."""
    other, here = tmp_path / "other", tmp_path / "here"
    for directory in (other, here):
        directory.mkdir()
    policy = other / "policy.toml"
    policy.write_text(POLICY.format(stop="processes"))
    tmux = f"tmux -S {tmp_path}/socket -f /dev/null"
    within = (
        f"{BIN}/costgov run --config {configuration(other)} --policy {policy} --name other -- "
        f"sh -c 'echo $$ > {other}/pid; exec sleep 3600'"
    )
    frames = here / "frames"
    hello = {
        **wire.head("hello", 0, 1), "seq": 1, "run": "drill", "attempt": "a", "local_rank": 0, "world_size": 1,
        "signal": 0,
    }  # fmt: skip
    steps = [
        {**wire.head("step", 0, n), "step": n, "attempt_step": n, "loss": "nan", "loss_expected": True}
        for n in range(1, 4)
    ]
    frames.write_text("".join(json.dumps(frame) + "\n" for frame in (hello, *steps)))
    script = here / "x.sh"
    script.write_text(
        f"{tmux} new-session -d {shlex.quote(within)}\n"
        f"{tmux} new-session -d 'echo $$ > {here}/window; exec sleep 3600'\n"
        f"until [ -s {other}/pid ] && [ -s {here}/window ]; do sleep .1; done\n"
        f"exec {sys.executable} -S -c {shlex.quote(RANK)} {here}/run/trainer.sock < {frames}\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TMUX", "COSTGOV"))}
    process = begin(here, ["sh", str(script)], policy=QUICK, environ={**clean, "SHELL": "/bin/sh"}, prefix=prefix)
    try:
        halted = end_of(process, here)
        lives = {name: is_alive(int(pid.read_text())) for name, pid in (
            ("the other run", other / "pid"), ("the window", here / "window"),
        )}  # fmt: skip
        assert lives == {"the other run": True, "the window": True}, halted.output
        assert halted.code == 86, halted.output
        named = next(entry for entry in halted.incident["timeline"] if entry["what"] == "unsure")
        assert f"{(here / 'window').read_text().strip()}, " in str(named["detail"])
    finally:
        subprocess.run([*shlex.split(tmux), "kill-server"], capture_output=True, check=False)
        if (other / "pid").exists():
            pid = int((other / "pid").read_text())
            subprocess.run(["kill", str(pid)], capture_output=True, check=False)
            until_gone(pid, lambda: None)
