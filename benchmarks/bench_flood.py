"""A NaN while three users do their worst: `python -m benchmarks.bench_flood [--runs 20]`; needs root.

A real `costgov daemon` as root. Three users, each with three processes of the governor's own priority: one sends steps
and hellos on eight connections as fast as the socket takes them, with garbage and packets of 64 KiB among them; one
says hello under new names and under the neighbour's, names a checkpoint whose manifest is a pipe, and goes; one asks
the control socket for the status and for halts, and writes lines of a megabyte into the log of a stream. Meanwhile a
fourth user's rank sends a NaN. From that moment until the verdict, by the incident's own clock, and until the kernel
says that the rank is gone. The peer is the same without the three, in the same minute and the same governor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.service import SAFETY_S, Service, end, nonfinite_policy
from benchmarks.table import Row, as_json, as_text, p99, row
from trainer_shim.wire import head

REPEATS = 25
FIRST_FLOODED = 1_000
GRACE_S = 2.0
LAST_INCIDENTS = 20
STRANGERS = (12_345, 12_346, 12_347)
NEIGHBOUR = 12_399
BOUND_S = 1.0
# As the shim, it says hello again where it was closed or not answered, and prints how often it had to. When told it
# sends its NaN, prints the nanosecond before it, and goes on as a trainer does: each later step has a NaN too.
RANK = """
import socket, sys, time
path, hello, step = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()
def attached():
    for number in range(1, 1000):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(2)
        try:
            sock.connect(path)
            sock.send(hello)
            if b"confirm" in sock.recv(65536):
                return sock, number
        except OSError:
            pass
        sock.close()
        time.sleep(0.1)
    sys.exit("never confirmed")
sock, number = attached()
print(number, flush=True)
sys.stdin.readline()
sent = None
while True:
    now = time.monotonic_ns()
    try:
        sock.send(step)
    except OSError:
        sock.close()
        sock, number = attached()
        continue
    if sent is None:
        sent = now
        print(sent, flush=True)
    time.sleep(0.25)
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
    """Halts of the neighbour's runs, each with a rank of its own. One that is not seen to end counts as the bound."""

    def __init__(self, service: Service, first: int = 0) -> None:
        self._service = service
        self._number = first
        self.verdict_ms: list[float] = []
        self.gone_ms: list[float] = []
        self.unseen: list[str] = []
        self.hellos = 0  # That it took to be confirmed.

    def one(self) -> None:
        self._number += 1
        run = f"neighbour-{self._number}"
        argv = as_user(NEIGHBOUR, RANK, self._service.socket, hello(run), step("nan"))
        rank = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        pidfd = os.pidfd_open(rank.pid)
        verdict_ms = gone_ms = SAFETY_S * 1000
        try:
            self.hellos += int(said(rank))
            assert rank.stdin is not None
            rank.stdin.write(b"go\n")
            sent_ns = int(said(rank))
            if not select.select([pidfd], [], [], SAFETY_S)[0]:
                raise RuntimeError("the rank was not ended")
            gone_ms = (time.monotonic_ns() - sent_ns) / 1e6
            verdict_ms = (self._verdict_ns(run) - sent_ns) / 1e6
        except (RuntimeError, OSError, ValueError) as error:
            self.unseen.append(f"{run}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        finally:
            self.verdict_ms.append(verdict_ms)
            self.gone_ms.append(gone_ms)
            os.close(pidfd)
            end(rank)
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    pipe.close()

    def _verdict_ns(self, run: str) -> int:
        def look() -> int:
            # The last ones alone: a longer answer may be too large to be given.
            found = self._service.ask({"cmd": "incidents", "last": LAST_INCIDENTS}) or []
            return next((int(one["opened_mono_ns"]) for one in found if one["run"] in (run, f"{run}@{NEIGHBOUR}")), 0)

        return int(self._service.until(look, f"the incident of {run}"))


def said(process: subprocess.Popen[bytes]) -> bytes:
    """The next line, within the bound. RuntimeError if there is none."""
    assert process.stdout is not None
    line = process.stdout.readline() if select.select([process.stdout], [], [], SAFETY_S)[0] else b""
    if not line:
        raise RuntimeError(f"no line came: {process.poll()}")
    return line


@contextlib.contextmanager
def flood(service: Service) -> Iterator[list[subprocess.Popen[bytes]]]:
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
                processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, bufsize=0))
                if said(processes[-1]) != b"ready\n":
                    raise RuntimeError("a stranger did not begin")
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            end(process)
            if process.stdout is not None:
                process.stdout.close()


