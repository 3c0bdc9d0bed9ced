"""What every scheduler promises. Rigs: a fake in memory here, real Slurm in tests/drills/slurm/test_contract.py."""

from __future__ import annotations

from typing import Protocol

import pytest

from governor.core.base.identity import SchedulerJob
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import Scheduler

# "games" and "mail" of every Debian: Slurm runs jobs only of users that have a name.
OWNER, STRANGER = 5, 8
RUNGS = (0, 1)


class Rig(Protocol):
    def submit(self, *, deaf: bool = False, elsewhere: bool = False) -> str:
        """A job of OWNER that runs on this node, or only on another one. Returns its id."""

    def as_user(self, uid: int) -> Scheduler:
        """The scheduler as this user reaches it."""

    def ended(self, job: str) -> None:
        """Wait until the job holds no node."""

    def comes_back(self, job: str) -> bool:
        """Whether the scheduler may queue it again."""

    def is_drained(self) -> bool:
        """Whether this node, n1, takes no further job."""

    def undrain(self) -> None: ...

    def down(self) -> None: ...

    def up(self) -> None: ...


class Contract:
    """A test module has a subclass, and a fixture `rig`."""

    def test_a_running_job_holds_its_nodes(self, rig: Rig) -> None:
        job = SchedulerJob(rig.submit(), OWNER)
        assert rig.as_user(OWNER).state(job).answer is BillingAnswer.RUNNING
        assert rig.as_user(OWNER).problems(job) == ()

    @pytest.mark.parametrize("rung", RUNGS)
    @pytest.mark.parametrize("uid", [0, OWNER])
    def test_a_stop_ends_it_for_good(self, rig: Rig, uid: int, rung: int) -> None:
        job, scheduler = SchedulerJob(rig.submit(), OWNER), rig.as_user(uid)
        assert scheduler.stop(job, "i", rung).answer is StopAnswer.ACCEPTED
        rig.ended(job.name)
        assert scheduler.state(job).answer is BillingAnswer.ENDED
        assert not rig.comes_back(job.name)

    def test_stopping_twice_is_one_stop(self, rig: Rig) -> None:
        job, scheduler = SchedulerJob(rig.submit(), OWNER), rig.as_user(OWNER)
        replies = [scheduler.stop(job, "i", 0), scheduler.stop(job, "i", 0)]
        rig.ended(job.name)
        replies.append(scheduler.stop(job, "i", 1))
        assert {reply.answer for reply in replies} == {StopAnswer.ACCEPTED}

    def test_a_deaf_job_holds_its_nodes_after_the_stop(self, rig: Rig) -> None:
        job, scheduler = SchedulerJob(rig.submit(deaf=True), OWNER), rig.as_user(OWNER)
        assert scheduler.stop(job, "i", 0).answer is StopAnswer.ACCEPTED
        assert scheduler.state(job).answer is BillingAnswer.RUNNING, "accepted is not ended"
        assert scheduler.stop(job, "i", 1).answer is StopAnswer.ACCEPTED
        rig.ended(job.name)
        assert scheduler.state(job).answer is BillingAnswer.ENDED

    def test_nobody_ends_the_job_of_another(self, rig: Rig) -> None:
        job = rig.submit()
        refused = rig.as_user(STRANGER).stop(SchedulerJob(job, OWNER), "i", 0)
        assert (refused.answer, refused.retryable) == (StopAnswer.REFUSED, False)
        assert rig.as_user(OWNER).state(SchedulerJob(job, OWNER)).answer is BillingAnswer.RUNNING
        assert rig.comes_back(job)

    @pytest.mark.parametrize("rung", RUNGS)
    def test_a_run_that_names_anothers_job_ends_nothing(self, rig: Rig, rung: int) -> None:
        job, root = rig.submit(), rig.as_user(0)
        claim = SchedulerJob(job, STRANGER)
        refused = root.stop(claim, "i", rung)
        assert (refused.answer, refused.retryable) == (StopAnswer.REFUSED, False)
        assert root.state(claim).answer is BillingAnswer.UNKNOWN
        assert str(OWNER) in root.problems(claim)[0]
        assert root.state(SchedulerJob(job, OWNER)).answer is BillingAnswer.RUNNING

    def test_a_job_on_other_nodes_is_not_ended_from_here(self, rig: Rig) -> None:
        job, root = SchedulerJob(rig.submit(elsewhere=True), OWNER), rig.as_user(0)
        refused = root.stop(job, "i", 0)
        assert (refused.answer, refused.retryable) == (StopAnswer.REFUSED, False)
        assert root.state(job).answer is BillingAnswer.RUNNING

    def test_a_job_that_nobody_knows_has_ended_only_if_it_was_seen(self, rig: Rig) -> None:
        scheduler = rig.as_user(OWNER)
        assert scheduler.state(SchedulerJob("999999", OWNER)).answer is BillingAnswer.UNKNOWN
        assert scheduler.stop(SchedulerJob("999999", OWNER), "i", 0).answer is StopAnswer.REFUSED
        seen = SchedulerJob("999999", OWNER, is_seen=True)
        assert scheduler.state(seen).answer is BillingAnswer.ENDED
        assert scheduler.stop(seen, "i", 0).answer is StopAnswer.ACCEPTED

    @pytest.mark.parametrize("name", ["", "--help", "1 2", "1;reboot", "-u root", "1,2", "9" * 40, "1_*", "1[1]"])
    def test_what_is_no_id_is_asked_of_nobody(self, rig: Rig, name: str) -> None:
        scheduler = rig.as_user(0)
        assert scheduler.stop(SchedulerJob(name, 0, is_seen=True), "i", 0).answer is StopAnswer.REFUSED
        assert scheduler.state(SchedulerJob(name, 0)).answer is BillingAnswer.UNKNOWN

    def test_a_node_is_drained_once_and_by_those_alone_who_may(self, rig: Rig) -> None:
        refused = rig.as_user(OWNER).drain("n1", "llama.n1.1")
        assert (refused.answer, refused.reason) == (StopAnswer.REFUSED, "permission_denied")
        assert not rig.is_drained()
        root = rig.as_user(0)
        try:
            for incident in ("llama.n1.1", "other.n1.1"):
                assert root.drain("n1", incident).answer is StopAnswer.ACCEPTED
                assert rig.is_drained()
        finally:
            rig.undrain()

    def test_nobody_answers(self, rig: Rig) -> None:
        job, scheduler = SchedulerJob(rig.submit(), OWNER), rig.as_user(OWNER)
        rig.down()
        try:
            refused = scheduler.stop(job, "i", 0)
            assert refused.answer is not StopAnswer.ACCEPTED
            assert refused.retryable
            assert scheduler.state(job).answer is BillingAnswer.UNKNOWN
        finally:
            rig.up()
        assert scheduler.state(job).answer is BillingAnswer.RUNNING
