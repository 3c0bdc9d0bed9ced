"""One table of exit codes, wherever they are spelled."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from governor.app import requests
from governor.cli.act import HOLD_MAX_NS
from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.cli.run.command import is_own_command, run
from trainer_shim.wire import HALT_EXIT_CODE


def test_the_shim_ends_a_rank_as_the_table_says() -> None:
    assert ExitCode.HALTED == HALT_EXIT_CODE


def test_the_command_line_allows_the_holds_that_a_governor_allows() -> None:
    assert HOLD_MAX_NS == requests.HOLD_MAX_NS


@pytest.mark.parametrize(
    ("command", "told"),
    [(("forget", "my run"), "`costgov forget 'my run'`"), (("frobnicate",), ""), (("/no/such/forget",), "")],
)
def test_run_names_the_command_that_was_meant_where_it_finds_no_program(
    command: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with click.Context(cli) as group, click.Context(run, parent=group):
        assert is_own_command(command) is bool(told)
    said = capsys.readouterr().err
    assert told in said
    assert bool(said) == bool(told)


def test_run_starts_no_governor_for_a_command_of_our_own(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": str(tmp_path)}
    done = CliRunner().invoke(cli, ["run", "forget", "exp"], env=home, standalone_mode=False)
    assert done.return_value == ExitCode.NOT_FOUND
    assert list(tmp_path.iterdir()) == [], "no state of a run"
