"""Bad frame sent to doorbell heard, by what the main thread does: `python -m benchmarks.bench_latency`.

A real `costgov daemon` watches a run of two ranks. Rank 1 is this process: it sends a NaN loss and notes the time.
Rank 0 is a process with the real shim, whose main thread sleeps, sits in a gloo barrier that never ends, multiplies
matrices in torch, or computes in pure Python; it notes when its listener thread has read the doorbell's byte. Both
times are CLOCK_MONOTONIC. The policy asks for a checkpoint, so that one process can be rung many times; the last row
is a halt, which commits its incident to disk before it rings, in a new process each time.

The peer is what one would write by hand: `kill -USR1` and a Python signal handler, in the same states. That of a halt
is the disk itself: as many bytes as its commit writes, overwritten and fdatasync'ed in the same directory, a moment
before each.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.service import ROOT, SAFETY_S, Service, end, nonfinite_policy
from benchmarks.table import Row, p99, program, row
from trainer_shim.wire import encode, head

SAMPLES = 200
SAMPLES_BY_HAND = 100
HALTS_PER_GOVERNOR = 25  # One user's live runs on a node are bounded.
GOVERNORS = 4
COMMIT_BYTES = 32 * 1024  # Of a halt's first commit: eight pages.
GRACE_S = 10.0
UNHEARD_S = 2.0  # A handler that has not run by then is waiting for the main thread.
# Between samples, at random: no rhythm in common with the 250 ms tick. Longer than one matmul.
PAUSE_S = {"idle": (0.01, 0.03), "collective": (0.01, 0.03), "torch": (0.04, 0.08), "python": (0.02, 0.04)}
STATES = {
    "idle": "main thread sleeps",
    "collective": "main thread in a gloo barrier",
    "torch": "main thread in torch matmul",
    "python": "main thread in pure Python",
}


# --- the process that is rung --------------------------------------------------------------------------------


def trainee(state: str, how: str) -> None:
    """Print "ready", then the nanosecond of each ring, while the main thread is in `state`."""
    busy = _prepare(state)
    if how == "handler":
        signal.signal(signal.SIGUSR1, lambda *_: _tell_time())
    else:
        _attach()
    os.write(1, b"ready\n")
    busy()


def _tell_time() -> None:
    os.write(1, b"%d\n" % time.monotonic_ns())


def _attach() -> None:
    from trainer_shim.progress import Progress
    from trainer_shim.watcher import Watcher

    hello = {
        "run": os.environ["COSTGOV_RUN"], "attempt": "1", "rank": 0, "local_rank": 0, "world_size": 2,
        "capabilities": ["ask"],
    }  # fmt: skip
    watcher = Watcher(hello, Progress(threading.main_thread().ident or 0), None)
    wakeup = watcher._signal_wakeup
    drain = wakeup.drain

    def timed_drain() -> bool:
        signalled = drain()
        if signalled:
            _tell_time()
        return signalled

    wakeup.drain = timed_drain  # type: ignore[method-assign]
    watcher.start()


def _prepare(state: str) -> Any:
    if state == "idle":
        return lambda: time.sleep(3600)
    if state == "python":
        return _compute
    import torch

    torch.set_num_threads(1)
    if state == "torch":
        return lambda: _multiply(torch.ones(768, 768))
    import torch.distributed as dist

    store = f"file://{os.environ['BENCH_RENDEZVOUS']}"
    partner = "import sys, time, torch.distributed as d; d.init_process_group('gloo', init_method=sys.argv[1], rank=1, world_size=2); sys.stdin.read()"  # noqa: E501
    # Ends with us, by the end of its input.
    subprocess.Popen([sys.executable, "-c", partner, store], stdin=subprocess.PIPE)
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=2)
    return dist.barrier


def _compute() -> None:
    total = 0
    while True:
        total = (total * 31 + 7) % 1_000_003


def _multiply(matrix: Any) -> None:
    while True:
        (matrix @ matrix).sum()


# --- the process that rings ----------------------------------------------------------------------------------


class Rung:
    """A trainee process and the times that it tells."""

    def __init__(self, state: str, how: str, environ: dict[str, str], directory: str) -> None:
        self._state = state
        environ = {**environ, "BENCH_RENDEZVOUS": f"{directory}/rendezvous-{how}-{os.urandom(4).hex()}"}
        argv = [sys.executable, "-m", "benchmarks.bench_latency", "--trainee", state, how]
        # A session of its own: a halt ends the session's processes too, and we are not of the run.
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, env=environ, cwd=ROOT, bufsize=0, start_new_session=True
        )
        assert self._line(SAFETY_S) == b"ready\n"

    def _line(self, timeout_s: float) -> bytes | None:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return None
        line = bytes(self.process.stdout.readline())
        assert line, f"the trainee ended with {self.process.wait()}"
        return line

    def settle(self) -> None:
        """Pause, and forget the second byte of the last ring: the shim's handler, which runs later, sends one too."""
        time.sleep(random.uniform(*PAUSE_S[self._state]))
        while self._line(0.0) is not None:
            pass

    def heard_ns(self, timeout_s: float) -> int | None:
        line = self._line(timeout_s)
        return None if line is None else int(line)


