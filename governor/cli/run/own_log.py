"""`costgov run --log-format NAME FILE|-`: the command is watched by a log that it writes, or by what it prints."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from governor.adapters.command.output import OutputCopy, make_output
from governor.adapters.journal.ended_runs import OUTPUT_NAME
from governor.adapters.trainers.unjudged import emptied
from governor.cli.common import ExitCode, tokens_options
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import PERSIST_PERIOD_NS
from governor.core.events.inputs import Event
from governor.daemon.stderr import END_S, QueuedStream
from governor.text.table import plain

if TYPE_CHECKING:
    from governor.cli.run.console import Console
    from governor.settings.model import Settings

ITS_OUTPUT: Final = "-"
# Of `costgov run --help`.
WATCHED_BY_A_LOG: Final = """\b
A trainer that does not attach is watched by what it prints:
costgov run --ceiling 300 --log-format megatron - -- torchrun pretrain_gpt.py

Its steps, loss, tokens and their price are shown, and a NaN or a hang halts it, without a checkpoint. What it prints
goes to output.log beside the journal and is copied from there to standard output; with --log it goes to that FILE
alone. Nothing stands between the command and the file: it goes on unharmed if costgov is killed or nobody reads this
output. So its output is no terminal to it, and both of its streams come out in one. Of output.log, what was read and
shown is freed but for the last MiB; that of the launch before stays as output.log.1. Python is told to print at once
(PYTHONUNBUFFERED=1). With --log-format NAME FILE a log that the command writes is followed. Where ranks attach, they
are the run, and the steps of the log are left out."""
# The journal has a position by then, also where one commit was late: a governor that comes back reads on from it.
KEPT_FOR_NS: Final = 3 * PERSIST_PERIOD_NS
MARK_PERIOD_NS: Final = 5 * NS_PER_S


# --- what the command line says


class FormatName(click.ParamType[str]):
    """One of the formats of [[log]]."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from governor.settings.streams import FORMATS

        if value not in FORMATS:
            self.fail(f'"{value}" is no format of a log; known: {", ".join(FORMATS)}', param, ctx)
        return str(value)


class _LogFormat(click.Option):
    """Its help names the formats, which are imported for that alone."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from governor.settings.streams import FORMATS

        record = super().get_help_record(ctx)
        return None if record is None else (record[0], f"{record[1]} NAME is one of {', '.join(FORMATS)}.")


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from governor.settings.streams import FORMATS

    return [*(CompletionItem(one) for one in FORMATS if one.startswith(incomplete)), CompletionItem(incomplete, "file")]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Of the command line: each format with its file, and what a console log does not say itself."""

    logs: tuple[tuple[str, str], ...] = ()
    sequence_length: int | None = None
    gpus: int | None = None


def log_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options by which a command gets `asked`, its LogOptions."""

    @functools.wraps(command)
    def asked(
        log_format: tuple[tuple[str, str], ...], sequence_length: int | None, gpus: int | None, **others: Any
    ) -> int:
        return command(asked=LogOptions(log_format, sequence_length, gpus), **others)

    options: Sequence[Callable[[Any], Any]] = (
        click.option(
            "--log-format", type=(FormatName(), click.Path()), multiple=True, metavar="NAME FILE|-", cls=_LogFormat,
            shell_complete=_complete, help="Watch the command by its log FILE, or with - by what it prints (above).",
        ),
        tokens_options,
    )  # fmt: skip
    for option in reversed(options):
        asked = option(asked)
    return asked


# --- the log, from its file on


@dataclass(slots=True)
class OwnLog:
    """The log by which the command is watched. The loop polls it to note what has been read of its output."""

    run: str = ""
    path: Path | None = None  # Of the command's output, where costgov makes that file.
    is_output: bool = False  # What the command prints is followed, in that file or in the one of --log.
    followed: Path | None = None
    _inode: int = -1
    _node: Node | None = None  # Of the governor that reads it.
    _copy: OutputCopy | None = None
    _stdout: QueuedStream | None = None
    _marks: deque[tuple[MonoNs, int]] = field(default_factory=deque)
    _before: Mapping[str, Any] | None = None  # The position at the last poll.
    _emptied: int = 0  # So many times.

    def make(self) -> IO[bytes] | None:
        """The command's output, if its file is costgov's own. OSError if it cannot be made.

        For the holder of the run's journal: nobody else reads a file of that name.
        """
        return None if self.path is None else make_output(self.path)

    def begin(self, console: Console) -> None:
        """Copy the output to ours. The command runs, and its file is there."""
        if self.path is None:
            return

        def tell(line: str) -> None:
            console.print_line(f"costgov: {plain(line)}")

        try:
            show, waiting = self._to_stdout(console)
            copy = OutputCopy(self.path, show, waiting, tell)
            self.follow(copy, copy.inode)
            copy.begin()
        except (OSError, RuntimeError) as error:  # No free descriptor, no thread.
            tell(f"what the command prints is not shown here, and stands in {self.path}: {error}")

    def follow(self, copy: OutputCopy, inode: int) -> None:
        """Tell this copy what has been judged for good of its file."""
        self._copy, self._inode = copy, inode

    def _to_stdout(self, console: Console) -> tuple[Callable[[bytes], None], Callable[[], int]]:
        """Where both of our streams are one (a terminal, `2>&1 | tee`), costgov's lines stand between whole ones."""
        if sys.stdout is None:  # The caller has closed it.
            return lambda _: None, lambda: 0
        sys.stdout.flush()
        stdout, stream = sys.stdout.fileno(), console.stream
        if isinstance(stream, QueuedStream) and _is_same(stdout, stream.fileno()):
            return console.copy, lambda: stream.waiting_bytes
        own = self._stdout = QueuedStream(stdout, console.lost_line, name="stdout")
        return own.copy, lambda: own.waiting_bytes

    def attend(self, node: Node) -> None:
        """Another governor reads it now."""
        self._node, self._before = node, None
        self._marks.clear()

    def poll(self, at: MonoNs) -> list[Event]:
        """Note how far the log was read some time ago: the journal has that, so nobody reads it again.

        Tell of a command that empties its own output, the first time and when it has done so twice as often.
        """
        managed = self._node.runs.get(self.run) if self._node is not None and self.is_output else None
        position = managed.stream_position if managed is not None else None
        if position is None:
            return []
        before, self._before = self._before, position
        if before is not None and _is_emptied(before, position):
            self._marks.clear()
            self._emptied += 1
            if self._emptied.bit_count() == 1:
                return [emptied(at, self.run, str(self.followed))]
        if self._copy is None or position.get("inode") != self._inode:
            return []
        if not self._marks or at - self._marks[-1][0] >= MARK_PERIOD_NS:
            self._marks.append((at, int(position["offset"])))
        while self._marks and at - self._marks[0][0] >= KEPT_FOR_NS:
            self._copy.note_read(self._marks.popleft()[1])
        return []

    def finish(self, console: Console) -> None:
        """Show what the command has printed until now, where somebody takes it."""
        copy, self._copy = self._copy, None
        left = copy.finish(END_S) if copy is not None else 0
        if self._stdout is not None and not self._stdout.drain(END_S):
            left += self._stdout.waiting_bytes
        if left:
            console.print_line(
                f"costgov: {left} bytes of what the command has printed were not taken by who reads this output; "
                f"the end of it stands in {plain(str(self.path))}"
            )


