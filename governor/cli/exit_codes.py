"""What `costgov` exits with: one table, shown in --help and in docs/cli.md."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NO_GOVERNOR = 3
    DENIED = 4
    UNKNOWN = 5
    DIFFERS = 6
    HALTED = 86  # trainer_shim.wire.HALT_EXIT_CODE: a test holds them equal; `--help` need not load the shim.
    NEEDS_HUMAN = 87
    CANNOT_EXECUTE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "done; nothing is wrong",
    ExitCode.FAILED: "a problem was found, or it could not be done",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.NO_GOVERNOR: "no governor answers",
    ExitCode.DENIED: "you may not do that",
    ExitCode.UNKNOWN: "there is no such run, budget or incident",
    ExitCode.DIFFERS: "`costgov cost reconcile`: bill and ledger differ by more than what is not metered",
    ExitCode.HALTED: "`costgov run`: the command was halted, and the halt was seen to its end; do not requeue",
    ExitCode.NEEDS_HUMAN: "`costgov run`: the halt was not seen to its end; something may still be billed",
    ExitCode.CANNOT_EXECUTE: "`costgov run`: the command cannot be executed",
    ExitCode.NOT_FOUND: "`costgov run`: the command was not found",
    ExitCode.INTERRUPTED: "Ctrl-C",
}
assert set(MEANINGS) == set(ExitCode), "an exit code without a meaning"

_OF_EVERY_COMMAND: Final = (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED)
OF_THE_COMMANDS: Final = "Exit codes: see the --help of each command."  # Of a group that does nothing by itself.


def exits(*more: ExitCode) -> str:
    """The exit codes of one command, for the end of its --help: those that every command has, and these."""
    codes = sorted({*_OF_EVERY_COMMAND, *more})
    return "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {MEANINGS[code]}" for code in codes)


# What a governor's refusal (its `code`) exits with; anything else is FAILED.
OF_REFUSAL: Final[dict[str, ExitCode]] = {
    "no_governor": ExitCode.NO_GOVERNOR,
    "silent": ExitCode.NO_GOVERNOR,
    "garbled": ExitCode.NO_GOVERNOR,
    "denied": ExitCode.DENIED,
    "no_such_run": ExitCode.UNKNOWN,
}