class Sender:
    """Rank 1 of a run: says hello, then losses."""

    def __init__(self, path: str, run: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(SAFETY_S)
        self._sock.connect(path)
        self._step = 0
        hello = {
            **head("hello", 1, time.monotonic_ns()), "seq": 1, "run": run, "attempt": "1", "local_rank": 1,
            "world_size": 2, "signal": 0,
        }  # fmt: skip
        self._sock.send(encode(hello))
        self._sock.recv(65536)  # The confirmation.

    def loss(self, loss: float) -> int:
        """Send one step; the nanosecond before it was sent."""
        self._step += 1
        step = {"step": self._step, "attempt_step": self._step, "loss": loss, "loss_expected": True}
        packet = encode({**head("step", 1, time.monotonic_ns()), **step})
        sent_ns = time.monotonic_ns()
        self._sock.send(packet)
        return sent_ns

    def close(self) -> None:
        self._sock.close()


class OtherProcess:
    """A Sender in a process of its own, which a halt can end: one that it must spare it would look for ever after."""

    def __init__(self, path: str, run: str) -> None:
        argv = [sys.executable, "-m", "benchmarks.bench_latency", "--send", path, run]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0, start_new_session=True
        )

    def loss(self, loss: float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%r\n" % loss)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def send(path: str, run: str) -> None:
    """Send each loss that is read, and print when."""
    sender = Sender(path, run)
    for line in sys.stdin:
        print(sender.loss(float(line)), flush=True)


@contextlib.contextmanager
def rung(state: str, how: str, environ: dict[str, str], directory: str) -> Iterator[Rung]:
    one = Rung(state, how, environ, directory)
    try:
        yield one
    finally:
        one.process.kill()
        end(one.process)


def through_the_governor(service: Service, state: str) -> list[float]:
    """Milliseconds from bad frame to doorbell."""
    run = f"bench-{state}"
    with rung(state, "shim", service.environ(run), str(service.work)) as one:
        service.until(lambda: _connected(service, run) == 1, "rank 0 is connected")
        sender = Sender(service.socket, run)
        sender.loss(2.0)
        samples = []
        for _ in range(SAMPLES):
            one.settle()
            sent_ns = sender.loss(float("nan"))
            heard_ns = one.heard_ns(SAFETY_S)
            assert heard_ns is not None, f"no ring in {SAFETY_S:.0f} s"
            samples.append((heard_ns - sent_ns) / 1e6)
            sender.loss(2.0)  # The episode ends; the next NaN is a new one.
        sender.close()
    return samples


def by_hand(state: str, directory: str) -> tuple[list[float], bool]:
    """Milliseconds from kill() to the handler, and whether they are only how long it was waited for."""
    samples: list[float] = []
    with rung(state, "handler", dict(os.environ), directory) as one:
        for _ in range(SAMPLES_BY_HAND):
            one.settle()
            sent_ns = time.monotonic_ns()
            os.kill(one.process.pid, signal.SIGUSR1)
            heard_ns = one.heard_ns(UNHEARD_S)
            if heard_ns is None:
                return [UNHEARD_S * 1e3], True
            samples.append((heard_ns - sent_ns) / 1e6)
    return samples, False


def in_a_halt(service: Service) -> tuple[list[float], list[float]]:
    """As through_the_governor, of halts: a new run each; and the disk's own part, measured beside."""
    samples, disk = [], []
    with Disk(service) as probe:
        for number in range(HALTS_PER_GOVERNOR):
            run = f"halt-{number}"
            with rung("idle", "shim", service.environ(run), str(service.work)) as one:
                sender = OtherProcess(service.socket, run)
                # A hello looks into the process table; no frame of a first step comes so soon behind it.
                service.until(lambda run=run: _connected(service, run) == 2, "both ranks are connected")
                sender.loss(2.0)
                disk.append(probe.commit_ms())
                one.settle()
                sent_ns = sender.loss(float("nan"))
                heard_ns = one.heard_ns(SAFETY_S)
                assert heard_ns is not None, f"no ring in {SAFETY_S:.0f} s"
                samples.append((heard_ns - sent_ns) / 1e6)
                sender.close()
    return samples, disk


class Disk:
    """A file beside the journal, as long as it will ever be."""

    def __init__(self, service: Service) -> None:
        self._fd = os.open(service.work / "state" / "probe", os.O_WRONLY | os.O_CREAT)
        os.write(self._fd, bytes(COMMIT_BYTES))
        os.fsync(self._fd)

    def commit_ms(self) -> float:
        begun_ns = time.monotonic_ns()
        os.pwrite(self._fd, bytes(COMMIT_BYTES), 0)
        os.fdatasync(self._fd)
        return (time.monotonic_ns() - begun_ns) / 1e6

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._fd)


def _connected(service: Service, run: str) -> int:
    runs = (service.ask({"cmd": "status"}) or {"runs": []})["runs"]
    return next((int(one["ranks_connected"]) for one in runs if one["run"] == run), 0)


def measure() -> list[Row]:
    rows = []
    with (
        Service(nonfinite_policy("suspect", GRACE_S, "checkpoint")) as service,
        tempfile.TemporaryDirectory() as directory,
    ):
        for state, title in STATES.items():
            ours = through_the_governor(service, state)
            theirs, at_least = by_hand(state, directory)
            rows.append(
                row(
                    f"NaN sent to doorbell heard, {title}", "ms", ours, aim="p99 < 10" if state != "python" else "",
                    peer="kill -USR1, Python handler", peer_samples=theirs, peer_at_least=at_least,
                )
            )  # fmt: skip
    halts: list[float] = []
    disk: list[float] = []
    for _ in range(GOVERNORS):
        with Service(nonfinite_policy("suspect", GRACE_S)) as service:
            ours, beside = in_a_halt(service)
        halts += ours
        disk += beside
    rows.append(
        row(
            "the same in a halt: incident committed first, main thread sleeps", "ms", halts, aim="p99 < 10",
            peer=f"the disk's fdatasync alone (p99 {p99(disk):.3g})", peer_samples=disk,
        )
    )  # fmt: skip
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainee"]:
        trainee(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["--send"]:
        send(sys.argv[2], sys.argv[3])
    else:
        program(__doc__, measure)
