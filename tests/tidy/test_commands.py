"""Every command of `costgov` explains itself, in --help and in docs/cli.md."""

from __future__ import annotations

from governor.cli.main import cli
from tests.tidy.gates import unexplained
from tests.tidy.sources import ROOT


def test_every_command_has_help_exit_codes_and_a_section() -> None:
    assert not unexplained("costgov", cli, (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))


def test_the_commands_are_found_at_all() -> None:
    assert not [line for line in unexplained("costgov", cli, "") if "docs/cli.md" not in line]
    assert len(unexplained("costgov", cli, "")) > 30
