"""A governor as the nodes of its run become more: `python -m benchmarks.scale.bench_nodes [--quick]`.

A real `costgov daemon` with [peers] on loopback; the others are one process with a socket each and true signatures.
They tell of one run as often as so many nodes do, then once a second each (as in a halted run), then in a halt.
Percent of a core of the daemon; datagrams a second as they arrive. At last one of them tells the verdict on a run
after the other: milliseconds until the letter reaches a rank of that run.

The peer is a bare socket that takes as many datagrams of the same bytes, with json.loads.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.scale.others import SECRET, told_of
from benchmarks.scale.quick import program
from benchmarks.service import ROOT, Service, cpu_s, end, nonfinite_policy, rss_mb
from benchmarks.table import Row, row
from governor.core.events.peers import beat_of
from trainer_shim.wire import FRAME_BYTES_MAX, encode, head

SIZES: Final = (1, 8, 32, 128, 512, 1_000)
QUICK_SIZES: Final = (1, 32)
WINDOWS: Final = 3
WINDOW_S: Final = 3.0
VERDICTS: Final = 25
QUICK_VERDICTS: Final = 5
UNHEARD_S: Final = 60.0
GRACE_S: Final = 600.0  # The governor is ended long before: it never comes to signals that end.
BARE: Final = 2_000
PEERS: Final = """
[peers]
secret_file = "{secret}"
listen = "127.0.0.1:{port}"
"""


class Others:
    """The process of that name."""

    def __init__(self, count: int, port: int) -> None:
        argv = [sys.executable, "-m", "benchmarks.scale.others", str(count), str(port)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def tell(self, order: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(order + "\n")
        return json.loads(self.process.stdout.readline())


@contextmanager
def world(count: int) -> Iterator[tuple[Service, Others]]:
    """A governor, and the others, of which it has heard all."""
    with TemporaryDirectory(prefix="costgov-bench-") as place, socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        secret = Path(place) / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        with Service(nonfinite_policy("good", GRACE_S), extra=PEERS.format(secret=secret, port=port)) as service:
            others = Others(count, port)
            try:
                service.until(lambda: _answered(service) >= min(count, 64), "all others are heard")
                yield service, others
            finally:
                end(others.process)


def _answered(service: Service) -> int:
    found = json.dumps(service.ask({"cmd": "status"}))
    return found.count('"answered_s_ago": ') - found.count('"answered_s_ago": null')


class Rank:
    """Rank 0 of a run that has seven more nodes."""

    def __init__(self, path: str, number: int) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(UNHEARD_S)
        self._sock.connect(path)
        hello = {
            **head("hello", 0, time.monotonic_ns()), "seq": 1, "run": f"run-{number}", "attempt": "1", "local_rank": 0,
            "world_size": 16_384, "signal": 0, "capabilities": ["ask", "beat"], "job": f"job-{number}",
        }  # fmt: skip
        self._sock.send(encode(hello))
        self._sock.recv(FRAME_BYTES_MAX)
        step = {"step": 12_345, "attempt_step": 1, "loss": 2.0, "loss_expected": True}
        self._sock.send(encode({**head("step", 0, time.monotonic_ns()), **step}))

    def letter_ns(self) -> int:
        """When the letter came."""
        while True:
            assert select.select([self._sock], [], [], UNHEARD_S)[0], f"no letter in {UNHEARD_S:.0f} s"
            if b'"letter"' in self._sock.recv(FRAME_BYTES_MAX):
                return time.monotonic_ns()


class Meter:
    """Percent of a core, and datagrams and bytes a second, in and out, over some windows."""

    def __init__(self, service: Service, others: Others, window_s: float) -> None:
        pid = service.process.pid
        self.cpu: list[float] = []
        self.into: list[float] = []
        self.out: list[float] = []
        self.bytes: list[float] = []
        others.tell("count")
        for _ in range(WINDOWS):
            before, begun_s = cpu_s(pid), time.monotonic()
            time.sleep(window_s)
            found, elapsed_s = others.tell("count"), time.monotonic() - begun_s
            self.cpu.append(100 * (cpu_s(pid) - before) / elapsed_s)
            self.into.append(found["sent"] / elapsed_s)
            self.out.append(found["heard"] / elapsed_s)
            self.bytes.append((found["sent_bytes"] + found["heard_bytes"]) / elapsed_s)
        self.rss = rss_mb(pid)

    def note(self) -> str:
        into, out, size = (sorted(found)[len(found) // 2] for found in (self.into, self.out, self.bytes))
        return f"{into:,.0f} datagrams/s in, {out:,.0f} out, {size / 1e3:,.0f} kB/s, RSS {self.rss:.0f} MiB"


def bare_us() -> float:
    """Microseconds of processor for one datagram of that kind, taken and parsed by nobody but json.loads."""
    content = told_of("other-1", 0, False, 1.0)
    with socket.socket(type=socket.SOCK_DGRAM) as takes, socket.socket(type=socket.SOCK_DGRAM) as sends:
        takes.bind(("127.0.0.1", 0))
        spent = 0.0
        for _ in range(BARE):
            sends.sendto(content, takes.getsockname())
            begun = time.process_time()
            json.loads(takes.recv(65_536))
            spent += time.process_time() - begun
    return spent / BARE * 1e6


def measure_one(count: int, verdicts: int) -> list[Row]:
    rows = []
    bare = bare_us()
    with world(count) as (service, others):
        ranks = [Rank(service.socket, number) for number in range(verdicts + 1)]
        beat_s = beat_of(count + 1) / 1e9

        def metered(what: str, window_s: float) -> None:
            meter = Meter(service, others, window_s)
            peers = [rate * bare / 1e4 for rate in meter.into]
            rows.append(row(
                f"{count:,} peers, {what}", "% of a core", meter.cpu, peer="recv, json.loads", peer_samples=peers,
                note=meter.note(),
            ))  # fmt: skip

        time.sleep(2 * WINDOW_S)  # All are members by then.
        others.tell(f"beat {beat_s}")
        metered(f"calm, each tells every {beat_s:.3g} s", max(WINDOW_S, beat_s / WINDOWS))
        others.tell("beat 1")
        metered("each tells each second", WINDOW_S)
        others.tell("halted")
        time.sleep(WINDOW_S)
        metered("in a halt of one run", WINDOW_S)
        late = []
        for number in range(1, verdicts + 1):
            at_ns = others.tell(f"halt {number}")
            late.append((ranks[number].letter_ns() - at_ns) / 1e6)
            time.sleep(0.1)
        rows.append(row(f"{count:,} peers, another node's verdict to our letter", "ms", late, aim="p99 < 1000"))
        refused = service.ask({"cmd": "status"})
        print(count, json.dumps(_peers_of(refused)), file=sys.stderr)
    return rows


def _peers_of(status: Any) -> Any:
    """The counters of its datagrams, without addresses."""
    found = status.get("peers") or status["governor"].get("peers") or {}
    return {name: value for name, value in found.items() if name != "addresses"}


def measure(quick: bool, _svg: Path | None) -> list[Row]:
    sizes, verdicts = (QUICK_SIZES, QUICK_VERDICTS) if quick else (SIZES, VERDICTS)
    return [one for count in sizes for one in measure_one(count, verdicts)]


if __name__ == "__main__":
    program(__doc__, measure)
