"""An export of a run that goes on: how far its account goes, and what `costgov goodput` says of that."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.adapters.journal.writer import open_journal
from governor.cli.main import cli
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import told_time
from governor.core.base.units import NS_PER_S, utc_fine_text
from governor.wire import recording
from tests.unit.cli.test_report import alive, telling
from tests.unit.exports.exported import RUN, account_row, at, charge, hello, leave_recording, read_lines, step, wall
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_goodput import READS
from tests.unit.exports.test_export_retold import HEALTHY, causes, goodput, within

KEPT = {Cause.PRODUCTIVE: Amount(9 * NS_PER_S, 90_000), Cause.START_UP: Amount(8 * NS_PER_S, 80_000)}
NEWER = {**KEPT, Cause.UNKNOWN: Amount(77_500_000_000, 775_000)}  # The ranks of the next attempt say nothing yet.


def leave(state: Path, *, alive: bool) -> Path:
    """A run whose ranks have gone. Its journal's account ends there."""
    leave_recording(state, [hello(0), *(step(n + 3, n, **HEALTHY) for n in range(1, 11)), recording.exited(at(17))])
    row = {**account_row(TimeAccount(by_cause=KEPT, has_begun=True), 17), "alive": alive}
    journal, _ = open_journal(str(state / "costgov.db"), str(state))
    with closing(journal):
        assert journal.save_runs({RUN: row}, [charge("c1", 0, 17, 170_000)], [])
    return state.parent / "to"


def live() -> dict[str, Any]:
    account = TimeAccount(by_cause=NEWER, has_begun=True)
    return dict(json.loads(json.dumps(alive() | {"run": RUN, "time": told_time(account)})))


def export(*words: str) -> tuple[dict[str, Any], list[str]]:
    result = CliRunner().invoke(cli, ("export", RUN, *words, "--json"))
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr.splitlines()


def goes_on(log: dict[str, Any]) -> bool:
    return any("the run went on" in line for line in log["missing"])


@pytest.mark.parametrize("form", READS)
def test_the_account_is_that_of_the_governor_that_watches_the_run(state: Path, form: str) -> None:
    to, (option, name), row = leave(state, alive=True), READS[form], live()
    with telling(state.parent / "run" / "control.sock", row, state_dir=str(state)):
        told, said = export(option, str(to))
    assert (told["goes_on"], told["is_own_account"], told["account_behind_s"], len(said)) == (True, True, None, 1)
    log = goodput(str(to / (name if form == "wandb" else "")))
    for of in ("s", "usd"):
        assert causes(log, of) == within(causes(row["time"], of), form)
    assert goes_on(log)


@pytest.mark.parametrize("state_now", ["training", "finished"])
def test_a_governor_whose_account_cannot_be_read_watches_the_run_all_the_same(state: Path, state_now: str) -> None:
    to, row = leave(state, alive=True), live() | {"state": state_now}
    row["time"]["causes"][0]["cause"] = "a cause of a later version"
    with telling(state.parent / "run" / "control.sock", row, state_dir=str(state)):
        told, said = export("--jsonl", str(to))
    is_over = state_now == "finished"
    assert (told["goes_on"], told["account_as_of"]) == (not is_over, utc_fine_text(wall(17)))
    assert len(said) == (1 if is_over else 2)
    log = goodput(str(to))
    assert (log["wall_s"], goes_on(log)) == (17, not is_over)


def test_a_governor_that_is_not_found_leaves_the_account_of_its_journal_and_that_is_said(state: Path) -> None:
    to = leave(state, alive=True)
    governor, _ = open_journal(str(state / "costgov.db"), str(state))
    with closing(governor):
        told, said = export("--jsonl", str(to))
    assert (told["goes_on"], told["account_as_of"], len(said)) == (True, utc_fine_text(wall(17)), 2)
    log = goodput(str(to))
    assert (log["wall_s"], goes_on(log)) == (17, True)


def test_of_a_run_that_is_over_nothing_came_after(state: Path) -> None:
    to = leave(state, alive=False)
    told, said = export("--jsonl", str(to))
    assert (told["goes_on"], told["account_as_of"], said) == (False, utc_fine_text(wall(17)), [])
    assert not goes_on(goodput(str(to)))


def test_the_last_point_alone_says_whether_the_run_goes_on(state: Path) -> None:
    to = leave(state, alive=False)
    document(RUN, "--jsonl", str(to))
    assert ["run_goes_on" in line for line in read_lines(to / "causes.jsonl")] == [False, True]
