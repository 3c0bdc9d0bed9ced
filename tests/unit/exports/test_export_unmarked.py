"""`costgov goodput` of an export that was copied without `.costgov-export.json`, whole and cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.core.attribution.rows import RETOLD
from governor.exports.forms.jsonl import FILES
from governor.exports.owned import MARKER
from governor.replay.retold import UNSURE
from tests.unit.exports.exported import RUN
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_goodput import READS
from tests.unit.exports.test_export_retold import causes, cut, goodput, healthy, leave, told


@pytest.fixture
def copied(state: Path, tmp_path: Path) -> Path:
    """Of a run with GPU samples and events none: two of its files are empty."""
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    (tmp_path / "to" / MARKER).unlink()
    return tmp_path / "to"


@pytest.mark.parametrize("is_globbed", [True, False])
@pytest.mark.parametrize("without", [(), ("causes.jsonl",), ("performance_metrics.jsonl",), ("events.jsonl",)])
def test_its_files_are_one_runs(copied: Path, without: tuple[str, ...], *, is_globbed: bool) -> None:
    (copied / "events.jsonl").write_text('{"timestamp":"2027-01-15T08:00:03.0Z","step":0,"event":"ended","text":"x"}\n')
    for name in without:
        (copied / name).unlink()
    paths = sorted(map(str, copied.iterdir())) if is_globbed else [str(copied)]
    result = CliRunner().invoke(cli, ("goodput", "--json", *paths))
    document_ = json.loads(result.stdout)
    (log,) = document_["logs"]
    assert (result.exit_code, result.stderr.count("\n"), MARKER in result.stderr) == (0, 1, True)
    assert document_["all"]["wall_s"] == log["wall_s"] == pytest.approx(44, abs=2)
    assert all(one["evidence"].startswith(RETOLD) for one in log["causes"]) is ("causes.jsonl" not in without)


@pytest.mark.parametrize("kept", [{"events.jsonl"}, {"events.jsonl", "gpu_metrics.jsonl"}])
def test_events_alone_are_no_log(copied: Path, kept: set[str]) -> None:
    (copied / "events.jsonl").write_text('{"timestamp":"2027-01-15T08:00:03.0Z","step":0,"event":"ended","text":"x"}\n')
    for name in {*FILES} - kept:
        (copied / name).unlink()
    result = CliRunner().invoke(cli, ("goodput", str(copied / "events.jsonl")))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (ExitCode.FAILED, "", 1)


def test_logs_of_these_names_that_are_somebody_elses_are_logs(tmp_path: Path) -> None:
    for name in ("training_metrics.jsonl", "performance_metrics.jsonl", "events.jsonl"):
        rows = ({"timestamp": f"2027-01-15T08:00:0{n}Z", "step": n, "loss": 2.0, "own": 1} for n in range(9))
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(told("goodput", "--json", str(tmp_path))["logs"]) == 3


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("lines", [2, 5])
def test_a_cut_account_says_that_nothing_says_whether_it_is_whole(copied: Path, lines: int, *, is_marked: bool) -> None:
    path = copied / "causes.jsonl"
    assert len(path.read_bytes().splitlines()) == 5
    if not is_marked:  # An older costgov's.
        path.write_text(path.read_text().replace(',"run_goes_on":0.0', ""))
    whole = sum(causes(goodput(str(path)), "s").values())
    cut(path, lines)
    log = goodput(str(copied))
    assert (log["wall_s"] < whole) is (lines < 5)
    assert (UNSURE in log["missing"]) is (lines < 5 or not is_marked)


@pytest.mark.parametrize("form", READS)
def test_a_whole_account_says_so_itself(state: Path, tmp_path: Path, form: str) -> None:
    leave(state, list(healthy()), 0)
    option, name = READS[form]
    document(RUN, option, str(tmp_path / "to"))
    (marker,) = (tmp_path / "to").rglob(MARKER)
    marker.unlink()
    assert UNSURE not in goodput(str(tmp_path / "to" / (name if form == "wandb" else "")))["missing"]
