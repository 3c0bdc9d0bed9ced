"""Commands that ask a governor: what they show, send and refuse to claim."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from governor.cli.status_table import render_status
from governor.text.screen import Screen, without_colour
from tests.drills.cli.conftest import STATUS
from tests.drills.cli.installed import BOUND_S, COSTGOV, Costgov

REPOSITORY = Path(__file__).parents[3]


def test_status_shows_money_progress_and_what_is_wrong(costgov: Costgov, governor: dict[str, Any]) -> None:
    told = costgov("status")
    assert (told.returncode, told.stderr) == (0, "")
    text = told.stdout
    for expected in ("gpu-17", "$22.00/h (contract)", "41/200", "NaN", "$12.35 of $90.00", "$0.1194", "3h 32m", "8/8"):
        assert expected in text
    assert "on halt: stop i-0abc; stays billed: vol-1" in text
    assert 'rule "nan" sees: NaN!' in text
    assert "the last reload was refused: a.toml:3: bad" in text
    assert "UNWATCHED: pid 4321 holds GPU GPU-1a2b ($2.75/h)" in text


@pytest.mark.parametrize(
    ("columns", "row_lines", "health"), [(40, 3, " 8/8 200ms"), (80, 1, ""), (110, 1, " 8/8 200ms")]
)
def test_a_narrow_terminal_cuts_no_number(columns: int, row_lines: int, health: str) -> None:
    """A row takes several lines. Ranks and last frame, without which one is enough, are left out while all is well."""
    lines = without_colour(render_status(STATUS, Screen(columns, True))).splitlines()
    assert "…" not in "".join(lines)
    assert all(len(line) <= columns for line in lines)
    titles = next(place for place, line in enumerate(lines) if line.startswith("RUN "))
    row = next(place for place, line in enumerate(lines) if line.startswith("run7 "))
    assert row == titles + row_lines
    told = " ".join(" ".join(lines[row : row + row_lines]).split())
    assert told == f"run7 training 41/200 NaN 50,000 $12.35 of $90.00 $0.1194 3h 32m{health}"


def test_each_block_names_its_governor(costgov: Costgov, governor: dict[str, Any], environ: dict[str, str]) -> None:
    for run, expected in (("llama", "gpu-17, costgov run llama (pid 7)"), (None, "gpu-17, service (pid 7)")):
        document = STATUS | {"governor": STATUS["governor"] | {"run": run}, "runs": []}
        governor["answers"]["status"] = {"ok": True, "data": document}
        assert costgov("status").stdout.startswith(f"{expected}  enforce")
        command = [COSTGOV, "status", "--watch"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{expected}: no run yet\n"
            process.send_signal(signal.SIGINT)


def test_a_hostile_run_name_cannot_steer_the_terminal(costgov: Costgov, governor: dict[str, Any]) -> None:
    text = costgov("status").stdout
    assert "\x1b" not in text
    assert "evil [2J run" in text


def test_status_as_json_is_strict(costgov: Costgov, governor: dict[str, Any]) -> None:
    document = json.loads(costgov("status", "--json").stdout, parse_constant=pytest.fail)
    assert document["runs"][0]["loss"] == "nan"
    assert document["beside"] == []


def test_watch_without_a_terminal_is_a_line_a_second(governor: dict[str, Any], environ: dict[str, str]) -> None:
    command = [COSTGOV, "status", "--watch"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0, "Ctrl-C is how one leaves"
    assert lines[0] == lines[2] == "run7  training    step 41/200   loss NaN  50,000 tok/s  $12.35  $0.119400/1M now\n"


def test_watch_on_a_terminal_draws_in_place(governor: dict[str, Any], environ: dict[str, str]) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen([COSTGOV, "status", "--watch"], env=environ, stdout=slave, stderr=slave)
    os.close(slave)
    drawn = b""
    while drawn.count(b"\x1b[H") < 2:
        assert select.select([master], [], [], BOUND_S)[0]
        drawn += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND_S) == 0
    os.close(master)
    assert b"gpu-17" in drawn


def test_halt_and_hold_say_what_they_asked_for(costgov: Costgov, governor: dict[str, Any]) -> None:
    governor["answers"]["halt"] = {"ok": True, "data": {"run": "run7", "incident_id": "run7.n.1"}}
    governor["answers"]["hold"] = {"ok": True, "data": {"run": "run7", "left_s": 1.0}}
    assert "incident run7.n.1" in costgov("halt", "run7", "--reason", "wrong data").stdout
    assert "for 1h 30m" in costgov("hold", "run7", "1h30m", "--reason", "looking").stdout
    assert "lifted" in costgov("hold", "run7", "off").stdout
    assert governor["asked"] == [
        {"cmd": "halt", "run": "run7", "reason": "wrong data"},
        {"cmd": "hold", "run": "run7", "duration_ns": 5_400 * 10**9, "reason": "looking"},
        {"cmd": "hold", "run": "run7", "duration_ns": 0, "reason": "lifted"},
    ]


def test_a_halt_that_touched_nothing_does_not_claim_one(costgov: Costgov, governor: dict[str, Any]) -> None:
    governor["answers"]["halt"] = {"ok": True, "data": {"run": "run7", "incident_id": None}}
    assert "nothing was halted" in costgov("halt", "run7", "--reason", "x").stdout
