"""`costgov run -- CMD`: a governor for one command, without root and without a service."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from governor.adapters.command.child import CANNOT_RUN, Command, CommandEnd, end_command, living, start_command
from governor.adapters.command.orphans import BeforeChildren, Reaper
from governor.adapters.command.surroundings import Surroundings
from governor.adapters.journal.ended_runs import prune
from governor.app.earlier_launch import taken_for_over
from governor.app.node_facts import CannotStart, NoRoom
from governor.app.wiring import Governor
from governor.cli.common import ExitCode
from governor.cli.interrupts import ENTERED
from governor.cli.run.console import Console
from governor.cli.run.left import Left, left_behind, left_unwatched, look_at_left, ranks_of, was_announced
from governor.cli.run.limits import Limits, refused
from governor.cli.run.outcome import Outcome
from governor.cli.run.own_log import OwnLog, not_made
from governor.cli.run.own_runs import is_left_to_job, of_command, watched
from governor.cli.run.relaunch import (
    cannot_run,
    how_to_resume,
    is_running,
    made_for,
    note_launch,
    note_left,
    own_argv,
    taken_for_no_trainer,
    without_lock,
)
from governor.cli.run.signal_answers import SignalAnswers, stops_node, wait_unwatched
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.incidents import persist_incident
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.ends import RunEnd
from governor.core.halt.incident import Incident
from governor.core.halt.state import HaltState, StopTarget
from governor.core.runs.ends import ended_text
from governor.core.views.status import run_status
from governor.daemon import signals
from governor.daemon.launches import NO_COMMAND, SupervisedCommand
from governor.daemon.logs import configure
from governor.ports import Processes
from governor.reports.terminal import closing_line, report_line
from governor.settings.model import Settings
from governor.text.table import plain
from governor.wire.named_file import opened_to_append
from trainer_shim.wire import HALT_EXIT_CODE

# The first governor, and three that resume after a failure. A governor that fails four times does not recover.
GOVERNORS_MAX: Final = 4
REPORTS_MAX: Final = 3  # A sweep's runs have a closing line each.
# From a launcher's exit to attach() in a process that it left: imports and the model's set-up.
HELLO_NS: Final = 60 * NS_PER_S
# A reader compares sizes at once. For the hashes of a large checkpoint, which take minutes, nobody waits here.
READ_NS: Final = 10 * NS_PER_S
# A halted log's processes are looked for every five seconds. Two looks find those that it names at all.
NAMED_NS: Final = 10 * NS_PER_S
# After the command's end its logs are read on for so long. What is left then is said to be unjudged.
LOGS_NS: Final = 60 * NS_PER_S


def run_command(
    settings: Settings, policy_paths: Sequence[Path], argv: Sequence[str], *, name: str,
    is_named: bool = True, limits: Limits = Limits(), log_path: Path | None = None, fault_mark: Path | None = None,
    console: Console | None = None, own_log: OwnLog | None = None,
) -> int:  # fmt: skip
    """Run `argv` under its own governor. Returns the command's exit code, or 86 when it was halted.

    `is_named`: a person has given the run its name. `fault_mark`: the file to which a drill writes the monotonic time
    of its fault, for the timeline.
    """
    configure("critical")  # The console prints in words what a service would log.
    signals.wait_for_children()  # Before the first child.
    before = BeforeChildren.look()
    try:
        sink = opened_to_append(log_path) if log_path is not None else None  # The command, once started, inherits it.
    except OSError as error:
        sys.stderr.write(f"costgov run: --log {log_path}: cannot be written: {error.strerror}\n")
        return ExitCode.USAGE
    with sink or contextlib.nullcontext(), contextlib.ExitStack() as at_end:
        code = _run_governed(
            settings, policy_paths, argv, sink, at_end, before, name=name, is_named=is_named, limits=limits,
            fault_mark=fault_mark, console=console or Console(), own_log=own_log or OwnLog(),
        )  # fmt: skip
    prune(*made_for(name, settings.paths))
    return code


def _run_governed(
    settings: Settings, policy_paths: Sequence[Path], argv: Sequence[str], sink: IO[bytes] | None,
    at_end: contextlib.ExitStack, before: BeforeChildren, *, name: str, is_named: bool,
    limits: Limits, fault_mark: Path | None, console: Console, own_log: OwnLog,
) -> int:  # fmt: skip
    outcome = Outcome(name)
    console.fault_mark = fault_mark or console.fault_mark
    command: Command | None = None
    for _ in range(GOVERNORS_MAX):
        try:
            governor = Governor(
                settings, policy_paths, ceiling=limits.ceiling, price=limits.price, exclusive=True,
                watchers=(outcome, console), entered=ENTERED if command is None else None, gate=limits.gate,
            )  # fmt: skip
        except CannotStart as error:
            sys.stderr.write(f"costgov: {is_running(error, name, settings.paths) or error}\n")
            if command is None:
                return ExitCode.CANNOT_EXECUTE if isinstance(error, NoRoom) else ExitCode.FAILED
            break
        with governor:
            governor.daemon.install_signals()
            console.node = governor.node
            if command is None:
                if (code := refused(governor, name, argv, limits, console.print_line)) is not None:
                    return code
                _introduce(governor, name, console)
                outcome.began_at = governor.clock.mono()
                try:
                    sink = at_end.enter_context(made) if (made := own_log.make()) is not None else sink
                except OSError as error:
                    return not_made(own_log, error)
                try:
                    command = start_command(
                        argv, str(governor.trainer_socket), name, sink, signals.as_found(), before,
                        settings.paths.state_dir, partial(note_launch, governor, name, argv, say=console.print_line),
                        is_named=is_named, is_read=own_log.is_output,
                    )  # fmt: skip
                except CANNOT_RUN as error:
                    return cannot_run(governor, argv[0], error)
                own_log.begin(console)
                answers = SignalAnswers(command, console.print_line)
                for line in without_lock(command, name, settings.paths):
                    console.print_line(f"costgov: {line}")
                outcome.lives = partial(_lives, command)
                if command.group is not None:
                    at_end.callback(command.group.remove)
            else:
                note_launch(governor, name, argv, command.process.pid, command.mark, command.group)
            outcome.processes = outcome.processes or command.identity(governor.processes)
            if _watch(governor, command, name, argv, answers, own_log):
                own_log.finish(console)
                return _close(governor, command, name, argv, outcome, console)
        console.print_line("costgov: the governor failed, by a fault of its own (above); it resumes from its journal")
    assert command is not None
    _go_on_alone(command, governor.processes, outcome, console)
    own_log.finish(console)
    if not outcome.is_unfinished:
        for line in how_to_resume(governor, command, name, argv, is_halted=bool(outcome.stages)):
            console.print_line(line)
    return _exit_code(command, outcome)


def _go_on_alone(command: Command, processes: Processes, outcome: Outcome, console: Console) -> None:
    """No governor comes up any more: end a command whose halt was decided, else wait for its end."""
    pid = command.process.pid
    if outcome.is_unfinished:
        console.print_line(f"costgov: the governor cannot go on: ending pid {pid}, whose halt was decided")
        end_command(command, processes)
    else:
        console.print_line(f"costgov: the governor cannot go on: pid {pid} goes on UNWATCHED, nothing ends it")
        wait_unwatched(command)


def _lives(command: Command) -> bool:
    return command.poll() is None


def _introduce(governor: Governor, name: str, console: Console) -> None:
    """What a halt would do here, and how the last attempt of this name ended."""
    for line in governor.lines():
        console.print_line(f"costgov: {line}")
    unseen = taken_for_over(name, governor.elsewhere, governor.settings.paths.state_dir)
    for told in (unseen, taken_for_no_trainer(governor, name) if unseen is None else None):
        if told is not None:
            console.print_line(f"costgov: {told}")
    before = governor.node.runs.get(name)
    if before is not None and before.run.end is not None:
        console.print_line(f"costgov: {name}: the last attempt {ended_text(before.run.end)}")
    console.settle()


def _close(
    governor: Governor, command: Command, name: str, argv: Sequence[str], outcome: Outcome, console: Console
) -> int:
    """Say how it ended, and how it goes on. Returns our exit code. All is of one look at what is left."""
    if command.tell() is None:
        console.print_line(f"costgov: leaving: pid {command.process.pid} goes on UNWATCHED")
    left = look_at_left(governor, command)
    outcome.leaves_training = left.trains
    governor.daemon.performer.perform(left_behind(governor, command, name, left))
    at = governor.clock.mono()
    for stream in governor.streams:  # Before the lines that tell of its tokens.
        for event in (*stream.end(at), *(() if outcome.stages else stream.unjudged.end(at))):
            governor.daemon.apply(event)
    note_end(governor, command, name, outcome)
    for snapshot in leave_halts(governor):
        console.leave(snapshot)
    if command.exit_code is not None and waits_for_none(governor, command, left):
        note_left(governor, is_seen=not leaves_halt(governor))
    unjudged = [plain(line) for stream in governor.streams if (line := stream.shortfall()) is not None]
    ends = closing_lines(governor, command, outcome)
    for line in (*left_unwatched(governor, command, left.below), *ends, *unjudged):
        console.print_line(f"costgov: {line}")
    resumes = how_to_resume(governor, command, name, argv, is_halted=bool(outcome.stages))
    for line in (*resumes, *report_lines(governor, outcome)):
        console.print_line(line)
    return _exit_code(command, outcome)


def _watch(
    governor: Governor, command: Command, name: str, argv: Sequence[str], answers: SignalAnswers, own_log: OwnLog
) -> bool:
    """Serve until the command has ended and no halt is under way. Returns False when the governor itself failed."""
    supervised = SupervisedCommand(
        run=name,
        argv=own_argv(name, argv),
        processes=command.identity(governor.processes),
        should_end=lambda: is_over(governor, command),
        is_read=lambda: logs_are_read(governor, command),
        on_signal=partial(answers.pass_on, governor),
        mark=command.mark,
        group=command.group,
        surroundings=Surroundings() if command.mark is not None else None,
        uid=os.getuid(),
        reaper=os.getpid(),
        adoption=command.adoption,
    )
    pid = command.process.pid
    ended = CommandEnd(
        name, lambda: command.exit_code if supervised.is_read() else None, command, governor.processes
    )  # fmt: skip
    reaper = Reaper(pid, command.mark, command.group)
    own_log.attend(governor.node)
    governor.daemon.supervise(supervised, own_log, ended, reaper, command.evidence.oom)
    return governor.daemon.run(governor.begin)


def is_over(governor: Governor, command: Command) -> bool:
    if not logs_are_read(governor, command):
        return False
    node = governor.node
    assert command.ended_at is not None
    runs = watched(node)
    under_way = any(_is_under_way(governor, t.incident) for t in runs if t.incident is not None)
    if under_way or ranks_of(governor) or _may_announce(governor, command) or _may_be_verified(governor, command):
        return False
    # Processes left in the command's session get as long to exit as they get to send hello.
    is_late = governor.node.idle.command is not None and governor.clock.mono() - command.ended_at >= HELLO_NS
    return is_late or not stops_node(governor.node, command.exit_code)


def logs_are_read(governor: Governor, command: Command) -> bool:
    """Whether the command has ended and all that it had written into followed logs by then was read.

    Until then it is not over: its last line may be its first, or hold a NaN. A log that grows on is not waited for.
    """
    if command.poll() is None:
        return False
    command.note_ended(governor.clock.mono())
    assert command.ended_at is not None
    is_late = governor.clock.mono() - command.ended_at >= LOGS_NS
    return is_late or all(stream.has_read(command.ended_at) for stream in governor.streams)


def _is_under_way(governor: Governor, incident: Incident) -> bool:
    """Whether the halt still has something to end: not one of a log whose processes nobody named."""
    if incident.is_closed or is_left_to_job(incident.halt.stage.name, incident.plan.stop.name):
        return False
    in_vain = incident.names_nobody and incident.plan.stop is StopTarget.PROCESSES
    return not in_vain or governor.clock.mono() - incident.opened_at < NAMED_NS


def _may_be_verified(governor: Governor, command: Command) -> bool:
    """Whether a checkpoint is being read that the halt has saved: its report says whether it is whole."""
    assert command.ended_at is not None
    in_time = governor.clock.mono() - command.ended_at < READ_NS
    return in_time and governor.daemon.performer.calls.is_reading_checkpoint


def _may_announce(governor: Governor, command: Command) -> bool:
    """Whether a trainer may still send hello: its launcher left a process behind, and no run is announced."""
    at = governor.clock.mono()
    assert command.ended_at is not None
    if at - command.ended_at >= HELLO_NS or was_announced(governor):
        return False
    return living(governor.processes, command) != []


def waits_for_none(governor: Governor, command: Command, left: Left) -> bool:
    """Whether the end of the launch was seen. Not where a person has cut the wait for what it has left short."""
    if left.below == [] and not left.beyond:
        return True
    waited = governor.clock.mono() - command.ended_at if command.ended_at is not None else 0
    return not left.trains and (was_announced(governor) or waited >= HELLO_NS)


def leaves_halt(governor: Governor) -> bool:
    """Whether a halt of the command is open, or was closed without the end of all."""
    halts = [managed.incident for managed in of_command(governor.node) if managed.incident is not None]
    return any(not halt.is_closed or halt.stage_name != HaltState.HALTED.name for halt in halts)


def leave_halts(governor: Governor) -> list[Mapping[str, Any]]:
    """Note in the journal what the command's open halts have cost by now, and return them: nobody goes on with them."""
    going = [t for t in of_command(governor.node) if t.incident is not None and not t.incident.is_closed]
    kept = [persist_incident(governor.node, managed) for managed in going]
    governor.daemon.performer.perform(kept)
    return [one.snapshot for one in kept]