def not_made(own_log: OwnLog, error: OSError) -> int:
    """Say that the command is not started, since what it prints could not be followed."""
    sys.stderr.write(
        f"costgov: not launched: {plain(str(own_log.path))} cannot be made for what it prints: {error.strerror}; "
        "pass --log FILE\n"
    )
    return ExitCode.FAILED


def _is_same(one: int, other: int) -> bool:
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def _is_emptied(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a file whose reader was at one position and is at the other was cut off between the two."""
    if before.get("inode") != now.get("inode"):
        return False
    if now["offset"] < before["offset"]:
        return True
    # Of long first bytes a position has the digest.
    return "head_bytes" not in now and not str(now.get("head")).startswith(str(before.get("head")))


def with_log(settings: Settings, run: str, asked: LogOptions, log: Path | None) -> tuple[Settings, OwnLog]:
    """The settings with the log that the command line names, as a [[log]] of the run. `log`: of --log."""
    from governor.settings.streams import JSONL_STREAMS_MAX, OptionLog
    from governor.wire.files import IN_DIRECTORIES

    if not asked.logs:
        if asked.sequence_length is not None or asked.gpus is not None:
            raise click.UsageError("--sequence-length and --gpus say how a log is read: name it with --log-format")
        return settings, OwnLog()
    if len(asked.logs) > 1:
        raise click.UsageError("--log-format names the one log of the command; others are [[log]] tables of --config")
    if any(stream.run == run for stream in settings.jsonl):
        raise click.UsageError(f"--log-format and a [[log]] of the configuration are both the log of {run}; keep one")
    if len(settings.jsonl) >= JSONL_STREAMS_MAX:
        raise click.UsageError(f"--log-format is one log more than the {JSONL_STREAMS_MAX} that are followed")
    ((name, given),) = asked.logs
    is_output = given == ITS_OUTPUT or (log is not None and Path(given).absolute() == log.absolute())
    may_be_directory = name in IN_DIRECTORIES
    if is_output and may_be_directory:
        raise click.UsageError(f"--log-format {name}: no command prints it; name the file or directory it writes")
    own = settings.paths.state_dir / OUTPUT_NAME if is_output and log is None else None
    path = own or (log if is_output and log is not None else Path(given)).absolute()
    if own is None and _is_no_log(path, may_be_directory=may_be_directory):
        which = "--log" if is_output else "--log-format"
        kind = "neither a directory nor a regular file" if may_be_directory else "not a regular file"
        raise click.UsageError(f"{which} {path}: {kind}, so it cannot be followed")
    entry = OptionLog(path=path, run=run, format=name, sequence_length=asked.sequence_length, gpus=asked.gpus)
    return settings.model_copy(update={"jsonl": (*settings.jsonl, entry)}), OwnLog(run, own, is_output, path)


def _is_no_log(path: Path, *, may_be_directory: bool) -> bool:
    try:
        mode = os.stat(path).st_mode
        return not (stat.S_ISREG(mode) or (may_be_directory and stat.S_ISDIR(mode)))
    except OSError:  # It does not exist yet, or is told of as that of any log.
        return False
