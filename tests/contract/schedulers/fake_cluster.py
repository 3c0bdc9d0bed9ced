"""A fake of a Kubernetes cluster: what its API server stores, and the controllers that act on it. It is no cluster.

No real one can run where these tests run. What it does is written from the Kubernetes API documentation, and
test_fake_api_server.py is the contract that it keeps to, which can be asked of a real server as well. Its controllers
are the least of what the documentation says of them. Its kubelet acts when a test says so: until then a pod that is
deleted is terminating, as it is for the length of its grace on a real node.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Item = dict[str, Any]
Key = tuple[str, str, str, str]  # Group, plural, namespace, name.

# What is served: group, versions (the preferred one first), and plural to kind.
SERVED: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "": (("v1",), {"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap"}),
    "batch": (("v1",), {"jobs": "Job"}),
    "apps": (("v1",), {"statefulsets": "StatefulSet", "deployments": "Deployment", "replicasets": "ReplicaSet"}),
    "jobset.x-k8s.io": (("v1alpha2",), {"jobsets": "JobSet"}),
    "kubeflow.org": (("v1", "v2beta1"), {"pytorchjobs": "PyTorchJob", "mpijobs": "MPIJob"}),
    "trainer.kubeflow.org": (("v1alpha1",), {"trainjobs": "TrainJob"}),
    "ray.io": (("v1",), {"rayjobs": "RayJob", "rayclusters": "RayCluster"}),
    "example.org": (("v1",), {"workflows": "Workflow"}),
}
CUSTOM: Final = frozenset(SERVED) - {"", "batch", "apps"}
BEGAN: Final = "2026-11-22T00:00:00Z"
FOREGROUND: Final = "foregroundDeletion"
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class RefusedError(Exception):
    """An answer of the API server: its HTTP status, and the reason of its Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Cluster:
    items: dict[Key, Item] = field(default_factory=dict)
    controllers_run: bool = True
    _version: int = 0

    # --- what the API server does -------------------------------------------------------------------------

    def get(self, key: Key) -> Item:
        if key not in self.items:
            raise RefusedError(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return self.items[key]

    def create(self, key: Key, item: Item) -> Item:
        if not NAME.fullmatch(key[3]):
            raise RefusedError(422, "Invalid", f"metadata.name: Invalid value: {key[3]!r}")
        if key in self.items:
            raise RefusedError(409, "AlreadyExists", f'{key[1]} "{key[3]}" already exists')
        item = copy.deepcopy(item)
        item["metadata"] |= {
            "uid": f"uid-{self._version + 1}",
            "name": key[3],
            "creationTimestamp": "2026-11-22T00:00:00Z",
        }
        if key[2]:
            item["metadata"]["namespace"] = key[2]
        self._store(key, item)
        self.reconcile()
        return self.items.get(key, item)

    def patch(self, key: Key, patch: Mapping[str, Any]) -> Item:
        now = self.get(key)
        asked = patch.get("metadata", {})
        if asked.get("resourceVersion") not in (None, now["metadata"]["resourceVersion"]):
            raise RefusedError(409, "Conflict", "the object has been modified; apply your changes to the latest")
        if asked.get("uid") not in (None, now["metadata"]["uid"]):
            raise RefusedError(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
        self._store(key, merged(now, patch))
        self._collect(key)
        self.reconcile()
        return self.items.get(key, now)

    def delete(self, key: Key, options: Mapping[str, Any]) -> Item | None:
        """What is left of it and waits for its finalizers or its kubelet; None: it is gone."""
        now = self.get(key)
        wanted = options.get("preconditions", {}).get("uid")
        if wanted not in (None, now["metadata"]["uid"]):
            raise RefusedError(409, "Conflict", "the UID in the precondition does not match the UID in record")
        policy = options.get("propagationPolicy", "Background")
        if policy not in ("Foreground", "Background", "Orphan"):
            raise RefusedError(422, "Invalid", "propagationPolicy: Invalid value")
        if policy == "Foreground":
            finalizers = now["metadata"].setdefault("finalizers", [])
            finalizers += [FOREGROUND] if FOREGROUND not in finalizers else []
        if policy == "Orphan":
            for _, dependent in self.dependents(now):
                dependent["metadata"]["ownerReferences"] = []
        self._mark_deleted(key, options.get("gracePeriodSeconds"))
        self.reconcile()
        return self.items.get(key)

    def _mark_deleted(self, key: Key, grace_s: int | None) -> None:
        now = self.items[key]
        if key[1] == "pods" and now["spec"].get("nodeName") and grace_s != 0:
            usual = now["spec"].get("terminationGracePeriodSeconds", 30)
            # A shorter grace than before shortens it; a longer one does nothing.
            left = now["metadata"].get("deletionGracePeriodSeconds", usual if grace_s is None else grace_s)
            now["metadata"]["deletionGracePeriodSeconds"] = min(left, usual if grace_s is None else grace_s)
        now["metadata"].setdefault("deletionTimestamp", "2026-11-22T00:01:00Z")
        if key[1] == "pods" and grace_s == 0:
            now["metadata"].pop("deletionGracePeriodSeconds", None)
        self._store(key, now)
        self._collect(key)

    def _collect(self, key: Key) -> None:
        """Gone, once nothing holds it: no finalizer, and of a pod on a node no grace."""
        metadata = self.items[key]["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return
        if "deletionGracePeriodSeconds" not in metadata:
            del self.items[key]
            self._version += 1

    def _store(self, key: Key, item: Item) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.items[key] = item

    # --- what controllers and the kubelet do ----------------------------------------------------------------

    def dependents(self, owner: Mapping[str, Any]) -> Iterator[tuple[Key, Item]]:
        uid = owner["metadata"]["uid"]
        for key, item in list(self.items.items()):
            if any(one["uid"] == uid for one in item["metadata"].get("ownerReferences", ())):
                yield key, item

    def reconcile(self) -> None:
        """Everything that controllers and the garbage collector would do, until there is nothing left."""
        before = -1
        while self.controllers_run and before != self._version:
            before = self._version
            for key in list(self.items):
                if key in self.items:
                    self._garbage(key)
                if key in self.items:
                    self._control(key)

    def _garbage(self, key: Key) -> None:
        item = self.items[key]
        uids = {one["metadata"]["uid"] for one in self.items.values()}
        references = item["metadata"].get("ownerReferences", ())
        is_left = bool(references) and not any(one["uid"] in uids for one in references)
        if is_left and "deletionTimestamp" not in item["metadata"]:
            self._mark_deleted(key, None)
        elif FOREGROUND in item["metadata"].get("finalizers", ()):
            for below, dependent in self.dependents(item):
                if "deletionTimestamp" not in dependent["metadata"]:
                    if below[1] != "pods":
                        dependent["metadata"].setdefault("finalizers", []).append(FOREGROUND)
                    self._mark_deleted(below, None)
            if not list(self.dependents(item)):
                item["metadata"]["finalizers"].remove(FOREGROUND)
                self._collect(key)

    def _control(self, key: Key) -> None:
        item, kind = self.items[key], SERVED[key[0]][1][key[1]]
        spec = item.get("spec", {})
        suspended = spec.get("runPolicy", spec).get("suspend") is True
        below = list(self.dependents(item))
        if kind in ("JobSet", "TrainJob"):
            for one, child in below:
                if one[1] != "pods" and child["spec"].get("suspend", False) != suspended:
                    child["spec"]["suspend"] = suspended
                    self._store(one, child)
        ends = suspended or (kind in ("StatefulSet", "Deployment", "ReplicaSet") and spec.get("replicas") == 0)
        if ends and kind in ("Job", "PyTorchJob", "MPIJob", "StatefulSet", "ReplicaSet"):
            for one, _ in below:
                if one[1] == "pods" and "deletionTimestamp" not in self.items[one]["metadata"]:
                    self._mark_deleted(one, None)
        if kind == "RayJob" and suspended:
            for one, child in below:
                if "deletionTimestamp" not in child["metadata"]:
                    child["metadata"].setdefault("finalizers", []).append(FOREGROUND)
                    self._mark_deleted(one, None)
        conditions = item.setdefault("status", {}).setdefault("conditions", [])
        if suspended and kind in ("Job", "JobSet") and not any(one["type"] == "Suspended" for one in conditions):
            conditions.append({"type": "Suspended", "status": "True"})
            self._store(key, item)

    def kubelets_end_pods(self, count: int = 1_000_000) -> None:
        """So many of the terminating pods have ended, and their kubelets say so."""
        ending = [key for key, item in self.items.items() if "deletionGracePeriodSeconds" in item["metadata"]]
        for key in ending[:count]:
            del self.items[key]["metadata"]["deletionGracePeriodSeconds"]
            self._store(key, self.items[key])
            self._collect(key)
        self.reconcile()


def merged(now: Any, patch: Any) -> Any:
    """RFC 7386: null removes, an object merges, anything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = copy.deepcopy(now) if isinstance(now, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