def note_end(governor: Governor, command: Command, name: str, outcome: Outcome) -> None:
    """Look at the command's end, if no halt was its cause. The loop is over, so nothing waits for the reading."""
    code = command.poll()
    if code is None or outcome.stages:
        return
    at = governor.clock.mono()
    seen = command.evidence.of_end(
        at, name, (governor.daemon.supervised or NO_COMMAND).processes, code,
        ended_at=command.ended_at or at, died_of=command.died_of, died_below=command.died_below,
        passed_on=command.passed_on_to_end(),
    )  # fmt: skip
    governor.daemon.apply(seen)


def closing_lines(governor: Governor, command: Command, outcome: Outcome) -> list[str]:
    """The final summary: the last live line of a log is up to ten seconds old, and a terminal's was overwritten.

    A followed log that is not the command's is a run of its own, and so is another script of its user's. They have
    their lines before the command's.

    After the report of a halt that was seen to end, only other logs have one: the report says more.
    """
    at, runs = governor.clock.mono(), governor.node.runs.values()
    logs = {stream.run for stream in governor.settings.jsonl}
    if outcome.stages and not outcome.is_unfinished:
        others = [t for t in runs if t.run.run in logs and t.incident is None and t.run.step is not None]
        return [_closing_line(managed, at, "its log was followed until the halt") for managed in others]
    code = _exit_code(command, outcome)
    if code == ExitCode.NEEDS_HUMAN and command.exit_code != code:
        ended = "a halt was not seen to its end" if outcome.is_unfinished else "goes on unwatched"
    else:
        ended = ended_text(RunEnd(code, None))
    unjudged = [line for stream in governor.streams if (line := stream.unjudged.line) is not None]
    ours = _ours(governor, outcome)
    beside = [t for t in watched(governor.node) if t not in ours and t.run.step is not None]
    followed = [t for t in beside if t.run.run in logs or t.was_announced]
    lines = unjudged + [
        _closing_line(t, at, "was watched beside the command" if t.was_announced else "its log was followed")
        for t in followed
    ]
    if ours:
        told = {t.run.run: _with_cause(t, code, "was halted" if _was_outlived(t, outcome) else ended) for t in ours}
        return [*lines, *(_closing_line(managed, at, told[managed.run.run]) for managed in ours)]
    return [*lines, f"{outcome.run}: {ended}" + ("" if followed else "; no step was seen")]


