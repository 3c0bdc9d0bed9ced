"""One table of exit codes, wherever they are spelled."""

from __future__ import annotations

from governor.app import requests
from governor.cli.act import HOLD_MAX_NS
from governor.cli.common import ExitCode
from trainer_shim.wire import HALT_EXIT_CODE


def test_the_shim_ends_a_rank_as_the_table_says() -> None:
    assert ExitCode.HALTED == HALT_EXIT_CODE


def test_the_command_line_allows_the_holds_that_a_governor_allows() -> None:
    assert HOLD_MAX_NS == requests.HOLD_MAX_NS
