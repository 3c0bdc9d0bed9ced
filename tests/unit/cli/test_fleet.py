"""`costgov fleet` where there is nothing to ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.main import cli

COMMANDS = (["list"], ["budget", "day", "5"], ["settle", "a/b/c"], ["correct", "day", "--settled", "5"])


def run(folder: Path, more: str, *words: str) -> tuple[int, str]:
    config = folder / "costgov.toml"
    config.write_text(f'[paths]\nstate_dir = "{folder}/state"\nruntime_dir = "{folder}/run"\n{more}')
    done = CliRunner().invoke(cli, ["fleet", words[0], "--config", str(config), *words[1:]])
    return done.exit_code, done.output


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_without_an_etcd_it_says_in_one_line_what_to_set(tmp_path: Path, words: list[str]) -> None:
    code, output = run(tmp_path, "", *words)
    assert code == ExitCode.FAILED
    assert "[fleet] etcd" in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_an_etcd_that_is_not_there_is_told_in_one_line(tmp_path: Path, words: list[str]) -> None:
    """Nothing listens on port 1 of this machine."""
    code, output = run(tmp_path, '[fleet]\netcd = ["http://127.0.0.1:1"]\n', *words)
    assert code in (ExitCode.FAILED, ExitCode.UNSURE)
    assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "scope",
    ["daily", "label:team", "node:gpu-1", "run:llama", "team=nlp", "day:2026-13-01", "day:2026-02-30", "day:", ""],
)
def test_a_scope_that_no_governor_asks_for_is_refused_before_etcd_is_asked(tmp_path: Path, scope: str) -> None:
    for words in (["budget", scope, "5"], ["correct", scope, "--settled", "5"]):
        code, output = run(tmp_path, '[fleet]\netcd = ["http://127.0.0.1:1"]\n', *words)
        assert code == ExitCode.USAGE
        assert "day:YYYY-MM-DD" in output, "it says what can be written"


def test_no_amount_that_a_row_cannot_hold_is_settled(tmp_path: Path) -> None:
    for amount in ("1e10", "-1", "much"):
        code, _ = run(tmp_path, "", "settle", "a/b/c", "--spent", amount)
        assert code == ExitCode.USAGE
    code, _ = run(tmp_path, "", "settle", "a/b/c", "--spent", "0")
    assert code == ExitCode.FAILED, "nothing may have been spent"
