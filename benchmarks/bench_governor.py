"""What a governor costs a node: memory and CPU at 8 ranks x 10 steps/s: `python -m benchmarks.bench_governor`.

A real `costgov daemon` with the default policy, its journal and its metrics page; one process that speaks for eight
ranks over eight connections. Frames arrive in one of three ways: as the shim sends them, kept back for the multiples
of 250 ms on which the ranks of a node send together; at the end of each step, which ranks that train together reach
together; and the worst case of another client, spread evenly, so that each frame wakes a cold daemon. In the same
seconds runs Debian's prometheus-node-exporter, or where that is not installed a bare prometheus-client page; both are
scraped every five seconds. A second peer is fed the same frames and only parses them: what no watcher written in
Python can undercut.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench_frames import BEAT, STEP
from benchmarks.service import Service, cpu_s, end, free_port, rss_mb
from benchmarks.table import Row, program, row
from trainer_shim.wire import encode, head

RANKS = 8
STEPS_PER_S = 10
STEP_NS = 1_000_000_000 // STEPS_PER_S
GRID_NS = 250_000_000  # The shim's: multiples of CLOCK_MONOTONIC, so all ranks of a node send at once.
WINDOW_S = 15.0
WINDOWS = 3  # Of each way of arriving.
SCRAPE_S = 5.0
WARM_S = 5.0
PARSER = """
import json, select, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(8)
poll, socks = select.epoll(), {}
for _ in range(8):
    sock, _ = listener.accept()
    sock.recv(65536)
    sock.send(b"{}")
    socks[sock.fileno()] = sock
    poll.register(sock, select.EPOLLIN)
while socks:
    for fd, _ in poll.poll():
        packet = socks[fd].recv(65536)
        if packet:
            json.loads(packet)
        else:
            poll.unregister(fd)
            socks.pop(fd).close()
"""
BARE_PAGE = (
    "import sys, time\nfrom prometheus_client import start_http_server\n"
    "start_http_server(int(sys.argv[1]), '127.0.0.1')\nwhile True: time.sleep(3600)\n"
)


MODES = {
    "shim": ("< 1", "frames as the shim sends them"),
    "step": ("", "frames at each step's end"),
    "spread": ("", "frames spread evenly"),
}
Due = tuple[int, int, bytes]  # When to send, the rank, the packet.


def feed(paths: Sequence[str], mode: str) -> None:
    """Speak for all ranks until ended: 10 steps and a beat per second each."""
    socks = [[_attach(path, rank) for path in paths] for rank in range(RANKS)]
    for due_ns, burst in itertools.groupby(frames(mode, time.monotonic_ns()), key=lambda due: due[0]):
        packets = sorted(burst, key=lambda due: due[1])  # Encoded before it is time: a rank does so as its steps end.
        time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        for _, rank, packet in packets:
            for sock in socks[rank]:
                sock.send(packet)


def frames(mode: str, now_ns: int) -> Iterator[Due]:
    """Every frame in the order of its sending, for ever."""
    begun_ns = now_ns // GRID_NS * GRID_NS + GRID_NS
    for step in itertools.count(1):
        for rank in range(RANKS):
            at_ns = begun_ns + step * STEP_NS
            due_ns = at_ns if mode == "step" else -(-at_ns // GRID_NS) * GRID_NS
            if mode == "spread":
                due_ns = at_ns + rank * STEP_NS // RANKS
            changing = {"step": step, "attempt_step": step, "tokens_total": step * 524_288, "progress_seq": step * 40}
            yield due_ns, rank, encode({**STEP, **head("step", rank, at_ns), **changing, "step_s": 0.1})
            if step % STEPS_PER_S == rank:  # Beats have a rhythm of their own.
                changing = {"step": step, "progress_seq": step * 40 + 7, "phase_since_ns": 1}
                yield due_ns, rank, encode({**BEAT, **head("beat", rank, due_ns), **changing})


def _attach(path: str, rank: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    hello = {
        **head("hello", rank, time.monotonic_ns()), "seq": 1, "run": "bench", "attempt": "1", "local_rank": rank,
        "world_size": RANKS, "signal": 0, "tokens_per_step": 524_288, "capabilities": ["beat"],
    }  # fmt: skip
    sock.send(encode(hello))
    sock.recv(65536)  # The confirmation.
    return sock


def peer(directory: Path) -> tuple[str, subprocess.Popen[bytes], str]:
    """Start the peer; its name, process and page."""
    port = free_port()
    exporter = shutil.which("prometheus-node-exporter")
    name = "prometheus-node-exporter" if exporter else "bare prometheus-client page"
    argv = [exporter, f"--web.listen-address=127.0.0.1:{port}"] if exporter else [
        sys.executable, "-c", BARE_PAGE, str(port),
    ]  # fmt: skip
    with (directory / "peer.log").open("wb") as log:
        return name, subprocess.Popen(argv, stdout=log, stderr=log), f"http://127.0.0.1:{port}/metrics"


def scrape_for(seconds: float, pages: list[str]) -> None:
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        for page in pages:
            with urllib.request.urlopen(page, timeout=10) as answer:
                answer.read()
        time.sleep(max(0.0, min(SCRAPE_S, left_s)))


class Meter:
    """CPU and memory of some processes over windows of time."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.cpu: dict[str, list[float]] = {name: [] for name in pids}
        self.rss: dict[str, list[float]] = {name: [] for name in pids}

    def run(self, pages: list[str]) -> None:
        for _ in range(WINDOWS):
            begun_s, before = time.monotonic(), {name: cpu_s(pid) for name, pid in self._pids.items()}
            scrape_for(WINDOW_S, pages)
            elapsed_s = time.monotonic() - begun_s
            for name, pid in self._pids.items():
                self.cpu[name].append(100 * (cpu_s(pid) - before[name]) / elapsed_s)
                self.rss[name].append(rss_mb(pid))


