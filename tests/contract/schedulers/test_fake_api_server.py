"""What the Kubernetes API documentation says of an API server, asked of the fake.

With COSTGOV_KUBE_API=http://127.0.0.1:8001 (`kubectl proxy`) the same is asked of a real one, in its namespace
`costgov-contract`, which must exist and be empty. Facts about pods that terminate need the fake's kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.contract.schedulers.fake_api_server import ADMIN, MERGE, FakeApi
from tests.contract.schedulers.kube_rig import KubeRig

NS = "costgov-contract"
REAL = os.environ.get("COSTGOV_KUBE_API")


@dataclass
class Api:
    client: httpx.Client

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        reply = self.client.request(method, path, json=body, headers={"Content-Type": kind})
        return reply.status_code, reply.json()


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "real":
        with httpx.Client(base_url=str(REAL), trust_env=False) as client:
            yield Api(client)
        return
    fake: FakeApi = request.getfixturevalue("fake")
    with httpx.Client(base_url=fake.url, headers={"Authorization": f"Bearer {ADMIN}"}, trust_env=False) as client:
        yield Api(client)


MAPS = f"/api/v1/namespaces/{NS}/configmaps"
JOBS = f"/apis/batch/v1/namespaces/{NS}/jobs"


@pytest.fixture
def made(api: Api, request: pytest.FixtureRequest) -> Iterator[Any]:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1", "b": "2"}}
    status, body = api.ask("POST", MAPS, item)
    assert status == 201
    yield body
    api.ask("PATCH", f"{MAPS}/one", {"metadata": {"finalizers": None}}, MERGE)
    api.ask("DELETE", f"{MAPS}/one")


def test_a_new_object_has_a_uid_and_a_version(made: Any) -> None:
    assert made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"]
    assert made["metadata"]["namespace"] == NS


def test_a_second_one_of_a_name_is_a_conflict(api: Api, made: Any) -> None:
    status, body = api.ask("POST", MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}})
    assert (status, body["kind"], body["reason"]) == (409, "Status", "AlreadyExists")


def test_what_is_absent_is_404_with_a_status(api: Api) -> None:
    for method in ("GET", "DELETE"):
        status, body = api.ask(method, f"{MAPS}/absent")
        assert (status, body["kind"], body["status"], body["reason"], body["code"]) == (
            404, "Status", "Failure", "NotFound", 404,
        )  # fmt: skip
    assert api.ask("PATCH", f"{MAPS}/absent", {}, MERGE)[0] == 404


def test_a_merge_patch_changes_what_it_names_and_removes_what_is_null(api: Api, made: Any) -> None:
    status, body = api.ask("PATCH", f"{MAPS}/one", {"data": {"a": None, "c": "3"}}, MERGE)
    assert (status, body["data"]) == (200, {"b": "2", "c": "3"})
    assert body["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert body["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_patch_of_an_older_version_is_a_conflict_and_changes_nothing(api: Api, made: Any) -> None:
    assert api.ask("PATCH", f"{MAPS}/one", {"data": {"a": "new"}}, MERGE)[0] == 200
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "old"}}
    status, body = api.ask("PATCH", f"{MAPS}/one", old, MERGE)
    assert (status, body["reason"]) == (409, "Conflict")
    assert api.ask("GET", f"{MAPS}/one")[1]["data"]["a"] == "new"


def test_a_patch_cannot_change_a_uid(api: Api, made: Any) -> None:
    status, _ = api.ask("PATCH", f"{MAPS}/one", {"metadata": {"uid": "another"}, "data": {"a": "x"}}, MERGE)
    assert status in (409, 422)
    assert api.ask("GET", f"{MAPS}/one")[1]["data"]["a"] == "1"


def test_a_patch_of_another_media_type_is_415(api: Api, made: Any) -> None:
    assert api.ask("PATCH", f"{MAPS}/one", {}, "application/json")[0] == 415


def test_a_delete_of_another_uid_is_a_conflict(api: Api, made: Any) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "another"}}
    status, body = api.ask("DELETE", f"{MAPS}/one", options)
    assert (status, body["reason"]) == (409, "Conflict")
    assert api.ask("GET", f"{MAPS}/one")[0] == 200


def test_a_finalizer_keeps_what_is_deleted_until_it_is_taken_away(api: Api, made: Any) -> None:
    api.ask("PATCH", f"{MAPS}/one", {"metadata": {"finalizers": ["costgov.io/test"]}}, MERGE)
    assert api.ask("DELETE", f"{MAPS}/one")[0] in (200, 202)
    assert api.ask("GET", f"{MAPS}/one")[1]["metadata"]["deletionTimestamp"]
    api.ask("PATCH", f"{MAPS}/one", {"metadata": {"finalizers": None}}, MERGE)
    assert api.ask("GET", f"{MAPS}/one")[0] == 404


def test_a_list_has_pages_and_refuses_an_unknown_field(api: Api, made: Any) -> None:
    api.ask("POST", MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}})
    try:
        status, page = api.ask("GET", f"{MAPS}?limit=1")
        assert (status, len(page["items"])) == (200, 1)
        _, rest = api.ask("GET", f"{MAPS}?limit=500&continue={page['metadata']['continue']}")
        assert page["items"][0]["metadata"]["name"] not in [one["metadata"]["name"] for one in rest["items"]]
        assert api.ask("GET", f"{MAPS}?fieldSelector=data.a%3D1")[0] == 400
    finally:
        api.ask("DELETE", f"{MAPS}/two")


def test_a_group_says_which_version_it_prefers(api: Api) -> None:
    status, body = api.ask("GET", "/apis/batch")
    assert (status, body["kind"], body["preferredVersion"]["version"]) == (200, "APIGroup", "v1")


def test_who_may_what_is_answered_without_doing_it(api: Api) -> None:
    asked = {"spec": {"resourceAttributes": {"namespace": NS, "verb": "patch", "group": "batch", "resource": "jobs"}}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", **asked}
    status, body = api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    assert (status, body["status"]["allowed"]) == (201, True)


# --- of the fake alone: rights of others, and a kubelet that waits for the test -----------------------------------


def asked(fake: FakeApi, token: str, method: str, path: str, body: Any = None, kind: str = MERGE) -> int:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    return httpx.request(method, fake.url + path, headers=headers, json=body, trust_env=False).status_code


def test_no_token_is_401_and_a_right_that_lacks_is_403(fake: FakeApi, rig: KubeRig) -> None:
    rig.job()
    fake.rights["reader"] = {("get", "batch", "jobs")}
    job = "/apis/batch/v1/namespaces/ml/jobs/llm"
    assert asked(fake, "nobody", "GET", job) == 401
    assert asked(fake, "reader", "GET", job) == 200
    assert asked(fake, "reader", "PATCH", job, {"spec": {"suspend": True}}) == 403
    assert asked(fake, "reader", "GET", "/apis/batch/v1/namespaces/ml/jobs") == 403
    assert "suspend" not in rig.item("batch", "jobs", "llm")["spec"]


def test_a_custom_resource_takes_no_strategic_patch(fake: FakeApi, rig: KubeRig) -> None:
    rig.make("jobset.x-k8s.io", "jobsets", "set")
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/set"
    strategic = "application/strategic-merge-patch+json"
    assert asked(fake, ADMIN, "PATCH", path, {"spec": {"suspend": True}}, strategic) == 415
    assert asked(fake, ADMIN, "PATCH", path, {"spec": {"suspend": True}}) == 200


def test_a_pod_on_a_node_terminates_until_its_kubelet_says_so(fake: FakeApi, rig: KubeRig) -> None:
    rig.pod("on-a-node")
    rig.pod("waiting", node="", phase="Pending")
    for name in rig.pods():
        assert asked(fake, ADMIN, "DELETE", f"/api/v1/namespaces/ml/pods/{name}") == 200
    assert rig.pods() == ["on-a-node"]  # Nobody has to end what runs nowhere.
    assert rig.item("", "pods", "on-a-node")["metadata"]["deletionGracePeriodSeconds"] == 30
    rig.cluster.kubelets_end_pods()
    assert rig.pods() == []


def test_a_grace_of_0_forgets_a_pod_at_once_and_a_shorter_one_shortens(fake: FakeApi, rig: KubeRig) -> None:
    rig.pod("forced")
    rig.pod("short")
    path = "/api/v1/namespaces/ml/pods"
    assert asked(fake, ADMIN, "DELETE", f"{path}/forced", {"gracePeriodSeconds": 0}) == 200
    assert asked(fake, ADMIN, "DELETE", f"{path}/short") == 200
    assert asked(fake, ADMIN, "DELETE", f"{path}/short", {"gracePeriodSeconds": 1}) == 200
    assert rig.pods() == ["short"]
    assert rig.item("", "pods", "short")["metadata"]["deletionGracePeriodSeconds"] == 1


@pytest.mark.parametrize(("policy", "stays"), [("Foreground", True), ("Background", False)])
def test_the_owner_goes_after_its_pods_or_before(fake: FakeApi, rig: KubeRig, policy: str, stays: bool) -> None:
    rig.job()
    assert asked(fake, ADMIN, "DELETE", "/apis/batch/v1/namespaces/ml/jobs/llm", {"propagationPolicy": policy}) == 200
    assert rig.gone(("batch", "jobs", "ml", "llm")) is not stays
    assert rig.terminating() == ["llm-0", "llm-1"]
    rig.cluster.kubelets_end_pods()
    assert rig.cluster.items == {}


def test_orphans_stay(fake: FakeApi, rig: KubeRig) -> None:
    rig.job()
    assert asked(fake, ADMIN, "DELETE", "/apis/batch/v1/namespaces/ml/jobs/llm", {"propagationPolicy": "Orphan"}) == 200
    assert (rig.pods(), rig.terminating()) == (["llm-0", "llm-1"], [])


def test_a_suspended_job_loses_its_pods_and_says_that_it_is_suspended(fake: FakeApi, rig: KubeRig) -> None:
    rig.job()
    assert asked(fake, ADMIN, "PATCH", "/apis/batch/v1/namespaces/ml/jobs/llm", {"spec": {"suspend": True}}) == 200
    assert rig.terminating() == ["llm-0", "llm-1"]
    assert {"type": "Suspended", "status": "True"} in rig.item("batch", "jobs", "llm")["status"]["conditions"]
