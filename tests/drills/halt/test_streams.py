"""A trainer without the shim: flat JSONL is its voice, a pidfile says who it is. Real files, real processes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN, SAFETY_S, Service
from tests.unit.wire.files.written import RunFile, begin, scalar
from tests.unit.wire.formats.written import BATCH, GPUS, LENGTH, WRITERS, run

Make = Callable[..., Service]


class Plain:
    """A process that only waits, and the metrics file that it would write."""

    def __init__(self, work: Path) -> None:
        self.log = work / "metrics.jsonl"
        self.pidfile = work / "train.pid"
        self.log.write_text("")
        self.launch()

    def launch(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self.pidfile.write_text(f"{self.process.pid}\n")

    def write(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text)

    def steps(self, first: int, last: int, loss: str = "2.0") -> None:
        self.write(
            "".join(f'{{"step": {n}, "loss": {loss}, "tokens_per_second": 1e4}}\n' for n in range(first, last + 1))
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SAFETY_S)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Plain]:
    made = Plain(tmp_path)
    yield made
    made.end()


def _watched(service: Make, plain: Plain, *, pidfile: bool = True) -> Service:
    governor = service()
    named = f'pidfile = "{plain.pidfile}"\n' if pidfile else ""
    with governor.config.open("a") as config:
        config.write(f'[[jsonl]]\npath = "{plain.log}"\nrun = "plain"\n{named}')
    governor.start()
    governor.until(lambda: _run(governor) is not None, "the run is known")
    return governor


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "hf"])
def test_a_console_log_is_followed_and_halted_with_its_nan(service: Make, plain: Plain, name: str) -> None:
    """As the framework prints it, rotated amid the run."""
    governor = service()
    with governor.config.open("a") as config:
        config.write(f'[[log]]\npath = "{plain.log}"\nrun = "plain"\npidfile = "{plain.pidfile}"\n')
        config.write(f'format = "{name}"\nsequence_length = {LENGTH}\ngpus = {GPUS}\n')
    governor.start()
    governor.until(lambda: _run(governor) is not None, "the run is known")
    lines = [*WRITERS[name](run(60, broken_from=50))]
    first = len(lines) - 60
    plain.write("".join(f"{line}\n" for line in lines[: first + 25]))
    governor.until(lambda: (_run(governor)["step"] or 0) >= 24, "the lines are read")
    plain.log.rename(plain.log.with_suffix(".1"))
    plain.write("".join(f"{line}\n" for line in lines[first + 25 : first + 45]))
    governor.until(lambda: (_run(governor)["step"] or 0) >= 44, "the new file is read")
    if name == "megatron":
        assert _run(governor)["tokens_total"] == 45 * BATCH * LENGTH
    plain.write("".join(f"{line}\n" for line in lines[first + 45 :]))
    plain.process.wait(SAFETY_S)
    assert governor.until_stage("HALTED")["reason"] in ("loss_nan", "grad_norm_nan", "loss_nonfinite")


@pytest.mark.parametrize("name", ["csv", "tensorboard", "wandb"])
def test_a_log_that_is_no_lines_is_followed_and_halted_with_its_nan(service: Make, plain: Plain, name: str) -> None:
    """A table, event files of two launches in a directory, and a run of W&B. A NaN is found within 2 s of its bytes."""
    governor = service()
    first, then, broken = _files(plain, name)
    with governor.config.open("a") as config:
        config.write(f'[[log]]\npath = "{plain.log}"\nrun = "plain"\npidfile = "{plain.pidfile}"\nformat = "{name}"\n')
    governor.start()
    governor.until(lambda: _run(governor) is not None, "the run is known")
    first()
    _until_step(governor, 25)
    then()
    _until_step(governor, 50)
    assert _run(governor)["loss"] == 2.0
    assert _run(governor)["tokens_total"] == 50_000
    assert governor.incidents() == []
    begun = time.monotonic()
    broken()
    governor.until(lambda: bool(governor.incidents()), "the NaN is found")
    assert time.monotonic() - begun < 2.0
    plain.process.wait(SAFETY_S)
    assert governor.until_stage("HALTED")["reason"] == "loss_nan"


def _files(plain: Plain, name: str) -> tuple[Callable[[], None], ...]:
    """What writes steps 1 to 25, then to 50 as after a launch or under more columns, then a NaN."""
    log = plain.log
    if name == "csv":
        head, rows = "step,loss,tokens\n", [f"{n},2.0,1000\n" for n in range(1, 51)]
        wider = "grad_norm," + head + "".join(f",{row}" for row in rows)
        return (
            lambda: plain.write(head + "".join(rows[:25])),
            lambda: (log.write_text(wider), None)[1],
            lambda: plain.write("1.0,51,nan,1000\n"),
        )
    if name == "wandb":
        run_file, at = RunFile(), [0]

        def put(first: int, last: int, loss: float = 2.0) -> None:
            for n in range(first, last + 1):
                run_file.row(n, {"loss": loss, "tokens_per_step": 1000})
            with log.open("ab") as file:
                file.write(bytes(run_file.data[at[0] :]))
            at[0] = len(run_file.data)

        return lambda: put(1, 25), lambda: put(26, 50), lambda: put(51, 51, math.nan)
    log.unlink()
    log.mkdir()

    def launch(number: int, first: int) -> None:
        data = b"".join(scalar(n, "loss", 2.0) + scalar(n, "tokens_per_step", 1000) for n in range(first, first + 25))
        (log / f"events.out.tfevents.180000000{number}.node.7.0").write_bytes(begin() + data)

    def nan() -> None:
        with (log / "events.out.tfevents.1800000001.node.7.0").open("ab") as file:
            file.write(scalar(51, "loss", math.nan))

    return lambda: launch(0, 1), lambda: launch(1, 26), nan


def _run(governor: Service) -> Any:
    runs = governor.ask({"cmd": "status"})["runs"]
    return next((run for run in runs if run["run"] == "plain"), None)


def _until_step(governor: Service, step: int) -> None:
    governor.until(lambda: _run(governor)["step"] == step, f"step {step}")


def test_a_bare_nan_in_the_log_ends_the_process_of_the_pidfile(service: Make, plain: Plain) -> None:
    governor = _watched(service, plain)
    plain.steps(1, 30)
    _until_step(governor, 30)
    plain.steps(31, 31, loss="NaN")
    plain.process.wait(SAFETY_S)
    incident = governor.until_stage("HALTED")
    assert incident["reason"] == "loss_nan"
    assert [target["pid"] for target in incident["targets"]][:1] == [plain.process.pid]
    assert "exited" in [entry["what"] for entry in incident["timeline"]]


def test_a_torn_tail_a_truncation_and_a_step_that_goes_back_halt_nothing(service: Make, plain: Plain) -> None:
    governor = _watched(service, plain)
    plain.steps(1, 30)
    _until_step(governor, 30)
    plain.write('{"step": 31, "lo')
    plain.write('ss": 2.0}\n{"step": 32, "loss": 2')
    _until_step(governor, 31)
    plain.write("\n")  # Torn for good: counted, never guessed.
    plain.steps(33, 33)
    _until_step(governor, 33)
    plain.log.write_text("")
    plain.steps(20, 24)  # Resumed from a checkpoint, into a log that was emptied.
    _until_step(governor, 24)
    assert governor.incidents() == []
    assert plain.process.poll() is None


def test_a_process_that_is_launched_again_is_watched_again(service: Make, plain: Plain) -> None:
    governor = _watched(service, plain)
    plain.steps(1, 30)
    plain.steps(31, 31, loss="NaN")
    plain.process.wait(SAFETY_S)
    governor.until_stage("HALTED")
    plain.launch()
    governor.until(lambda: _run(governor)["state"] == "starting", "the new process is seen")
    plain.steps(20, 40)
    plain.steps(41, 41, loss="NaN")
    plain.process.wait(SAFETY_S)
    governor.until(lambda: [i["halt_stage"] for i in governor.incidents()] == ["HALTED"] * 2, "the second halt")


def test_a_number_that_now_belongs_to_another_process_is_left_alone(service: Make, plain: Plain) -> None:
    """The pidfile is older than the process that bears its number: its writer is gone."""
    plain.end()
    old = plain.pidfile.stat().st_mtime - 3600
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        plain.pidfile.write_text(f"{stranger.pid}\n")
        subprocess.run(["touch", "-d", f"@{old}", str(plain.pidfile)], check=True)
        governor = _watched(service, plain)
        plain.steps(1, 30)
        plain.steps(31, 31, loss="NaN")
        governor.until_stage("NEEDS_HUMAN")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait(SAFETY_S)


def test_a_run_that_names_no_process_is_not_said_to_be_halted(service: Make, plain: Plain) -> None:
    governor = _watched(service, plain, pidfile=False)
    plain.steps(1, 30)
    plain.steps(31, 31, loss="NaN")
    incident = governor.until_stage("NEEDS_HUMAN")
    assert plain.process.poll() is None
    assert "nobody_named" in [entry["what"] for entry in incident["timeline"]]
    governor.until_said("names no processes")


def test_a_nan_that_was_written_while_the_governor_was_down_is_acted_on_when_it_is_back(
    service: Make, plain: Plain
) -> None:
    governor = _watched(service, plain)
    plain.steps(1, 30)
    _until_step(governor, 30)
    governor.kill9()
    plain.steps(31, 31, loss="NaN")
    governor.start()
    plain.process.wait(SAFETY_S)
    assert governor.until_stage("HALTED")["reason"] == "loss_nan"


def test_a_log_that_nobody_understands_is_never_said_to_be_trained(service: Make, plain: Plain) -> None:
    """Megatron's text: `doctor` says what it saw. That it is unwatched and alarmed in time, unit tests show."""
    plain.write(" iteration      100/     500 | lm loss: 2.5E+00 |\n" * 3)
    governor = _watched(service, plain)
    assert _run(governor)["state"] == "starting"
    done = subprocess.run([BIN / "costgov", "doctor", "--config", str(governor.config)], capture_output=True, text=True)
    assert done.returncode != 0
    seen = 'nothing understood in 3 lines such as "iteration 100/ 500 | lm loss: 2.5E+00 |"'
    assert f"FAIL  logs          {plain.log}: not JSON, {seen}" in done.stdout


def test_lines_of_a_buffer_cost_what_passed_between_them(service: Make, plain: Plain) -> None:
    """Five steps, a quarter of a second each by their own clock, are seen together when the writer flushes them."""
    governor = _watched(service, plain)
    governor.until(lambda: _run(governor)["spend_usd"] > 0, "it is charged")
    begun = time.time()
    governor.until(lambda: time.time() > begun + 2, "two seconds have passed")
    plain.write(
        "".join(f'{{"step": {n}, "loss": 2.0, "tokens": 1000000, "timestamp": {begun + n / 4}}}\n' for n in range(1, 6))
    )
    _until_step(governor, 5)
    assert _run(governor)["usd_per_mtok"] == pytest.approx(98.32 / 3600 / 4, rel=0.01)
