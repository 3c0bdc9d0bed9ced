"""A standard stream that the caller has closed, or that nobody reads, costs neither a start nor a governor."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.halt.conftest import BIN, SAFETY_S, Service, configuration, until_gone

# At $1 a second, $3 is reserved for its end. What is left is for a start on a busy machine.
SHORT = """
[policy]
name = "drill"
[halt]
checkpoint = "none"
grace = "0s"
term_grace = "1s"
kill_grace = "5s"
stop = "processes"
[[rule]]
name = "ceiling"
trigger = "budget"
response = "halt"
"""
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("closed", CLOSED)
def test_a_command_starts_and_its_code_is_ours(closed: str, tmp_path: Path) -> None:
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--name", "drill", "--"]
    argv += ["sh", "-c", f"echo to stderr >&2; readlink /proc/$$/fd/2 > {tmp_path}/stderr; exit 7"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv], capture_output=True, timeout=SAFETY_S)
    assert done.returncode == 7
    assert b"internal error" not in done.stderr
    if "2>" in closed:
        assert (tmp_path / "stderr").read_text() == f"{os.devnull}\n"


def test_a_daemon_starts_without_standard_error(service: Callable[..., Service]) -> None:
    governor = service(prefix=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    governor.start()
    assert governor.process is not None
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0


def test_a_reader_that_hangs_costs_no_ceiling_and_reads_how_it_ended_when_it_goes_on(tmp_path: Path) -> None:
    policy = tmp_path / "short.toml"
    policy.write_text(SHORT)
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    filled = os.write(writing, b"x" * 1_000_000)
    os.set_blocking(writing, True)
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--policy", str(policy)]
    argv += ["--ceiling", "8", "--price", "3600", "--name", "drill", "--", "sleep", "600"]
    costgov = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writing)
    os.close(writing)
    reports, seen = tmp_path / "state" / "incidents", bytearray()

    def go_on_after_the_halt() -> None:
        if any('"HALTED"' in report.read_text() for report in reports.glob("*.json")):
            with contextlib.suppress(BlockingIOError):
                seen.extend(os.read(reading, 65536))

    try:
        until_gone(costgov.pid, go_on_after_the_halt)
        with contextlib.suppress(BlockingIOError):
            while more := os.read(reading, 65536):
                seen.extend(more)
    finally:
        costgov.kill()
        os.close(reading)
    assert costgov.wait(SAFETY_S) == 86
    (report,) = reports.glob("*.json")
    incident = json.loads(report.read_text())
    assert (incident["reason"], incident["halt_stage"]) == ("ceiling_reached", "HALTED")
    assert incident["spend_usd"] < 8
    told = seen[filled:].decode()
    assert told.startswith("costgov: on halt I will")
    assert told.index("HALT drill") < told.index("cd "), "in order, and the command that goes on is there"
