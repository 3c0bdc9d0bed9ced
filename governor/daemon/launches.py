"""What is known of a launch: the command of `costgov run`, and what the process table shows when a rank says hello."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from governor.core.base.identity import ConnectionId, ProcessFacts, ProcessId, carries
from governor.core.base.units import TICK_NS, MonoNs
from governor.core.events.inputs import Hello, LaunchersSeen
from governor.core.events.streams import StreamOpened
from governor.core.halt.adopted import Adoption, Table
from governor.core.halt.kill_set import (
    ANCESTORS_MAX,
    descends,
    find_launchers,
    is_below,
    own_cgroups,
    stands_below,
    unsure,
)
from governor.core.halt.programs import program_key
from governor.daemon.kill_in_progress import ControlGroup, Surroundings
from governor.daemon.perform import Performer

# Between two looks at the process table for launchers: each takes milliseconds, and anybody may say hello in a loop.
LAUNCHERS_PERIOD_NS: Final = TICK_NS
# So many looks in a row the loop waits for: a rank may send its NaN behind its hello. More make a crowd, and beside one
# nobody waits: on busy cores a look takes 30 to 180 ms, in which no frame is judged.
LOOKS_WAITED_FOR_MAX: Final = 4
LOOKS_CALM_NS: Final = 4 * LAUNCHERS_PERIOD_NS  # Without a look for so long, there is no row.
SPEAKERS_MAX: Final = 256  # Other users' ranks that are remembered. As many connections may say hello.

log = structlog.get_logger("costgov")


@dataclass(frozen=True, slots=True)
class SupervisedCommand:
    """The command of `costgov run`, for which this governor was started, and its effect on the loop."""

    run: str | None  # The name that its environment carries.
    argv: tuple[str, ...]  # The governor's own command line, which also resumes the run.
    processes: tuple[ProcessId, ...]  # The started processes. They are above every rank of the run.
    should_end: Callable[[], bool] = lambda: False  # True: the command is over and no work is pending.
    # False: it has not ended, or a followed log has lines of it that were not read.
    is_read: Callable[[], bool] = lambda: True
    on_signal: Callable[[signal.Signals], bool] = lambda _signum: False  # True: the signal is handled, go on.
    mark: int | None = None  # What the command and all that it starts carry.
    group: ControlGroup | None = None  # Made for it; None where that is not allowed.
    surroundings: Surroundings | None = None
    uid: int | None = None  # Whose ranks speak for the command without a tie to it.
    reaper: int | None = None  # Our pid: what leaves the command's tree stays below us.
    adoption: Adoption | None = None  # Of what has left it.

    @property
    def marks(self) -> tuple[int, ...]:
        return () if self.mark is None else (self.mark,)

    @property
    def cgroups(self) -> tuple[str, ...]:
        return () if self.group is None else (self.group.path,)

    def marked(self, table: Table) -> Table:
        """The table, with the mark on what has left the command's tree and dropped it."""
        return table if self.adoption is None else self.adoption.marked(table)

    def ties(self, table: Table, facts: ProcessFacts) -> bool:
        """Whether the process's place below us says that it is the command's."""
        if self.adoption is None:
            return stands_below(table, facts, self.reaper)
        return self.adoption.ties(table, facts)


NO_COMMAND: Final = SupervisedCommand(None, (), ())


