"""A node's governor as its ranks become more: `python -m benchmarks.scale.bench_ranks [--quick] [--svg FILE]`.

A real `costgov daemon` with the default policy, whose NaN rule asks for a checkpoint instead of a halt, so that one run
can be asked often. Each rank sends ten steps and a beat a second as the shim does. A run has 64 ranks of a node at most
and one user 128 connections: of 256 ranks half are another user's, which needs root. More connections a governor does
not hold. Two ranks are this process's: one sends a NaN, the other one reads the letter.

The peer is fed the same frames at the same moment and only parses them; a NaN it answers at once.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.scale.feeder import STEP_NS, Rank, step_now
from benchmarks.scale.quick import program
from benchmarks.service import DEFAULT_POLICY, ROOT, Service, cpu_s, end, rss_mb
from benchmarks.table import Row, p99, row
from governor.text.svg import COLOURS, Axis, Plot, standalone
from trainer_shim.wire import FRAME_BYTES_MAX

SIZES: Final = (8, 16, 32, 64, 128, 256)
QUICK_SIZES: Final = (8, 64)
OF_ONE_USER: Final = 128
OTHER_USER: Final = 65_534
WARM_S: Final = 4.0
WINDOW_S: Final = 5.0
LETTERS: Final = 100
QUICK_LETTERS: Final = 20
UNHEARD_S: Final = 30.0
LETTER: Final = b'"letter"'
PARSER: Final = """
import json, os, select, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen(512)
poll, socks = select.epoll(), {}
poll.register(listener, select.EPOLLIN)
while True:
    for fd, _ in poll.poll():
        if fd == listener.fileno():
            sock, _ = listener.accept()
            socks[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN)
            continue
        packet = socks[fd].recv(65536)
        if not packet:
            poll.unregister(fd)
            socks.pop(fd).close()
            continue
        frame = json.loads(packet)
        if frame["kind"] == "hello" or frame.get("loss") == "nan":
            socks[fd].send(b"{}")
"""


class Size(NamedTuple):
    """What was measured with so many ranks."""

    ranks: int
    cpu: list[float]  # % of a core, by window.
    bare_cpu: list[float]
    rss: list[float]
    letter_ms: list[float]
    bare_ms: list[float]
    frames: float


def _policy() -> str:
    """The default policy, whose rule for a loss that is not a number asks for a checkpoint alone."""
    head, rule, rest = DEFAULT_POLICY.read_text(encoding="utf-8").partition('trigger = "nonfinite"\n')
    assert rule
    rest = rest.replace('response = "halt"', 'response = "checkpoint"', 1)
    return head.replace("per_day_max = 3", "per_day_max = 1000") + rule + rest


def _feeder(first: int, last: int, world: int, paths: list[str], user: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchmarks.scale.feeder", str(user), str(world), str(first), str(last), *paths]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def measure_one(ranks: int, letters: int) -> Size:
    with Service(_policy()) as service, ExitStack() as stack:
        bare = service.work / "bare.sock"
        parser = subprocess.Popen([sys.executable, "-c", PARSER, str(bare)])
        stack.callback(end, parser)
        service.until(bare.exists, "the parser listens")
        paths = [service.socket, str(bare)]
        for place in (service.work, service.work / "run"):
            os.chmod(place, 0o755)
        os.chmod(service.socket, 0o666)
        probes = [Rank(number, ranks, paths) for number in range(2)]
        feeders = [_feeder(2, min(ranks, OF_ONE_USER), ranks, paths, os.geteuid())]
        if ranks > OF_ONE_USER:
            feeders.append(_feeder(0, ranks - OF_ONE_USER, ranks, paths, OTHER_USER))
        for feeder in feeders:
            stack.callback(end, feeder)
        connected = 2
        for feeder in feeders:
            assert feeder.stdout is not None
            connected += int(feeder.stdout.readline().split()[0])
        assert connected == ranks, f"{connected} of {ranks} ranks were taken"
        told = _Probe(probes[0], probes[1])
        told.train(WARM_S)
        return _measured(service, parser.pid, ranks, told, letters)


def _measured(service: Service, bare: int, ranks: int, told: _Probe, letters: int) -> Size:
    own = service.process.pid
    found = Size(ranks, [], [], [], [], [], 0.0)
    frames, begun_s = _frames(service), time.monotonic()
    for _ in range(3):
        before, since_s = (cpu_s(own), cpu_s(bare)), time.monotonic()
        told.train(WINDOW_S)
        elapsed_s = time.monotonic() - since_s
        found.cpu.append(100 * (cpu_s(own) - before[0]) / elapsed_s)
        found.bare_cpu.append(100 * (cpu_s(bare) - before[1]) / elapsed_s)
        found.rss.append(rss_mb(own))
    rate = (_frames(service) - frames) / (time.monotonic() - begun_s)
    for _ in range(letters):
        told.train(random.uniform(0.02, 0.12))
        letter_ms, bare_ms = told.rung()
        found.letter_ms.append(letter_ms)
        found.bare_ms.append(bare_ms)
    return found._replace(frames=rate)


def _frames(service: Service) -> int:
    return int(service.ask({"cmd": "status"})["governor"]["frames_total"])


class _Probe:
    """Two ranks that train on, of which one sends a NaN when it is asked to."""

    def __init__(self, reads: Rank, sends: Rank) -> None:
        self._reads, self._sends = reads, sends
        self._sent = step_now(time.monotonic_ns())

    def train(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._step(2.0)
            time.sleep(min(left_s, STEP_NS / 1e9))

    def _step(self, loss: float) -> tuple[int, int]:
        """When it was sent to the governor, and to the peer."""
        now_ns = time.monotonic_ns()
        self._sent = max(self._sent + 1, step_now(now_ns))
        self._reads.send(self._reads.step(self._sent, now_ns))
        packet = self._sends.step(self._sent, now_ns, loss=loss)
        at = []
        for sock in self._sends.socks:
            at.append(time.monotonic_ns())
            sock.send(packet)
        return at[0], at[1]

    def rung(self) -> tuple[float, float]:
        """Milliseconds from the NaN to the letter, and to the peer's answer."""
        sent_ns, bare_ns = self._step(float("nan"))
        ours, bare = self._reads.socks[0], self._sends.socks[1]
        heard: dict[str, float] = {}
        incident = ""
        while len(heard) < 2:
            ready, _, _ = select.select([ours, bare], [], [], UNHEARD_S)
            assert ready, f"no letter in {UNHEARD_S:.0f} s"
            if bare in ready:
                bare.recv(FRAME_BYTES_MAX)
                heard["bare"] = (time.monotonic_ns() - bare_ns) / 1e6
            if ours in ready:
                packet = ours.recv(FRAME_BYTES_MAX)
                if LETTER in packet:
                    heard["ours"] = (time.monotonic_ns() - sent_ns) / 1e6
                    incident = packet.split(b'"incident":"')[1].split(b'"')[0].decode()
        self._reads.decline(incident)
        self._step(2.0)  # The episode ends: the next NaN is a new one.
        return heard["ours"], heard["bare"]


