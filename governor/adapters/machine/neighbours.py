"""Other governors of this machine: what they watch is not ours to know, and not ours to stop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.events import Event
from governor.core.events.machine_events import GovernorsSeen
from governor.ports import Processes

LOOK_PERIOD_NS: Final = 5 * NS_PER_S  # A scan of /proc costs milliseconds; a launch lasts longer.
WORDS_LOOKED_AT: Final = 6  # "python", "-u", "-m", "governor" and the command, with one option more.


@dataclass(slots=True)
class NeighbourWatch:
    """A source of the loop. To the service, each `costgov run` is somebody; beside one command, the service is too."""

    processes: Processes
    kinds: Collection[str]  # "run", "daemon".
    own_pid: int
    _look_at: MonoNs = MonoNs(0)

    def poll(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        try:
            table = self.processes.table()
        except OSError as error:
            return [GovernorsSeen(at, (), f"the process table cannot be read: {error.strerror}")]
        if self.processes.is_stuck:  # Whoever was started since has no command line to be known by.
            why = "some process's memory map is locked, or the machine is too busy"
            return [GovernorsSeen(at, (), f"command lines cannot be read: {why}")]
        found = [
            pid
            for pid, facts in table.items()
            if self.own_pid not in (pid, facts.ppid) and governs(facts.argv) in self.kinds
        ]  # A child that has not become its program yet still carries our command line.
        return [GovernorsSeen(at, tuple(sorted(found)))]


def governs(argv: Sequence[str]) -> str | None:
    """ "run" or "daemon" where this is the command line of a governor, and not of one who starts it (sudo, timeout)."""
    words = list(argv[:WORDS_LOOKED_AT])
    if not words or not PurePath(words[0]).name.startswith(("python", "costgov")):
        return None
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if PurePath(word).name == "costgov" or (before, word) == ("-m", "governor"):
            return after if after in ("run", "daemon") else None
    return None
