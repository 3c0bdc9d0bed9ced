"""The command of `costgov run`: how it is started and signalled, and when it is over.

It is over when it has exited and nothing that it started is left: in its session, or gone from it by `setsid`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from governor.adapters.command import launch_lock
from governor.adapters.command.evidence import Evidence, OomWatch, output_files
from governor.adapters.command.gate import require_program, start_waiting
from governor.adapters.command.orphans import BeforeChildren, adopt_orphans, adoption, send_to_marked
from governor.adapters.command.surroundings import MARK
from governor.adapters.machine.control_group import OwnGroup, make_group
from governor.core.base.identity import ProcessFacts, ProcessId, carries
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import CommandExited, Event
from governor.core.halt.adopted import Adoption
from governor.core.halt.kill_set import ancestors, is_below, stands_below
from governor.core.runs.ends import FOLLOWED_NS
from governor.ports import Processes, Sent
from trainer_shim.connection import forwarded
from trainer_shim.mark import MARK_BITS

# The longest that `deepspeed` and `torchrun` take to end their ranks.
TERM_GRACE_S: Final = 30.0
INSIDE: Final = "COSTGOV_INSIDE"  # Set in the command's environment: the run name of its governor.
UNBUFFERED: Final = "PYTHONUNBUFFERED"
UNNAMED: Final = "COSTGOV_UNNAMED_RUN"  # The same where no person has given that name: the next launch has another.
# A scan of /proc takes milliseconds. Only processes that outlive the command wait for it.
LOOK_PERIOD_NS: Final = NS_PER_S
# The first two go to the command. At the third we leave, with the halt unfinished. Those count that came in a row.
INTERRUPTS_BEFORE_LEAVING: Final = 3


# A NUL in an argument is a ValueError, and what fails between fork and exec a SubprocessError.
CANNOT_RUN: Final = (OSError, ValueError, subprocess.SubprocessError)
Tell = Callable[[int, int, OwnGroup | None], None]


def _to_nobody(_: signal.Signals) -> bool:
    return False


@dataclass(slots=True)
class Command:
    """The one command, its signals and its exit."""

    process: subprocess.Popen[bytes]
    interrupts: int = 0
    exit_code: int | None = None
    ended_at: MonoNs | None = None
    mark: int | None = None  # What the command and all that it starts carry, or have in their environment alone.
    group: OwnGroup | None = None  # Where it and all that it starts stay.
    adoption: Adoption | None = None  # Of what leaves its tree.
    evidence: Evidence = field(default_factory=Evidence)
    died_of: str | None = None  # The signal that ended it.
    died_below: str | None = None  # The signal for which its exit code stands.
    passed_on: dict[str, MonoNs] = field(default_factory=dict)  # Signals that came to us and went on, the last last.
    sent_to_left: signal.Signals | None = None  # A rank that it had left has taken it.
    is_told: bool = False  # How it stands has been looked at for the last time.
    has_lock: bool = True  # What it starts holds the lock of its launch.
    is_beyond_us: bool = False  # It has become another user's (`sudo`), and took no signal of ours.

    def identity(self, processes: Processes) -> tuple[ProcessId, ...]:
        """The command's process; empty when it is gone, or when /proc cannot be read (no free descriptors)."""
        try:
            facts = processes.facts(self.process.pid)
        except OSError:
            return ()
        return (facts.process,) if facts is not None else ()

    def note_ended(self, at: MonoNs) -> None:
        """It was seen to have ended. The first time counts."""
        if self.ended_at is None:
            self.ended_at = at

    def note_sent_to_rank(self, signum: signal.Signals) -> None:
        """The command has ended, and a rank that it has left has taken this signal."""
        self.sent_to_left = signum

    def tell(self) -> int | None:
        """The exit code as of now, also for later looks: what is said and our own code must agree."""
        code, self.is_told = self.poll(), True
        return code

    def poll(self) -> int | None:
        if self.exit_code is None and not self.is_told:
            code = self.process.poll()
            if code is not None:
                self.exit_code = code if code >= 0 else 128 - code  # As a shell reports a death by a signal.
                self.died_of = _name_of(-code) if code < 0 else None
                self.died_below = _name_of(code - 128) if code > 128 and code - 128 in signal.valid_signals() else None
        return self.exit_code

    def pass_on(
        self, signum: signal.Signals, at: MonoNs | None = None, to_left: Callable[[signal.Signals], bool] = _to_nobody
    ) -> bool:
        """Send Ctrl-C, Ctrl-\\ and SIGTERM to the command's process group. Returns True while we wait for the result.

        The whole group gets the signal, as from a terminal. `deepspeed` alone would die and leave its ranks training.
        `at` None: there is no governor any more, and nobody asks for the cause of the end.
        `to_left`: sends it to what the command has left, once that has ended.
        """
        if at is not None and at - max(self.passed_on.values(), default=at) > FOLLOWED_NS:
            self.interrupts = 0  # The command has survived them, and whoever sends one now is not hurried.
        self.interrupts += 1
        # Until it is reaped its pid and its group's id are still its own.
        is_sent = self.send(os.killpg, signum) if self.poll() is None else to_left(signum)
        if is_sent and at is not None:
            self.passed_on.pop(signum.name, None)
            self.passed_on[signum.name] = at
        return self.interrupts < INTERRUPTS_BEFORE_LEAVING

    def passed_on_to_end(self) -> tuple[str, MonoNs] | None:
        """The signal of which it ended, if we passed that one on, else the last one that we did: its name, and when."""
        names = (name for name in (self.died_of, self.died_below, *reversed(self.passed_on)) if name in self.passed_on)
        return next(((name, self.passed_on[name]) for name in names if name is not None), None)

    def pass_on_alone(self, signum: signal.Signals) -> None:
        """Send the signal to the command's process, as if its sender had found that in our place."""
        if self.poll() is None:
            self.send(os.kill, signum)

    def send(self, how: Callable[[int, int], None], signum: signal.Signals) -> bool:
        """Whether a process of the command took the signal: not where all that it reaches is another user's."""
        try:
            how(self.process.pid, signum)
        except PermissionError:
            self.is_beyond_us = True
        else:
            self.is_beyond_us = False
        return not self.is_beyond_us


