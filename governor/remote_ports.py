"""What the daemon asks of others: providers, price lists, governors of other nodes, schedulers.

As in ports.py, every port has a real adapter and a fake that pass one contract suite, and errors come back as values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from governor.core.base.identity import SchedulerJob
    from governor.core.base.units import UsdMicros, WallNs
    from governor.core.events.fleet_store import Answer, Kept, Transaction
    from governor.core.events.inputs import BillingAnswer, StopAnswer
    from governor.core.events.peers import NodeTold
    from governor.core.money.prices import PriceAnswer


# --- clouds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StopReply:
    answer: StopAnswer
    retryable: bool
    reason: str  # Named, never with secrets: "accepted", "http_503", "UnauthorizedOperation", "timeout".
    destroys: bool = False  # The accepted stop is final: the provider will forget the machine.
    ended_as: str = ""  # Of a scheduler: the full name of what it ends, by which it can be asked for later.


@dataclass(frozen=True, slots=True)
class BillingReply:
    answer: BillingAnswer
    provider_state: str  # The provider's own word: "running", "stopping", "stopped", "http_500".


@dataclass(frozen=True, slots=True)
class Preflight:
    """What start-up learned of the machine. Printed as "on halt I will …; this stays billed: …"."""

    ok: bool
    instance_id: str | None
    will: str  # "stop EC2 instance i-0abc in us-east-1 (read back until stopped)"
    stays_billed: tuple[str, ...]  # "EBS volume vol-1 (100 GiB)"
    problems: tuple[str, ...]  # Each one line: what, and what to do.
    price_usd_micros_per_hour: UsdMicros | None = None  # The provider's own answer for this machine, if it has one.
    price_source: str | None = None
    launched_at_wall: WallNs | None = None  # As the provider states it. Billing began there.
    region: str | None = None
    respawners: tuple[str, ...] = ()  # What may bring the machine back: an ASG, a persistent spot request.
    survives_stop: bool | None = None  # Whether the local disk outlives a stop.
    said_running: bool = False  # Asked now, the provider said that this machine is billed.


@dataclass(frozen=True, slots=True)
class Notice:
    """A provider's answer whether it takes this machine back."""

    action: str | None  # The provider's own word: "terminate", "stop"; None: nothing is announced.
    at_wall: WallNs | None = None  # When, by the provider's clock.


class Cloud(Protocol):
    """One provider. Its calls block: a worker makes them, and each is bounded by its own timeouts (declared below)."""

    name: str
    gives_notice: bool  # Whether the provider can be asked for a notice and costgov knows how.
    stop_bound_s: float  # Declared bound within which an accepted stop ends billing.
    granularity_s: float  # Declared billing granularity.
    # Who answers `billing`, and how it is asked. Under another name, what an earlier source has said does not count.
    billing_source: str

    def preflight(self) -> Preflight:
        """Learn identity, permission (dry run), respawners, price. No effect on the machine."""

    def stop(self, incident_id: str, rung: int) -> StopReply:
        """Ask for the end of spending. Idempotent per incident. rung 0: stop, 1: force, 2: terminate."""

    def notice(self) -> Notice | None:
        """Ask now whether the provider takes this machine back. None: it gives no notice, or did not answer."""

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        """Ask the provider now; never answer from memory. UNKNOWN if it does not say.

        `destroyed`: by our journal, the provider has accepted this machine's destruction. Then the answer "there is no
        such machine" means that billing has ended. Otherwise a wrong account may be the cause of that answer.
        """

    def other(self, instance_id: str) -> Cloud | None:
        """Another machine of this provider, to end its spending. None: the settings do not allow it, or it cannot be.

        It is asked for the machine of a node of one of our runs whose governor is silent, and is stopped at most.
        """


# --- prices ----------------------------------------------------------------------------------------------


class PriceSource(Protocol):
    """One provider's prices. A call blocks, only reads, ends within `bound_s`, and never answers from memory."""

    name: str
    bound_s: float

    def ask(self) -> PriceAnswer:
        """Ask now. Any failure is the answer's `problem`."""


