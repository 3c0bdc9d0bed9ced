"""What a governor says of a state directory, and of frames that are played to it: the same questions for every version.

`make_old_state.py` asks the version that wrote the directory and keeps its answers; the drill asks the present one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
STATE, ANSWERS = DATA / "state-0.1.0-d92c353.tar.xz", DATA / "state-0.1.0-d92c353.json"
FRAMES = {name: DATA / f"frames-0.1.0-d92c353-{name}.jsonl" for name in ("ended", "halted")}
SAFETY_S = 90.0
CONFIG = """
[node]
name = "drill"
price_usd_per_hour = 98.32
[[line]]
kind = "storage"
name = "vol-1 gp3"
gb = 500
price_usd_per_gb_month = 0.08
as_of = "2026-11-01"
[paths]
state_dir = "{work}/state"
runtime_dir = "{work}/run"
[metrics]
enabled = false
"""
POLICY = """
[policy]
name = "drill"
[budget]
ceiling_usd = 700.0
[halt]
checkpoint = "suspect"
grace = "90s"
term_grace = "1s"
kill_grace = "5s"
stop = "processes"
per_day_max = 100
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
for = "1 step"
response = "halt"
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
"""
# Of a run's status: what a journal keeps. The rest is the moment's.
OF_RUN = (
    "run", "uid", "state", "attempt", "stage", "policy", "mode", "step", "tokens_total", "spend_usd",
    "ceiling_usd", "last_good",
)  # fmt: skip
OF_INCIDENT = (
    "incident_id", "run", "rule", "trigger", "reason", "step", "attempt", "node", "policy", "halt_stage",
    "checkpoint", "resume", "opened_wall_ns", "spend_usd_micros", "tokens_total", "evidence",
)  # fmt: skip
OF_BUDGET = ("scope", "ceiling_usd", "tokens", "alert_at", "reason", "source", "uid", "set_at_s", "live")

# Plays its input to the trainer's socket, a line a frame. Acknowledges nothing before it has been asked to.
RANK = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
asked = False
for line in sys.stdin.buffer:
    while b'"kind":"ack"' in line and not asked:
        asked = b'"letter"' in (sock.recv(65536) or sys.exit("hung up"))
    sock.send(line.strip())
    if b'"kind":"hello"' in line:
        print(sock.recv(65536).decode(), flush=True)
if not asked:
    sys.exit(0)
while sock.recv(65536):
    pass
"""


