"""Our adapter before a fake cluster: the owner is ended, and the end is read back and never assumed."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.events.inputs import BillingAnswer, StopAnswer
from tests.contract.schedulers.fake_api_server import FakeApi
from tests.contract.schedulers.fake_cluster import Item
from tests.contract.schedulers.kube_rig import INCIDENT, NS, KubeRig, asked, is_ended

SUSPENDED: dict[str, Any] = {"suspend": True}


def test_a_job_is_suspended_and_ends_when_its_last_pod_has_left_its_node(rig: KubeRig) -> None:
    rig.job(pods=3)
    scheduler = rig.scheduler()
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING
    reply = scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert (reply.answer, reply.destroys) == (StopAnswer.ACCEPTED, False)
    job = rig.item("batch", "jobs", "llm")
    assert job["spec"] == SUSPENDED
    assert job["metadata"]["annotations"] == {"costgov.io/incident": INCIDENT}
    for left in (3, 2, 1):
        state = scheduler.state(asked(f"{NS}/llm-0"))
        assert (state.answer, len(rig.terminating())) == (BillingAnswer.RUNNING, left)
        rig.cluster.kubelets_end_pods(1)
    assert is_ended(scheduler.state(asked(f"{NS}/llm-0")))


def chain(rig: KubeRig, *links: tuple[str, str, str], **spec: Any) -> Item:
    """Owners from the top down, with a pod `rank-0` below the last and `rank-1` beside it."""
    above: Item | None = None
    for number, (group, plural, name) in enumerate(links):
        above = rig.make(group, plural, name, above, **(spec if number == 0 else {}))
    assert above is not None
    rig.pod("rank-0", above)
    rig.pod("rank-1", above)
    return above


JOBSET = ("jobset.x-k8s.io", "jobsets", "set")
JOB = ("batch", "jobs", "workers")
CLUSTER = ("ray.io", "rayclusters", "ray-x7")


@pytest.mark.parametrize(
    ("links", "spec", "wanted"),
    [
        ([JOB], {}, SUSPENDED),
        ([JOBSET, JOB], {}, SUSPENDED),
        ([("trainer.kubeflow.org", "trainjobs", "train"), JOBSET, JOB], {}, SUSPENDED),
        ([("kubeflow.org", "pytorchjobs", "ddp")], {"runPolicy": {"cleanPodPolicy": "None"}}, None),
        ([("ray.io", "rayjobs", "ray"), CLUSTER], {"shutdownAfterJobFinishes": True}, None),
        ([("apps", "statefulsets", "workers")], {"replicas": 2}, {"replicas": 0}),
    ],
    ids=["Job", "JobSet", "TrainJob", "PyTorchJob", "RayJob", "StatefulSet"],
)
def test_the_topmost_owner_is_ended_and_kept(rig: KubeRig, links: Any, spec: Any, wanted: Any) -> None:
    chain(rig, *links, **spec)
    scheduler = rig.scheduler()
    assert scheduler.problems(asked(f"{NS}/rank-0")) == ()
    assert scheduler.stop(asked(f"{NS}/rank-0"), INCIDENT, 0).answer is StopAnswer.ACCEPTED
    top = rig.item(*links[0])["spec"]
    if wanted is None:
        assert top.get("runPolicy", top)["suspend"] is True
        assert {**top, "suspend": None, "runPolicy": None} == {**spec, "suspend": None, "runPolicy": None}
    else:
        assert top == wanted
    assert rig.terminating() == ["rank-0", "rank-1"]
    assert scheduler.state(asked(f"{NS}/rank-0")).answer is BillingAnswer.RUNNING
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/rank-0")))


OTHERS = {"shutdownAfterJobFinishes": True, "clusterSelector": {"ray.io/cluster": "shared"}}


@pytest.mark.parametrize(
    ("links", "spec", "labels"),
    [
        ([CLUSTER], {}, {}),
        ([("ray.io", "rayjobs", "ray"), CLUSTER], {"shutdownAfterJobFinishes": False}, {}),
        (
            [("ray.io", "rayjobs", "ray"), CLUSTER],
            OTHERS,
            {},
        ),
        ([JOB], {}, {"kueue.x-k8s.io/queue-name": "team"}),
    ],
    ids=["RayCluster", "RayJob that keeps its cluster", "RayJob on a cluster of others", "Job of a queue"],
)
def test_what_cannot_be_suspended_is_deleted_after_its_pods(rig: KubeRig, links: Any, spec: Any, labels: Any) -> None:
    chain(rig, *links, **spec)
    rig.item(*links[0])["metadata"]["labels"] = labels
    scheduler = rig.scheduler()
    assert scheduler.stop(asked(f"{NS}/rank-0"), INCIDENT, 0).answer is StopAnswer.ACCEPTED
    assert scheduler.state(asked(f"{NS}/rank-0")).answer is BillingAnswer.RUNNING
    group, plural, name = links[0]
    assert not rig.gone((group, plural, NS, name))  # It says whose its pods are until they are gone.
    rig.cluster.kubelets_end_pods()
    assert rig.cluster.items == {}
    assert is_ended(scheduler.state(asked(f"{NS}/rank-0")))


def test_pods_of_others_neither_hold_it_nor_are_touched(rig: KubeRig) -> None:
    rig.job("mine")
    rig.job("theirs")
    scheduler = rig.scheduler()
    scheduler.stop(asked(f"{NS}/mine-0"), INCIDENT, 1)
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/mine-0")))
    assert rig.pods() == ["theirs-0", "theirs-1"]
    assert rig.terminating() == []


def test_a_second_stop_of_one_incident_changes_nothing_more(rig: KubeRig) -> None:
    rig.job()
    scheduler = rig.scheduler()
    first = scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    again = scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert first == again
    assert rig.item("batch", "jobs", "llm")["spec"] == SUSPENDED


def test_a_stateful_set_remembers_how_many_it_had(rig: KubeRig) -> None:
    chain(rig, ("apps", "statefulsets", "workers"), replicas=2)
    scheduler = rig.scheduler()
    for _ in range(2):
        scheduler.stop(asked(f"{NS}/rank-0"), INCIDENT, 0)
    notes = rig.item("apps", "statefulsets", "workers")["metadata"]["annotations"]
    assert notes["costgov.io/replicas-before"] == "2"


def test_the_second_rung_shortens_the_grace_and_never_forces(rig: KubeRig) -> None:
    """With a grace of 0 the server forgets a pod whose processes may live: that would read as the end."""
    rig.job()
    scheduler = rig.scheduler()
    scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert rig.item("", "pods", "llm-0")["metadata"]["deletionGracePeriodSeconds"] == 30
    scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 1)
    assert rig.item("", "pods", "llm-0")["metadata"]["deletionGracePeriodSeconds"] == 1
    assert not is_ended(scheduler.state(asked(f"{NS}/llm-0")))


def test_a_job_whose_controller_has_not_seen_the_suspension_is_not_over(rig: KubeRig) -> None:
    rig.make("batch", "jobs", "llm")
    rig.pod("llm-0", rig.item("batch", "jobs", "llm"))
    rig.cluster.controllers_run = False
    scheduler = rig.scheduler()
    scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 1)
    rig.cluster.kubelets_end_pods()
    assert rig.pods() == []
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING  # It may make another one yet.
    rig.cluster.controllers_run = True
    rig.cluster.reconcile()
    assert is_ended(scheduler.state(asked(f"{NS}/llm-0")))


def test_a_job_between_two_pods_is_not_over(rig: KubeRig) -> None:
    rig.job(pods=1)
    scheduler = rig.scheduler()
    scheduler.state(asked(f"{NS}/llm-0"))
    del rig.cluster.items["", "pods", NS, "llm-0"]
    assert scheduler.state(asked(f"{NS}/llm-0")).answer is BillingAnswer.RUNNING


def test_a_pod_that_was_never_seen_is_not_reported_as_ended(rig: KubeRig) -> None:
    state = rig.scheduler().state(asked(f"{NS}/no-such-pod"))
    assert (state.answer, state.provider_state) == (BillingAnswer.UNKNOWN, "http_404")


def test_another_job_of_the_same_name_is_left_alone(rig: KubeRig) -> None:
    rig.job()
    scheduler = rig.scheduler()
    scheduler.state(asked(f"{NS}/llm-0"))
    rig.cluster.items.clear()
    rig.job()
    assert scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 1).reason == "already_gone"
    assert rig.terminating() == []
    assert is_ended(scheduler.state(asked(f"{NS}/llm-0")))


@pytest.mark.parametrize("group_plural", [("ray.io", "rayclusters"), ("batch", "jobs")])
def test_one_that_is_made_anew_in_the_moment_of_the_stop_stays(
    rig: KubeRig, fake: FakeApi, group_plural: tuple[str, str]
) -> None:
    links = (*group_plural, "llm")
    chain(rig, links)

    def made_anew(method: str, path: str) -> None:
        if method in ("DELETE", "PATCH"):
            fake.interferes = lambda *_: None
            fake.cluster.items.clear()
            rig.pod("new-0", rig.make(*links))

    fake.interferes = made_anew
    assert rig.scheduler().stop(asked(f"{NS}/rank-0"), INCIDENT, 0).answer is StopAnswer.REFUSED
    assert (rig.pods(), rig.terminating()) == (["new-0"], [])
    assert rig.item(*links)["spec"] == {}


def test_an_owner_can_be_named_itself_where_its_pod_is_gone(rig: KubeRig) -> None:
    rig.job()
    scheduler = rig.scheduler()
    assert scheduler.problems(asked(f"{NS}/Job.batch/llm")) == ()
    assert scheduler.stop(asked(f"{NS}/Job.batch/llm"), INCIDENT, 0).answer is StopAnswer.ACCEPTED
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/Job.batch/llm")))


def test_pods_of_a_job_that_went_before_them_count_by_what_was_seen(rig: KubeRig) -> None:
    chain(rig, JOBSET, JOB)
    scheduler = rig.scheduler()
    scheduler.stop(asked(f"{NS}/rank-0"), INCIDENT, 0)
    rig.cluster.controllers_run = False
    del rig.cluster.items["batch", "jobs", NS, "workers"]
    assert scheduler.state(asked(f"{NS}/rank-0")).answer is BillingAnswer.RUNNING


def test_an_owner_of_an_unknown_kind_is_told(rig: KubeRig) -> None:
    flow = rig.make("example.org", "workflows", "flow")
    rig.pod("bare", flow)
    scheduler = rig.scheduler()
    assert len(scheduler.problems(asked(f"{NS}/bare"))) == 1
    assert scheduler.stop(asked(f"{NS}/bare"), INCIDENT, 0).answer is StopAnswer.REFUSED
    assert rig.terminating() == []
    rig.pod("rank-0", rig.make("batch", "jobs", "below", flow))
    assert len(scheduler.problems(asked(f"{NS}/rank-0"))) == 1
    assert scheduler.stop(asked(f"{NS}/rank-0"), INCIDENT, 0).answer is StopAnswer.ACCEPTED


def test_a_pod_without_an_owner_is_deleted(rig: KubeRig) -> None:
    rig.pod("alone")
    scheduler = rig.scheduler()
    assert scheduler.stop(asked(f"{NS}/alone"), INCIDENT, 0).answer is StopAnswer.ACCEPTED
    assert scheduler.state(asked(f"{NS}/alone")).answer is BillingAnswer.RUNNING
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/alone")))


def test_pods_on_later_pages_count(rig: KubeRig) -> None:
    rig.cluster.controllers_run = False
    for number in range(260):
        rig.pod(f"aa-{number}")
    rig.job("zz", pods=1)
    scheduler = rig.scheduler()
    assert scheduler.state(asked(f"{NS}/zz-0")).provider_state.startswith("1 pods")
    assert sum("continue=" in path for _, path, _ in rig.fake.asked) == 1


# --- rights ----------------------------------------------------------------------------------------------------


RIGHTS = {
    ("get", "", "pods"), ("list", "", "pods"), ("delete", "", "pods"), ("get", "batch", "jobs"),
    ("patch", "batch", "jobs"),
}  # fmt: skip


def narrowed(rig: KubeRig, fake: FakeApi, rights: set[tuple[str, str, str]]) -> None:
    fake.rights["narrow"] = rights
    rig.token_file.write_text("narrow")


def test_the_rights_of_the_role_are_enough(rig: KubeRig, fake: FakeApi) -> None:
    rig.job()
    narrowed(rig, fake, RIGHTS)
    scheduler = rig.scheduler()
    assert scheduler.problems(asked(f"{NS}/llm-0")) == ()
    assert scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 1).answer is StopAnswer.ACCEPTED
    rig.cluster.kubelets_end_pods()
    assert is_ended(scheduler.state(asked(f"{NS}/llm-0")))


def test_a_right_that_lacks_is_told_before_it_is_needed_and_nothing_changes(rig: KubeRig, fake: FakeApi) -> None:
    rig.job()
    narrowed(rig, fake, RIGHTS - {("patch", "batch", "jobs")})
    scheduler = rig.scheduler()
    (line,) = scheduler.problems(asked(f"{NS}/llm-0"))
    assert "patch jobs.batch" in line
    assert fake.count("PATCH") + fake.count("DELETE") == 0
    reply = scheduler.stop(asked(f"{NS}/llm-0"), INCIDENT, 0)
    assert (reply.answer, reply.retryable, reply.reason) == (StopAnswer.REFUSED, True, "http_403")
    assert rig.terminating() == []


# --- a node ----------------------------------------------------------------------------------------------------


def test_a_node_is_cordoned_and_others_taints_stay(rig: KubeRig) -> None:
    theirs = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    rig.make("", "nodes", "gpu-1", taints=[theirs])
    scheduler = rig.scheduler()
    for incident in ("first", "run of:Ä/7."):
        assert scheduler.drain("gpu-1", incident).answer is StopAnswer.ACCEPTED
    spec = rig.item("", "nodes", "gpu-1")["spec"]
    ours = {"key": "costgov.io/halted", "value": "run-of---7", "effect": "NoSchedule"}
    assert spec == {"unschedulable": True, "taints": [theirs, ours]}


def test_a_taint_that_came_meanwhile_is_not_lost(rig: KubeRig, fake: FakeApi) -> None:
    rig.make("", "nodes", "gpu-1")
    late = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    key = ("", "nodes", "", "gpu-1")

    def kubelet_writes_first(method: str, path: str) -> None:
        if method == "PATCH":
            fake.interferes = lambda *_: None
            fake.cluster.patch(key, {"spec": {"taints": [late]}})

    fake.interferes = kubelet_writes_first
    assert rig.scheduler().drain("gpu-1", INCIDENT).answer is StopAnswer.ACCEPTED
    assert late in rig.item("", "nodes", "gpu-1")["spec"]["taints"]
    assert fake.count("PATCH") == 2


def test_a_node_that_is_always_being_written_is_refused_for_now(rig: KubeRig, fake: FakeApi) -> None:
    rig.make("", "nodes", "gpu-1")
    fake.interferes = lambda method, _: 409 if method == "PATCH" else None
    reply = rig.scheduler().drain("gpu-1", INCIDENT)
    assert (reply.answer, reply.retryable) == (StopAnswer.REFUSED, True)
    assert fake.count("PATCH") == 5
