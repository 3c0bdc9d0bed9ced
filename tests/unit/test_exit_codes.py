"""One table of exit codes, wherever they are spelled."""

from __future__ import annotations

from governor import command, control
from governor.cli_act import HOLD_MAX_NS
from governor.exit_codes import ExitCode
from trainer_shim.wire import HALT_EXIT_CODE


def test_the_command_runner_and_the_shim_end_as_the_table_says() -> None:
    assert ExitCode.HALTED == HALT_EXIT_CODE
    assert ExitCode.NEEDS_HUMAN == command.NEEDS_HUMAN_EXIT_CODE


def test_the_command_line_allows_the_holds_that_a_governor_allows() -> None:
    assert HOLD_MAX_NS == control.HOLD_MAX_NS