class Governor:
    """`costgov daemon` of this tree on a directory, and the commands that ask it or read what it has left."""

    def __init__(self, work: Path, root: Path = ROOT) -> None:
        self.work, self.root = work, root
        self.command = [sys.executable, "-m", "governor"]
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("COSTGOV_", "SLURM_"))}
        paths = {"COSTGOV_PATHS__STATE_DIR": f"{work}/state", "COSTGOV_PATHS__RUNTIME_DIR": f"{work}/run"}
        paths |= {"COSTGOV_CONTROL": f"{work}/run/control.sock", "PYTHONPATH": str(root), "HOME": str(work)}
        self.environ = {**ours, **paths}
        (work / "costgov.toml").write_text(CONFIG.format(work=work))
        (work / "policy.toml").write_text(POLICY)
        self.log = work / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, *words: str) -> str:
        argv = [*self.command, *words]
        done = subprocess.run(argv, env=self.environ, cwd=self.work, capture_output=True, text=True, timeout=SAFETY_S)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.call(*words, "--json"))

    @contextmanager
    def running(self) -> Iterator[None]:
        argv = [*self.command, "daemon", "--config", "costgov.toml", "--policy", "policy.toml"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, env=self.environ, cwd=self.work, stdout=log, stderr=log)
        try:
            self.until(lambda: (self.work / "run" / "control.sock").exists() and self.answers(), "the daemon answers")
            yield
            if self.process.poll() is None:
                self.process.terminate()
                assert self.process.wait(SAFETY_S) == 0, self.log.read_text()
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(SAFETY_S)

    def answers(self) -> bool:
        return subprocess.run([*self.command, "status"], env=self.environ, capture_output=True).returncode == 0

    def run(self, name: str) -> dict[str, Any]:
        return next((run for run in self.ask("status")["runs"] if run["run"] == name), {})

    def stage(self, run: str) -> str | None:
        """Of the halt of this run; None without one."""
        return next((i["halt_stage"] for i in self.ask("incident", "list") if i["run"] == run), None)

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Look again and again until `look` is true, or the daemon has ended."""
        assert self.process is not None
        deadline_s = time.monotonic() + SAFETY_S
        pidfd = os.pidfd_open(self.process.pid)
        try:
            while time.monotonic() < deadline_s:
                if found := look():
                    return found
                assert not select.select([pidfd], [], [], 0.05)[0], f"ended before: {what}\n{self.log.read_text()}"
        finally:
            os.close(pidfd)
        raise AssertionError(f"not seen in {SAFETY_S} s: {what}\n{self.log.read_text()}")

    def complaints(self) -> list[str]:
        """The names of its alarms, and whatever else it logged as a warning or worse."""
        records = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        loud = [record for record in records if record.get("level") in ("warning", "error", "critical")]
        return sorted({record.get("name", record["event"]) for record in loud})


def unpack(work: Path) -> None:
    with tarfile.open(STATE) as archive:
        archive.extractall(work, filter="data")


def kept(work: Path, root: Path = ROOT) -> dict[str, Any]:
    """What is read of the directory without a governor, by one that goes on from it, and of what that one leaves."""
    governor = Governor(work, root)
    answers: dict[str, Any] = {
        "cost": governor.ask("cost"),
        "cost by line": governor.ask("cost", "--by", "line"),
        "incidents": governor.ask("incident", "list"),
        "incident halted": governor.ask("incident", "show", "halted.drill.1"),
        "recording": governor.call("policy", "replay", "--policy", "policy.toml", "--json", "state/recordings/halted"),
    }
    with governor.running():
        # Its processes are those of another boot: the halt that was cut off is over, and this machine is left alone.
        governor.until(
            lambda: "superseded_by_reboot" in governor.log.read_text(), "the halt that was under way is over"
        )
        runs = sorted(governor.ask("status")["runs"], key=lambda run: run["run"])
        answers["runs"] = [{key: run[key] for key in (*OF_RUN, "hold")} for run in runs]
        listed = [budget for answer in governor.ask("budget", "list") for budget in answer["budgets"]]
        answers["budgets"] = [{key: budget[key] for key in OF_BUDGET} for budget in listed]
        found = governor.ask("incident", "list")
        answers["resumed"] = [{key: one[key] for key in OF_INCIDENT} for one in found]
        answers["timelines"] = {one["incident_id"]: _whats(governor, one["incident_id"]) for one in found}
    answers["cost of who has ended"] = governor.ask("cost", "--run", "ended", "--run", "halted")
    return answers


def played(work: Path, root: Path = ROOT) -> dict[str, Any]:
    """What a governor that has never seen them makes of the frames."""
    governor = Governor(work, root)
    answers: dict[str, Any] = {}
    with governor.running():
        for name, frames in FRAMES.items():
            argv = [sys.executable, "-S", "-c", RANK, str(work / "run" / "trainer.sock")]
            with frames.open("rb") as stdin:
                rank = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE)
            try:
                confirmed, _ = rank.communicate(timeout=SAFETY_S)
            finally:
                rank.kill()
                rank.wait(SAFETY_S)
            ended = governor.until(partial(_ended, governor, name), f"{name} has ended")
            answers[name] = {
                "confirmed": json.loads(confirmed.splitlines()[0])["kind"],
                **{key: ended[key] for key in OF_RUN if key not in ("spend_usd", "uid")},
            }
        (incident,) = governor.ask("incident", "list")
        # The rank may end before or after its checkpoint is looked at.
        answers["timeline"] = sorted(_whats(governor, incident["incident_id"]))
        answers["incident"] = {
            key: incident[key] for key in OF_INCIDENT if key not in ("opened_wall_ns", "spend_usd_micros")
        }
    answers["complaints"] = governor.complaints()
    return answers


def _ended(governor: Governor, name: str) -> dict[str, Any] | None:
    run = governor.run(name)
    return run if run.get("state") in ("finished", "halted") else None


def _whats(governor: Governor, incident_id: str) -> list[str]:
    return [entry["what"] for entry in governor.ask("incident", "show", incident_id)["timeline"]]
