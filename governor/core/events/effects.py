"""Everything the core may want done, as data. The journal stores an effect before the performer does it.

Each effect is idempotent per incident: a restarted governor repeats unfinished ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import LookedFor
from governor.core.events.fleet_store import AskStore
from governor.core.events.peers import NodeTold
from governor.core.money.charges import Charge


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the checkpoint request to every connected rank, then a signal (SIGUSR1) to the ranks that catch it."""

    incident_id: str
    run: str
    checkpoint: str  # good | suspect | none
    deadline: MonoNs
    exit_after: bool
    reason: str
    rank: int | None = None  # Only this rank; None: all connected ranks.


@dataclass(frozen=True, slots=True)
class Term:
    """Send SIGTERM to the kill set, launcher first. Then watch until every process is gone."""

    incident_id: str
    run: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the kill set, launcher first. Rescan until twice empty. Repeatable."""

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
    """Call a person: the halt cannot finish by itself. It goes on trying."""

    incident_id: str
    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """The halt reached HALTED, or is given up (`has_ended` is False): write the final report."""

    incident_id: str
    run: str
    has_ended: bool = True


@dataclass(frozen=True, slots=True)
class StopOther:
    """Read whether the machine of another node of the run is billed, and stop it if it is. Its governor is silent."""

    incident_id: str
    run: str
    node: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Take this node from its scheduler: its hardware failed. What runs there stays. Answered by NodeDrained."""

    incident_id: str
    run: str
    node: str  # As the scheduler calls it.


HaltEffect = Ask | Term | Kill | StopCompute | ReadBilling | Page | CloseIncident


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Check the acknowledged checkpoint: every file of the manifest exists, with equal size and hash.

    It is read with the rights of the user who saved it.
    """

    incident_id: str
    run: str
    path: str
    manifest: str
    uid: int
    gid: int | None  # None: not known, so no group's rights are used.


@dataclass(frozen=True, slots=True)
class FindLastGood:
    """Look whether the run's last good checkpoint is still where it was saved, and finite: with its user's rights."""

    run: str
    asked: LookedFor  # An older one is looked at where none before it is fit.
    uid: int
    gid: int | None

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.asked.named if one.path)


@dataclass(frozen=True, slots=True)
class WeighCheckpoint:
    """Look how many bytes there are of a checkpoint whose traffic is charged: with the rights of the user who saved it.

    `name`: what of the run is weighed; the answer has it.
    """

    run: str
    name: str
    path: str
    uid: int
    gid: int | None


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
class RecallRun:
    """Ask the journal what it knows of a run that memory has dropped. Its hellos wait for the answer, RunRecalled."""

    run: str


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
    """Replace what a restarted governor must know of runs and node, with their charges and closed windows.

    All is in one commit. A spend and the charges that add up to it must be of one moment. A stored window must be known
    to the meter that goes on from it.
    """

    runs: Mapping[str, Mapping[str, Any]]  # By name; the node itself under charges.UNALLOCATED.
    charges: tuple[Charge, ...] = ()
    records: tuple[Record, ...] = ()
    # It was confirmed to somebody, so it must not wait for the next ten seconds' commit.
    durable: bool = False


@dataclass(frozen=True, slots=True)
class PersistIncident:
    """Replace what a restarted governor needs to resume the halt. It is durable before the effects that follow it."""

    incident_id: str
    snapshot: Mapping[str, Any]
    closed: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something a person should know, with a stable name for deduplication."""

    name: str
    run: str | None
    text: str
    uid: int | None = None  # Whose process is the cause, where no run of it is known.


@dataclass(frozen=True, slots=True)
class TellPeers:
    """Send our message to the governors of our runs' other nodes. It replaces the one before, and may be lost."""

    told: NodeTold


@dataclass(frozen=True, slots=True)
class MeetPeer:
    """A launch names the host of its rank 0. If a governor is there, it will answer."""

    host: str


Effect = (
    HaltEffect
    | ReadCheckpoint
    | FindLastGood
    | WeighCheckpoint
    | Confirm
    | Refuse
    | RecallRun
    | Record
    | PersistRuns
    | PersistIncident
    | Alarm
    | StopOther
    | TellPeers
    | MeetPeer
    | DrainNode
    | AskStore
)


def one_commit(effects: Iterable[Effect]) -> list[Effect]:
    """Join all PersistRuns where the first one stands: the newest state of each run, every charge and record.

    Each has all live runs: fifty that end at once would be written fifty times, and nothing is judged meanwhile.
    """
    joined: list[Effect] = []
    place: int | None = None
    for effect in effects:
        if not isinstance(effect, PersistRuns) or place is None:
            place = len(joined) if isinstance(effect, PersistRuns) else place
            joined.append(effect)
            continue
        first = joined[place]
        assert isinstance(first, PersistRuns)
        joined[place] = PersistRuns(
            {**first.runs, **effect.runs},
            (*first.charges, *effect.charges),
            (*first.records, *effect.records),
            first.durable or effect.durable,
        )
    return joined