def launch_seen(
    table: Mapping[int, ProcessFacts], hello: Hello, own_pid: int, command: SupervisedCommand
) -> LaunchersSeen | None:
    """What the table shows of the launch of this rank. None: nothing that a halt would need."""
    rank, table = hello.peer.process, command.marked(table)
    found = find_launchers(table, rank, own_pid)
    # Another run of this user may use our socket. Our command is not above its ranks and must not end with it.
    # Nor is another user's whose rank only says our name.
    is_named = hello.run == command.run and hello.peer.uid == command.uid
    own = is_named or _is_of_command(table, rank, command, hello.peer.uid)
    launchers = tuple(dict.fromkeys((*command.processes, *found))) if own else found
    marks = _marks(table, hello, command if own else NO_COMMAND)
    roots = (rank, *launchers)
    cgroups = (*own_cgroups(table, roots), *(command.cgroups if own else ()))
    # All that leaves the tree of our command comes to us, and has its mark.
    orphans = () if own and command.mark is not None else unsure(table, roots, own_pid, marks, cgroups)
    itself = table.get(rank.pid)
    # Of a pod alone: only Kubernetes has to be told in which one a rank is.
    is_in_pod = itself is not None and itself.process == rank and "pod" in itself.cgroup
    place = itself.cgroup if itself is not None and is_in_pod else ""
    if not (launchers or marks or cgroups or orphans or place):
        return None
    outermost = table.get(launchers[0].pid) if launchers else None
    known = outermost.argv if outermost is not None else ()
    argv = (command.argv or known) if own else known
    programs = _programs(table, hello)
    return LaunchersSeen(hello.at, hello.run, launchers, argv, marks, cgroups, orphans, programs, place)


def _programs(table: Mapping[int, ProcessFacts], hello: Hello) -> tuple[str, ...]:
    """What the rank runs, to tell another run of its sweep even when the rank is gone."""
    facts = table.get(hello.peer.process.pid)
    is_there = facts is not None and facts.process == hello.peer.process
    key = program_key(facts.argv, (hello.rank, hello.local_rank)) if facts is not None and is_there else None
    return () if key is None else (key,)


def is_of_command(
    look: Callable[[int], ProcessFacts | None], rank: ProcessId, command: SupervisedCommand, uid: int | None
) -> bool:  # fmt: skip
    """Whether the kernel ties the rank to the command: by its parents, its session or its control group.

    `uid`: who speaks. The mark ties the command's own user alone: everybody can read it, and set it for himself.
    """
    line: dict[int, ProcessFacts] = {}
    pid = rank.pid
    while pid > 0 and pid not in line and len(line) <= ANCESTORS_MAX:
        facts = look(pid)
        if facts is None:
            break
        line[pid] = facts
        pid = facts.ppid
    roots = (look(root.pid) for root in command.processes)
    table = {**{root.process.pid: root for root in roots if root is not None}, **line}
    return _is_of_command(command.marked(table), rank, command, uid)


def writes_log(
    look: Callable[[int], ProcessFacts | None], event: StreamOpened, command: SupervisedCommand
) -> bool:  # fmt: skip
    """Whether the command writes a followed log, as far as is known: its processes do, or nobody else is named.

    The log of another user who is not root says nothing about this command before its writer is named.
    """
    if event.processes:
        uid = command.uid if event.uid == 0 else event.uid
        return any(is_of_command(look, process, command, uid) for process in event.processes)
    return not event.is_distrusted and event.uid in (command.uid, 0)


def _is_of_command(
    table: Mapping[int, ProcessFacts], rank: ProcessId, command: SupervisedCommand, uid: int | None
) -> bool:  # fmt: skip
    """Whether the rank was started by the command, wherever it stands now."""
    facts = table.get(rank.pid)
    if facts is None or facts.process != rank:
        return False
    if descends(table, rank, command.processes) or is_below(facts.cgroup, command.cgroups):
        return True
    if _is_left_behind(table, facts, command):
        return True
    if not any(carries(facts.mark, mark) for mark in command.marks):
        return False
    # A setuid program has its user's limits too, so its own uid alone does not say whose mark it is.
    is_own = uid == command.uid == facts.uid
    return is_own or command.ties(table, facts)


def _is_left_behind(table: Mapping[int, ProcessFacts], facts: ProcessFacts, command: SupervisedCommand) -> bool:
    """Whether it is in the session of a command that has exited. A session is inherited, and nobody can enter one.

    Its number may be used again once nobody is left in it, but whom the command has left behind is below us.
    """
    is_in = any(facts.sid == root.pid and root.pid not in table for root in command.processes)
    return is_in and command.ties(table, facts)


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


