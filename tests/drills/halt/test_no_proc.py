"""A machine without /proc, or one that loses it: nothing is done blindly, and nothing is claimed that was not done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, configuration

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace")
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def test_a_signal_that_cannot_be_sent_is_not_claimed_and_comes_once_proc_is_back(
    service: Callable[..., Service],
) -> None:
    policy = POLICY.replace('grace = "10s"', 'grace = "1s"', 1).replace('"5s"', '"1s"')
    governor = service(policy=policy, prefix=OWN_MOUNTS)
    governor.start()
    assert governor.process is not None
    trainee = governor.trainee("deaf")
    governor.until(lambda: governor.step() > 0, "it trains")
    within = ["nsenter", f"--mount=/proc/{governor.process.pid}/ns/mnt"]
    subprocess.run([*within, "mount", "-t", "tmpfs", "none", "/proc"], check=True)
    assert governor.ask({"cmd": "halt", "run": "drill", "reason": "to see"})
    blind = governor.until_stage("NEEDS_HUMAN")
    assert trainee.poll() is None
    signals = [entry["detail"] for entry in blind["timeline"] if entry["what"] in ("term", "kill")]
    assert all("the process table cannot be read" in detail["unsent"] for detail in signals[:2])
    assert blind["pages"] == [f"its processes could not be signalled: {signals[0]['unsent']}"]
    governor.until_said("process_table_unreadable")
    governor.until_said("SIGTERM is not sent: the process table cannot be read")

    subprocess.run([*within, "umount", "/proc"], check=True)
    trainee.wait(SAFETY_S)
    halted = governor.until_stage("HALTED")
    kills = [entry["detail"] for entry in halted["timeline"] if entry["what"] == "kill"]
    assert "unsent" not in kills[-1]
    assert [target["pid"] for target in halted["targets"]] == [trainee.pid]


@pytest.mark.parametrize("command", [("daemon",), ("run",), ("doctor",)], ids=lambda command: str(command[0]))
def test_without_proc_nothing_starts_and_one_line_says_why(command: tuple[str, ...], tmp_path: Path) -> None:
    config = str(configuration(tmp_path))
    argv = [str(BIN / "costgov"), *command, "--config", config, *(("--", "true") if command == ("run",) else ())]
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", hide, "sh", *argv], capture_output=True, text=True, timeout=SAFETY_S
    )  # fmt: skip
    assert done.returncode == 1
    what = "/proc/sys/kernel/random/boot_id: cannot be read: No such file or directory"
    if command == ("doctor",):
        assert what in " ".join(done.stdout.split())
    else:
        assert done.stderr.splitlines()[-1] == f"costgov: {what}; mount /proc"
        assert "internal error" not in done.stderr


@pytest.mark.parametrize("command", [("run", "--ceiling", "300"), ("doctor",)], ids=lambda command: str(command[0]))
@pytest.mark.parametrize("is_pid_1", [True, False])
def test_with_the_proc_of_another_pid_namespace_nothing_starts(
    command: tuple[str, ...], is_pid_1: bool, tmp_path: Path
) -> None:
    """Its pid 1 is the machine's, whose age would be ours, and whose children a halt's targets."""
    config = str(configuration(tmp_path))
    ran = tmp_path / "ran"
    argv = [str(BIN / "costgov"), *command, "--config", config]
    argv += ["--", "touch", str(ran)] if command[0] == "run" else []
    apart = ["unshare", "--pid", "--fork", "--kill-child", *(() if is_pid_1 else ("sh", "-c", '"$@"; exit $?', "sh"))]
    done = subprocess.run([*apart, *argv], capture_output=True, text=True, timeout=SAFETY_S)
    assert done.returncode == 1
    assert not ran.exists()
    if command[0] == "run":
        (line,) = done.stderr.splitlines()
        assert line.startswith("costgov: /proc: cannot be read: it is of another PID namespace (we are pid ")
        assert line.endswith(" there); mount the /proc of its own PID namespace, as `unshare --mount-proc` does")
    else:
        told = " ".join(done.stdout.split())
        assert "it is of another PID namespace" in told
        assert "mount the /proc of its own PID namespace, as `unshare --mount-proc` does" in told