def _rows(sizes: list[Size]) -> list[Row]:
    rows = []
    for one in sizes:
        what = f"{one.ranks} ranks, {one.frames:,.0f} frames/s"
        bare = "recv + json.loads alone"
        rows += [
            row(f"governor CPU, {what}", "% of a core", one.cpu, peer=bare, peer_samples=one.bare_cpu),
            row(f"governor RSS with children, {one.ranks} ranks", "MiB", one.rss),
            row(
                f"NaN to letter, {one.ranks} ranks", "ms", one.letter_ms, aim="p99 < 1000",
                peer=f"{bare}, answered (p99 {p99(one.bare_ms):.3g})", peer_samples=one.bare_ms,
            ),
        ]  # fmt: skip
    return rows


def drawn(sizes: list[Size]) -> str:
    """Two plots: the processor, and the time to the letter, over the ranks of the node."""
    ranks = Axis(SIZES[0], SIZES[-1] * 1.02, "ranks on the node", is_log=True, marks=[(n, str(n)) for n in SIZES])
    cpu = {"costgov": [(one.ranks, _middle(one.cpu)) for one in sizes]}
    cpu["recv + json.loads"] = [(one.ranks, _middle(one.bare_cpu)) for one in sizes]
    late = {"p99": [(one.ranks, p99(one.letter_ms)) for one in sizes]}
    late["median"] = [(one.ranks, _middle(one.letter_ms)) for one in sizes]
    late["recv + json.loads"] = [(one.ranks, _middle(one.bare_ms)) for one in sizes]
    return standalone([_plot(ranks, "CPU, % of a core", cpu), _plot(ranks, "NaN to letter, ms", late)])


def _plot(x: Axis, title: str, lines: dict[str, list[tuple[int, float]]]) -> Plot:
    values = [value for points in lines.values() for _, value in points]
    plot = Plot(x, Axis(min(values) / 1.3, max(values) * 1.3, title, is_log=True), right=190, title=title, top=34)
    for (_, points), colour in zip(lines.items(), COLOURS, strict=False):
        plot.line(points, colour)
        plot.dots([(n, value, f"{n} ranks: {value:.3g}") for n, value in points], colour, 4)
    plot.names([(points[-1][1], name, colour) for (name, points), colour in zip(lines.items(), COLOURS, strict=False)])
    return plot


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def measure(quick: bool, svg: Path | None) -> list[Row]:
    sizes = [n for n in (QUICK_SIZES if quick else SIZES) if n <= OF_ONE_USER or os.geteuid() == 0]
    found = [measure_one(ranks, QUICK_LETTERS if quick else LETTERS) for ranks in sizes]
    if svg is not None:
        svg.write_text(drawn(found), encoding="utf-8")
    return _rows(found)


if __name__ == "__main__":
    program(__doc__, measure)
