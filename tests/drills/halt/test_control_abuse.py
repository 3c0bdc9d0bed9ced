"""The control socket full of clients that hang: a halt is decided and done beside them, and others get answers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from governor.adapters.control_socket import CONNECTIONS_PER_UID_MAX
from governor.adapters.journal.writer import open_journal
from governor.wire.control_client import ask
from tests.drills.halt.conftest import BIN, SAFETY_S, Service
from tests.drills.halt.puppet import Puppet

INCIDENTS, EVIDENCE_CHARS = 100, 20_000  # An answer of 2 MB: ten times what a Unix socket's buffer takes.
CLIENTS = 200
SPECIAL = ("half a line", "ten megabytes", "an answer that nobody reads")  # The others only connect.

# The special ones first, then silence; then it waits for its end.
ABUSE = """
import signal, socket, sys
clients, first = [], [b'{"cmd":"sta', b"x" * 10_000_000 + b"\\n", b'{"cmd":"incidents","last":100}\\n']
for n in range(int(sys.argv[2])):
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    clients.append(client)
    if n < len(first):
        try:
            client.sendall(first[n])
        except OSError:
            pass
print("abusing", flush=True)
signal.pause()
"""


@pytest.fixture
def puppet_of() -> Iterator[Callable[[Service], Puppet]]:
    started: list[Puppet] = []

    def make(governor: Service) -> Puppet:
        started.append(Puppet(governor.work / "run" / "trainer.sock"))
        assert started[-1].hello()["kind"] == "confirm"
        started[-1].steps(1, 30)
        return started[-1]

    yield make
    for puppet in started:
        puppet.end()


def _with_history(governor: Service) -> None:
    """A node that has had many incidents: its answers are long."""
    journal, problem = open_journal(str(governor.work / "state" / "costgov.db"), str(governor.work / "run"))
    assert problem is None
    for n in range(INCIDENTS):
        journal.close_incident(f"old.{n}", {"incident_id": f"old.{n}", "text": "x" * EVIDENCE_CHARS})
    journal.close()


@contextlib.contextmanager
def _abused(governor: Service, python: Sequence[str]) -> Iterator[None]:
    argv = [*python, "-S", "-c", ABUSE, str(governor.work / "run" / "control.sock"), str(CLIENTS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "abusing\n"
            yield
        finally:
            process.kill()


def _costgov(governor: Service, *words: str) -> str:
    done = subprocess.run(
        [str(BIN / "costgov"), *words, "--control", str(governor.work / "run" / "control.sock")],
        capture_output=True, text=True, timeout=SAFETY_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: clients of another user")
def test_another_users_clients_take_nothing_from_an_operator(
    public: Path, interpreter: str, puppet_of: Callable[[Service], Puppet]
) -> None:
    governor = Service(public)
    governor.config.write_text(governor.config.read_text() + '[control]\nmode = "0666"\n')
    _with_history(governor)
    governor.start()
    try:
        rank = puppet_of(governor)
        with _abused(governor, ["setpriv", "--clear-groups", "--regid=65534", "--reuid=65534", interpreter]):
            assert "drill" in _costgov(governor, "status")
            assert "incident drill.drill.1" in _costgov(governor, "halt", "drill", "--reason", "an operator's")
            assert select.select([rank.pidfd], [], [], SAFETY_S)[0]
            governor.until(lambda: governor.stage() == "HALTED", "the halt is complete")
            assert json.loads(_costgov(governor, "status", "--json"))["runs"][0]["halt"]["stage"] == "HALTED"
    finally:
        governor.end()
    assert "Traceback" not in governor.log.read_text()


def test_the_same_users_clients_hold_up_no_halt_and_are_let_go(
    service: Callable[..., Service], puppet_of: Callable[[Service], Puppet]
) -> None:
    governor = service()
    _with_history(governor)
    governor.start()
    rank = puppet_of(governor)
    control = str(governor.work / "run" / "control.sock")
    with contextlib.ExitStack() as opened:
        hanging = [opened.enter_context(_silent(control)) for _ in range(CONNECTIONS_PER_UID_MAX - len(SPECIAL))]
        opened.enter_context(_abused(governor, [sys.executable]))
        refused = ask(control, {"cmd": "status"})
        assert (refused.code, refused.error) == ("unavailable", "too many connections; try again in a moment")
        rank.steps(31, 31, loss="nan")
        assert select.select([rank.pidfd], [], [], SAFETY_S)[0]
        for client in hanging:  # Each is hung up on when its time is over, by a governor that has other things to do.
            assert select.select([client], [], [], SAFETY_S)[0]
            assert client.recv(1) == b""
        governor.until(lambda: ask(control, {"cmd": "ping"}).ok, "there is room again")
        assert "drill" in _costgov(governor, "status")
        governor.until(lambda: governor.stage() == "HALTED", "the halt is complete")


def _silent(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client
