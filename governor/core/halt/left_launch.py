"""A launch of `costgov run` as the journal has it, and what is below it: for whoever goes on with its halt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.identity import ProcessId
from governor.core.events.inputs import CommandLaunched


def process_row(process: ProcessId) -> dict[str, Any]:
    row = {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id}
    return {**row, "pid_ns": process.pid_ns} if process.pid_ns else row


def process_of(row: Mapping[str, Any]) -> ProcessId:
    return ProcessId(int(row["pid"]), int(row["start_ticks"]), str(row["boot_id"]), int(row.get("pid_ns", 0)))


@dataclass(frozen=True, slots=True)
class Below:
    """Of a launch in a halt: what was its own at the last look, and what its user's mark does not tell."""

    processes: tuple[ProcessId, ...] = ()
    shared: tuple[ProcessId, ...] = ()  # Those of them in whose session somebody else was too.
    unlisted: int = 0  # How many more there were than are listed.
    missed: int = 0  # How many an earlier governor had not listed when it was killed: nobody knows them any more.
    is_looked: bool = True  # False: killed before its first look, so that what there was is not known at all.

    def row(self) -> dict[str, Any]:
        """As LeftLaunch has it."""
        return {
            "below": [process_row(process) for process in self.processes],
            **({"below_shared": [process_row(process) for process in self.shared]} if self.shared else {}),
            **({"below_unlisted": self.unlisted} if self.unlisted else {}),
            **({"below_missed": self.missed} if self.missed else {}),
            **({} if self.is_looked else {"below_never_looked": True}),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Below:
        """As who goes on has it: what was not listed, nobody knows any more.

        KeyError, TypeError or ValueError where it is not one of ours. An older journal has the processes alone.
        """
        return cls(
            processes=tuple(process_of(process) for process in row["below"]),
            shared=tuple(process_of(process) for process in row.get("below_shared", ())),
            missed=max(int(row.get("below_unlisted", 0)), int(row.get("below_missed", 0))),
            is_looked=not row.get("below_never_looked"),
        )


NEVER_LOOKED: Final = Below(is_looked=False)


@dataclass(frozen=True, slots=True)
class LeftLaunch:
    """A launch of `costgov run` as the journal has it, for a governor that finds it, or its halt, after a `kill -9`."""

    run: str  # The command's name.
    uid: int  # Who launched it.
    processes: tuple[ProcessId, ...]  # The command. It began a session, which has its number.
    mark: int  # What all that it starts inherits. 0: unknown.
    cgroups: tuple[str, ...]  # Made for it.
    below: Below = NEVER_LOOKED

    def row(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "uid": self.uid,
            "processes": [process_row(process) for process in self.processes],
            "mark": self.mark,
            "cgroups": list(self.cgroups),
            **self.below.row(),
        }

    @classmethod
    def of_command(cls, command: CommandLaunched, below: Below = NEVER_LOOKED) -> LeftLaunch:
        mark = command.marks[0] if command.marks else 0
        return cls(command.run, command.uid, command.processes, mark, command.cgroups, below)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> LeftLaunch:
        """KeyError, TypeError or ValueError where it is not one of ours."""
        processes = tuple(process_of(process) for process in row["processes"])
        if not processes:
            raise ValueError("a launch has a command")
        return cls(
            run=str(row["run"]),
            uid=int(row["uid"]),
            processes=processes,
            mark=int(row["mark"]),
            cgroups=tuple(str(cgroup) for cgroup in row["cgroups"]),
            below=Below.of(row),
        )
