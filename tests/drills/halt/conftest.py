"""One command under `costgov run`, the demo's cloud beside it, and what the incident report says afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo_cloud import DemoCloud, moto
from governor.wire.control_client import ask

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
SAFETY_S = 90.0


def policy_text(
    name: str = "drill", *, checkpoint: str = "suspect", grace: str = "10s", term_grace: str = "1s",
    kill_grace: str = "5s",
) -> str:  # fmt: skip
    """A drill's policy: a loss that is no number is halted at once. `{stop}` is for who writes it."""
    return f"""
[policy]
name = "{name}"
[halt]
checkpoint = "{checkpoint}"
grace = "{grace}"
term_grace = "{term_grace}"
kill_grace = "{kill_grace}"
stop = "{{stop}}"
per_day_max = 100
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
for = "1 step"
response = "halt"
"""


POLICY = policy_text()

# A process table of its own, in which a governor sees no other one: drills run side by side, and so do their governors.
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child") if os.geteuid() == 0 else ()


@dataclass
class Halted:
    """What `costgov run` left behind."""

    code: int
    output: str
    incidents: list[dict[str, Any]]
    work: Path

    @property
    def incident(self) -> dict[str, Any]:
        assert len(self.incidents) == 1, self.output
        return self.incidents[0]

    @property
    def seen(self) -> list[str]:
        return [entry["what"] for entry in self.incident["timeline"]]

    def running(self) -> list[int]:
        """Which of the trainee's processes still run."""
        pids = json.loads((self.work / "pids").read_text())
        return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether it has not ended. Whoever waits for one that has, such as a server of terminals, may do so later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_checked(incident: dict[str, Any]) -> bool:
    return "checkpoint_read" in [entry["what"] for entry in incident["timeline"]]


def until_gone(pid: int, meanwhile: Callable[[], object]) -> None:
    """Wait for a process's end, and do something about it again and again."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + SAFETY_S
    try:
        while not select.select([pidfd], [], [], 0.005)[0]:
            assert time.monotonic() < deadline, f"pid {pid} does not end"
            with contextlib.suppress(ProcessLookupError):  # It has ended since, and somebody has taken it.
                meanwhile()
    finally:
        os.close(pidfd)


def configuration(work: Path, cloud: str = "") -> Path:
    config = work / "costgov.toml"
    config.write_text(
        f"""
[node]
name = "drill"
price_usd_per_hour = 98.32
[paths]
state_dir = "{work}/state"
runtime_dir = "{work}/run"
[metrics]
enabled = false
{cloud}
"""
    )
    return config


class Service:
    """`costgov daemon` as a service manager would run it: started, killed, started again."""

    def __init__(
        self, work: Path, *, stop: str = "processes", cloud: str = "", policy: str = POLICY, prefix: Sequence[str] = ()
    ) -> None:
        self.work = work
        self.prefix = prefix  # Such as setpriv, and what it shall do.
        self.policy = work / "policy.toml"
        self.policy.write_text(policy.format(stop=stop))
        self.config = configuration(work, cloud)
        self.log = work / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.trainees: list[subprocess.Popen[bytes]] = []

    def end(self) -> None:
        """Leave nothing behind: neither the daemon nor a trainee that was not halted."""
        for process in (*self.trainees, *filter(None, [self.process])):
            if process.poll() is None:
                # unshare passes no SIGTERM on; with it, all that it has started is killed.
                is_daemon = process is self.process and self.prefix != APART
                process.terminate() if is_daemon else process.kill()
            process.wait(SAFETY_S)

    def start(self) -> None:
        argv = [str(BIN / "costgov"), "daemon", "--config", str(self.config), "--policy", str(self.policy)]
        argv = [*self.prefix, *argv]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.until(lambda: self.ask({"cmd": "ping"}) is not None, "the daemon answers")

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(SAFETY_S)

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer's data, or None when nobody answers now."""
        answer = ask(str(self.work / "run" / "control.sock"), request)
        if not answer.ok and answer.code not in ("no_governor", "silent", "garbled", "unavailable"):
            raise AssertionError(f"{request}: {answer.error}")
        return answer.data if answer.ok else None

    def cpu_s(self) -> float:
        """What the daemon has used of the processor so far."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def limit(self, resource_: int, soft: int) -> None:
        """Take a resource from the running daemon, or give it back."""
        assert self.process is not None
        _, hard = resource.prlimit(self.process.pid, resource_)
        resource.prlimit(self.process.pid, resource_, (soft, hard))

    def until_said(self, text: str) -> None:
        """Wait for the log. A thread writes it: a line may come after what the control socket tells of it."""
        self.until(lambda: text in self.log.read_text(), f"the log says {text!r}")

    def log_at_end(self) -> str:
        """End it, and all trainees: its whole log, for who counts lines or looks for what must not be there."""
        assert tuple(self.prefix) != APART or not APART, "it would be killed with lines that nobody has written yet"
        self.end()
        return self.log.read_text()

    def incidents(self) -> list[dict[str, Any]]:
        return self.ask({"cmd": "incidents", "last": 100}) or []

    def run(self, name: str = "drill") -> dict[str, Any]:
        """A run's status; empty while there is none, or nobody answers."""
        runs = (self.ask({"cmd": "status"}) or {"runs": []})["runs"]
        return next((run for run in runs if run["run"] == name), {})

    def step(self, run: str = "drill") -> int:
        """The last step heard of; 0 before the first."""
        return self.run(run).get("step") or 0

    def stage(self, run: str = "drill") -> str | None:
        """Of its halt; None without one."""
        return (self.run(run).get("halt") or {}).get("stage")

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Look again at every event of the daemon, its end included, until `look` is true."""
        assert self.process is not None
        deadline = time.monotonic() + SAFETY_S
        pidfd = os.pidfd_open(self.process.pid)
        try:
            while time.monotonic() < deadline:
                found = look()
                if found:
                    return found
                if select.select([pidfd], [], [], 0.02)[0]:
                    raise AssertionError(f"the daemon ended before: {what}\n{self.log.read_text()}")
        finally:
            os.close(pidfd)
        raise AssertionError(f"not seen in {SAFETY_S} s: {what}\n{self.log.read_text()}")

    def until_stage(self, *stages: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            return next((i for i in self.incidents() if i["halt_stage"] in stages), None)

        return self.until(look, f"stage {stages}")

    def until_noted(self, *notes: str, after: str) -> dict[str, Any]:
        """The incident, once one of these stands in its timeline behind the last `after`."""

        def look() -> dict[str, Any] | None:
            for incident in self.incidents():
                noted = [entry["what"] for entry in incident["timeline"]]
                if after in noted and set(notes) & set(noted[noted.index(after) :]):
                    return incident
            return None

        return self.until(look, f"one of {notes} after {after}")

    def until_checked(self) -> dict[str, Any]:
        """The halt that is over, and whose checkpoint was read: on a busy machine the processes may be gone sooner."""

        def look() -> dict[str, Any] | None:
            return next((one for one in self.incidents() if one["halt_stage"] == "HALTED" and is_checked(one)), None)

        return self.until(look, "a halt is over and its checkpoint read")

    def go_on(self) -> None:
        """End what the trainee lets last until the drill goes on."""
        (self.work / "go_on").touch()

    def beside(self) -> list[str]:
        """What starts a command in the daemon's own process table, where it has one (APART)."""
        assert self.process is not None
        if tuple(self.prefix) != APART or not APART:
            return []
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return ["nsenter", f"--target={children[0]}", "--pid", "--mount"]

    def trainee(self, mode: str, unsaved_s: int = 0, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "COSTGOV_SOCKET": str(self.work / "run" / "trainer.sock"), "COSTGOV_RUN": "drill"}
        argv = [*self.beside(), *prefix, sys.executable, str(HERE / "trainee.py"), mode, str(self.work), str(unsaved_s)]
        with (self.work / "trainee.log").open("ab") as log:
            self.trainees.append(subprocess.Popen(argv, env=environ, stdout=log, stderr=log, start_new_session=True))
        return self.trainees[-1]


