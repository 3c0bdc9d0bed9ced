"""What governors of one run tell each other (docs/adr/0027). A message is all that its sender knows, never an order."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs

# Of one message. A node runs a handful, and one datagram carries one run.
RUNS_TOLD_MAX: Final = 16
# Nodes of one run. Their counters of money are told on when they have left.
NODES_MAX: Final = 1_024
# So many nodes of a run tell each other of it once a second. More tell it less often, so that no governor hears more
# than that many messages a second. A halt is told at once, and each second while it lasts.
NODES_AT_FULL_PACE: Final = 64
BEAT_NS: Final = NS_PER_S
BEAT_NS_MAX: Final = BEAT_NS * NODES_MAX // NODES_AT_FULL_PACE
# Of a node's name, in UTF-8: as long as a name in DNS. A halt with two of them fits into a datagram.
NODE_BYTES_MAX: Final = 253


def beat_of(nodes: int) -> DurationNs:
    """How often each of so many nodes of a run tells of it."""
    return DurationNs(min(BEAT_NS_MAX, max(BEAT_NS, BEAT_NS * nodes // NODES_AT_FULL_PACE)))


@dataclass(frozen=True, slots=True)
class ToldHalt:
    """A node's part of a halt."""

    incident_id: str  # The smallest id that the sender knows of this halt.
    node: str  # Whose verdict that was.
    rule: str
    trigger: str
    reason: str
    text: str
    checkpoint: str  # good | suspect | none
    stage: str  # The sender's own state: a HaltState's name, or the word of a GivenUp.
    gone: bool = False  # No process of the run is left there, as observed.
    # Whether the machine's stop was accepted, and whether its end was read back. None: the plan stops no machine.
    stopped: bool | None = None
    verified: bool | None = None


@dataclass(frozen=True, slots=True)
class ToldRun:
    """A run as its sender has it: of its own node only, but for `left`."""

    run: str
    job: str  # The launch, as its ranks have settled it in their store.
    uid: int
    is_alive: bool
    ranks: int  # How many of the run's ranks are there.
    _: KW_ONLY  # More is told as time goes on.
    has_first: bool = False  # Rank 0 is there, and so the job's store.
    step: int | None = None
    # For how long none of its ranks there has moved. None: none is connected.
    still_ns: int | None = None
    # One of them does what may take long: it starts, evaluates, saves, waits for its data.
    is_excused: bool = False
    # What the sender's own node has charged to the run, over all its launches; None: it has no price.
    spend_usd_micros: int | None = None
    rate_usd_micros_per_hour: int | None = None
    may_stop: bool = False  # A halt of it would stop the sender's machine: nobody else uses that.
    halt: ToldHalt | None = None
    left: tuple[tuple[str, int], ...] = ()  # Nodes that speak no more, and what each had charged.


@dataclass(frozen=True, slots=True)
class NodeTold:
    """One node's message."""

    node: str
    boot_id: str
    cloud: str = "none"
    instance_id: str | None = None
    region: str | None = None
    runs: tuple[ToldRun, ...] = ()
    beat_ns: DurationNs = DurationNs(BEAT_NS)  # When the sender's next message follows at the latest.


@dataclass(frozen=True, slots=True)
class OtherStopped:
    """What became of the machine of a silent node: whether a stop was accepted, and its end read back."""

    at: MonoNs
    incident_id: str
    node: str
    stopped: bool
    verified: bool
    reason: str  # The provider's word, or ours: "not_allowed".


@dataclass(frozen=True, slots=True)
class PeerTold:
    """A message of another governor, whose sender and whose age were checked."""

    at: MonoNs
    told: NodeTold


PeerEvent = PeerTold | OtherStopped
