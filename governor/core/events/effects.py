"""Everything the core may want done, as data. Hands do it; the journal sees it first.

Each one is idempotent per incident: a restarted governor repeats what it finds unfinished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.core.money.charges import Charge


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the letter to every connected rank of the run, then ring (SIGUSR1) those that catch it."""

    incident_id: str
    run: str
    checkpoint: str  # good | suspect | none
    deadline: MonoNs
    exit_after: bool
    reason: str
    rank: int | None = None  # This one alone; None: all that are connected.


@dataclass(frozen=True, slots=True)
class Term:
    """SIGTERM to the kill set, launcher first; then watch until everyone is gone."""

    incident_id: str
    run: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the kill set, launcher first; rescan until twice empty. Repeatable."""

    incident_id: str
    run: str


@dataclass(frozen=True, slots=True)
class StopCompute:
    """End the spending at the provider (or cancel the scheduler's job). `rung` climbs: 0 stop, 1 force, 2 destroy."""

    incident_id: str
    run: str
    attempt: int
    rung: int


@dataclass(frozen=True, slots=True)
class ReadBilling:
    """Ask the provider now whether compute is billed. `after_s` spaces the polls."""

    incident_id: str
    run: str
    after_s: float
    destroyed: bool = False  # The provider has accepted the machine's destruction.


@dataclass(frozen=True, slots=True)
class Page:
    """A person should look: the sequence cannot finish by itself, and keeps trying."""

    incident_id: str
    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """The halt reached HALTED: write the final report."""

    incident_id: str
    run: str


HaltEffect = Ask | Term | Kill | StopCompute | ReadBilling | Page | CloseIncident


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Look at the acknowledged checkpoint: every file of the manifest there, sizes and hashes equal."""

    incident_id: str
    run: str
    path: str
    manifest: str


@dataclass(frozen=True, slots=True)
class Confirm:
    connection: ConnectionId
    seq: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the rank why we will not watch it, and close."""

    connection: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """A durable line of history: verdicts, transitions, alarms, operator acts. `halt` rows are committed FULL."""

    kind: str
    run: str | None
    incident_id: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    durable: bool = False


@dataclass(frozen=True, slots=True)
class PersistRuns:
    """Replace what a restarted governor must know of runs and node, with their charges and the windows that were closed
    meanwhile, all in one commit: a spend and the charges that it is the sum of must not be of different moments, and a
    window that is told must be known to the meter that goes on from it."""

    runs: Mapping[str, Mapping[str, Any]]  # By name; the node itself under charges.UNALLOCATED.
    charges: tuple[Charge, ...] = ()
    records: tuple[Record, ...] = ()
    durable: bool = False  # Someone was answered for it: it is no chatter that the next ten seconds repeat.


@dataclass(frozen=True, slots=True)
class PersistIncident:
    """Replace what a restarted governor needs to resume the halt. Durable before the effects that follow it."""

    incident_id: str
    snapshot: Mapping[str, Any]
    closed: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something a person should know, with a stable name for deduplication."""

    name: str
    run: str | None
    text: str


Effect = HaltEffect | ReadCheckpoint | Confirm | Refuse | Record | PersistRuns | PersistIncident | Alarm
