"""`costgov daemon` and `costgov run`: the two commands that start a governor."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import ExitCode, Usd, UsdPerHour, config_option, exits, find_config, remark, settings_from
from governor.cli.interrupts import exit_code_stands
from governor.cli.run.own_log import WATCHED_BY_A_LOG, LogOptions, log_options, with_log
from governor.core.base.secrets import command_text
from governor.core.base.units import UsdMicros, is_whole, parse_count
from governor.daemon import signals
from governor.daemon.stderr import stderr_that_never_waits
from governor.policies.files import PACKAGED_POLICY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.app.settings_file import Settings
    from governor.core.base.policy import WarmUp

NAME_CHARS_MAX: Final = 40  # The name is part of two socket paths, which hold 107 bytes.
# A run that reports nothing for longer than a day reports nothing.
PROGRESS_S_MAX: Final = 86_400
# The id that a scheduler keeps for a job when it requeues it: one budget over all of its launches.
SCHEDULER_JOBS: Final = (("SLURM_JOB_ID", "slurm"), ("LSB_JOBID", "lsf"), ("PBS_JOBID", "pbs"))
_BY_PEOPLE: Final = frozenset(("--name", "COSTGOV_RUN"))


class Period(click.FloatRange):
    """Seconds between two lines, from 0.1 to a day. "nan" and "inf" are refused."""

    def __init__(self) -> None:
        super().__init__(min=0.1, max=PROGRESS_S_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # A range check alone accepts NaN.
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


class GateAfter(click.ParamType["WarmUp"]):
    """Steps or tokens: "20steps", "2M" or "2M tokens"."""

    name = "gate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from governor.core.base.policy import PersistenceKind, WarmUp

        if isinstance(value, WarmUp):
            return value
        found = re.fullmatch(r"\s*([0-9][0-9._]*[KMBT]?)\s*(steps?|tokens?)?\s*", str(value))
        try:
            need = parse_count(found.group(1)) if found is not None else 0
        except ValueError:
            need = 0
        # A bare number is one of neither: 20 tokens are less than a step.
        if found is None or need == 0 or (found.group(2) is None and is_whole(found.group(1))):
            self.fail(f'"{value}" is no number of steps or tokens; write for example 20steps or 2M', param, ctx)
        is_steps = (found.group(2) or "").startswith("step")
        return WarmUp(PersistenceKind.STEPS if is_steps else PersistenceKind.TOKENS, need)


def policies_option(command: Any) -> Any:
    return click.option(
        "--policy", "policies", type=click.Path(path_type=Path), multiple=True, metavar="FILE|DIRECTORY",
        help="Policy to judge by; repeat it for more. Default: the policies directory, else the packaged one.",
    )(command)  # fmt: skip


@contextlib.contextmanager
def without_rich() -> Iterator[None]:
    """structlog imports rich where it finds it, for tracebacks that no daemon draws: 4 MiB for as long as it lives."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["rich"]


def observe_option(command: Any) -> Any:
    return click.option("--observe", is_flag=True, help="Decide and record, touch nothing, whatever the policies say.")(
        command
    )


@click.command(short_help="Run the governor of this node (the service).", epilog=exits())
@config_option
@policies_option
@observe_option
def daemon(config: Path | None, policies: tuple[Path, ...], observe: bool) -> int:
    """Run the governor of this node in the foreground, as the service does.

    SIGHUP reads the policies again (the old ones stand when the new ones are wrong), SIGTERM ends it and leaves
    trainers alone. A halt under way is resumed by the next start. SIGQUIT, SIGUSR1, SIGUSR2 and signals of limits and
    timers are logged and ignored.
    """
    sys.excepthook = sys.__excepthook__  # Tracebacks belong in the service's journal.
    settings = settings_from(find_config(config), {"observe": True} if observe else {})
    with without_rich():
        from governor.app.wiring import run_daemon
        from governor.daemon.logs import lost_record

    with stderr_that_never_waits(lost_record):
        code = run_daemon(settings, list(policies) or None)
        exit_code_stands()
    return code


