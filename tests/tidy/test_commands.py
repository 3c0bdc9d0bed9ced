"""Every command of `costgov` explains itself, in --help and in docs/reference/cli.md."""

from __future__ import annotations

from governor.cli.main import cli
from tests.tidy import gates
from tests.tidy.sources import ROOT


def test_every_command_has_help_exit_codes_and_a_section() -> None:
    gates.nothing_missing(
        gates.unexplained("costgov", cli, (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8"))
    )


def test_the_commands_are_found_at_all() -> None:
    assert len(gates.unexplained("costgov", cli, "")) > 30