class LaunchLooks:
    """Looks for who has launched the ranks that have said hello. For the loop's thread.

    `found` gets what was seen for a hello; `soon` has the loop call something, from any thread.
    """

    def __init__(
        self, performer: Performer, command: Callable[[], SupervisedCommand | None],
        soon: Callable[[Callable[[], None]], None], found: Callable[[Hello, LaunchersSeen], None],
    ) -> None:  # fmt: skip
        self._performer = performer
        self._command = command
        self._soon = soon
        self._found = found
        self._waiting: dict[ConnectionId, Hello] = {}  # The last one of each connection.
        self._of_command: dict[ProcessId, bool] = {}  # Other users' ranks: whether they may speak for it.
        self._looked_at = MonoNs(-LOOKS_CALM_NS)
        self._looks = 0  # In a row.
        self._looked_for: list[Hello] = []  # By the look that is under way.
        self._is_looking = False  # A look is under way that nobody waits for.

    def introduced(self, hello: Hello) -> Hello:
        """Under `costgov run`, another user's rank speaks for the command only if the kernel ties it to the command."""
        command = self._command()
        if command is None or hello.peer.uid == command.uid:
            return hello
        rank = hello.peer.process
        if rank not in self._of_command:
            if len(self._of_command) >= SPEAKERS_MAX:
                self._of_command.clear()
            try:
                self._of_command[rank] = is_of_command(self._performer.processes.facts, rank, command, hello.peer.uid)
            except OSError:  # Out of descriptors.
                return hello
        return replace(hello, of_command=self._of_command[rank])

    def attributed(self, event: StreamOpened) -> StreamOpened:
        """Say of an opened log whether the command writes it."""
        command = self._command()
        if command is None:
            return event
        try:
            return replace(event, of_command=writes_log(self._performer.processes.facts, event, command))
        except OSError:  # Out of descriptors.
            return event

    def welcome(self, hello: Hello) -> None:
        """A rank's hello was accepted. Look at once, or with the others that come until the next tick."""
        self._waiting[hello.connection] = hello
        if self._performer.clock.mono() - self._looked_at >= LAUNCHERS_PERIOD_NS and not self._is_crowd():
            self._look()

    def tick(self) -> None:
        """Look for those of all hellos since the last look."""
        if self._waiting and not self._is_looking:
            self._look()

    def before_end(self) -> None:
        """A run is about to be ended. Its launch may be among those that were not seen yet."""
        if hellos := [*self._looked_for, *self._take()]:
            self._tell(hellos, self._table())

    def _is_crowd(self) -> bool:
        is_row = self._performer.clock.mono() - self._looked_at < LOOKS_CALM_NS
        return self._is_looking or (is_row and self._looks >= LOOKS_WAITED_FOR_MAX)

    def _look(self) -> None:
        """The loop waits for it; beside a crowd it is on a thread of its own."""
        is_crowd, at = self._is_crowd(), self._performer.clock.mono()
        self._looks = self._looks + 1 if at - self._looked_at < LOOKS_CALM_NS else 1
        self._looked_at = at
        hellos = self._take()
        if not is_crowd:
            self._tell(hellos, self._table())
            return

        def told(table: Mapping[int, ProcessFacts]) -> None:
            self._is_looking, self._looked_for = False, []
            self._tell(hellos, table)

        def look() -> None:
            table: Mapping[int, ProcessFacts] = {}
            try:
                table = self._table()
            finally:  # Whatever became of it: the next look must not wait for it for ever.
                self._soon(lambda: told(table))

        try:
            threading.Thread(target=look, name="launchers", daemon=True).start()
        except RuntimeError:  # No thread can be started.
            self._tell(hellos, self._table())
        else:
            self._is_looking, self._looked_for = True, hellos

    def _take(self) -> list[Hello]:
        hellos, self._waiting = list(self._waiting.values()), {}
        return hellos

    def _table(self) -> Mapping[int, ProcessFacts]:
        try:
            return self._performer.processes.table()
        except OSError as error:  # Out of descriptors. A halt looks for launchers again, from the ranks up.
            log.error("process_table_unreadable", reason=error.strerror)
            return {}

    def _tell(self, hellos: Sequence[Hello], table: Mapping[int, ProcessFacts]) -> None:
        own_pid = self._performer.process_killer.own_pid
        for hello in hellos if table else ():
            seen = launch_seen(table, hello, own_pid, self._command() or NO_COMMAND)
            if seen is not None:
                self._found(hello, seen)
