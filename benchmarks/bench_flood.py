"""A NaN while three users do their worst: `python -m benchmarks.bench_flood`; needs root.

A real `costgov daemon` as root. Three users, each with three processes of the governor's own priority: one sends steps
and hellos on eight connections as fast as the socket takes them, with garbage and packets of 64 KiB among them; one
says hello under new names and under the neighbour's, names a checkpoint whose manifest is a pipe, and goes; one asks
the control socket for the status and for halts, and writes lines of a megabyte into the log of a stream. Meanwhile a
fourth user's rank sends a NaN. From that moment until the verdict, by the incident's own clock, and until the kernel
says that the rank is gone. The peer is the same without the three, in the same minute and the same governor.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.service import SAFETY_S, Service, end
from benchmarks.table import Row, program, row
from trainer_shim.wire import head

REPEATS = 25
STRANGERS = (12_345, 12_346, 12_347)
NEIGHBOUR = 12_399
BOUND_S = 1.0
POLICY = """
[policy]
name = "bench"
[halt]
checkpoint = "none"
grace = "2s"
term_grace = "2s"
stop = "processes"
per_day_max = 1000
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
for = "1 step"
response = "halt"
"""
# Says hello, prints the answer, and when told sends its NaN and prints the nanosecond before it.
RANK = """
import socket, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(sys.argv[2].encode())
print(sock.recv(65536).decode(), flush=True)
sys.stdin.readline()
sent = time.monotonic_ns()
sock.send(sys.argv[3].encode())
print(sent, flush=True)
while sock.recv(65536):
    pass
"""
FRAMES = """
import itertools, json, os, select, socket, sys
path, hello, step = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
garbage = (b"garbage", b"{" * 60000, b"\\xff" * 65000, json.dumps({**step, "loss": "x" * 60000}).encode())
def attached(number):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        sock.send(json.dumps({**hello, "run": f"f{os.getuid()}-{number}"}).encode())
    except OSError:
        pass
    sock.setblocking(False)
    return sock