def under_load(mode: str) -> tuple[Meter, str, float]:
    """Meter a new governor and the peer, which is named, while it is fed; with the frames heard per second."""
    with Service(metrics=True) as service:
        argv = [sys.executable, "-m", "benchmarks.bench_governor", "--feed", mode, service.socket]
        parsed = service.work / "parser.sock"
        parser = subprocess.Popen([sys.executable, "-c", PARSER, str(parsed)])
        name, beside, page = peer(service.work)
        service.until(parsed.exists, "the parser listens")
        feeder = subprocess.Popen([*argv, str(parsed)])
        try:
            service.until(lambda: _ranks(service) == RANKS, "all ranks are connected")
            pages = [service.metrics_url(), page]
            scrape_for(WARM_S, pages)
            meter = Meter({"ours": service.process.pid, "peer": beside.pid, "parser": parser.pid})
            before, begun_s = _frames(service), time.monotonic()
            meter.run(pages)
            rate = (_frames(service) - before) / (time.monotonic() - begun_s)
            assert feeder.poll() is None, "somebody spoke to the end"
        finally:
            for process in (feeder, beside, parser):
                end(process)
    return meter, name, rate


def measure() -> list[Row]:
    rows = []
    for mode, (aim, title) in MODES.items():
        meter, name, rate = under_load(mode)
        cpu, rss = meter.cpu, meter.rss
        if not rows:
            note = f"{RANKS} ranks, {rate:.0f} frames/s with beats; {WINDOWS} windows of {WINDOW_S:.0f} s"
            rows.append(
                row("governor RSS", "MiB", rss["ours"], peer=name, peer_samples=rss["peer"], aim="< 64", note=note)
            )
        what = f"governor CPU, {title}"
        for title, theirs in ((name, cpu["peer"]), ("recv + json.loads alone", cpu["parser"])):
            rows.append(row(what, "% of a core", cpu["ours"], peer=title, peer_samples=theirs, aim=aim))
    return rows


def _frames(service: Service) -> int:
    return int(service.ask({"cmd": "status"})["governor"]["frames_total"])


def _ranks(service: Service) -> int:
    runs = (service.ask({"cmd": "status"}) or {"runs": []})["runs"]
    return int(runs[0]["ranks_connected"]) if runs else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feed"]:
        feed(sys.argv[3:], sys.argv[2])
    else:
        program(__doc__, measure)
