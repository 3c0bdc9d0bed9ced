"""`costgov run` beside a command that never attaches: the ceiling holds all the same, and what it cost is told."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN, HERE, SAFETY_S

NEVER_ATTACHES = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
CONFIG = (
    '[node]\nname = "drill"\n[paths]\nstate_dir = "{0}/state"\nruntime_dir = "{0}/run"\n[metrics]\nenabled = false\n'
)
Costgov = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def costgov(tmp_path: Path) -> Costgov:
    config = tmp_path / "costgov.toml"
    config.write_text(CONFIG.format(tmp_path))

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "costgov"), argv[0], "--config", str(config), *argv[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=SAFETY_S, check=False)

    return run


def test_the_ceiling_ends_a_command_of_which_no_rank_says_hello(costgov: Costgov, tmp_path: Path) -> None:
    # $1 a second: the packaged policy reserves $22 for the ends of processes, so a few seconds are left.
    asked = ("--ceiling", "30", "--price", "3600", "--name", "unheard")
    done = costgov("run", *asked, "--", sys.executable, "-c", NEVER_ATTACHES)
    assert done.returncode == 86, done.stderr
    (report,) = (tmp_path / "state" / "incidents").glob("*.json")
    incident: dict[str, Any] = json.loads(report.read_text())
    assert (incident["run"], incident["reason"], incident["halt_stage"]) == ("unheard", "ceiling_reached", "HALTED")
    assert 0 < incident["spend_usd"] < 30
    assert {target["role"] for target in incident["targets"]} == {"launcher", "child"}
    assert "no rank has attached" in done.stderr
    told = costgov("cost", "--json")
    assert told.returncode == 0, told.stderr
    assert "unheard" in told.stdout


def trained_then(tmp_path: Path, rest: str) -> list[str]:
    """A rank attaches, trains 30 steps and is gone; the same command goes on."""
    return ["sh", "-c", f'"{sys.executable}" "{HERE}/trainee.py" crash "{tmp_path}"; {rest}']


def test_the_ceiling_ends_what_the_command_does_behind_its_training(costgov: Costgov, tmp_path: Path) -> None:
    # Of a second's training, which has 16 of them before the ceiling is near.
    asked = ("--ceiling", "38", "--price", "3600", "--name", "trained")
    done = costgov("run", *asked, "--", *trained_then(tmp_path, "sleep 600; true"))
    assert done.returncode == 86, done.stderr
    (report,) = (tmp_path / "state" / "incidents").glob("*.json")
    incident: dict[str, Any] = json.loads(report.read_text())
    assert (incident["run"], incident["reason"], incident["halt_stage"]) == ("trained", "ceiling_reached", "HALTED")
    assert 0 < incident["spend_usd"] < 38
    assert 1 <= incident["step"] <= 30, "of its training; the last frames of a crash are not always sent"
    assert {target["role"] for target in incident["targets"]} == {"launcher", "child"}, "sh, and what it runs now"


def test_a_command_that_goes_on_for_a_while_ends_with_its_own_code_and_is_charged_for_all_of_it(
    costgov: Costgov, tmp_path: Path
) -> None:
    done = costgov("run", "--price", "3600", "--name", "trained", "--", *trained_then(tmp_path, "sleep 2; exit 7"))
    assert done.returncode == 7, done.stderr
    assert re.search(r"trained: ended with exit code 7; step \d+; ", done.stderr) is not None, done.stderr
    told = json.loads(costgov("cost", "--json", "--by", "run").stdout)
    paid = {group["key"]: float(group["usd"]) for group in told["groups"]}
    assert paid["trained"] > 2, "the two seconds behind the training, too"


def test_a_command_that_ends_by_itself_is_charged_and_keeps_its_code(costgov: Costgov) -> None:
    done = costgov("run", "--price", "3600", "--name", "short", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7, done.stderr
    assert "short" in costgov("cost", "--json").stdout


def test_a_name_whose_ceiling_is_used_up_is_not_launched(costgov: Costgov, tmp_path: Path) -> None:
    asked = ("--price", "100000", "--name", "again")  # $28 a second; a halt is reserved $111 of the second ceiling.
    assert costgov("run", *asked, "--", "sleep", "1").returncode == 0
    done = costgov("run", *asked, "--ceiling", "130", "--", "touch", str(tmp_path / "started"))
    assert (done.returncode, (tmp_path / "started").exists()) == (1, False)
    (line,) = done.stderr.splitlines()
    assert "not launched: run:again has spent $" in line
    assert "or more, which buys at least a minute of training" in line


def test_a_crash_loop_of_short_lives_is_charged_for_each(costgov: Costgov) -> None:
    """Governor and command end by SIGKILL long before the journal's next commit, and a service starts them again."""
    asked = ("--price", "3600", "--name", "loop", "--")
    for _ in range(2):
        done = costgov("run", *asked, "sh", "-c", "sleep 1.2; kill -9 $PPID")
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = costgov("run", *asked, "true")
    assert done.returncode == 0, done.stderr
    told = json.loads(costgov("cost", "--json", "--by", "run").stdout)
    paid = {group["key"]: float(group["usd"]) for group in told["groups"]}
    assert paid["loop"] > 2 * (1.2 - 0.25), "of each life, all but a tick"


