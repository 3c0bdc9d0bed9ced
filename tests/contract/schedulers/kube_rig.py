"""Runs as Kubernetes has them, in a fake cluster, and our adapter before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from governor.adapters.plugins import Surroundings, checked
from governor.adapters.schedulers import kubernetes
from governor.core.base.identity import SchedulerJob
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import BillingReply
from tests.contract.schedulers.fake_api_server import ADMIN, FakeApi
from tests.contract.schedulers.fake_cluster import SERVED, Item, Key

NS = "ml"
INCIDENT = "llm-7b-3"


def api_version(group: str) -> str:
    return "/".join(filter(None, [group, SERVED[group][0][0]]))


class KubeRig:
    def __init__(self, fake: FakeApi, folder: Path) -> None:
        self.fake, self.cluster = fake, fake.cluster
        self.token_file = folder / "token"
        self.token_file.write_text(ADMIN + "\n")
        self.folder = folder

    def scheduler(self, **config: object) -> kubernetes.KubernetesScheduler:
        given = {"endpoint": self.fake.url, "token_file": str(self.token_file), **config}
        made = kubernetes.build(checked("scheduler.kubernetes", kubernetes.KEYS, given), Surroundings(environ={}))
        assert isinstance(made, kubernetes.KubernetesScheduler)
        return made

    def make(self, group: str, plural: str, name: str, owner: Item | None = None, **spec: Any) -> Item:
        metadata: Item = {"name": name}
        if owner is not None:
            metadata["ownerReferences"] = [reference(owner)]
        item = {"apiVersion": api_version(group), "kind": SERVED[group][1][plural], "metadata": metadata, "spec": spec}
        return self.cluster.create((group, plural, "" if plural == "nodes" else NS, name), item)

    def pod(self, name: str, owner: Item | None = None, node: str = "gpu-1", phase: str = "Running") -> Item:
        made = self.make("", "pods", name, owner, **({"nodeName": node} if node else {}))
        made["status"] = {"phase": phase}
        return made

    def item(self, group: str, plural: str, name: str) -> Item:
        return self.cluster.get((group, plural, "" if plural == "nodes" else NS, name))

    def pods(self) -> list[str]:
        return sorted(key[3] for key in self.cluster.items if key[1] == "pods")

    def terminating(self) -> list[str]:
        items = self.cluster.items
        return [name for name in self.pods() if "deletionTimestamp" in items["", "pods", NS, name]["metadata"]]

    def job(self, name: str = "llm", pods: int = 2) -> Item:
        job = self.make("batch", "jobs", name)
        for number in range(pods):
            self.pod(f"{name}-{number}", job)
        return job

    def gone(self, key: Key) -> bool:
        return key not in self.cluster.items


def reference(owner: Item, *, controller: bool = True) -> Item:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
        "controller": controller, "blockOwnerDeletion": True,
    }  # fmt: skip


def is_ended(reply: BillingReply) -> bool:
    return reply.answer is BillingAnswer.ENDED


def asked(name: str) -> SchedulerJob:
    """A job as the engine asks for it."""
    return SchedulerJob(name, uid=1000)
