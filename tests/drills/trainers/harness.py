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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drills.shim_engines.conftest import Warm
from tests.drills.trainers.cells import Cell, Held, Played, halted_of, last_good_of, last_line, saved_of
from tests.drills.trainers.finite import not_finite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
DEFAULT_POLICY = ROOT / "governor" / "data" / "default.toml"

FAULTS = ("nan", "ceiling", "hang")
STEPS, FAULT_AT, NEXT = 200, 34, 5
RUN_MAX_S = 300.0  # A run longer than this is reported as one that does not end.
LOSS = r"^loss (\d+) (\S+)$"
MARK = "COSTGOV_TABLE_CELL"  # In the environment of all that a cell starts.
# $3,600 an hour is a dollar a second. A halt reserves a tenth of the ceiling to save, a sixteenth to end, and a second.
PRICE, RESERVED, CEILING_MIN_S, PACE_S = 3600, 0.17, 20.0, 0.25
BROKEN_PACE_S = 0.02  # A save that is under way when the fault comes is the halt's, and good: of before the fault.

# What differs from the packaged policy: a halt's grace that a ceiling of seconds can pay for, and limits of a hang that
# a table can wait for. These are for one rank, for which nobody waits; several have the packaged ones.
SHORT = {
    "nan": {},
    "ceiling": {"grace": "10s"},
    "hang": {"worth_max": "10s", "tight_min": "5s", "between_limit": "15s"},
}


# The part of a package that takes its time.
IMPORTED = {
    "transformers": "transformers.models.llama.modeling_llama",
    "trl": "trl.trainer.sft_trainer",
    "lightning": "lightning.pytorch",
}


