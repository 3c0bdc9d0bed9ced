"""The kill set against the launchers themselves, with ranks deaf to SIGTERM: found, ended, and not brought back."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.core.base.identity import ProcessId
from governor.core.halt.kill_set import find_launchers, kill_set, strays
from governor.core.halt.known_names import is_launcher

SAFETY_S = 120  # Launchers import torch, and deepspeed everything else, on a machine that may be busy.
BIN = Path(sys.executable).parent

# It says who it is by connecting, and its end shows as the connection's. It ends with us, also where a test has failed.
RANK = """
import signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[-1])
sock.recv(1)
"""


def torchrun(rank: str, path: str) -> list[str]:
    return [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "2", "--max-restarts", "3", rank, path]


def torchrun_module(rank: str, path: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", rank, path]


def deepspeed(rank: str, path: str) -> list[str]:
    return [str(BIN / "deepspeed"), "--num_gpus", "2", "--no_local_rank", rank, path]


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(SAFETY_S)
        listener.bind(str(path))
        listener.listen()
        yield listener


def greet(listener: socket.socket, processes: LinuxProcesses) -> tuple[socket.socket, ProcessId]:
    connection, _ = listener.accept()
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    facts = processes.facts(pid)
    assert facts is not None
    return connection, facts.process


@pytest.mark.parametrize(
    ("command", "launchers"),
    [(torchrun, 1), (torchrun_module, 1), (deepspeed, 2)],
    ids=["torchrun", "torch.distributed.run", "deepspeed"],
)
def test_a_real_launcher_and_its_ranks_are_ended_and_nobody_comes_back(
    tmp_path: Path, command: object, launchers: int
) -> None:
    assert callable(command)
    processes = LinuxProcesses(SystemClock().boot_id)
    script = tmp_path / "train.py"
    script.write_text(RANK)
    with listening(tmp_path / "ranks.sock") as listener:
        run = subprocess.Popen(
            command(str(script), listener.getsockname()), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PATH": f"{BIN}:{os.environ['PATH']}"},
        )  # fmt: skip
        connections, ranks = zip(*(greet(listener, processes) for _ in range(2)), strict=True)
        try:
            table = processes.table()
            found = find_launchers(table, ranks[0], os.getpid())
            assert len(found) == launchers
            assert found[0].pid == run.pid
            assert all(is_launcher(table[launcher.pid].argv) for launcher in found)
            killed = kill_set(table, ranks, os.getpid())
            assert killed is not None
            assert killed.members[:launchers] == found
            assert set(ranks) <= set(killed.members)
        finally:
            for member in (*find_launchers(processes.table(), ranks[0], os.getpid()), *ranks):
                processes.send(member, signal.SIGKILL)
        empty_scans = 0
        while empty_scans < 2:
            for member in killed.members:
                processes.send(member, signal.SIGKILL)
            late = strays(processes.table(), killed, os.getpid())
            killed = killed.widened(late)
            empty_scans = 0 if late or not all(map(processes.is_gone, killed.members)) else empty_scans + 1
        run.wait(SAFETY_S)
        for connection in connections:
            assert select.select([connection], [], [], SAFETY_S)[0]
            assert connection.recv(1) == b""
            connection.close()
        assert not select.select([listener], [], [], 0)[0], "a rank came back"
