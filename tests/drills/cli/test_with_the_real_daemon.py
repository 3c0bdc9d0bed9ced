"""The whole way once: the installed service, a trainer that announces itself, and an operator's commands."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.drills.cli.installed import BOUND_S, COSTGOV, Costgov

TRAINEE = """
import socket, sys
from trainer_shim import wire

sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
hello = dict(seq=1, run="run7", attempt="a1", local_rank=0, world_size=1, signal=0, total_steps=200)
sock.send(wire.encode({**wire.head("hello", 0, 1), **hello}))
step = dict(step=41, attempt_step=41, loss=2.5, tokens=4096, tokens_total=41 * 4096, step_s=0.1)
sock.send(wire.encode({**wire.head("step", 0, 2), **step}))
assert b"confirm" in sock.recv(65536)
print("watched", flush=True)
while sock.recv(65536):
    pass
"""


@pytest.fixture
def daemon(environ: dict[str, str], short_tmp: Path) -> Iterator[subprocess.Popen[bytes]]:
    (short_tmp / "policies").mkdir()
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(f"{short_tmp}/notify")
    environ |= {"COSTGOV_PATHS__POLICIES_DIR": f"{short_tmp}/policies", "COSTGOV_METRICS__PORT": "0"}
    environ |= {"COSTGOV_NODE__PRICE_USD_PER_HOUR": "22", "NOTIFY_SOCKET": f"{short_tmp}/notify"}
    with open(short_tmp / "log", "wb") as log:
        process = subprocess.Popen([COSTGOV, "daemon"], env=environ, stderr=log)
    told = b""
    while b"READY=1" not in told:
        assert select.select([notify], [], [], BOUND_S)[0], (short_tmp / "log").read_text()
        told = notify.recv(4096)
    yield process
    process.kill()
    process.wait()
    notify.close()


@pytest.fixture
def trainee(daemon: subprocess.Popen[bytes], short_tmp: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-c", TRAINEE, f"{short_tmp}/run/trainer.sock"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"watched\n"
    yield process
    process.kill()
    process.communicate()


def test_an_operator_sees_holds_and_halts_a_run(
    costgov: Costgov, daemon: subprocess.Popen[bytes], trainee: subprocess.Popen[bytes]
) -> None:
    (run,) = json.loads(costgov("status", "--json").stdout)["runs"]
    assert (run["run"], run["step"], run["ranks_connected"]) == ("run7", 41, 1)
    assert f", service (pid {daemon.pid})" in costgov("status").stdout
    assert costgov("hold", "run7", "2h", "--reason", "evaluating").returncode == 0
    assert "run7: held for another 1h 59m, no rule halts it: evaluating" in costgov("status").stdout
    assert costgov("hold", "run7", "off").returncode == 0
    assert "held" not in costgov("status").stdout

    halted = costgov("halt", "run7", "--reason", "wrong data")
    assert halted.returncode == 0, halted.stderr
    incident_id = halted.stdout.split("incident ")[1].split()[0]
    assert trainee.wait(BOUND_S) == -signal.SIGTERM
    shown = shown_when_halted(costgov, incident_id)
    assert f"uid {os.geteuid()} asked for it: " in shown
    assert "wrong data" in shown
    assert "observed: no process of the run is left" in shown
    assert costgov("halt", "run7", "--reason", "again").returncode == ExitCode.UNKNOWN

    daemon.terminate()
    assert daemon.wait(BOUND_S) == 0
    assert costgov("status").returncode == ExitCode.NO_GOVERNOR
    assert incident_id in costgov("incident", "list").stdout, "its journal tells the same without it"


def shown_when_halted(costgov: Costgov, incident_id: str) -> str:
    deadline_s = time.monotonic() + BOUND_S
    while True:
        shown = costgov("incident", "show", incident_id).stdout
        if "the halt is complete" in shown or time.monotonic() > deadline_s:
            return shown


def test_the_doctor_sees_the_governor_run(costgov: Costgov, daemon: subprocess.Popen[bytes]) -> None:
    told = costgov("doctor").stdout
    assert f"runs (pid {daemon.pid})" in told
    assert "ok    trainers" in told


@pytest.mark.parametrize(
    ("directory", "said", "level"),
    [
        ("absent", "policies: default, packaged with costgov; {path} does not exist", "info"),
        ("empty", "problem: NOTHING WILL BE JUDGED: {path} holds no *.toml; runs are metered", "warning"),
    ],
)
def test_the_daemon_says_what_it_judges_by(
    costgov: Costgov, environ: dict[str, str], short_tmp: Path, directory: str, said: str, level: str
) -> None:
    (short_tmp / "empty").mkdir()
    environ |= {"COSTGOV_PATHS__POLICIES_DIR": f"{short_tmp}/{directory}", "COSTGOV_METRICS__PORT": "0"}
    process = subprocess.Popen([COSTGOV, "daemon"], env=environ, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        wanted = said.format(path=f"{short_tmp}/{directory}")
        records = (json.loads(line) for line in process.stderr)
        found = next(record for record in records if wanted in record.get("line", ""))
        assert found["level"] == level
        assert "FAIL  policies" not in costgov("doctor").stdout
    finally:
        process.kill()
        process.communicate()