class _BeforeACommand(click.Command):
    """Refuses an option whose value was left out: it takes the "--" behind it, and the command begins otherwise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx):
            given = ctx.params.get(param.name or "")
            if isinstance(param, click.Option) and _has_dashes(given):
                lacks = (
                    f'{param.opts[0]} {param.metavar or ""}: a word is missing before "--", which begins the command'
                )
                raise click.UsageError(lacks, ctx)
        return rest


def _has_dashes(given: object) -> bool:
    return any(map(_has_dashes, given)) if isinstance(given, tuple) else str(given) == "--"


@click.command(
    short_help="Run one command under a governor of its own.",
    cls=_BeforeACommand,
    epilog=exits(ExitCode.HALTED, ExitCode.NEEDS_HUMAN, ExitCode.CANNOT_EXECUTE, ExitCode.NOT_FOUND),
    # Everything after the command's first word belongs to the command.
    context_settings={"allow_interspersed_args": False},
)
@policies_option
@click.option(
    "--ceiling", type=Usd(), metavar="USD", help="Never spend more than that, the price of stopping included."
)
@click.option(
    "--price", type=UsdPerHour(), metavar="USD_PER_H", help="What this machine costs an hour, all GPUs together."
)
@click.option(
    "--max-rate", type=UsdPerHour(), metavar="USD_PER_H",
    help="Start nothing on a machine that costs more an hour, with its hourly lines, or whose price is unknown.",
)  # fmt: skip
@click.option(
    "--gate", type=GateAfter(), metavar="STEPS|TOKENS",
    help="After so many, as 20steps or 2M, halt a run that lands above its ceiling at its goal, with 90 % certainty.",
)  # fmt: skip
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the run. One name is one budget, over every restart; a run that the script names has its own.",
)
@click.option(
    "--again", metavar="NAME",
    help="Go on with a run whose name costgov has made up. The command that it prints at an end has this option.",
)  # fmt: skip
@observe_option
@click.option(
    "--log", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Send the command's output there."
)
@log_options
@click.option(
    "--progress",
    type=Period(),
    metavar="SECONDS",
    help="How often to show progress. Default: 1 on a terminal and with --json, 10 elsewhere.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Report progress and halts as JSON lines on stderr, for programs."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="costgov.toml to read, for its price and cloud.",
)
@click.option("--fault-mark", type=click.Path(path_type=Path, dir_okay=False), hidden=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    policies: tuple[Path, ...], ceiling: UsdMicros | None, price: UsdMicros | None, max_rate: UsdMicros | None,
    gate: WarmUp | None, name: str | None, again: str | None, observe: bool, log: Path | None, progress: float | None,
    as_json: bool, config: Path | None, fault_mark: Path | None, asked: LogOptions, command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run COMMAND under a governor of its own. Needs no root, no service, no configuration.

    \b
    costgov run --ceiling 300 --price 22 -- deepspeed train.py
    costgov run --policy default.toml -- torchrun --nproc-per-node 8 train.py

    Where no rank attaches, or none any more, its node time is metered all the same and the ceiling ends it, without a
    checkpoint.
    Exits with the command's own code, or with 86 when it was halted; with 87 when it leaves a rank that trains on; with
    143 (128 and the signal's number) where the command had ended with 0 and SIGTERM then went to a rank that it had
    left. Its journal and incidents stay in the state directory below runs/NAME. Without --name every launch is a run
    of its own, except under a scheduler, where the job's id is the name: a requeued job goes on with the budget that it
    had. The newest 999 journals are kept; older ones go when a run ends, except where a halt was not seen to its end or
    a directory holds what is not costgov's. Directories that [paths] names are left alone.

    COMMAND is not started while an earlier launch of NAME still trains, as after a `kill -9` of costgov. The message
    names its processes (in another container: the file that they hold): end them, or choose another --name. Nor while
    a halt of that launch is open: costgov sees it to its end, and exits as that would have, or with 87: some is left.

    SIGTERM, SIGINT and SIGQUIT go to the command's process group, or to what an ended command has left, and at the
    third costgov leaves, unless the one before was survived by a minute. SIGUSR1, SIGUSR2 and SIGALRM go to the
    command's process alone, except while a halt saves; so does Slurm's --signal=USR1@90.
    SIGHUP reads the policies again. Signals of limits and timers are ignored, and so is Ctrl-Z: the command has a
    session of its own, so it would go on while nobody watches it. For the same reason a terminal that closes ends
    neither costgov nor the command. What the command prints there is lost, and may fail: --log FILE keeps it.
    One that is stopped (Ctrl-S), or a pipe whose reader hangs, holds up the command where it prints there, and never
    costgov, which goes on to meter and to halt. Of its own lines that wait then it keeps the last MiB, until 2 s after
    the end: it waits no longer for its reader. How a run has ended, `costgov status NAME` says later too, and
    `costgov incident show last` why it was halted.

    A bad end says its cause, as far as it was seen: what a rank raised, whether the kernel killed it for want of
    memory, and what the last lines of its output say where that is a regular file (--log FILE, > FILE).

    COMMAND is a program. Costgov's own commands stand alone: `costgov forget NAME`, `costgov status`.

    A halt ends whatever the command has started, also what has left its process tree (setsid, nohup, tmux). Where a
    control group may be made (by root, in a systemd unit with Delegate=yes), the command gets one of its own.
    """
    if is_own_command(command):
        return ExitCode.NOT_FOUND
    chosen, is_named = _name_for(name, again, command)
    settings, own_log = with_log(_settings_of(config, chosen, observe=observe, again=again), chosen, asked, log)
    with without_rich():
        from governor.adapters.command.init_process import leave_place
        from governor.cli.run.limits import Limits
        from governor.cli.run.supervise import run_command

    signals.COPIES.expect(leave_place())  # Before any thread: the console has one.
    with _console(progress, as_json=as_json) as console:
        code = run_command(
            settings, _policy_paths(policies, ceiling, settings), command, name=chosen, is_named=is_named, log_path=log,
            limits=Limits(ceiling, price, max_rate, gate), fault_mark=fault_mark, console=console, own_log=own_log,
        )  # fmt: skip
        exit_code_stands()
    return code


