"""An export that was killed, or still goes on: what it has written beside its files is read by nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.exports.forms.jsonl import FILES
from governor.exports.owned import PART, own_files
from tests.unit.exports.exported import RUN
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_goodput import READS
from tests.unit.exports.test_export_retold import causes, goodput, healthy, leave


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.fixture
def to(state: Path, tmp_path: Path) -> Path:
    leave(state, list(healthy()), 0)
    return tmp_path / "to"


@pytest.mark.parametrize("form", READS)
def test_what_it_wrote_beside_a_whole_export_counts_nothing_twice(to: Path, form: str) -> None:
    document(RUN, READS[form][0], str(to))
    whole = goodput(str(to))
    for directory in [path for path in (to, *to.rglob("*")) if path.is_dir()]:
        named = [path for path in directory.iterdir() if path.is_file()]
        (directory / PART).mkdir()
        for path in named:
            shutil.copy(path, directory / PART)
    result = invoke("goodput", "--json", str(to))
    told = json.loads(result.stdout)
    (log,) = told["logs"]
    assert (causes(log, "s"), told["all"]["wall_s"]) == (causes(whole, "s"), whole["wall_s"])
    assert (result.exit_code, PART in result.stderr) == (ExitCode.FAILED, True)


@pytest.mark.parametrize("words", [("goodput", "--json"), ("policy", "replay"), ("policy", "tune")])
@pytest.mark.parametrize("named", ["", PART])
def test_a_first_export_that_has_not_ended_is_no_log(to: Path, words: tuple[str, ...], named: str) -> None:
    document(RUN, "--jsonl", str(to))
    shutil.move(to, to.with_name("whole"))
    with own_files(to, RUN, FILES) as own:
        for name, file in own.files.items():
            file.take(to.with_name("whole") / name)
        result = invoke(*words, str(to / named))
    assert (result.exit_code in (ExitCode.FAILED, ExitCode.USAGE), result.stderr.count(PART)) == (True, 1)
    if words[0] == "goodput":
        assert json.loads(result.stdout)["logs"] == []