# --- shared budgets ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FleetReply:
    """What the fleet's store answered. `reason` is one of a fixed set, and never holds a secret or a server's text."""

    answer: Answer
    rows: tuple[Kept, ...] = ()
    revision: int = 0  # Of the rows that an applied transaction has put; of a range and a wait, the store's own.
    lease: int = 0  # 0: there is none, or none any more.
    reason: str = ""
    is_cut: bool = False  # There are more rows than were asked for.
    # Of a failure, for people: the endpoints by their numbers, the user and the rows, and no address or secret.
    where: str = field(default="", compare=False)


class FleetStore(Protocol):
    """The store that all governors of a fleet share (docs/adr/0028). Its calls block: a worker makes them.

    A call is sent once, to the first endpoint that takes it, and ends within `bound_s`. UNKNOWN: what was sent may have
    been applied, or may be yet. The caller reads back. UNREACHABLE and REFUSED: it was not, and will not be.
    """

    bound_s: float

    def transact(self, transaction: Transaction) -> FleetReply:
        """APPLIED with its revision, or CONFLICT with all compared rows as they are."""

    def read(self, keys: Sequence[str]) -> FleetReply:
        """READ with these rows as they are now, all of one moment. A row that is missing has revision 0."""

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        """READ with at most so many rows whose keys begin so and are behind `after`, in the keys' order."""

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        """READ when a row below the prefix has changed behind this revision, or when `wait_s` are over.

        Its revision is above `after` where something has changed, and its rows are the first that did, as they are
        then: revision 0 of one that is gone. This call may take as long as `wait_s` beside `bound_s`. An answer proves
        nothing of the store at its end: read again.
        """

    def grant_lease(self, ttl_s: int) -> FleetReply:
        """APPLIED with a lease. Its rows are deleted when it was not kept alive for so long."""

    def keep_alive(self, lease: int) -> FleetReply:
        """APPLIED with the lease; with lease 0 where it has ended: its rows are gone, and it comes never again."""

    def revoke_lease(self, lease: int) -> FleetReply:
        """APPLIED: the lease and its rows are gone. Idempotent."""

    def close(self) -> None: ...


# --- governors and schedulers ------------------------------------------------------------


class Peers(Protocol):
    """The governors of the other nodes of our runs (docs/adr/0027). Nothing here blocks, and nothing is repeated."""

    def fileno(self) -> int:
        """Readable when receive() has something."""

    def receive(self) -> Sequence[NodeTold]:
        """What has arrived, signed with our secret and new. Bounded per call, so that nobody can starve the ranks."""

    def tell(self, told: NodeTold) -> None:
        """Send our node's message to every governor whose address is known. What cannot be sent now is dropped."""

    def meet(self, host: str) -> None:
        """A launch names a host of its run. It is looked up on a worker; its governor, if it has one, will answer."""

    def document(self) -> Mapping[str, Any]:
        """For `status`: our address, the known ones, and what was refused, by reason."""

    def close(self) -> None: ...


class Scheduler(Protocol):
    """The scheduler whose job a run is. Its calls block: a worker makes them, and each has time-outs of its own.

    `stop = "job"` ends the job and reads its state back, as a provider's stop and billing are: an allocation that is
    held is paid for, whether anybody computes in it or not.
    """

    name: str  # "slurm", "kubernetes".
    stop_bound_s: float  # Within which a cancelled job has given its nodes back, by the scheduler's configuration.

    def node_name(self, given: str) -> str:
        """What the scheduler calls this machine; `given`: the name in costgov.toml. Asks nobody."""

    def problems(self, job: SchedulerJob) -> tuple[str, ...]:
        """Why this job could not be ended from here, each one line: what, and what to do. Changes nothing."""

    def stop(self, job: SchedulerJob, incident_id: str, rung: int) -> StopReply:
        """Keep the job from being queued again, then end it. Idempotent.

        Refused where the job is not the run's user's, or does not hold this node: a trainer says which job it is in.
        rung 0: with the scheduler's own grace, 1: without any, where the scheduler can do that.
        """

    def state(self, job: SchedulerJob) -> BillingReply:
        """Ask now whether the job holds nodes. ENDED only if the scheduler says so, or knows it no more.

        RUNNING also while it waits to run again. UNKNOWN if nobody answers, and of a job that was never seen.
        """

    def drain(self, node: str, incident_id: str) -> StopReply:
        """Let no further job begin on this machine, and read that back. What runs there stays. Idempotent.

        A node that somebody has drained before keeps that reason.
        """
