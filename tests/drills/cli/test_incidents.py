"""Incidents from a governor, and from the journal that one left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.writer import open_journal
from governor.cli.common import ExitCode
from tests.drills.cli.installed import Costgov
from tests.golden.report_cases import nan_halt, stop_refused

REPOSITORY = Path(__file__).parents[3]


def journal_with(state_dir: Path, *snapshots: dict[str, Any]) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    journal, problem = open_journal(str(state_dir / "costgov.db"), str(state_dir))
    assert problem is None
    for snapshot in snapshots:
        assert journal.close_incident(str(snapshot["incident_id"]), snapshot)
    journal.close()


def test_incidents_are_read_from_the_journal_when_no_governor_runs(costgov: Costgov, short_tmp: Path) -> None:
    journal_with(short_tmp / "state", nan_halt())
    journal_with(short_tmp / "state" / "runs" / "train-1", stop_refused())
    listed = costgov("incident", "list")
    assert listed.returncode == 0
    assert listed.stderr == f"costgov: no governor answers; reading 2 journals below {short_tmp}/state\n"
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["INCIDENT", "run7.gpu-17.1", "run7.gpu-17.3"]
    shown = costgov("incident", "show", "run7.gpu-17.1")
    assert "VERIFIED   read back" in shown.stdout
    assert "failure mode  the loss is no number any more: docs/reference/failure_modes.md#loss-not-a" in shown.stdout
    assert costgov("incident", "show", "run7.gpu-17.1", "--markdown").stdout.startswith("# Incident run7.gpu-17.1\n")
    document = json.loads(costgov("incident", "show", "run7.gpu-17.1", "--json").stdout)
    assert (document["schema"], document["loss"]) == ("costgov.incident/1", "nan")
    assert json.loads(costgov("incident", "list", "--json").stdout, parse_constant=pytest.fail)[0]["loss"] == "nan"


def test_incidents_are_asked_of_a_governor(costgov: Costgov, governor: dict[str, Any]) -> None:
    governor["answers"]["incidents"] = {"ok": True, "data": [nan_halt(), stop_refused()]}
    assert "NEEDS_HUMAN" in costgov("incident", "list").stdout
    shown = costgov("incident", "show", "run7.gpu-17.3")
    assert "not observed  The provider never confirmed that billing ended" in shown.stdout
    assert json.loads(costgov("incident", "list", "--json", "--last", "1").stdout)[0]["run"] == "run7"


def test_finished_halts_are_told_beside_a_governor_that_answers(
    costgov: Costgov, governor: dict[str, Any], short_tmp: Path
) -> None:
    """An unrelated run that is alive hides no halt of a run that has ended; of what both tell, the live word counts."""
    governor["answers"]["incidents"] = {"ok": True, "data": [nan_halt() | {"halt_stage": "STOPPING"}]}
    journal_with(short_tmp / "state", nan_halt())
    journal_with(short_tmp / "state" / "runs" / "train-1", stop_refused())
    (short_tmp / "state" / "runs" / "broken").mkdir()
    (short_tmp / "state" / "runs" / "broken" / "costgov.db").write_bytes(b"no database, whatever its name says" * 100)
    listed = costgov("incident", "list")
    assert listed.returncode == 0
    rows = [line.split() for line in listed.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["run7.gpu-17.1", "run7.gpu-17.3"]
    assert "STOPPING" in rows[0]
    [problem] = listed.stderr.splitlines()
    assert problem.startswith(f"costgov: {short_tmp}/state/runs/broken/costgov.db: cannot be read: ")
    assert costgov("incident", "show", "run7.gpu-17.3").returncode == 0
    governor["answers"]["incidents"] = {"ok": True, "data": []}
    assert costgov("incident", "show", "run7.gpu-17.3").returncode == 0
    alone = costgov("incident", "list", "--control", f"{short_tmp}/run/control.sock")
    assert (alone.stdout, alone.stderr) == ("no incident: nothing has been halted\n", "")


@pytest.mark.parametrize(("wanted", "said"), [("nope", 'no incident "nope"'), ("run7", "begins the ids of 2")])
def test_an_incident_that_is_not_one(costgov: Costgov, governor: dict[str, Any], wanted: str, said: str) -> None:
    governor["answers"]["incidents"] = {"ok": True, "data": [nan_halt(), stop_refused()]}
    told = costgov("incident", "show", wanted)
    assert told.returncode == ExitCode.UNKNOWN
    assert said in told.stderr


def test_no_journal_and_no_governor_is_said(costgov: Costgov) -> None:
    assert costgov("incident", "list").returncode == ExitCode.NO_GOVERNOR


def test_a_fault_of_ours_is_one_line_that_says_how_to_see_more(costgov: Costgov, short_tmp: Path) -> None:
    journal_with(short_tmp / "state", {"incident_id": "from-another-version"})
    told = costgov("incident", "list")
    assert told.returncode == ExitCode.FAILED
    assert "costgov: internal error: KeyError: 'opened_wall_ns' (COSTGOV_TRACEBACK=1 shows where" in told.stderr
    assert "Traceback" in costgov("incident", "list", COSTGOV_TRACEBACK="1").stderr
