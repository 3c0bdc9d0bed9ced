"""The life of a run on this node: one complete table from (state, fact) to the next state. Some cells begin an attempt.

Halting is no state here. The halt has its own table (core/halt), and a run may end in the middle of it. `Run.move`
alone writes `Run.life` and `Run.ended_at`.

The engine sends some facts in some states only. A cell that it cannot reach is marked so, with the reason. In the
daemon it leads where its fact says all the same: nobody dies of it. In the tests it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import Final


class Life(Enum):
    """STANDS_IN: for a launched command for which no run reports. The command's time is unallocated until one does."""

    STANDS_IN = "stands_in"
    LIVE = "live"
    ENDED = "ended"


class LifeFact(Enum):
    """What can happen to a run."""

    RANK_OF_NEW_ATTEMPT = "rank_of_new_attempt"  # A rank sends a hello, under another attempt than the last.
    RANK = "rank"  # A rank sends a hello, under the attempt that is known.
    # A log was opened, and the journal knew none of the processes that its owner names.
    LOG_OF_NEW_PROCESSES = "log_of_new_processes"
    LOG_OF_PROCESSES = "log_of_processes"  # A log was opened, and its owner names processes.
    LOG = "log"  # A log was opened without named processes.
    LINE = "line"  # A log without known processes has a step.
    # A command was launched under the run's name, and no run reports for it.
    COMMAND_BEGINS = "command_begins"
    COMMAND_GOES_ON = "command_goes_on"  # The run reported for the command, which outlives it.
    RUN_REPORTS = "run_reports"  # This run reports for the command, or is halted.
    REPLACED = "replaced"  # Another run reports for the command now.
    GONE = "gone"  # None of its processes is left.
    HALTED = "halted"  # Its halt was closed.
    HALT_RESUMED = "halt_resumed"  # A restarted governor found its halt open.


@dataclass(frozen=True, slots=True)
class Cell:
    """The next state. `ends`: set `ended_at`.

    `begins`: the caller begins an attempt. Where a rank or a log reports for it, the caller charges its launch.
    """

    to: Life
    why: str
    begins: bool = False
    ends: bool = False
    cannot_come: str = ""  # Why the engine never sends this fact in this state; empty: it does.


Row = dict[LifeFact, Cell]


def _to(state: Life, why: str, *facts: LifeFact) -> Row:
    return {fact: Cell(state, why) for fact in facts}


def _begin(state: Life, why: str, *facts: LifeFact) -> Row:
    return {fact: Cell(state, why, begins=True) for fact in facts}


def _end(why: str, *facts: LifeFact) -> Row:
    return {fact: Cell(Life.ENDED, why, ends=True) for fact in facts}


def _never(reason: str, row: Row) -> Row:
    return {fact: replace(cell, cannot_come=reason) for fact, cell in row.items()}


_F: Final = LifeFact
_HANDED_OVER: Final = (_F.RUN_REPORTS, _F.REPLACED)
_LAUNCHED: Final = "A new launch: what the earlier ranks did is no evidence about it."
_REPORTS: Final = "A rank or a log of the command reports: the stand-in becomes a run of its own."
_COMMAND: Final = "The command is metered and held to its ceiling until a run reports for it."
_GOES_ON: Final = "The attempt goes on with the rest of the command, which is held to the same ceiling."
_OVER: Final = "The run is over. Its money and its history stay."
_GONE_ON: Final = "The fact shows that the run lives, and it lives already."
_ONLY_STAND_INS: Final = "Only a stand-in is handed the command's time, or replaced."
_ONLY_ENDED: Final = "Only an ended run is revived by a line."

_ROWS: Final[dict[Life, tuple[Row, ...]]] = {
    Life.STANDS_IN: (
        _begin(Life.LIVE, _REPORTS, _F.RANK_OF_NEW_ATTEMPT, _F.RANK, _F.LOG_OF_PROCESSES, _F.LOG),
        _never("The command's processes are named for it.", _begin(Life.LIVE, _REPORTS, _F.LOG_OF_NEW_PROCESSES)),
        _never(_ONLY_ENDED, _to(Life.STANDS_IN, "A line of a log is no evidence about the command.", _F.LINE)),
        _never(
            "One run stands in at a time, and for one command.",
            _begin(Life.STANDS_IN, _COMMAND, _F.COMMAND_BEGINS) | _to(Life.STANDS_IN, _GOES_ON, _F.COMMAND_GOES_ON),
        ),
        _to(Life.LIVE, "The run takes over what the command has cost so far.", _F.RUN_REPORTS),
        _end("The run has trained in this command, and another run reports for the rest.", _F.REPLACED),
        _never("It takes over what the command has cost before it ends or is halted.", _end(_OVER, _F.GONE, _F.HALTED)),
        _never(
            "Halts are resumed before a command is known.",
            _to(Life.LIVE, "The run takes over what the command has cost so far.", _F.HALT_RESUMED),
        ),
    ),
    Life.LIVE: (
        _begin(Life.LIVE, _LAUNCHED, _F.RANK_OF_NEW_ATTEMPT, _F.LOG_OF_NEW_PROCESSES),
        _to(Life.LIVE, _GONE_ON, _F.RANK, _F.LOG_OF_PROCESSES, _F.LOG, _F.HALT_RESUMED),
        _never(_ONLY_ENDED, _to(Life.LIVE, _GONE_ON, _F.LINE)),
        _begin(Life.STANDS_IN, _COMMAND, _F.COMMAND_BEGINS),
        _never(
            "A live run that reported for the command still does.", _to(Life.STANDS_IN, _GOES_ON, _F.COMMAND_GOES_ON)
        ),
        _never(_ONLY_STAND_INS, _to(Life.LIVE, "The run did not stand in for the command.", *_HANDED_OVER)),
        _end(_OVER, _F.GONE, _F.HALTED),
    ),
    Life.ENDED: (
        _begin(Life.LIVE, _LAUNCHED, _F.RANK_OF_NEW_ATTEMPT, _F.LOG_OF_NEW_PROCESSES, _F.LOG_OF_PROCESSES),
        _begin(Life.LIVE, "The run is back: its launcher gives each restart the same number.", _F.RANK),
        _begin(Life.LIVE, "The run is back: only its growing log shows it.", _F.LINE),
        _to(Life.ENDED, "An opened log may belong to a finished run.", _F.LOG),
        _begin(Life.STANDS_IN, _COMMAND, _F.COMMAND_BEGINS),
        _to(Life.STANDS_IN, _GOES_ON, _F.COMMAND_GOES_ON),
        _never(_ONLY_STAND_INS, _to(Life.ENDED, _OVER, *_HANDED_OVER)),
        _never("An ended run does not end once more.", _to(Life.ENDED, _OVER, _F.GONE)),
        _end("The halt has outlived the run, and ends now.", _F.HALTED),
        _to(Life.LIVE, "The journal has the run ended and its halt open.", _F.HALT_RESUMED),
    ),
}


def _table() -> dict[tuple[Life, LifeFact], Cell]:
    table: dict[tuple[Life, LifeFact], Cell] = {}
    for state, parts in _ROWS.items():
        for fact, cell in (pair for part in parts for pair in part.items()):
            assert (state, fact) not in table, f"two cells for {state}, {fact}"
            table[state, fact] = cell
    missing = [pair for pair in product(Life, LifeFact) if pair not in table]
    assert not missing, f"no cell for {missing}"
    return table


TRANSITIONS: Final = _table()