run.help = f"{inspect.cleandoc(run.help or '')}\n\n{WATCHED_BY_A_LOG}"


def _settings_of(config: Path | None, name: str, *, observe: bool, again: str | None) -> Settings:
    settings = settings_from(config, {"observe": True} if observe else {}, run=name)
    if again is not None and not settings.paths.state_dir.is_dir():
        remark(f"--again {again}: there is no journal of that name; a run of it begins now, with a budget of its own")
    return settings


def _name_for(name: str | None, again: str | None, command: Sequence[str]) -> tuple[str, bool]:
    """Return the run's name, and whether a person has given it: only a name of theirs tells one run from another."""
    if name is not None and again is not None:
        raise click.UsageError("--name and --again both name the run; keep one")
    if name is not None:
        chosen, given_by = name, "--name"
    else:
        chosen, given_by = (again, "--again") if again is not None else _default_name(command)
    return _allowed_name(chosen, given_by), given_by in _BY_PEOPLE


def _allowed_name(chosen: str, given_by: str) -> str:
    if not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}", chosen) or chosen in (".", ".."):
        allowed = f"letters, digits, dot, dash and underscore, 1 to {NAME_CHARS_MAX} of them"
        raise click.BadParameter(f'"{chosen}" cannot name a run: {allowed}', param_hint=given_by)
    return chosen


def is_own_command(command: Sequence[str]) -> bool:
    """Whether it is `costgov run forget NAME`, and there is no program of the name "forget". It is told."""
    group = click.get_current_context().parent
    if group is None or not isinstance(group.command, click.Group) or shutil.which(command[0]) is not None:
        return False
    if command[0] not in group.command.list_commands(group):
        return False
    remark(f"a command of costgov's own stands alone: `costgov {command_text(command)}`")
    return True


def _policy_paths(given: Sequence[Path], ceiling: UsdMicros | None, settings: Settings) -> list[Path]:
    if given:
        return list(given)
    directory = settings.paths.policies_dir
    if directory.is_dir() and any(directory.glob("*.toml")):
        return [directory]
    if ceiling is None:
        remark("no --policy given: the default policy watches (it enforces what is certain)")
    return [PACKAGED_POLICY]


def _default_name(command: Sequence[str]) -> tuple[str, str]:
    """Returns the run name and its source."""
    from governor.adapters.command.child import INSIDE

    for variable, prefix in (*SCHEDULER_JOBS, ("COSTGOV_RUN", "")):
        found = os.environ.get(variable)
        chosen = _allowed(f"{prefix}-{found}") if prefix else found
        # When they are equal, an enclosing `costgov run` has taken this name.
        if found and chosen and chosen != os.environ.get(INSIDE):
            return chosen, variable
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    started = time.strftime("%m%d-%H%M%S", time.gmtime())
    return f"{_allowed(scripts[0] if scripts else Path(command[0]).stem)[:20]}-{started}-{os.getpid()}", "COMMAND"


def _allowed(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:NAME_CHARS_MAX].lstrip(".") or "run"


@contextlib.contextmanager
def _console(progress: float | None, *, as_json: bool) -> Iterator[Any]:
    from governor.cli.run.console import Console, JsonConsole

    kind = JsonConsole if as_json else Console
    with stderr_that_never_waits(kind.lost_line):
        period_ns = round(progress * 1e9) if progress is not None else None
        yield kind(live_period_ns=period_ns)
