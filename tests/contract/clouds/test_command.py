"""The command provider: what an exit status means, and that no command outlives its time."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from governor.adapters import clouds
from governor.adapters.plugins import Surroundings
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Cloud, StopReply


def command(argv: list[str], verify: list[str] | None = None, **config: object) -> Cloud:
    return clouds.load("command", {"argv": argv, "verify_command": verify, **config})


def exits(code: int) -> list[str]:
    return ["/bin/sh", "-c", f"exit {code}"]


@pytest.mark.parametrize("code", [0, 1, 2, 75, 126, 127, 128, 137, 255])
def test_every_exit_status_of_the_stop_command(code: int) -> None:
    reply = command(exits(code)).stop("run-7-1", 0)
    if code == 0:
        assert reply == StopReply(StopAnswer.ACCEPTED, False, "accepted")
    else:
        assert reply == StopReply(StopAnswer.REFUSED, True, f"exit_{code}")


@pytest.mark.parametrize("code", [0, 1, 2, 75, 126, 127, 255])
def test_exit_status_of_the_verify_command(code: int) -> None:
    expected = {0: BillingAnswer.ENDED, 1: BillingAnswer.RUNNING}.get(code, BillingAnswer.UNKNOWN)
    assert command(exits(0), exits(code)).billing() == BillingReply(expected, f"exit_{code}")


def test_without_a_verify_command_nothing_is_ever_ended() -> None:
    cloud = command(exits(0))
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
    assert cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "no_verify_command")
    assert any("never verified" in problem for problem in cloud.preflight().problems)


def test_a_verify_command_that_always_says_ended_is_found_out() -> None:
    found = command(exits(0), exits(0)).preflight()
    assert not found.ok
    assert "while this machine runs" in found.problems[0]
    assert not found.said_running


def test_another_check_is_another_source_of_what_is_billed() -> None:
    sources = [
        command(exits(0), exits(0)).billing_source,
        command(exits(0), exits(1)).billing_source,
        command(exits(0), exits(1), instance_id="i-2").billing_source,
    ]
    assert len(set(sources)) == 3
    assert sources[1] == command(exits(3), exits(1)).billing_source, "how it is stopped is another matter"


def test_a_command_that_is_not_there() -> None:
    cloud = command(["/nonexistent/stop-me"], ["/nonexistent/look"])
    assert cloud.stop("run-7-1", 0) == StopReply(StopAnswer.REFUSED, False, "not_started_ENOENT")
    assert cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "ENOENT")
    found = cloud.preflight()
    assert not found.ok
    assert len(found.problems) == 2


def test_placeholders_are_words_and_never_shell(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    write = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]))"
    argv = [sys.executable, "-S", "-c", write, str(seen), "{instance}", "x{incident}-{rung}"]
    cloud = command(argv, instance_id="$(reboot); `id`")
    cloud.stop("run 7; rm -rf /", 2)
    assert seen.read_text() == "$(reboot); `id`|xrun 7; rm -rf /-2"


def test_a_hanging_command_dies_with_everything_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    # Both the shell and its child hold the writing end: end-of-file says that both are gone.
    cloud = command(["/bin/sh", "-c", f"exec 3>{fifo}; echo up >&3; sleep 600 & wait"], timeout_s=1.0)
    assert cloud.stop("run-7-1", 0) == StopReply(StopAnswer.UNKNOWN, True, "timeout")
    read = b""
    while select.select([reader], [], [], 30)[0]:
        if not (chunk := os.read(reader, 64)):
            break
        read += chunk
    else:
        pytest.fail("a child of the stop command is still alive")
    os.close(reader)
    assert read == b"up\n"


def test_the_command_cannot_speak_for_the_service() -> None:
    environ = {"NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_USEC": "1", "PATH": "/usr/bin:/bin"}
    script = 'test -z "$NOTIFY_SOCKET$WATCHDOG_USEC"'
    cloud = clouds.load("command", {"argv": ["/bin/sh", "-c", script]}, Surroundings(environ=environ))
    assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED


def test_its_output_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    reply = command(["/bin/sh", "-c", "echo token-abc; echo token-abc >&2; exit 3"]).stop("run-7-1", 0)
    captured = capfd.readouterr()
    assert "token-abc" not in captured.out + captured.err + repr(reply)