@pytest.fixture
def among_orphans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not beside another drill that has it.

    A killed costgov leaves orphans to init. A halt names those of its user and time, which may be its own: a drill that
    wants nobody named would see them.
    """
    with open(tmp_path_factory.getbasetemp().parent / "orphans.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(**options: Any) -> Service:
        made.append(Service(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with moto() as port:
        yield port


@pytest.fixture
def cloud(moto_port: int) -> Iterator[DemoCloud]:
    with DemoCloud(stopping_s=0.3, moto_port=moto_port) as running:
        yield running


def cloud_table(cloud: DemoCloud) -> str:
    return f"""
[cloud]
provider = "aws"
[cloud.aws]
endpoint = "{cloud.endpoint}"
metadata_endpoint = "{cloud.metadata_endpoint}"
"""


Run = Callable[..., Halted]


def begin(
    work: Path, argv: list[str], *, stop: str = "processes", cloud: str = "", environ: dict[str, str] | None = None,
    policy: str = POLICY, prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:  # fmt: skip
    """Start a command under `costgov run`."""
    path = work / "policy.toml"
    path.write_text(policy.format(stop=stop))
    command = [
        *prefix, str(BIN / "costgov"), "run", "--config", str(configuration(work, cloud)),
        "--policy", str(path), "--name", "drill", "--", *argv,
    ]  # fmt: skip
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **(environ or {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def end_of(process: subprocess.Popen[str], work: Path) -> Halted:
    """Wait for the end of what `begin` started."""
    with process:
        try:
            stdout, stderr = process.communicate(timeout=2 * SAFETY_S)  # A node's stop waits a minute by itself.
        finally:
            process.kill()
    reports = sorted((work / "state" / "incidents").glob("*.json"))
    return Halted(process.returncode, stdout + stderr, [json.loads(report.read_text()) for report in reports], work)


@pytest.fixture
def costgov_run(tmp_path: Path) -> Run:
    def run(argv: list[str], **options: Any) -> Halted:
        return end_of(begin(tmp_path, argv, **options), tmp_path)

    return run


@pytest.fixture
def trainee(costgov_run: Run, tmp_path: Path) -> Callable[..., Halted]:
    def run(mode: str, **options: Any) -> Halted:
        return costgov_run([sys.executable, str(HERE / "trainee.py"), mode, str(tmp_path)], **options)

    return run
