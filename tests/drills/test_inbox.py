"""The trainer socket across pid namespaces and across the death of the governor that served it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.adapters.trainers.inbox import SeqpacketInbox
from governor.ports import Arrival, Opened, Packet
from trainer_shim.wire import FRAME_BYTES_MAX

SAFETY_S = 60
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: pid namespaces")

# A governor that reports its first arrival as JSON.
GOVERNOR = """
import json, select, sys
from dataclasses import asdict
from governor.adapters.machine.clock import SystemClock
from governor.adapters.trainers.inbox import SeqpacketInbox
from governor.adapters.machine.processes import LinuxProcesses
boot_id = SystemClock().boot_id
inbox = SeqpacketInbox(sys.argv[1], LinuxProcesses(boot_id), boot_id)
print("ready", flush=True)
while True:
    select.select([inbox], [], [])
    for arrival in inbox.receive():
        print(json.dumps({type(arrival).__name__: asdict(arrival)}, default=str), flush=True)
"""
TRAINER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(b"hello from pid %d" % os.getpid())
sock.recv(1)
"""


# The same with so few descriptors that connections use them up.
STARVED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n" + GOVERNOR


def start_governor(path: Path, *prefix: str, code: str = GOVERNOR) -> subprocess.Popen[str]:
    governor = subprocess.Popen(
        [*prefix, sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert governor.stdout is not None
    assert governor.stdout.readline() == "ready\n"
    return governor


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(SAFETY_S)
    if process.stdout is not None:
        process.stdout.close()


def receive(inbox: SeqpacketInbox, kind: type[Arrival]) -> Arrival:
    while True:
        assert select.select([inbox], [], [], SAFETY_S)[0]
        for arrival in inbox.receive():
            if isinstance(arrival, kind):
                return arrival


@needs_root
def test_a_governor_in_a_child_pid_namespace_says_what_to_share(tmp_path: Path) -> None:
    """It cannot see the trainer's pid: the kernel says 0, and no message is believed instead."""
    path = tmp_path / "trainer.sock"
    governor = start_governor(path, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trainer:
            trainer.settimeout(SAFETY_S)
            trainer.connect(str(path))
            refusal = json.loads(trainer.recv(FRAME_BYTES_MAX))
            assert trainer.recv(1) == b""
        assert governor.stdout is not None
        rejected = json.loads(governor.stdout.readline())["Rejected"]
    finally:
        end(governor)
    assert refusal["kind"] == "refuse"
    assert rejected == {"reason": refusal["reason"], "uid": 0, "pid": 0}
    for advice in ("--pid=host", "hostPID: true", "shareProcessNamespace: true"):
        assert advice in refusal["reason"]
    assert "\n" not in refusal["reason"]


@needs_root
def test_a_trainer_in_a_child_pid_namespace_is_known_by_the_pid_that_we_can_signal(tmp_path: Path) -> None:
    boot_id = SystemClock().boot_id
    processes = LinuxProcesses(boot_id)
    path = str(tmp_path / "trainer.sock")
    inbox = SeqpacketInbox(path, processes, boot_id)
    trainer = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-S", "-c", TRAINER, path], text=True
    )
    try:
        packet = receive(inbox, Packet)
        assert isinstance(packet, Packet)
        assert packet.data == b"hello from pid 1"  # What it thinks it is.
        peer = packet.peer.process
        facts = processes.facts(peer.pid)
        assert facts is not None
        assert facts.process == peer
        assert facts.ppid == trainer.pid
        pidfd = processes.watch(peer)
        assert pidfd is not None
        processes.send(peer, signal.SIGKILL)
        assert select.select([pidfd], [], [], SAFETY_S)[0]
        os.close(pidfd)
    finally:
        end(trainer)
        inbox.close_all()


def test_the_socket_of_a_killed_governor_is_taken_over_and_trainers_notice(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    first = start_governor(path)
    trainer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    trainer.settimeout(SAFETY_S)
    trainer.connect(str(path))
    assert first.stdout is not None
    assert "Opened" in first.stdout.readline()
    end(first)
    assert trainer.recv(1) == b""
    trainer.close()
    assert path.exists()
    boot_id = SystemClock().boot_id
    inbox = SeqpacketInbox(str(path), LinuxProcesses(boot_id), boot_id)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as again:
        again.connect(str(path))
        opened = receive(inbox, Opened)
        assert isinstance(opened, Opened)
        assert opened.peer.process.pid == os.getpid()
    inbox.close_all()


def test_a_trainer_that_is_gone_before_we_look_is_not_mistaken_for_another(tmp_path: Path) -> None:
    boot_id = SystemClock().boot_id
    path = str(tmp_path / "trainer.sock")
    inbox = SeqpacketInbox(path, LinuxProcesses(boot_id), boot_id)
    code = "import socket, sys; s = socket.socket(1, 5); s.connect(sys.argv[1]); s.send(b'hello')"
    subprocess.run([sys.executable, "-S", "-c", code, path], check=True, timeout=SAFETY_S)
    (arrival,) = inbox.receive()
    assert "ended before it could be identified" in getattr(arrival, "reason", "")
    inbox.close_all()


def test_a_governor_out_of_descriptors_refuses_newcomers_and_serves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    governor = start_governor(path, code=STARVED)
    assert governor.stdout is not None
    trainers: list[socket.socket] = []
    try:
        arrival: dict[str, dict[str, object]] = {"Opened": {}}
        while "Opened" in arrival:
            trainers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            trainers[-1].settimeout(SAFETY_S)
            trainers[-1].connect(str(path))
            arrival = json.loads(governor.stdout.readline())
            assert len(trainers) < 30, "40 descriptors hold no 30 connections beside those kept for a halt"
        reason = "the governor is out of file descriptors: raise its LimitNOFILE"
        assert arrival["Rejected"]["reason"] == reason
        assert json.loads(trainers[-1].recv(FRAME_BYTES_MAX))["reason"] == reason
        assert trainers[-1].recv(1) == b""
        trainers[0].send(b"still here")
        assert json.loads(governor.stdout.readline())["Packet"]["connection"] == 1
        trainers[1].close()
        assert "Closed" in json.loads(governor.stdout.readline())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as newcomer:
            newcomer.connect(str(path))
            assert "Opened" in json.loads(governor.stdout.readline())
    finally:
        for trainer in trainers:
            trainer.close()
        end(governor)
