"""A cloud in memory, with its own meter. It passes the same contract suite as the real adapters."""

from __future__ import annotations

from dataclasses import dataclass, field

from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Cloud, Notice, Preflight, StopReply

OPERATIONS_MAX = 100_000


@dataclass
class FakeCloud:
    """`faults` are taken in order, one per stop: busy | forbidden | lost_reply | lie. `blind` hides the state."""

    instance_id: str = "i-0fake"
    stop_bound_s: float = 60.0
    granularity_s: float = 1.0
    name: str = "fake"
    billing_source: str = "fake"
    stopping_reads: int = 0  # So many answers still say "stopping" after a stop.
    faults: list[str] = field(default_factory=list)
    blind: bool = False
    lies_about_the_end: bool = False
    state: str = "running"
    times_ended: int = 0
    operations: list[tuple[str, str, int]] = field(default_factory=list)  # (what, incident, rung)
    reads_left: int = 0
    gives_notice: bool = True
    announced: Notice | None = Notice(None)  # None: it does not answer.

    @property
    def meter_runs(self) -> bool:
        """The truth, whatever billing() says."""
        return self.state == "running"

    def preflight(self) -> Preflight:
        return Preflight(
            ok=True,
            instance_id=self.instance_id,
            will=f"stop {self.instance_id}",
            stays_billed=("disk",),
            problems=(),
            survives_stop=True,
            said_running=self.state == "running" and not self.blind,
        )

    def stop(self, incident_id: str, rung: int) -> StopReply:
        assert len(self.operations) < OPERATIONS_MAX, "somebody stops in a loop"
        self.operations.append(("stop", incident_id, rung))
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "busy":
            return StopReply(StopAnswer.REFUSED, retryable=True, reason="http_503")
        if fault == "forbidden":
            return StopReply(StopAnswer.REFUSED, retryable=False, reason="http_403")
        if fault == "lie" and rung == 0:
            return StopReply(StopAnswer.ACCEPTED, retryable=False, reason="accepted")
        if self.state == "running":
            self.state, self.reads_left = "stopped", self.stopping_reads
            self.times_ended += 1
        if fault == "lost_reply":
            return StopReply(StopAnswer.UNKNOWN, retryable=True, reason="timeout")
        return StopReply(StopAnswer.ACCEPTED, retryable=False, reason="accepted")

    def notice(self) -> Notice | None:
        return self.announced

    def other(self, instance_id: str) -> Cloud | None:
        return None

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        del destroyed
        self.operations.append(("billing", "", 0))
        if self.lies_about_the_end:
            return BillingReply(BillingAnswer.ENDED, "stopped")
        if self.blind:
            return BillingReply(BillingAnswer.UNKNOWN, "http_500")
        if self.state == "stopped" and self.reads_left > 0:
            self.reads_left -= 1
            return BillingReply(BillingAnswer.RUNNING, "stopping")
        return BillingReply(BillingAnswer.ENDED if self.state == "stopped" else BillingAnswer.RUNNING, self.state)