def _ours(governor: Governor, outcome: Outcome) -> list[ManagedRun]:
    own = of_command(governor.node)
    return [t for t in own if t.was_announced or t.run.run == outcome.run or t.launch.launchers]


def report_lines(governor: Governor, outcome: Outcome) -> list[str]:
    """Who tells all of the command's runs that have trained. The report of a halt names its run's itself."""
    trained = [] if outcome.stages else [t for t in _ours(governor, outcome) if t.run.step is not None]
    return [report_line(managed.run.run) for managed in trained[:REPORTS_MAX]]


def _closing_line(managed: ManagedRun, at: MonoNs, ended: str) -> str:
    """A fault in a sentence must not become the command's exit code."""
    try:
        return closing_line(run_status(managed, at), ended)
    except Exception as error:  # noqa: BLE001 - the guard around what is said last.
        return f"{managed.run.run}: {ended}; its figures cannot be told, by a fault of costgov's own ({error!r:.100})"


def _was_outlived(managed: ManagedRun, outcome: Outcome) -> bool:
    return managed.incident is not None and managed.incident.incident_id in outcome.outlived


def _with_cause(managed: ManagedRun, code: int, ended: str) -> str:
    end = managed.run.end
    return ended_text(end) if end is not None and end.exit_code == code else ended


def _exit_code(command: Command, outcome: Outcome) -> int:
    if outcome.is_unfinished or outcome.leaves_training:
        return ExitCode.NEEDS_HUMAN
    if outcome.stages:
        return HALT_EXIT_CODE
    code = command.poll()
    if code == 0 and command.sent_to_left is not None:  # A training that was told to end is no success.
        return 128 + command.sent_to_left
    return code if code is not None else ExitCode.NEEDS_HUMAN
