"""What is known of a launch: the command of `costgov run`, and what the process table shows when a rank says hello."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from governor.core.base.identity import ProcessFacts, ProcessId, carries
from governor.core.events.inputs import Hello, LaunchersSeen
from governor.core.events.streams import StreamOpened
from governor.core.halt.kill_set import ANCESTORS_MAX, descends, find_launchers, is_below, own_cgroups, unsure
from governor.daemon.process_killer import ControlGroup, Surroundings


@dataclass(frozen=True, slots=True)
class SupervisedCommand:
    """The command of `costgov run`, for which this governor was started, and its effect on the loop."""

    run: str | None  # The name that its environment carries.
    argv: tuple[str, ...]  # The governor's own command line, which also resumes the run.
    processes: tuple[ProcessId, ...]  # The started processes. They are above every rank of the run.
    should_end: Callable[[], bool] = lambda: False  # True: the command is over and no work is pending.
    on_signal: Callable[[signal.Signals], bool] = lambda _signum: False  # True: the signal is handled, go on.
    mark: int | None = None  # What the command and all that it starts carry.
    group: ControlGroup | None = None  # Made for it; None where that is not allowed.
    surroundings: Surroundings | None = None
    uid: int | None = None  # Whose ranks speak for the command without a tie to it.

    @property
    def marks(self) -> tuple[int, ...]:
        return () if self.mark is None else (self.mark,)

    @property
    def cgroups(self) -> tuple[str, ...]:
        return () if self.group is None else (self.group.path,)


NO_COMMAND: Final = SupervisedCommand(None, (), ())


def launch_seen(
    table: Mapping[int, ProcessFacts], hello: Hello, own_pid: int, command: SupervisedCommand
) -> LaunchersSeen | None:
    """What the table shows of the launch of this rank. None: nothing that a halt would need."""
    rank = hello.peer.process
    found = find_launchers(table, rank, own_pid)
    # Another run of this user may use our socket. Our command is not above its ranks and must not end with it.
    # Nor is another user's whose rank only says our name.
    is_named = hello.run == command.run and hello.peer.uid == command.uid
    own = is_named or descends(table, rank, command.processes) or _has_left(table, rank, command)
    launchers = tuple(dict.fromkeys((*command.processes, *found))) if own else found
    marks = _marks(table, hello, command if own else NO_COMMAND)
    roots = (rank, *launchers)
    cgroups = (*own_cgroups(table, roots), *(command.cgroups if own else ()))
    # All that leaves the tree of our command comes to us, and has its mark.
    strangers = () if own and command.mark is not None else unsure(table, roots, own_pid, marks, cgroups)
    if not (launchers or marks or cgroups or strangers):
        return None
    outermost = table.get(launchers[0].pid) if launchers else None
    known = outermost.argv if outermost is not None else ()
    argv = (command.argv or known) if own else known
    return LaunchersSeen(hello.at, hello.run, launchers, argv, marks, cgroups, strangers)


def is_tied(look: Callable[[int], ProcessFacts | None], rank: ProcessId, command: SupervisedCommand) -> bool:
    """Whether the kernel ties the rank to the command: by its parents, its session, its mark or its control group."""
    line: dict[int, ProcessFacts] = {}
    pid = rank.pid
    while pid > 1 and pid not in line and len(line) <= ANCESTORS_MAX:
        facts = look(pid)
        if facts is None:
            break
        line[pid] = facts
        pid = facts.ppid
    roots = (look(root.pid) for root in command.processes)
    table = {**{root.process.pid: root for root in roots if root is not None}, **line}
    return descends(table, rank, command.processes) or _has_left(table, rank, command)


def writes_log(
    look: Callable[[int], ProcessFacts | None], event: StreamOpened, command: SupervisedCommand
) -> bool:  # fmt: skip
    """Whether the command writes a followed log, as far as is known: its processes do, or nobody else is named.

    The log of another user who is not root says nothing about this command before its writer is named.
    """
    if event.processes:
        return any(is_tied(look, process, command) for process in event.processes)
    return not event.is_distrusted and event.uid in (command.uid, 0)


def _has_left(table: Mapping[int, ProcessFacts], rank: ProcessId, command: SupervisedCommand) -> bool:
    """Whether the rank was started by the command, wherever it stands now."""
    facts = table.get(rank.pid)
    if facts is None or facts.process != rank:
        return False
    return any(carries(facts.mark, mark) for mark in command.marks) or is_below(facts.cgroup, command.cgroups)


def _marks(table: Mapping[int, ProcessFacts], hello: Hello, command: SupervisedCommand) -> tuple[int, ...]:
    """The command's mark, and that of the rank if the kernel says what the rank says.

    Neither alone is believed. A rank may say anything, and a limit that the machine sets is on every process.
    """
    facts = table.get(hello.peer.process.pid)
    marks = list(command.marks)
    if (
        hello.mark
        and facts is not None
        and facts.process == hello.peer.process
        and facts.mark == hello.mark
        and not any(carries(hello.mark, mark) for mark in marks)
    ):
        marks.append(hello.mark)
    return tuple(marks)
