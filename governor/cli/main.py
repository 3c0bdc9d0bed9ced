"""The `costgov` command. Each command has its own file here, which is imported only when the command is called."""

from __future__ import annotations

from governor.cli import interrupts  # First: the imports below take a tenth of a second.

# isort: split
import errno
import os
import sys
from types import TracebackType
from typing import Any, Final

import click

from governor.cli.common import ExitCode, Failed, LazyGroup, complain, exits

assert interrupts.INTERRUPTED == ExitCode.INTERRUPTED, "two exit codes of Ctrl-C"
# The output is the purpose of these commands: a closed stdout is an error, unlike `| head`. The other commands act, or
# answer by exit code.
_SHOWN: Final = (
    "status",
    "doctor",
    "incident",
    "prices",
    "cost",
    "plan",
    "alert",
    "audit",
    "evidence",
    "export",
    "fleet",
    "completion",
    "report",
    "goodput",
)
# To add a command, add a file and its row here.
_COMMANDS: Final = {
    "alert": "governor.cli.alert:alert",
    "audit": "governor.cli.cost.audit:audit",
    "budget": "governor.cli.budget:budget",
    "cost": "governor.cli.cost.command:cost",
    "daemon": "governor.cli.run.command:daemon",
    "doctor": "governor.cli.status:doctor",
    "evidence": "governor.cli.evidence:evidence",
    "export": "governor.cli.export:export",
    "fleet": "governor.cli.fleet.command:fleet",
    "forget": "governor.cli.act:forget",
    "goodput": "governor.cli.goodput:goodput",
    "halt": "governor.cli.act:halt",
    "hold": "governor.cli.act:hold",
    "incident": "governor.cli.incident.command:incident",
    "plan": "governor.cli.plan.command:plan",
    "policy": "governor.cli.policy.command:policy",
    "prices": "governor.cli.prices:prices",
    "report": "governor.cli.report.command:report",
    "run": "governor.cli.run.command:run",
    "status": "governor.cli.status:status",
    "top": "governor.cli.top.command:top",
}

# In click 8.2 and later. Earlier versions print that page themselves.
_NO_ARGUMENTS: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
STDERR: Final = 2
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits(*ExitCode),
    no_args_is_help=True,
)
@click.version_option(package_name="costgov", prog_name="costgov", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Watch LLM training from outside: meter dollars and progress, halt by policy, prove that it stopped.

    \b
    Begin with
      costgov run --ceiling 300 --price 22 -- deepspeed train.py
                                 beside one command, without root
      systemctl start costgov    as a service for every run of the node
      costgov doctor             what would fail, before it does
    """
    if sys.stdout is None and ctx.invoked_subcommand in _SHOWN:
        raise Failed("standard output is closed: there is nothing to show it on")


@cli.command(short_help="Print the completion script of your shell.", epilog=exits())
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of your shell.

    \b
    bash   eval "$(costgov completion bash)"        in ~/.bashrc
    zsh    eval "$(costgov completion zsh)"         in ~/.zshrc
    fish   costgov completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click lost a shell that click.Choice offers"
    click.echo(kind(cli, {}, "costgov", "_COSTGOV_COMPLETE").source())


def main() -> None:
    """Entry point. Every expected failure is one line on stderr and a documented exit code."""
    if sys.stderr is None:
        _open_stderr()
    if not os.environ.get("COSTGOV_TRACEBACK"):
        sys.excepthook = _one_line
    sys.exit(_run())


def _open_stderr() -> None:
    """The caller closed it (`2>&-`): write nowhere, and give its number to no socket or journal."""
    fd = os.open(os.devnull, os.O_RDWR)
    if fd != STDERR:
        os.dup2(fd, STDERR)
        os.close(fd)
    os.set_inheritable(STDERR, True)
    sys.stderr = open(STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - until the end.


def _run() -> int:
    try:
        code = cli.main(prog_name="costgov", standalone_mode=False)
        if sys.stdout is not None:  # The caller closed it (`>&-`), so there is no reader.
            sys.stdout.flush()
    except click.UsageError as error:
        # Its message is the help page: without a command, the user wants to see the commands.
        if isinstance(error, _NO_ARGUMENTS):
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        path = error.ctx.command_path if error.ctx is not None else "costgov"
        complain(f"{_sentence(error.format_message())} (see `{path} --help`)", who=path)
        return ExitCode.USAGE
    except click.ClickException as error:
        for line in error.format_message().splitlines():
            complain(line)
        return error.code if isinstance(error, Failed) else ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python must not write at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        # Python must not write at exit, or it would report the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        complain(f"standard output: {error.strerror}")
        return ExitCode.FAILED
    return code if isinstance(code, int) else ExitCode.OK


def _sentence(message: str) -> str:
    return " ".join(message.split()).rstrip(".")


def _one_line(kind: type[BaseException], error: BaseException, _where: TracebackType | None) -> None:
    """A fault of our own: one line, and Python's exit code 1."""
    if issubclass(kind, KeyboardInterrupt):  # On the way into or out of `_run`. This is no fault.
        os._exit(ExitCode.INTERRUPTED)
    what = " ".join(f"{kind.__name__}: {error}".split())[:300]
    print(f"costgov: internal error: {what} (COSTGOV_TRACEBACK=1 shows where; please report it)", file=sys.stderr)


if __name__ == "__main__":
    main()
