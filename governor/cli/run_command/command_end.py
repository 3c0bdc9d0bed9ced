"""When a command of `costgov run` is over: it has exited, and nobody of its session is left. And who keeps its node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs
from governor.core.engine.idle.idleness import NODE
from governor.core.engine.node import Node
from governor.core.events.events import CommandExited, Event, OperatorHold
from governor.core.halt.halt_state import Fact
from governor.ports import Processes

LOOK_PERIOD_NS: Final = NS_PER_S  # A scan of /proc costs milliseconds, and only what outlives the command waits for it.
KEPT_NS: Final = DurationNs(10 * NS_PER_MINUTE)  # Until we have left, and with us what would have stopped the node.


@dataclass(slots=True)
class CommandEnd:
    """A source of the loop. Says once that the command is over; while nobody can look, it is not."""

    run: str
    poll_exit: Callable[[], int | None]
    sid: int
    processes: Processes
    _look_at: MonoNs = MonoNs(0)
    _has_ticked: bool = False
    _is_told: bool = False

    def poll(self, at: MonoNs) -> list[Event]:
        if not self._has_ticked:
            self._has_ticked = True  # A command that is over at once has its first tick all the same: it is charged.
            return []
        if self._is_told or at < self._look_at:
            return []
        exit_code = self.poll_exit()
        if exit_code is None:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        if living(self.processes, self.sid) != []:
            return []
        self._is_told = True
        return [CommandExited(at, self.run, exit_code)]


def living(processes: Processes, sid: int) -> list[int] | None:
    """Who lives in the command's session, by pid; None while we cannot look (no descriptors)."""
    try:
        table = processes.table()
    except OSError:
        return None
    return sorted(pid for pid, facts in table.items() if facts.sid == sid and facts.state not in "ZX")


def stops_node(node: Node, exit_code: int | None) -> bool:
    """The node's own stop is under way, or is about to follow from how the command ended."""
    idle = node.idle
    if idle.is_stopping or idle.finish is not None:
        return True
    policies = node.policies.policies
    return exit_code == 0 and idle.command is not None and any(one.run_on_finish == "stop" for one in policies)


def is_accepted(node: Node) -> bool:
    """The provider has said yes to the node's stop: nobody takes it back, and a shutdown's SIGTERM is part of it."""
    stop = node.idle.stop
    return (
        node.idle.is_stopping
        and stop is not None
        and stop.incident is not None
        and stop.incident.halt.stop_reply is Fact.STOP_ACCEPTED
    )


def kept_by(signum: signal.Signals, at: MonoNs) -> OperatorHold:
    """A signal to us when only the node's stop is left to wait for: who sent it wants the machine."""
    return OperatorHold(at, NODE, KEPT_NS, f"{signum.name} to costgov run", os.getuid())
