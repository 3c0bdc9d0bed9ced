"""What `costgov run` does with the signals that it is sent, and what it tells their sender."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from governor.adapters.command.child import Command, send_to_left
from governor.app.wiring import Governor
from governor.cli.common import ExitCode
from governor.cli.run.own_runs import of_command
from governor.core.base.units import NS_PER_MINUTE, DurationNs, MonoNs
from governor.core.engine.alarms import PIDS_NAMED_MAX
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import Node
from governor.core.events.operators import OperatorHold
from governor.core.halt.state import Fact, HaltState
from governor.daemon import signals

# Covers the time until we exit. After that, nothing is left that would stop the node.
KEPT_NS: Final = DurationNs(10 * NS_PER_MINUTE)


@dataclass(slots=True)
class SignalAnswers:
    """Of one command, whichever governor is in force."""

    command: Command
    print_line: Callable[[str], None]
    ignored: set[signal.Signals] = field(default_factory=set)  # Of which the operator was told.
    was_held_back: bool = False  # A signal came while a halt was saving.
    was_told_beyond_us: bool = False
    was_told_left: bool = False
    was_kept: bool = False  # A signal came while we waited only for the node's stop.

    def pass_on(self, governor: Governor, signum: signal.Signals) -> bool:
        """Send the signal to the command, with two exceptions for the first signal. False: we leave.

        While a halt saves, we hold it back: it would cost the checkpoint, and the halt ends the command anyway.
        When only the node's stop is left to wait for, it keeps the node. What is not meant to end a program costs no
        governor: it goes to the command's process, except while a halt saves, or is ignored.
        """
        saving = _saving(governor)
        if signum in signals.PASSED_ON_ALONE and not saving:
            self.command.pass_on_alone(signum)
            self._tell_if_beyond_us(signum)
            return True
        if signum not in signals.PASSED_ON:
            if signum not in self.ignored:
                self.ignored.add(signum)
                self.print_line(
                    f"costgov: {signum.name} is ignored" + (f" while incident {saving[0]} is saving" if saving else "")
                )
            return True
        if self.command.poll() is not None and stops_node(governor.node, self.command.exit_code):
            if _is_accepted(governor.node):
                self.print_line(
                    "costgov: leaving: the provider has accepted the node's stop, and nobody reads back what follows"
                )
                return False
            if self.was_kept:
                return False
            self.was_kept = True
            self.print_line(
                "costgov: the node is kept, if its stop can still be taken back; once more to leave at once"
            )
            governor.daemon.apply(_kept_by(signum, governor.clock.mono()))
            return True
        if not saving or self.was_held_back:
            stays = self.command.pass_on(signum, governor.clock.mono(), partial(self._to_left, governor))
            self._tell_if_beyond_us(signum)
            return stays
        self.was_held_back = True
        self.print_line(
            f"costgov: incident {saving[0]} is saving a checkpoint and ends the command then; once more to end it now"
        )
        return True

    def _to_left(self, governor: Governor, signum: signal.Signals) -> bool:
        """The command has ended, and what it has left trains on: whoever ends us means that."""
        runs = of_command(governor.node)
        uids = {os.getuid(), *(managed.run.uid for managed in runs)}
        ranks = [process for managed in runs for process in managed.processes()]
        sent = send_to_left(governor.processes, self.command, signum, uids, ranks)
        if any(rank.peer.process.pid in sent for managed in runs for rank in managed.run.ranks.values()):
            self.command.note_sent_to_rank(signum)
        if sent and not self.was_told_left:
            self.was_told_left = True
            more = f" and {len(sent) - PIDS_NAMED_MAX} more" if len(sent) > PIDS_NAMED_MAX else ""
            pids = ", ".join(map(str, sent[:PIDS_NAMED_MAX]))
            self.print_line(f"costgov: the command has ended: {signum.name} goes to what it has left, pid {pids}{more}")
        return bool(sent)

    def _tell_if_beyond_us(self, signum: signal.Signals) -> None:
        """What is said once: of a command that takes none of our signals, as `sudo` of an ordinary user."""
        if self.command.is_beyond_us and not self.was_told_beyond_us:
            self.was_told_beyond_us = True
            pid = self.command.process.pid
            self.print_line(
                f"costgov: {signum.name} is not passed on: pid {pid} is another user's (sudo), who alone or root can "
                f"end it: `sudo kill -TERM {pid}`"
            )


def wait_unwatched(command: Command) -> None:
    """Wait for the command without a governor.

    Under a container or a scheduler our exit would end the training, which goes on unharmed.
    """

    def pass_on(signum: signal.Signals) -> None:
        if signum in signals.PASSED_ON_ALONE:
            command.pass_on_alone(signum)
        elif signum in signals.PASSED_ON and not command.pass_on(signum):
            raise SystemExit(ExitCode.NEEDS_HUMAN)

    signals.install(pass_on)
    command.process.wait()


def _saving(governor: Governor) -> list[str]:
    """The incidents whose halt waits for a checkpoint, and ends the command then."""
    return [
        t.incident.incident_id
        for t in of_command(governor.node)
        if t.incident is not None and t.incident.halt.stage in (HaltState.ASKED, HaltState.SAVING)
    ]


def stops_node(node: Node, exit_code: int | None) -> bool:
    """The node's own stop is under way, or the command's exit code is about to cause it."""
    idle = node.idle
    if idle.is_stopping or idle.finish is not None:
        return True
    policies = node.policies.policies
    return exit_code == 0 and idle.command is not None and any(one.run_on_finish == "stop" for one in policies)


def _is_accepted(node: Node) -> bool:
    """The provider has accepted the node's stop. It cannot be taken back, and SIGTERM of the shutdown is part of it."""
    stop = node.idle.stop
    return (
        node.idle.is_stopping
        and stop is not None
        and stop.incident is not None
        and stop.incident.halt.stop_reply is Fact.STOP_ACCEPTED
    )


def _kept_by(signum: signal.Signals, at: MonoNs) -> OperatorHold:
    """The hold for a signal that comes when only the node's stop is left: its sender wants to keep the machine."""
    return OperatorHold(at, NODE, KEPT_NS, f"{signum.name} to costgov run", os.getuid())