@dataclass(slots=True)
class CommandEnd:
    """A source of the loop that reports the command's end once. It does not report while /proc cannot be read."""

    run: str
    poll_exit: Callable[[], int | None]
    command: Command
    processes: Processes
    _look_at: MonoNs = MonoNs(0)
    _has_ticked: bool = False
    _is_reported: bool = False

    def poll(self, at: MonoNs) -> list[Event]:
        if not self._has_ticked:
            # Even a command that ends at once gets its first tick, so that it is charged.
            self._has_ticked = True
            return []
        if self._is_reported or at < self._look_at:
            return []
        exit_code = self.poll_exit()
        adoption = self.command.adoption
        if exit_code is None and (adoption is None or adoption.is_ours_alone):
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        if living(self.processes, self.command) != [] or exit_code is None:
            return []
        self._is_reported = True
        return [CommandExited(at, self.run, exit_code)]


def living(processes: Processes, command: Command) -> list[ProcessFacts] | None:
    """What is left of the command, by pid. None while /proc cannot be read (no free descriptors).

    What it started and left its session stays below us and has its mark or group. A stranger may copy the mark.
    """
    table = _table(processes, command)
    return None if table is None else _living_in(table, command)


def send_to_left(
    processes: Processes, command: Command, signum: signal.Signals, uids: Collection[int], ranks: Collection[ProcessId]
) -> list[int]:  # fmt: skip
    """Signal what an ended command has left of these users, and return the pids that took it.

    Only what stands below us: a session's number may have another owner by now. As root, not its managers (sshd) below
    which other users have processes, nor what these have begun.
    """
    table = _table(processes, command) or {}
    kept = command.adoption.to_leave(table, uids, ranks) if command.adoption is not None else frozenset()
    left = [
        facts
        for facts in _living_in(table, command)
        if facts.uid in uids
        and stands_below(table, facts, os.getpid())
        and kept.isdisjoint(one.process.pid for one in (facts, *ancestors(table, facts)))
    ]
    return [facts.process.pid for facts in left if processes.send(facts.process, signum) is Sent.SENT]


def _table(processes: Processes, command: Command) -> Mapping[int, ProcessFacts] | None:
    try:
        table = processes.table()
    except OSError:
        return None
    if command.adoption is None:
        return table
    command.adoption.learn(table)
    return command.adoption.marked(table)


def _living_in(table: Mapping[int, ProcessFacts], command: Command) -> list[ProcessFacts]:
    rows = (table[pid] for pid in sorted(table))
    return [facts for facts in rows if facts.state not in "ZX" and _is_of(command, table, facts)]


