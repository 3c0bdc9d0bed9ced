"""An export of a run that was launched twice under one name: what lies between is nobody's time, as in its report."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli.main import cli
from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount, Cause
from governor.core.base.units import NS_PER_S
from governor.wire import recording
from tests.unit.exports.exported import (
    RUN,
    account_row,
    at,
    charge,
    hello,
    leave_journal,
    leave_recording,
    read_lines,
    step,
)
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_goodput import READS
from tests.unit.exports.test_export_retold import HEALTHY, bye, causes, goodput, told, within

PAUSE_S = 420  # Somebody looked at what the first launch had trained.
SECOND_S = 45 + PAUSE_S  # The second one speaks. It began ten seconds before.
END_S = SECOND_S + 45
OWN = {  # As the governor has it: its launches' starts are in it, which no recording has.
    Cause.PRODUCTIVE: Amount(64 * NS_PER_S, 640_000),
    Cause.RESTART: Amount(13 * NS_PER_S, 130_000),
    Cause.OTHER_TENANTS: Amount(23 * NS_PER_S, 230_000),
}
CHARGES = (charge("c1", 0, 45, 450_000), charge("c2", SECOND_S - 10, END_S, 550_000))


def leave(state: Path, end: bytes = recording.exited(at(45)), *, is_priced: bool = True) -> Path:
    """Both launches, a step a second of each, with `end` behind the first one."""
    first = [hello(0), *(step(n + 3, n, **HEALTHY) for n in range(1, 41)), bye(44), end]
    leave_recording(state, first)
    second = [hello(SECOND_S, attempt="a2"), *(step(SECOND_S + n + 3, n + 40, **HEALTHY) for n in range(1, 41))]
    leave_recording(state, [*second, bye(END_S - 1), recording.exited(at(END_S))], number=2, continues=False)
    account = TimeAccount(by_cause=OWN, has_begun=True)
    leave_journal(state, [], CHARGES if is_priced else [], {RUN: account_row(account, END_S)})
    return state / "recordings" / RUN


@pytest.mark.parametrize("form", READS)
def test_goodput_of_it_is_the_runs_report(state: Path, tmp_path: Path, form: str) -> None:
    leave(state)
    option, name = READS[form]
    assert document(RUN, option, str(tmp_path / "to"))["is_own_account"] is True
    report = told("report", RUN, "--json")
    log = goodput(str(tmp_path / "to" / (name if form == "wandb" else "")))
    assert report["wall_s"] == 100
    for of in ("s", "usd"):
        assert causes(log, of) == within(causes(report, of), form)


@pytest.mark.parametrize("is_priced", [True, False])
def test_no_point_of_it_has_the_pause(state: Path, tmp_path: Path, *, is_priced: bool) -> None:
    leave(state, is_priced=is_priced)
    document(RUN, "--jsonl", str(tmp_path))
    points = [
        {name[:-2]: value for name, value in line.items() if name.endswith("_s")}
        for line in read_lines(tmp_path / "causes.jsonl")[:-1]
    ]
    assert all(sum(one.values()) <= 100.5 for one in points)
    assert all(one.get("unknown", 0.0) < 9 for one in points), "a tenth of each step has no name"
    assert all(after[cause] >= value for before, after in pairwise(points) for cause, value in before.items())
    # The second launch is charged from its start on: so much was its restart. Without a price nobody knows of it.
    assert points[-1].get("restart", 0.0) + points[-1].get("shut_down", 0.0) == pytest.approx(
        15 if is_priced else 5, abs=1
    )


@pytest.mark.parametrize("is_halted", [True, False])
def test_goodput_of_the_recording_itself_has_no_pause_either(state: Path, *, is_halted: bool) -> None:
    directory = leave(state, recording.halted(at(45), "llama.n.1") if is_halted else recording.exited(at(45)))
    log = goodput(str(directory), "--price", "36")
    assert log["wall_s"] == pytest.approx(90, abs=1)
    assert log["usd"] == pytest.approx(0.9, abs=0.02)


def test_what_no_governor_heard_is_unknown_still(state: Path, tmp_path: Path) -> None:
    leave(state, recording.gap(at(45), 0))
    document(RUN, "--jsonl", str(tmp_path))
    assert read_lines(tmp_path / "causes.jsonl")[-2]["unknown_s"] == pytest.approx(PAUSE_S + 8, abs=2)


def test_an_account_of_the_first_launch_alone_is_told_as_old(state: Path, tmp_path: Path) -> None:
    leave(state)
    (state / "costgov.db").unlink()
    leave_journal(state, [], CHARGES, {RUN: account_row(TimeAccount(by_cause=OWN, has_begun=True), 45)})
    result = CliRunner().invoke(cli, ("export", RUN, "--jsonl", str(tmp_path), "--json"))
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert json.loads(result.stdout)["account_behind_s"] == END_S - 45
    last = read_lines(tmp_path / "causes.jsonl")[-1]
    assert "other_tenants_s" not in last
    assert sum(value for name, value in last.items() if name.endswith("_s")) == pytest.approx(100, abs=1)
