"""Shared by all commands: exit codes, one-line failures, options, and the search for governors."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from governor.core.base.printable import printable
from governor.core.base.units import UsdMicros, format_usd, read_amount, usd
from governor.core.money.prices import PRICE_USD_MICROS_MAX
from governor.text.screen import Styled, screen_of, shown_lines, styled, tamed, width, without_colour
from governor.text.table import plain
from governor.wire import control_client
from governor.wire.control_client import Answer

if TYPE_CHECKING:
    from governor.app.settings_file import Settings


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NO_GOVERNOR = 3
    DENIED = 4
    UNKNOWN = 5
    DIFFERS = 6
    UNSURE = 7
    # trainer_shim.wire.HALT_EXIT_CODE. A test compares them, so that `--help` need not load the shim.
    HALTED = 86
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
    ExitCode.DIFFERS: (
        "`costgov cost reconcile`: bill and ledger differ by more than what is not metered; `costgov audit`: something "
        "was billed after a halt"
    ),
    ExitCode.UNSURE: "the request was sent and not answered: it may have been done",
    ExitCode.HALTED: "`costgov run`: the command was halted, and the halt was seen to its end; do not requeue",
    ExitCode.NEEDS_HUMAN: (
        "`costgov run`: a halt was not seen to its end, or the command goes on unwatched; something may still be billed"
    ),
    ExitCode.CANNOT_EXECUTE: "`costgov run`: the command cannot be executed",
    ExitCode.NOT_FOUND: "`costgov run`: the command was not found",
    ExitCode.INTERRUPTED: "Ctrl-C",
}
assert set(MEANINGS) == set(ExitCode), "an exit code without a meaning"

_OF_EVERY_COMMAND: Final = (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED)
REASON_CHARS_MAX: Final = 200
OF_THE_COMMANDS: Final = "Exit codes: see the --help of each command."  # For a group that does nothing itself.


def exits(*more: ExitCode) -> str:
    """The exit codes of one command for the end of its --help: the common ones and `more`."""
    lines = [line for code in sorted({*_OF_EVERY_COMMAND, *more}) for line in _meaning_lines(code)]
    return "\n".join(["\b", "Exit codes:", *lines])


def _meaning_lines(code: ExitCode) -> list[str]:
    """One exit code, wrapped as click would: click does not wrap here, because it must keep the line breaks."""
    return textwrap.wrap(MEANINGS[code], 78, initial_indent=f"  {code.value:>3}  ", subsequent_indent=" " * 7)


# The exit code for the `code` of a governor's refusal. Any other code exits with FAILED.
OF_REFUSAL: Final[dict[str, ExitCode]] = {
    "no_governor": ExitCode.NO_GOVERNOR,
    "stranger": ExitCode.NO_GOVERNOR,
    "silent": ExitCode.NO_GOVERNOR,
    "garbled": ExitCode.NO_GOVERNOR,
    "unsure": ExitCode.UNSURE,
    "denied": ExitCode.DENIED,
    "no_such_run": ExitCode.UNKNOWN,
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is called. All commands together load far more than one needs.

    `lazy`: the name of a command -> its "module:attribute".
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return super().get_command(ctx, name)
        module, _, attribute = self._lazy[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{self._lazy[name]} is no command"
        return command


# --- what every command shares: one-line failures, and where settings and governors are


SYSTEM_CONFIG: Final = "/etc/costgov/costgov.toml"  # settings.model has it too. Importing that takes 150 ms.

Command = TypeVar("Command", bound=Callable[..., Any])


class Failed(click.ClickException):
    """Ends a command with lines for stderr and an exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = exit_code


class Usd(click.ParamType[UsdMicros]):
    """Dollars -> micro-dollars, above zero."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UsdMicros:
        if isinstance(value, int):
            return UsdMicros(value)
        try:
            amount = usd(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if amount <= 0:
            is_small = float(read_amount(value)) > 0
            low = "is less than a millionth of a dollar, which is the least" if is_small else "must be above 0"
            self.fail(f'"{value}" {low}', param, ctx)
        return amount


class UsdPerHour(Usd):
    """Price of a machine per hour: above zero, and within a bound that catches a wrong unit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UsdMicros:
        amount = super().convert(value, param, ctx)
        if amount > PRICE_USD_MICROS_MAX:
            most = format_usd(UsdMicros(PRICE_USD_MICROS_MAX))
            self.fail(f'"{value}" is more than {most} an hour, which no machine costs', param, ctx)
        return amount


def config_option(command: Command) -> Command:
    return click.option(
        "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="COSTGOV_CONFIG", metavar="FILE",
        help=f"costgov.toml to read. Default: {SYSTEM_CONFIG} where it exists, else built-in defaults.",
    )(command)  # fmt: skip