links = [attached(number) for number in range(8)]
print("ready", flush=True)
for number in itertools.count(1):
    packet = garbage[number // 50 % 4] if number % 50 == 0 else json.dumps({**step, "step": number}).encode()
    for place, sock in enumerate(links):
        if number % 3 == 0:
            packet = json.dumps({**hello, "run": f"f{os.getuid()}-{place}", "seq": number}).encode()
        try:
            sock.send(packet)
        except BlockingIOError:
            select.select([], [sock], [], 0.01)
        except OSError:
            sock.close()
            links[place] = attached(place)
"""
NAMES = """
import itertools, json, os, socket, sys
path, hello, trap = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
for first in itertools.count(0, 50):
    if os.fork():
        os.wait()
        continue
    for number in range(first, first + 50):
        name = f"neighbour-{1000 + number % 60}" if number % 2 else f"n{os.getuid()}-{number}"
        saved = {"step": 1, "path": trap, "kind": "good", "mono_ns": 1}
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(0.5)
            sock.connect(path)
            sock.send(json.dumps({**hello, "run": name, "attempt": str(number), "last_good": saved}).encode())
            sock.recv(65536)
        except OSError:
            pass
        sock.close()
    os._exit(0)
"""
CONTROL = """
import json, socket, sys, itertools
path, log = sys.argv[1], open(sys.argv[2], "ab", buffering=0)
requests = [{"cmd": "status"}, {"cmd": "halt", "run": "neighbour-1", "reason": "x"}, {"cmd": 5},
            {"cmd": "incidents", "last": 1000},
            {"cmd": "budget_set", "scope": "node", "ceiling_usd_micros": 1, "reason": "x"}]
line = b'{"step": 1, "loss": 2.0, "x": "' + b"y" * (1 << 20) + b'"}\\n'
print("ready", flush=True)
for number in itertools.count():
    if number % 20 == 0:
        log.truncate(0)
        log.write(line)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(0.5)
        sock.connect(path)
        sock.sendall(json.dumps(requests[number % 5]).encode() + b"\\n")
        while sock.recv(1 << 16):
            pass
    except OSError:
        pass
    sock.close()
"""


def as_user(uid: int, code: str, *arguments: str) -> list[str]:
    interpreter = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    prefix = ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", interpreter, "-S", "-c", code]
    return [*prefix, *arguments]


def hello(run: str) -> str:
    frame = {**head("hello", 0, time.monotonic_ns()), "seq": 1, "run": run, "attempt": "a", "local_rank": 0}
    return json.dumps({**frame, "world_size": 1, "signal": 0, "capabilities": ["beat"]})


def step(loss: float | str) -> str:
    return json.dumps({**head("step", 0, 1), "step": 1, "attempt_step": 1, "loss": loss, "loss_expected": True})


class Halts:
    """Halts of the neighbour's runs, each with a rank of its own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._number = 0
        self.verdict_ms: list[float] = []
        self.gone_ms: list[float] = []

    def one(self) -> None:
        self._number += 1
        run = f"neighbour-{self._number}"
        argv = as_user(NEIGHBOUR, RANK, self._service.socket, hello(run), step("nan"))
        rank = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pidfd = os.pidfd_open(rank.pid)
        try:
            assert rank.stdin is not None
            assert rank.stdout is not None
            answer = rank.stdout.readline()
            assert b"confirm" in answer, answer
            rank.stdin.write(b"go\n")
            rank.stdin.flush()
            sent_ns = int(rank.stdout.readline())
            assert select.select([pidfd], [], [], SAFETY_S)[0], "the rank was not ended"
            self.gone_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
            self.verdict_ms.append((self._verdict_ns(run) - sent_ns) / 1e6)
        finally:
            os.close(pidfd)
            end(rank)
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    pipe.close()

    def _verdict_ns(self, run: str) -> int:
        def look() -> int:
            found = self._service.ask({"cmd": "incidents", "last": 1000}) or []
            return next((int(one["opened_mono_ns"]) for one in found if one["run"] in (run, f"{run}@{NEIGHBOUR}")), 0)

        return int(self._service.until(look, f"the incident of {run}"))


@contextlib.contextmanager
def flood(service: Service) -> Iterator[None]:
    """Three users at their worst, until the end of the block."""
    trap = service.work / "trap"
    trap.mkdir(exist_ok=True)
    os.mkfifo(trap / "costgov_manifest.json")
    trap.chmod(0o777)
    control = str(service.work / "run" / "control.sock")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for place, uid in enumerate(STRANGERS):
            for argv in (
                as_user(uid, FRAMES, service.socket, hello("x"), step(2.0)),
                as_user(uid, NAMES, service.socket, hello("x"), str(trap)),
                as_user(uid, CONTROL, control, str(log_of(service.work, place))),
            ):
                processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True))
                stdout = processes[-1].stdout
                assert stdout is not None
                assert stdout.readline() == b"ready\n"
        yield
        assert all(process.poll() is None for process in processes), "the flood ended before its end"
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            end(process)
            if process.stdout is not None:
                process.stdout.close()


def log_of(work: Path, place: int) -> Path:
    return work / f"stranger-{place}.jsonl"


def measure() -> Sequence[Row]:
    if os.geteuid() != 0:
        print("bench_flood needs root: it runs processes of four users", file=sys.stderr)
        return []
    extra = '[control]\nmode = "0666"\n'
    for place, _ in enumerate(STRANGERS):
        extra += f'[[jsonl]]\nrun = "stream-{place}"\npath = "{{work}}/stranger-{place}.jsonl"\n'
    with Service(POLICY, extra=extra) as service:
        service.work.chmod(0o755)
        for place, uid in enumerate(STRANGERS):
            log_of(service.work, place).touch()
            os.chown(log_of(service.work, place), uid, uid)
        alone, flooded = Halts(service), Halts(service)
        flooded._number = 1_000
        for _ in range(REPEATS):
            alone.one()
        before, began_s = frames(service), time.monotonic()
        with flood(service):
            for _ in range(REPEATS):
                flooded.one()
            rate = (frames(service) - before) / (time.monotonic() - began_s)
    note = f"{len(STRANGERS)} users, 9 processes, {rate:,.0f} frames/s judged beside it; {os.cpu_count()} cores"
    peer, aim = "without the flood", f"p99 < {BOUND_S * 1000:.0f}"
    return [
        row("NaN to verdict, three users at their worst", "ms", flooded.verdict_ms, aim=aim, peer=peer,
            peer_samples=alone.verdict_ms, note=f"{note}; worst of {REPEATS}"),
        row("NaN to the rank's end, three users at their worst", "ms", flooded.gone_ms, aim=aim, peer=peer,
            peer_samples=alone.gone_ms),
    ]  # fmt: skip


def frames(service: Service) -> int:
    return int(service.until(lambda: service.ask({"cmd": "status"}), "the status")["governor"]["frames_total"])


if __name__ == "__main__":
    program(__doc__, measure)
