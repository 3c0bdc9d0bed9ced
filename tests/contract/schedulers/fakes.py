"""A scheduler in memory. It passes the same contract suite as Slurm, tests/contract/schedulers/suite.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from governor.core.base.identity import SchedulerJob
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, StopReply


@dataclass
class FakeJob:
    uid: int
    is_here: bool = True
    state: str = "RUNNING"
    may_come_back: bool = True
    is_deaf: bool = False  # It ignores SIGTERM, until the scheduler's own SIGKILL.


@dataclass
class FakeScheduler:
    """`is_up` False: nobody answers. `uid`: whose commands we call; 0 may end every job."""

    jobs: dict[str, FakeJob] = field(default_factory=dict)
    uid: int = 0
    is_up: bool = True
    name: str = "fake"
    stop_bound_s: float = 30.0
    seen: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)

    def problems(self, job: SchedulerJob) -> tuple[str, ...]:
        why = self._why_not(job)
        return () if why is None else (f"job {job.name}: {why}; look at it",)

    def stop(self, job: SchedulerJob, incident_id: str, rung: int) -> StopReply:
        del incident_id, rung
        found, why = self.jobs.get(job.name), self._why_not(job)
        if found is None and why == "unknown_job" and self._is_seen(job):
            return StopReply(StopAnswer.ACCEPTED, False, "it has ended: forgotten")
        if why is not None:
            is_lasting = why.startswith(("job_", "no_", "permission"))
            return StopReply(StopAnswer.REFUSED, not is_lasting, why)
        assert found is not None, "a job that is not there is a problem"
        if found.state in ("RUNNING", "PENDING"):
            found.state = "COMPLETING" if found.is_deaf else "CANCELLED"
        found.may_come_back = False
        return StopReply(StopAnswer.ACCEPTED, False, "cancelled, not queued again")

    def state(self, job: SchedulerJob) -> BillingReply:
        found = self.jobs.get(job.name)
        if not self.is_up:
            return BillingReply(BillingAnswer.UNKNOWN, "controller_unreachable")
        if found is None:
            answer = BillingAnswer.ENDED if self._is_seen(job) else BillingAnswer.UNKNOWN
            return BillingReply(answer, "forgotten" if answer is BillingAnswer.ENDED else "unknown_job")
        if found.uid != job.uid:
            return BillingReply(BillingAnswer.UNKNOWN, f"job_of_uid_{found.uid}")
        self.seen.add(job.name)
        is_over = found.state == "CANCELLED"
        return BillingReply(BillingAnswer.ENDED if is_over else BillingAnswer.RUNNING, found.state)

    def node_name(self, given: str) -> str:
        return given

    def drain(self, node: str, incident_id: str) -> StopReply:
        del incident_id
        if not self.is_up:
            return StopReply(StopAnswer.REFUSED, True, "controller_unreachable")
        if self.uid != 0:
            return StopReply(StopAnswer.REFUSED, False, "permission_denied")
        self.drained.add(node)
        return StopReply(StopAnswer.ACCEPTED, False, f"{node} drained")

    def _is_seen(self, job: SchedulerJob) -> bool:
        return job.is_seen or job.name in self.seen

    def _why_not(self, job: SchedulerJob) -> str | None:
        found = self.jobs.get(job.name)
        if not job.name.isdigit() or len(job.name) > 10:
            return "no_job_id"
        if not self.is_up:
            return "controller_unreachable"
        if found is None:
            return "unknown_job"
        if found.uid != job.uid:
            return f"job_of_uid_{found.uid}"
        if not found.is_here:
            return "job_not_on_this_node"
        return "permission_denied" if self.uid not in (0, found.uid) else None
