"""One trainer under one fault, as its user would meet it: `costgov run`, the halt, the resume command of its report.

A trainer is a script in scripts/, as the framework's own example writes it, plus the lines that README tells its user
to add. Its contract: `SCRIPT --out DIR --steps N`; it saves below DIR about every ten steps, calls shim.resume() (or
what README says instead) whenever it starts, and rank 0 prints one line a step, `loss STEP HEX`, the loss by
float.hex(). FAULT is "" | nan | hang, FAULT_AT the step, FAULT_RANK the rank that breaks, PACE seconds that each step
takes at least. scripts/common.py has all of that.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.drills.trainers.finite import not_finite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
DEFAULT_POLICY = ROOT / "governor" / "data" / "default.toml"

FAULTS = ("nan", "ceiling", "hang")
STEPS, FAULT_AT, NEXT = 200, 34, 5
RULES = {"nan": "nonfinite", "ceiling": "budget", "hang": "hang"}  # Trigger of the verdict.
HALTED = 86
RUN_MAX_S = 300.0  # A run longer than this is reported as one that does not end.
MARK = "COSTGOV_TABLE_CELL"  # In the environment of all that a cell starts.
# $3,600 an hour is a dollar a second. With the grace below a halt reserves $23 at $2 unsaved, $31 at most.
PRICE, RESERVE_S, RESERVE_MAX_S, PACE_S = 3600, 23.0, 33.0, 0.25

# What differs from the packaged policy: a halt's grace that a ceiling of seconds can pay for, and limits of a hang that
# a table can wait for. These are for one rank, for which nobody waits; several have the packaged ones.
SHORT = {
    "nan": {},
    "ceiling": {"grace": "10s"},
    "hang": {"worth_max": "10s", "tight_min": "5s", "between_limit": "15s"},
}


@dataclass(frozen=True)
class Trainer:
    """`argv` starts it; --out and --steps follow. `packages` are named beside the result."""

    name: str
    argv: tuple[str, ...]
    packages: tuple[str, ...] = ("torch",)
    environ: Mapping[str, str] = field(default_factory=dict)

    def limits(self, fault: str) -> Mapping[str, str]:
        """What differs from the packaged policy."""
        return {} if fault == "hang" and "torch.distributed.run" in self.argv else SHORT[fault]


def python(script: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / "scripts" / script), *more)


def torchrun(script: str, *more: str, ranks: int = 2) -> tuple[str, ...]:
    run = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}")
    return (sys.executable, *run, str(HERE / "scripts" / script), *more)


@dataclass(frozen=True)
class Held:
    """One field of the table. `why` says in a user's words what it lacks."""

    ok: bool
    text: str
    why: str = ""


@dataclass
class Cell:
    trainer: str
    fault: str
    halted: Held
    saved: Held
    last_good: Held
    resumed: Held
    incident: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # Of the faulted run, and of the resumed one.
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(held.ok for held in (self.halted, self.saved, self.last_good, self.resumed))

    def as_json(self) -> dict[str, Any]:
        kept = {key: value for key, value in asdict(self).items() if key not in ("incident", "outputs")}
        return {**kept, "ok": self.ok}


@dataclass(frozen=True)
class Played:
    code: int | None  # None: it did not end.
    losses: dict[int, str]
    first_loss_s: float
    output: str
    left: tuple[str, ...]  # Command lines of what outlived it.


# --- processes ------------------------------------------------------------------------------------------------------


