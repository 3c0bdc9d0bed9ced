"""Whose pod it is: from a pod by its ownerReferences up to the topmost owner of a known kind, and down again.

A pod that is deleted comes back while its owner wants it, so it is the owner that is ended. Which resource a kind is
comes from the table here and never from a reference, which whoever makes pods may write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from governor.adapters.schedulers.kube.api import KubeApi, KubeReply, many, name_of, part, path_of, uid_of
from governor.core.base.printable import cut, printable

DEPTH_MAX: Final = 8  # TrainJob, JobSet, Job, pod are four.
ON_A_NODE: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
PODS_A_PAGE: Final = 250
PAGES_MAX: Final = 40
LOOKED_UP_MAX: Final = 512  # Owners between: a JobSet has a Job for each replica.
VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the API offers to end one. `ends_by`: the path of the field to set; empty: only deleting it."""

    group: str
    kind: str
    plural: str
    ends_by: tuple[str, ...] = ()
    value: bool | int = True
    # Its controller confirms by the condition Suspended that it has seen the suspension, and makes no more pods.
    confirms: bool = False
    name_label: str = ""  # Of its pods: its name.

    @property
    def called(self) -> str:
        return f"{self.kind}.{self.group}"


_SUSPEND: Final = ("spec", "suspend")
_REPLICAS: Final = ("spec", "replicas")
_KUBEFLOW_LABEL: Final = "training.kubeflow.org/job-name"
POD: Final = Kind("", "Pod", "pods")
KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.group, kind.kind): kind
    for kind in (
        Kind("batch", "Job", "jobs", _SUSPEND, confirms=True, name_label="batch.kubernetes.io/job-name"),
        Kind("jobset.x-k8s.io", "JobSet", "jobsets", _SUSPEND, True, True, "jobset.sigs.k8s.io/jobset-name"),
        Kind("trainer.kubeflow.org", "TrainJob", "trainjobs", _SUSPEND),
        *(
            Kind("kubeflow.org", name, name.lower() + "s", ("spec", "runPolicy", "suspend"), name_label=_KUBEFLOW_LABEL)
            for name in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")
        ),
        Kind("ray.io", "RayJob", "rayjobs", _SUSPEND),
        Kind("ray.io", "RayCluster", "rayclusters", name_label="ray.io/cluster"),
        Kind("batch.volcano.sh", "Job", "jobs", name_label="volcano.sh/job-name"),
        Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", _REPLICAS, 0),
        Kind("apps", "StatefulSet", "statefulsets", _REPLICAS, 0),
        Kind("apps", "Deployment", "deployments", _REPLICAS, 0),
        Kind("apps", "ReplicaSet", "replicasets", _REPLICAS, 0),
    )
}
# Kueue starts an admitted job again that somebody else has suspended: there only deleting it ends it.
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
FINISHED: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Owner:
    """What is ended. `item` is as the server showed it when it was asked last."""

    kind: Kind
    version: str
    namespace: str
    name: str
    uid: str
    item: Mapping[str, Any] = field(repr=False, compare=False)
    above: str | None = None  # An owner of a kind that is not known, which may start it again.

    @property
    def collection(self) -> str:
        """The API's path of its kind in its namespace."""
        prefix = f"/apis/{self.kind.group}/{self.version}" if self.kind.group else f"/api/{self.version}"
        return path_of(prefix, self.namespace, self.kind.plural)

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"

    @property
    def called(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"

    def ending(self) -> Mapping[str, Any] | None:
        """The fields to set that end it and keep it; None: it can only be deleted."""
        spec = part(self.item, "spec")
        if not self.kind.ends_by or QUEUE_LABEL in part(self.item, "metadata", "labels"):
            return None
        # KubeRay refuses to suspend a RayJob that would leave its cluster, or that uses one it did not make.
        if self.kind.kind == "RayJob" and (
            spec.get("shutdownAfterJobFinishes") is not True or spec.get("clusterSelector")
        ):
            return None
        fields: Any = self.kind.value
        for name in reversed(self.kind.ends_by):
            fields = {name: fields}
        return dict(fields)

    def is_over(self) -> bool:
        """Whether it will make no more pods. That none is left is another question."""
        if part(self.item, "metadata").get("deletionTimestamp") is not None:
            return True
        true = {one.get("type") for one in many(part(self.item, "status"), "conditions") if one.get("status") == "True"}
        if true & FINISHED or (self.kind is POD and not holds_a_node(self.item)):
            return True
        if not self.kind.ends_by:
            return False
        *within, last = self.kind.ends_by
        ended = part(self.item, *within).get(last)
        is_set = type(ended) is type(self.kind.value) and ended == self.kind.value
        return is_set and (not self.kind.confirms or "Suspended" in true)


def holds_a_node(pod: Mapping[str, Any]) -> bool:
    """Also while it is terminating: its processes live until the kubelet says otherwise."""
    return bool(part(pod, "spec").get("nodeName")) and part(pod, "status").get("phase") not in ("Succeeded", "Failed")


class Family:
    """Looks up and down one tree of owners, within one deadline. Each owner is asked for once."""

    def __init__(self, api: KubeApi, ends_at: float) -> None:
        self._api = api
        self.ends_at = ends_at
        self._seen: dict[str, Owner | KubeReply | str | None] = {}

    def top(self, namespace: str, pod: str) -> Owner | KubeReply:
        """The topmost owner of a known kind that still exists; the pod itself where nobody owns it."""
        reply = self._api.get(path_of("/api/v1", namespace, "pods", pod), self.ends_at)
        if not reply.ok:
            return reply
        uid = uid_of(reply.body)
        if uid is None:
            return KubeReply("malformed")
        found = Owner(POD, "v1", namespace, pod, uid, reply.body)
        for _ in range(DEPTH_MAX):
            above = self._above(namespace, found.item)
            if above is None:
                return found
            if isinstance(above, str):
                return replace(found, above=above)
            if isinstance(above, KubeReply):
                return found if above.status == 404 else above
            found = above
        return KubeReply("owners_in_a_circle")

    def again(self, owner: Owner) -> Owner | KubeReply | None:
        """The same object as it is now; None: it is gone, or another one has its name."""
        reply = self._api.get(owner.path, self.ends_at)
        if reply.ok:
            return replace(owner, item=reply.body) if uid_of(reply.body) == owner.uid else None
        return None if reply.status == 404 else reply

    def pods(self, owner: Owner, known: set[str], *, ended: bool = False) -> list[Mapping[str, Any]] | KubeReply:
        """Its pods that hold a node; with `ended` those too that have held one.

        `known` gains the uids of what stands between, and makes up for what is gone.
        """
        mine: list[Mapping[str, Any]] = []
        query = {"limit": str(PODS_A_PAGE), "fieldSelector": "spec.nodeName!=" if ended else ON_A_NODE}
        for _ in range(PAGES_MAX):
            reply = self._api.get(path_of("/api/v1", owner.namespace, "pods"), self.ends_at, query)
            if not reply.ok:
                return reply
            for pod in many(reply.body, "items"):
                if not ended and not holds_a_node(pod):
                    continue
                belongs = self._belongs(pod, owner, known)
                if isinstance(belongs, KubeReply):
                    return belongs
                if belongs:
                    mine.append(pod)
            following = part(reply.body, "metadata").get("continue")
            if not isinstance(following, str) or not following:
                return mine
            query["continue"] = following
        return KubeReply("too_many_pods")

    def _belongs(self, pod: Mapping[str, Any], owner: Owner, known: set[str]) -> bool | KubeReply:
        if uid_of(pod) == owner.uid:
            return True
        between: list[str] = []
        item = pod
        for _ in range(DEPTH_MAX):
            reference = controller(item)
            uid = reference.get("uid") if reference else None
            if not isinstance(uid, str):
                return False
            if uid == owner.uid or uid in known:
                known.update(between)
                return True
            above = self._above(owner.namespace, item)
            if isinstance(above, KubeReply):
                # What stood between is deleted and its pods are not gone yet: then their labels say whose they were.
                if above.status != 404:
                    return above
                label = owner.kind.name_label
                return bool(label) and part(pod, "metadata", "labels").get(label) == owner.name
            if not isinstance(above, Owner):
                return False
            between.append(uid)
            item = above.item
        return False

    def _above(self, namespace: str, item: Mapping[str, Any]) -> Owner | KubeReply | str | None:
        """Its controller; as text one of a kind that is not known; None: it has none."""
        reference = controller(item)
        if reference is None:
            return None
        group, _, version = str(reference.get("apiVersion", "")).rpartition("/")
        kind = KINDS.get((group, str(reference.get("kind", ""))))
        name, uid = name_of(reference.get("name")), reference.get("uid")
        if kind is None:
            return printable(cut(f"{reference.get('kind', '')} ({group})", 127))
        if name is None or not isinstance(uid, str) or not VERSION.fullmatch(version):
            return KubeReply("malformed")
        if uid not in self._seen:
            if len(self._seen) >= LOOKED_UP_MAX:
                return KubeReply("too_many_owners")
            self._seen[uid] = self._ask(Owner(kind, version, namespace, name, uid, {}))
        return self._seen[uid]

    def _ask(self, wanted: Owner) -> Owner | KubeReply:
        now = self.again(wanted)
        return KubeReply("http_404", 404) if now is None else now


def controller(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reference to who made it and makes it again. Other references only say when it is collected."""
    return next((one for one in many(part(item, "metadata"), "ownerReferences") if one.get("controller") is True), None)