def test_a_hold_is_taken_before_the_first_rank_says_hello(costgov: Costgov, tmp_path: Path) -> None:
    hold = f"{BIN}/costgov hold held 1h --reason loading --control {tmp_path}/run/control.sock"
    show = f"{BIN}/costgov status --json --control {tmp_path}/run/control.sock"
    done = costgov("run", "--price", "3600", "--name", "held", "--", "sh", "-c", f"{hold} && {show}")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout[done.stdout.index("{") :])["runs"]
    assert (run["run"], run["state"], run["hold"]["reason"]) == ("held", "starting", "loading")
    assert run["spend_usd"] > 0


WRITES_NAN = """
import os, pathlib, sys, time
place, waits = pathlib.Path(sys.argv[1]), float(sys.argv[2])
(place / "train.pid").write_text(str(os.getpid()))
with (place / "log.jsonl").open("w", buffering=1) as log:
    log.writelines(f'{{"step": {n}, "loss": {2.0 if n < 30 else "NaN"}}}\\n' for n in range(1, 40))
    time.sleep(waits)
"""


@pytest.mark.parametrize("named", [True, False], ids=["a pidfile", "never named"])
def test_a_halted_log_of_the_command_ends_it_also_before_its_pidfile_is_read(
    costgov: Costgov, tmp_path: Path, named: bool
) -> None:
    """The verdict comes at once, the next look for the process up to five seconds later."""
    with (tmp_path / "costgov.toml").open("a") as config:
        config.write(f'[[jsonl]]\npath = "{tmp_path}/log.jsonl"\nrun = "log"\n')
        config.write(f'pidfile = "{tmp_path}/train.pid"\n' if named else "")
    done = costgov("run", "--price", "3", "--", sys.executable, "-c", WRITES_NAN, str(tmp_path), "600")
    assert done.returncode == 86, done.stderr
    (report,) = (tmp_path / "state" / "incidents").glob("log.*.json")
    incident: dict[str, Any] = json.loads(report.read_text())
    assert incident["reason"] == "loss_nan"
    assert incident["halt_stage"] == "HALTED"
    assert "--again" in incident["resume"]
    assert "names no processes" not in done.stderr


def test_what_a_short_command_logs_last_is_its_own(costgov: Costgov, tmp_path: Path) -> None:
    """It is over before its log was read for the first time."""
    with (tmp_path / "costgov.toml").open("a") as config:
        config.write(f'[[jsonl]]\npath = "{tmp_path}/log.jsonl"\nrun = "log"\n')
    writes = f'echo \'{{"step": 7, "loss": 2.0}}\' > {tmp_path}/log.jsonl'
    wrote = costgov("run", "--price", "3", "--", "sh", "-c", writes)
    assert "costgov: log: ended with exit code 0; step 7; spent $0.00" in wrote.stderr
    assert "no step was seen" not in wrote.stderr


WRITES = """
import os, pathlib, sys, time
place, name, steps, waits = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with (place / f"{name}.jsonl").open("w", buffering=1) as log:
    (place / f"{name}.pid").write_text(str(os.getpid()))
    for step in range(1, steps + 1):
        log.write(f'{{"step": {step}, "loss": 2.0}}\\n')
        time.sleep(waits)
"""


@pytest.mark.parametrize("waits", [0, 1], ids=["nobody sees it", "it lives for a second"])
def test_a_log_whose_process_lived_for_moments_pays_for_the_other_one_no_longer(
    costgov: Costgov, tmp_path: Path, waits: int
) -> None:
    (tmp_path / "writes.py").write_text(WRITES)
    with (tmp_path / "costgov.toml").open("a") as config:
        for name in ("brief", "long"):
            config.write(
                f'[[jsonl]]\npath = "{tmp_path}/{name}.jsonl"\nrun = "{name}"\npidfile = "{tmp_path}/{name}.pid"\n'
            )
    writes = f'"{sys.executable}" "{tmp_path}/writes.py" "{tmp_path}"'
    # The short one has its first line 2 s before the other one.
    both = f"({writes} brief 1 {waits}) & sleep 2; {writes} long 8 1; wait"
    done = costgov("run", "--price", "3600", "--", "sh", "-c", both)
    assert done.returncode == 0, done.stderr
    told = json.loads(costgov("cost", "--json", "--by", "run").stdout)
    paid = {group["key"]: float(group["usd"]) for group in told["groups"]}
    assert paid.get("long", 0) > 6, paid
    assert "paid by" not in done.stderr
