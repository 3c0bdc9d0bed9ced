"""A real `costgov daemon` in a directory of its own, and what the kernel says of a process."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

from governor.wire.control_client import ask

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[1]
DEFAULT_POLICY = ROOT / "policies" / "default.toml"
SAFETY_S = 60.0
LOOK_AGAIN_S = 0.02

CONFIG = """
[node]
name = "bench"
price_usd_per_hour = 98.32
[paths]
state_dir = "{work}/state"
runtime_dir = "{work}/run"
[metrics]
enabled = {metrics}
port = 0
"""


def nonfinite_policy(checkpoint: str, grace_s: float, response: str = "halt", *, ends: bool = False) -> str:
    """The first NaN leads to `response`, however many there were today. `ends`: SIGTERM's grace is as short."""
    return f"""
[policy]
name = "bench"
[halt]
checkpoint = "{checkpoint}"
grace = "{grace_s:.0f}s"
{f'term_grace = "{grace_s:.0f}s"' if ends else ""}
stop = "processes"
per_day_max = 1000
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
for = "1 step"
response = "{response}"
"""


class Service:
    """Started on entry and answering; ended on exit together with its directory."""

    def __init__(self, policy: Path | str = DEFAULT_POLICY, *, metrics: bool = False, extra: str = "") -> None:
        """`extra`: more of costgov.toml; {work} is its directory."""
        self._directory = tempfile.TemporaryDirectory(prefix="costgov-bench-", ignore_cleanup_errors=True)
        self.work = Path(self._directory.name)
        if isinstance(policy, str):
            text, policy = policy, self.work / "policy.toml"
            policy.write_text(text, encoding="utf-8")
        self._policy, self._metrics, self._extra = policy, metrics, extra
        self.log = self.work / "daemon.log"
        self.socket = str(self.work / "run" / "trainer.sock")
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Service:
        config = self.work / "costgov.toml"
        text = (CONFIG + self._extra).format(work=self.work, metrics=str(self._metrics).lower())
        config.write_text(text, encoding="utf-8")
        argv = [str(BIN / "costgov"), "daemon", "--config", str(config), "--policy", str(self._policy)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.until(lambda: self.ask({"cmd": "ping"}) is not None, "the daemon answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process)
        self._directory.cleanup()

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer's data; None while nobody answers."""
        answer = ask(str(self.work / "run" / "control.sock"), request)
        return answer.data if answer.ok else None

    def environ(self, run: str) -> dict[str, str]:
        """For a process that attaches."""
        return {**os.environ, "COSTGOV_SOCKET": self.socket, "COSTGOV_RUN": run, "PYTHONPATH": str(ROOT)}

    def metrics_url(self) -> str:
        found = self.until(
            lambda: re.search(r"metrics at (http[^\s\"]+)", self.log.read_text()), "its metrics' address"
        )
        return str(found.group(1))

    def until(self, look: Callable[[], Any], what: str, timeout_s: float = SAFETY_S) -> Any:
        """Look until it is true; a daemon that ended is an error at once."""
        pidfd = os.pidfd_open(self.process.pid)
        try:
            deadline_s = time.monotonic() + timeout_s
            while time.monotonic() < deadline_s:
                found = look()
                if found:
                    return found
                if select.select([pidfd], [], [], LOOK_AGAIN_S)[0]:
                    raise RuntimeError(f"the daemon ended before: {what}\n{self.log.read_text()}")
        finally:
            os.close(pidfd)
        raise RuntimeError(f"not seen in {timeout_s:.0f} s: {what}\n{self.log.read_text()}")


def end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def free_port() -> int:
    """A loopback port that nobody has now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for task in _tasks(pid):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += family(int(child))
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of the process and its descendants, in the scheduler's nanoseconds."""
    total_ns = 0
    for member in family(pid):
        for task in _tasks(member):
            try:
                total_ns += int((task / "schedstat").read_text().split()[0])
            except OSError:  # A thread that has ended meanwhile.
                continue
    return total_ns / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of the process and its descendants, in MiB."""
    pages = sum(int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def read_line(process: subprocess.Popen[bytes], timeout_s: float = SAFETY_S) -> dict[str, Any]:
    """The next JSON line that a child prints. RuntimeError when it ends or is silent for too long."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], timeout_s)[0]:
        raise RuntimeError(f"{process.args!r} said nothing for {timeout_s:.0f} s")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    return dict(json.loads(line))
