"""`costgov fleet` where there is nothing to ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.main import cli

COMMANDS = (["list"], ["budget", "day", "5"], ["settle", "a/b/c"])


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