def play(argv: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> Played:
    """Run a command to its end, read its losses, and leave nothing of it behind."""
    mark = uuid.uuid4().hex
    env = {**os.environ, **environ, MARK: mark}
    losses: dict[int, str] = {}
    output: list[str] = []
    began, first = time.monotonic(), 0.0
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        late = threading.Timer(RUN_MAX_S, _kill, (mark,))
        late.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.append(line)
                if (found := re.match(r"loss (\d+) (\S+)$", line)) is not None:
                    first = first or time.monotonic() - began
                    losses.setdefault(int(found[1]), found[2])
            process.wait()
        except BaseException:  # Interrupted: nothing of it stays.
            _kill(mark)
            raise
        finally:
            ended_late = late.finished.is_set()
            late.cancel()
    left = tuple(_marked(mark).values())
    _kill(mark)
    return Played(None if ended_late else process.returncode, losses, first, "".join(output), left)


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
    return found


def _kill(mark: str) -> None:
    while found := _marked(mark):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


# --- cells ----------------------------------------------------------------------------------------------------------


class Bench:
    """Where the cells of one trainer are played: its golden losses, and a directory for each cell."""

    def __init__(self, trainer: Trainer, work: Path, steps: int = STEPS, fault_at: int = FAULT_AT) -> None:
        self.trainer, self.work, self.steps, self.fault_at = trainer, work, steps, fault_at
        self._golden: Played | None = None

    @property
    def golden(self) -> Played:
        """One run that nothing breaks and nobody watches."""
        if self._golden is None:
            self._golden = play(self._argv(self._made("golden")), self._made("golden"), self._environ("golden"))
            if self._golden.code != 0 or sorted(self._golden.losses) != list(range(1, self.steps + 1)):
                said = self._golden.output[-4000:]
                raise RuntimeError(f"{self.trainer.name} does not train without a fault:\n{said}")
        return self._golden

    def cell(self, fault: str, limits: Mapping[str, str] | None = None) -> Cell:
        """`limits` replaces keys of the packaged policy; None: those of the trainer."""
        began = time.monotonic()
        work = self._made(fault)
        limits = self.trainer.limits(fault) if limits is None else limits
        broken = play(self._governed(work, fault, limits), work, self._environ(fault, fault))
        reports = [json.loads(path.read_text()) for path in sorted(work.glob("state/**/incidents/*.json"))]
        if len(reports) != 1:
            why = f"exit code {broken.code}, {len(reports)} incidents: {_last_line(broken.output)}"
            no = Held(False, "-")
            cell = Cell(self.trainer.name, fault, Held(False, "no", why), no, no, no, {}, (broken.output,))
            cell.seconds = time.monotonic() - began
            return cell
        incident = reports[0]
        last_good = _last_good(incident)  # The resumed run may rotate it away.
        resumed, output = self._resumed(incident, fault, broken)
        halted, saved = _halted(broken, incident, fault), _saved(incident, fault)
        cell = Cell(self.trainer.name, fault, halted, saved, last_good, resumed, incident, (broken.output, output))
        cell.seconds = time.monotonic() - began
        return cell

    def _governed(self, work: Path, fault: str, limits: Mapping[str, str]) -> list[str]:
        words = [str(BIN / "costgov"), "run", "--name", "table"]
        if fault == "ceiling":
            until_s = max(RESERVE_MAX_S, RESERVE_S + 1.5 * self.golden.first_loss_s + 8)
            words += ["--ceiling", f"{until_s:.0f}", "--price", str(PRICE)]
        if limits:
            text = DEFAULT_POLICY.read_text()
            for key, value in limits.items():
                text, count = re.subn(rf"^{key} = \S+", f'{key} = "{value}"', text, flags=re.MULTILINE)
                assert count == 1, key
            (work / "policy.toml").write_text(text)
            words += ["--policy", str(work / "policy.toml")]
        return [*words, "--", *self._argv(work)]

    def _resumed(self, incident: Mapping[str, Any], fault: str, broken: Played) -> tuple[Held, str]:
        """Run the resume command of the report as it stands there, with the higher ceiling that it asks for."""
        command = incident.get("resume")
        if not command:
            return Held(False, "no", "the report has no resume command"), ""
        # DeepSpeed leaves out the update of a NaN and trains on: from there the losses are others, and numbers.
        until = int(self._environ(fault)["FAULT_AT"]) if fault == "nan" else self.steps + 1
        apart = [step for step, loss in broken.losses.items() if step < until and self.golden.losses.get(step) != loss]
        if apart:
            return Held(False, "no", f"watched, it trains differently from step {min(apart)} on"), ""
        command = re.sub(r"--ceiling \d+", "--ceiling 100000", command)
        again = play(["bash", "-c", command], self.work, self._environ(fault))
        step = (incident.get("last_good") or {}).get("step")
        first = min(again.losses, default=None)
        if again.code == 0 and step is None:
            return Held(False, "no", f"no checkpoint is known, and it went on at step {first}"), again.output
        step = step or 0
        wanted = {at: self.golden.losses.get(at) for at in range(step + 1, step + 1 + NEXT)}
        found = {at: again.losses.get(at) for at in wanted}
        if again.code != 0:
            return Held(False, "no", f"exit code {again.code}: {_last_line(again.output)}"), again.output
        if first != step + 1:
            return Held(False, "no", f"went on at step {first} instead of {step + 1}"), again.output
        if found != wanted:
            other = next(at for at in wanted if found[at] != wanted[at])
            return Held(False, "no", f"other losses from step {other} on"), again.output
        return Held(True, f"at {first}"), again.output

    def _argv(self, work: Path) -> list[str]:
        return [*self.trainer.argv, "--out", str(work / "out"), "--steps", str(self.steps)]

    def _environ(self, work: str, fault: str = "") -> dict[str, str]:
        directory = self.work / work
        return {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "COSTGOV_SOCKET": str(directory / "nobody.sock"),  # `costgov run` sets its own.
            "COSTGOV_PATHS__STATE_DIR": str(directory / "state"),
            "COSTGOV_PATHS__RUNTIME_DIR": str(directory / "run"),
            "FAULT": "" if fault == "ceiling" else fault,
            "FAULT_AT": str(self.fault_at),
            "FAULT_RANK": "1",
            "PACE": str(self._pace_s()) if fault == "ceiling" else "0",
            **self.trainer.environ,
        }

    def _pace_s(self) -> float:
        """Slow enough that the ceiling is reached before the last step, however fast it starts this time."""
        return max(PACE_S, (1.5 * self.golden.first_loss_s + 20) / self.steps)

    def _made(self, name: str) -> Path:
        path = self.work / name
        path.mkdir(exist_ok=True)
        return path


@contextmanager
def bench(trainer: Trainer, steps: int = STEPS, fault_at: int = FAULT_AT) -> Iterator[Bench]:
    """In a directory with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="table-") as directory:
        yield Bench(trainer, Path(directory), steps, fault_at)


# --- what is read from the report -----------------------------------------------------------------------------------


def _halted(broken: Played, incident: Mapping[str, Any], fault: str) -> Held:
    if broken.code != HALTED:
        return Held(False, "no", f"exit code {broken.code}: {_last_line(broken.output)}")
    if incident["trigger"] != RULES[fault]:
        return Held(False, "no", f"the verdict is {incident['trigger']}'s: {incident['text']}")
    if incident["halt_stage"] != "HALTED":
        return Held(False, "no", f"the halt ended as {incident['halt_stage']}")
    if broken.left:
        return Held(False, "no", f"{len(broken.left)} processes live on: {broken.left[0]:.60}")
    return Held(True, f"at {incident['step']}")


def _saved(incident: Mapping[str, Any], fault: str) -> Held:
    checkpoint = incident.get("checkpoint") or {}
    kind = checkpoint.get("kind", "none")
    by = checkpoint.get("verified_by") or "nobody"
    text = kind if kind == "none" else f"{kind}, {by}"
    why = checkpoint.get("fault") or next((line for line in incident["not_observed"] if "heckpoint" in line), "")
    if fault == "nan":
        return Held(kind == "none" or (kind == "suspect" and by != "nobody"), text, why)
    if fault == "ceiling":
        return Held(kind == "good" and by == "governor", text, why)
    return Held(True, text, why)


def _last_good(incident: Mapping[str, Any]) -> Held:
    found = incident.get("last_good") or {}
    if not found.get("path"):
        return Held(False, "no", "the report names no last good checkpoint")
    path = Path(found["path"])
    if not path.exists():
        return Held(False, "no", f"{path.name} does not exist")
    if (harm := not_finite(path)) is not None:
        return Held(False, "no", f"{path.name}: {harm}")
    return Held(True, f"{path.name}"[:18])


def _last_line(output: str) -> str:
    """The last line that says something: a traceback's end, or ours."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("loss ")]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?\w+(\.\w+)*(Error|Exception)\b", line)]
    return ((errors or lines or ["nothing was printed"])[-1])[:200]