@dataclass(frozen=True)
class Trainer:
    """`script` and its own arguments; --out and --steps follow. `packages` are named beside the result."""

    name: str
    script: tuple[str, ...]
    ranks: int = 1
    packages: tuple[str, ...] = ("torch",)

    def limits(self, fault: str) -> Mapping[str, str]:
        """What differs from the packaged policy."""
        return {} if fault == "hang" and self.ranks > 1 else SHORT[fault]

    def command(self) -> list[str]:
        """As its user starts it."""
        run = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.ranks}")
        return [sys.executable, *(run if self.ranks > 1 else ()), *self.program()]

    def forked(self) -> list[str]:
        """Its ranks are forks of one launcher, which imports no more than it needs."""
        return [str(HERE.parent / "ranks.py"), str(self.ranks), ",".join(self.imports()), *self.program()]

    def program(self) -> list[str]:
        return [str(HERE / "scripts" / self.script[0]), *self.script[1:]]

    def imports(self) -> list[str]:
        """What its ranks import, and their launcher once for all of them."""
        return [IMPORTED.get(package, package) for package in self.packages]


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
                if (found := re.match(LOSS, line)) is not None:
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
    """Where the cells of one trainer are played: its golden losses, and a directory for each cell.

    `forks` has imported what the trainer needs. The golden run is then a fork of it, and several ranks of the watched
    runs are forks of one launcher.
    """

    def __init__(
        self, trainer: Trainer, work: Path, steps: int = STEPS, fault_at: int = FAULT_AT, forks: Warm | None = None
    ) -> None:
        self.trainer, self.work, self.steps, self.fault_at, self.forks = trainer, work, steps, fault_at, forks
        self._golden: Played | None = None

    @property
    def golden(self) -> Played:
        """One run that nothing breaks and nobody watches."""
        if self._golden is None:
            self._golden = self._play_golden(self._made("golden"))
            if self._golden.code != 0 or sorted(self._golden.losses) != list(range(1, self.steps + 1)):
                said = self._golden.output[-4000:]
                raise RuntimeError(f"{self.trainer.name} does not train without a fault:\n{said}")
        return self._golden

    def _play_golden(self, work: Path) -> Played:
        words, environ = self._arguments(work), self._environ("golden")
        if self.forks is None:
            return play([*self.trainer.command(), *words], work, environ)
        log, began = work / "log", time.monotonic()
        order = {"env": {**os.environ, **environ}, "log": str(log)}
        (code,) = self.forks.run([*self.trainer.forked(), *words], work, [order])
        output = log.read_text()
        losses = {int(step): loss for step, loss in re.findall(LOSS, output, re.MULTILINE)}
        return Played(code, losses, time.monotonic() - began, output, ())

    def cell(self, fault: str, limits: Mapping[str, str] | None = None) -> Cell:
        """`limits` replaces keys of the packaged policy; None: those of the trainer."""
        began = time.monotonic()
        work = self._made(fault)
        limits = self.trainer.limits(fault) if limits is None else limits
        broken = play(self._governed(work, fault, limits), work, self._environ(fault, fault))
        reports = [json.loads(path.read_text()) for path in sorted(work.glob("state/**/incidents/*.json"))]
        if len(reports) != 1:
            why = f"exit code {broken.code}, {len(reports)} incidents: {last_line(broken.output)}"
            no = Held(False, "-")
            cell = Cell(self.trainer.name, fault, Held(False, "no", why), no, no, no, {}, (broken.output,))
            cell.seconds = time.monotonic() - began
            return cell
        incident = reports[0]
        last_good = last_good_of(incident, self._not_finite)  # The resumed run may rotate it away.
        resumed, output = self._resumed(incident, fault, broken)
        halted, saved = halted_of(broken, incident, fault), saved_of(incident, fault, self.fault_at)
        cell = Cell(self.trainer.name, fault, halted, saved, last_good, resumed, incident, (broken.output, output))
        cell.seconds = time.monotonic() - began
        return cell

    def _governed(self, work: Path, fault: str, limits: Mapping[str, str]) -> list[str]:
        words = [str(BIN / "costgov"), "run", "--name", "table"]
        if fault == "ceiling":
            until_s = max(CEILING_MIN_S, (1.5 * self.golden.first_loss_s + 9) / (1 - RESERVED))
            words += ["--ceiling", f"{until_s:.0f}", "--price", str(PRICE)]
        if limits:
            text = DEFAULT_POLICY.read_text()
            for key, value in limits.items():
                text, count = re.subn(rf"^{key} = \S+", f'{key} = "{value}"', text, flags=re.MULTILINE)
                assert count == 1, key
            (work / "policy.toml").write_text(text)
            words += ["--policy", str(work / "policy.toml")]
        command = self.trainer.command() if self.forks is None else [sys.executable, *self.trainer.forked()]
        return [*words, "--", *command, *self._arguments(work)]

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
            return Held(False, "no", f"exit code {again.code}: {last_line(again.output)}"), again.output
        if first != step + 1:
            return Held(False, "no", f"went on at step {first} instead of {step + 1}"), again.output
        if found != wanted:
            other = next(at for at in wanted if found[at] != wanted[at])
            return Held(False, "no", f"other losses from step {other} on"), again.output
        return Held(True, f"at {first}"), again.output

    def _not_finite(self, path: Path) -> str | None:
        if self.forks is None:
            return not_finite(path)
        order = {"env": {**os.environ, **self._environ("golden")}, "log": str(self.work / "finite")}
        self.forks.run([str(HERE / "finite.py"), str(path)], self.work, [order])
        said = (self.work / "finite").read_text().strip()
        return None if said == "finite" else said

    def _arguments(self, work: Path) -> list[str]:
        return ["--out", str(work / "out"), "--steps", str(self.steps)]

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
            "PACE": str(self._pace_s() if fault == "ceiling" else BROKEN_PACE_S if fault else 0),
        }

    def _pace_s(self) -> float:
        """Slow enough that the ceiling is reached before the last step, however fast it starts this time."""
        return max(PACE_S, (1.5 * self.golden.first_loss_s + 20) / self.steps)

    def _made(self, name: str) -> Path:
        path = self.work / name
        path.mkdir(exist_ok=True)
        return path


@contextmanager
def bench(trainer: Trainer, steps: int = STEPS, fault_at: int = FAULT_AT, forks: Warm | None = None) -> Iterator[Bench]:
    """In a directory with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="table-") as directory:
        yield Bench(trainer, Path(directory), steps, fault_at, forks)