def log_of(work: Path, place: int) -> Path:
    return work / f"stranger-{place}.jsonl"


@dataclass
class Run:
    """25 halts without the flood and 25 beside it, in one governor."""

    alone: Halts
    flooded: Halts
    frames_per_s: float
    ended: int  # Strangers that did not last: the flood was weaker than it should be.

    @property
    def remarks(self) -> list[str]:
        unseen = [*self.alone.unseen, *self.flooded.unseen]
        weaker = [f"{self.ended} of the strangers' processes ended early"] if self.ended else []
        return [*unseen, *weaker]


def run_once() -> Run:
    extra = '[control]\nmode = "0666"\n'
    for place, _ in enumerate(STRANGERS):
        extra += f'[[jsonl]]\nrun = "stream-{place}"\npath = "{{work}}/stranger-{place}.jsonl"\n'
    with Service(nonfinite_policy("none", GRACE_S, ends=True), extra=extra) as service:
        service.work.chmod(0o755)
        for place, uid in enumerate(STRANGERS):
            log_of(service.work, place).touch()
            os.chown(log_of(service.work, place), uid, uid)
        alone, flooded = Halts(service), Halts(service, FIRST_FLOODED)
        for _ in range(REPEATS):
            alone.one()
        before, began_s = frames(service), time.monotonic()
        with flood(service) as strangers:
            for _ in range(REPEATS):
                flooded.one()
            ended = sum(process.poll() is not None for process in strangers)
            rate = (frames(service) - before) / (time.monotonic() - began_s)
    return Run(alone, flooded, rate, ended)


def frames(service: Service) -> int:
    return int(service.until(lambda: service.ask({"cmd": "status"}), "the status")["governor"]["frames_total"])


def measure(runs: int = 1) -> Sequence[Row]:
    """Each run in a governor of its own. One that ends without figures is said, and costs the others nothing."""
    if os.geteuid() != 0:
        print("bench_flood needs root: it runs processes of four users", file=sys.stderr)
        return []
    done: list[Run] = []
    lost = 0
    for number in range(1, runs + 1):
        try:
            done.append(run_once())
        except KeyboardInterrupt:  # What was measured until then is shown.
            break
        except (RuntimeError, OSError) as error:
            lost += 1
            print(f"run {number}: no figures: {error}", file=sys.stderr, flush=True)
            continue
        told = figures(done[-1].flooded.verdict_ms)
        told = f"run {number} of {runs}: verdict {told}; load {os.getloadavg()[0]:.1f}"
        print(told, *done[-1].remarks, sep="\n  ", file=sys.stderr, flush=True)
    return rows_of(done, lost) if done else []


def figures(samples: Sequence[float]) -> str:
    return f"median {statistics.median(samples):.0f}, p99 {p99(samples):.0f}, worst {max(samples):.0f} ms"


def rows_of(done: Sequence[Run], lost: int) -> list[Row]:
    def all_of(which: str, kind: str) -> list[float]:
        return [ms for run in done for ms in getattr(getattr(run, which), kind)]

    rate = statistics.median(run.frames_per_s for run in done)
    hellos = sum(run.flooded.hellos for run in done)
    note = f"{len(STRANGERS)} users, 9 processes, {rate:,.0f} frames/s judged beside it; {os.cpu_count()} cores"
    verdict, gone = all_of("flooded", "verdict_ms"), all_of("flooded", "gone_ms")
    peer, aim = "without the flood", f"p99 < {BOUND_S * 1000:.0f}"
    over = sum(ms >= BOUND_S * 1000 for ms in verdict)
    unseen = sum(len(run.flooded.unseen) for run in done)
    note += (
        f"; {figures(verdict)}; {over} of {len(verdict)} took {BOUND_S:.0f} s or more, {unseen} were not seen to end"
    )
    note += f"; {hellos} hellos; {lost} runs without figures" if lost else f"; {hellos} hellos"
    return [
        row("NaN to verdict, three users at their worst", "ms", verdict, aim=aim, peer=peer,
            peer_samples=all_of("alone", "verdict_ms"), note=note),
        row("NaN to the rank's end, three users at their worst", "ms", gone, aim=aim, peer=peer,
            peer_samples=all_of("alone", "gone_ms"), note=figures(gone)),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of the table")
    parser.add_argument("--runs", type=int, default=1, help="so many, each with a governor of its own")
    arguments = parser.parse_args()
    rows = measure(arguments.runs)
    print(as_json(rows) if arguments.json else as_text(rows))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
