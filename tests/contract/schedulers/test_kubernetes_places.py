"""A run names its job itself. The kernel says in which pods its ranks are, and those must be the job's."""

from __future__ import annotations

import uuid

import pytest

from governor.adapters.schedulers.kubernetes import NOT_IN_A_POD, POD_OF_ANOTHER, pod_of_place
from governor.core.base.identity import SchedulerJob
from governor.core.events.inputs import BillingAnswer, StopAnswer
from tests.contract.schedulers.kube_rig import INCIDENT, NS, KubeRig, is_ended

UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
SYSTEMD = UID.replace("-", "_")
OTHER = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("place", "uid"),
    [
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/crio-ab.scope",
            UID,
        ),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-ab.scope", UID),
        (f"/kubepods/besteffort/pod{UID}/ab", UID),
        (f"/../../kubepods-besteffort-pod{SYSTEMD}.slice/crio-ab.scope", UID),
        (f"/kubepods/pod{UID}/ab/pod{OTHER}", UID),  # What is below a pod's group may be made by the pod.
        (f"/user.slice/mypod{UID}x/session", None),
        ("/system.slice/docker-ab.scope", None),
        ("/", None),
        ("", None),
    ],
)
def test_the_pod_of_a_control_group(place: str, uid: str | None) -> None:
    assert pod_of_place(place) == uid


def place_of(rig: KubeRig, pod: str) -> str:
    uid = str(uuid.uuid4())
    rig.cluster.items["", "pods", NS, pod]["metadata"]["uid"] = uid
    return f"/kubepods.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice/crio-ab.scope"


def said_by_the_run(name: str, *places: str) -> SchedulerJob:
    return SchedulerJob(name, 1000, scheduler="kubernetes", places=places)


def test_a_run_may_end_the_job_of_its_own_pods(rig: KubeRig) -> None:
    rig.job()
    both = [place_of(rig, "llm-0"), place_of(rig, "llm-1")]
    asked, scheduler = said_by_the_run(f"{NS}/llm-0", *both), rig.scheduler()
    assert scheduler.problems(asked) == ()
    assert scheduler.stop(asked, INCIDENT, 0).answer is StopAnswer.ACCEPTED
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked))


@pytest.mark.parametrize("named", ["theirs-0", "Job.batch/theirs"])
def test_a_run_cannot_have_the_job_of_another_ended(rig: KubeRig, named: str) -> None:
    rig.job("mine")
    rig.job("theirs")
    asked, scheduler = said_by_the_run(f"{NS}/{named}", place_of(rig, "mine-0")), rig.scheduler()
    reply = scheduler.stop(asked, INCIDENT, 1)
    assert (reply.answer, reply.retryable, reply.reason) == (StopAnswer.REFUSED, False, POD_OF_ANOTHER)
    assert scheduler.state(asked).answer is BillingAnswer.UNKNOWN
    assert len(scheduler.problems(asked)) == 1
    assert rig.terminating() == []
    assert rig.item("batch", "jobs", "theirs")["spec"] == {}


def test_one_rank_in_a_foreign_pod_is_enough_to_refuse(rig: KubeRig) -> None:
    rig.job("mine")
    rig.job("theirs")
    asked = said_by_the_run(f"{NS}/mine-0", place_of(rig, "mine-0"), place_of(rig, "theirs-0"))
    assert rig.scheduler().stop(asked, INCIDENT, 0).reason == POD_OF_ANOTHER
    assert rig.terminating() == []


@pytest.mark.parametrize("places", [(), ("/user.slice/session-1.scope",)])
def test_a_rank_in_no_pod_names_none(rig: KubeRig, places: tuple[str, ...]) -> None:
    rig.job()
    assert rig.scheduler().stop(said_by_the_run(f"{NS}/llm-0", *places), INCIDENT, 0).reason == NOT_IN_A_POD
    assert rig.terminating() == []


def test_pods_that_have_ended_still_say_whose_they_were(rig: KubeRig) -> None:
    """The halt ends the ranks first, and a pod whose container has ended holds no node any more."""
    rig.job()
    place = place_of(rig, "llm-0")
    rig.cluster.items["", "pods", NS, "llm-0"]["status"]["phase"] = "Failed"
    assert rig.scheduler().stop(said_by_the_run(f"{NS}/llm-0", place), INCIDENT, 0).answer is StopAnswer.ACCEPTED


def test_a_stop_says_how_to_ask_when_the_pod_is_gone(rig: KubeRig) -> None:
    rig.job()
    reply = rig.scheduler().stop(said_by_the_run(f"{NS}/llm-0", place_of(rig, "llm-0")), INCIDENT, 0)
    assert reply.ended_as == f"kubernetes:{NS}/Job.batch/llm"
    rig.cluster.kubelets_end_pods()
    after_a_restart = SchedulerJob(f"{NS}/Job.batch/llm", 1000, is_seen=True, scheduler="kubernetes", places=())
    assert is_ended(rig.scheduler().state(after_a_restart))