def control_option(command: Command) -> Command:
    return click.option(
        "--control", "control", metavar="SOCKET",
        help="Control socket of the governor to ask. Default: $COSTGOV_CONTROL, else every place where one may be.",
    )(command)  # fmt: skip


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def tokens_options(command: Command) -> Command:
    """What a console log may not say of itself: `sequence_length` and `gpus`."""
    from governor.wire.formats import GPUS_MAX, LENGTH_MAX

    gpus = click.option(
        "--gpus", type=click.IntRange(1, GPUS_MAX), metavar="N",
        help="GPUs of the run, for text logs with the tokens a second of one GPU.",
    )  # fmt: skip
    length = click.option(
        "--sequence-length", type=click.IntRange(1, LENGTH_MAX), metavar="TOKENS",
        help="Tokens in a sample, for text logs that count samples. Default: what the log says.",
    )  # fmt: skip
    return length(gpus(command))


def find_config(config: Path | None) -> Path | None:
    """The given file, else the system's if it exists, else None."""
    if config is not None:
        return config
    return Path(SYSTEM_CONFIG) if os.path.exists(SYSTEM_CONFIG) else None


def settings_from(config: Path | None, overrides: dict[str, Any] | None = None, *, run: str | None = None) -> Settings:
    """Load the settings from the given file, else from the system's. Fail with one line for each problem.

    Warnings go to stderr.
    """
    from governor.app.settings_file import load_settings

    settings, problems = load_settings(find_config(config), overrides, run=run)
    if settings is None:
        raise Failed("\n".join(problems))
    for warning in problems:
        remark(f"warning: {warning}")
    return settings


def sockets(control: str | None, run: str | None = None) -> tuple[str, ...]:
    return (control,) if control else control_client.socket_paths(os.environ, run=run)


def ask(control: str | None, request: dict[str, Any]) -> Any:
    """Ask the governor that knows the answer and return its data. Otherwise fail in one line."""
    answer = control_client.ask_first(sockets(control, request.get("run")), request)
    if not answer.ok:
        refuse(answer)
    tell_left_out([answer])
    return answer.data


def tell_left_out(answers: Iterable[Answer]) -> None:
    """Name the rows of answers that cannot be shown, each in a line on standard error. The others are shown."""
    for line in dict.fromkeys(line for answer in answers for line in answer.left_out):
        remark(plain(line))


def refuse(answer: Answer) -> NoReturn:
    raise Failed(answer.error, OF_REFUSAL.get(answer.code, ExitCode.FAILED))


@contextlib.contextmanager
def told_of(whose: str) -> Iterator[None]:
    """Show an answer within it. What its shape leaves open may be anything, as an older governor or another program has
    it: that is one line, and no fault of ours."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if os.environ.get("COSTGOV_TRACEBACK"):
            raise
        why = plain(f"{type(error).__name__}: {error}")[:REASON_CHARS_MAX]
        raise Failed(f"{whose} cannot be shown, it is not as this version has it ({why})") from error


def show_line(text: str, style: str = "") -> None:
    """Print a line for people on standard output. A terminal gets colour and line breaks between words."""
    for line in shown_lines(Styled(text, style), screen_of(sys.stdout)):
        click.echo(line)


def show_drawn(text: str) -> None:
    """Print what was drawn for standard output of somebody's words: nothing of it steers the terminal."""
    click.echo(tamed(text, screen_of(sys.stdout)), nl=False)


def show_text(text: str) -> None:
    """Print tables and text as rendered for standard output. Long lines of text are wrapped."""
    screen = screen_of(sys.stdout)
    for line in text.splitlines():
        is_short = screen.columns is None or width(without_colour(line)) <= screen.columns
        click.echo(line if is_short else "\n".join(shown_lines(line, screen)))


def complain(text: str, who: str = "costgov") -> None:
    """Print an error line on standard error. It is not wrapped, so that paths in it can be copied."""
    click.echo(f"{styled(f'{who}:', 'bold red', screen_of(sys.stderr))} {printable(text, ' ')}", err=True)


def remark(text: str) -> None:
    """Print a remark on standard error. The command goes on."""
    click.echo(f"{styled('costgov:', 'bold yellow', screen_of(sys.stderr))} {printable(text, ' ')}", err=True)


def print_json(document: Any) -> None:
    """Print strict JSON. Non-finite numbers (a journal stores the loss unchanged) become the wire's words."""
    from trainer_shim.wire import worded

    click.echo(json.dumps(worded(document), indent=2, allow_nan=False))


def write_named(option: str, path: Path, text: str, errors: str = "strict") -> None:
    """Make it the contents of the file that the user named with this option. Fails in one line."""
    from governor.wire.named_file import write_whole

    try:
        write_whole(str(path), text, errors)
    except OSError as error:
        raise Failed(f"{option}: {path}: {error.strerror}; name a file that can be written") from error