def _is_of(command: Command, table: Mapping[int, ProcessFacts], facts: ProcessFacts) -> bool:
    if facts.sid == command.process.pid:
        return True
    if not stands_below(table, facts, os.getpid()):
        return False
    if command.group is not None and is_below(facts.cgroup, (command.group.path,)):
        return True
    if command.mark is None or not carries(facts.mark, command.mark):
        return False
    # Where others' orphans come to us too, a mark that is not our own user's may be a copy.
    us, adoption = table.get(os.getpid()), command.adoption
    return adoption is None or (us is not None and us.uid == facts.uid) or adoption.ties(table, facts)


def _name_of(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # A real-time signal.
        return f"signal {signum}"


def _tell_nobody(_pid: int, _mark: int, _group: OwnGroup | None) -> None:
    pass


def _environ(
    trainer_socket: str, name: str, state_dir: Path | None, *, is_named: bool, is_read: bool
) -> dict[str, str]:  # fmt: skip
    lock = launch_lock.told(state_dir) if state_dir is not None else {}
    # Into a file Python prints 8 KiB at a time, and a NaN would be read when the next hundred lines are there.
    unbuffered = {UNBUFFERED: "1"} if is_read and not os.environ.get(UNBUFFERED) else {}
    environ = {**os.environ, **unbuffered, "COSTGOV_SOCKET": trainer_socket, "COSTGOV_RUN": name, INSIDE: name, **lock}
    for inherited in (UNNAMED, forwarded.VARIABLE):  # Of a run around this one.
        environ.pop(inherited, None)
    if not is_named:
        environ[UNNAMED] = name
    told = forwarded.told(environ)
    return environ if told is None else {**environ, forwarded.VARIABLE: told}


def start_command(
    argv: Sequence[str], trainer_socket: str, name: str, sink: IO[bytes] | None, as_found: AbstractContextManager[None],
    before: BeforeChildren, state_dir: Path | None = None, tell: Tell = _tell_nobody, *, is_named: bool = True,
    is_read: bool = False,
) -> Command:  # fmt: skip
    """Start it. Within `as_found`, what is started ignores no signal for our sake. CANNOT_RUN: it cannot be run.

    `state_dir`: where what it starts holds the lock of its launch. `tell`: gets its pid, its mark and its group before
    its first instruction, which waits for that. `is_named`: a person has given the run its name. `is_read`: its
    output is followed in `sink`, line by line.
    """
    environ = _environ(trainer_socket, name, state_dir, is_named=is_named, is_read=is_read)
    require_program(argv[0], environ)
    group = make_group(name)
    evidence = Evidence(output_files((1, 2) if sink is None else (sink.fileno(),)), OomWatch.begin())
    adopt_orphans()
    limit = before.limit
    # Where a hard limit leaves no room for the mark, the environment has it alone.
    mark = limit.mark if limit.mark is not None else secrets.randbits(MARK_BITS) | 1 << (MARK_BITS - 1)
    environ[MARK] = str(mark)

    lock = launch_lock.join(state_dir) if state_dir is not None else None

    def start(wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        def before_exec() -> None:  # System calls alone, which take no lock that a thread may hold.
            limit.take()
            if group is not None:
                group.join()
            wait()

        # Its own session: Ctrl-C reaches it only once, through us, and its process tree is distinct from ours.
        return subprocess.Popen(
            argv,
            env=environ,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
            preexec_fn=before_exec,  # noqa: PLW1509
        )

    def told(pid: int) -> None:
        tell(pid, mark, group if group is not None and group.holds(pid) else None)

    try:
        process = start_waiting(start, as_found, told)
    except BaseException:
        if group is not None:
            group.remove()
        raise
    finally:
        if lock is not None:  # From here on it is held by the command alone.
            os.close(lock)
    if group is not None and not group.holds(process.pid):
        group.remove()
        group = None
    adopted = adoption(process.pid, mark, is_alone=before.is_alone)
    has_lock = lock is not None or state_dir is None
    return Command(process, mark=mark, group=group, adoption=adopted, evidence=evidence, has_lock=has_lock)


def end_command(command: Command, processes: Processes) -> None:
    """Finish a decided halt without a governor.

    The launcher passes SIGTERM on to its ranks. Ranks that remain are in its process group, or have the command's mark.
    """
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if command.poll() is None:
            command.send(os.killpg, signum)
        send_to_marked(processes, command.mark, signum, command.adoption)
        if signum is signal.SIGKILL and command.group is not None:
            command.group.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(TERM_GRACE_S)
