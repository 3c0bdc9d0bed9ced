"""Kubernetes: ends the owner of the pod that a run's ranks live in, and reads back until no pod of it holds a node.

A job is "NAMESPACE/POD", or "NAMESPACE/KIND.GROUP/NAME" of what is to be ended itself ("ml/Job.batch/llm-7b"). A run
that names its job itself may name only what its own ranks' pods belong to: the kernel says in which pods they are. From
a pod it goes up the ownerReferences to the topmost kind that it knows (kube/owners.py). One that can be suspended is
suspended, and keeps everything that its author wrote; any other is deleted. "Accepted" is never "ended": that is said
only of an owner that makes no more pods, when none of its pods holds a node.

The node itself is billed until its machine ends: `cordon` keeps other pods from it until then.

Written from the API's documentation, and tried against a fake server alone: docs/howto/kubernetes.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.plugins import ConfigKey, Surroundings
from governor.adapters.schedulers.kube.api import (
    SERVICE_ACCOUNT,
    KubeApi,
    KubeReply,
    many,
    name_of,
    part,
    path_of,
    uid_of,
)
from governor.adapters.schedulers.kube.owners import KINDS, POD, VERSION, Family, Owner
from governor.core.base.identity import SchedulerJob
from governor.core.base.printable import cut, printable
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Scheduler, StopReply

NAME = "kubernetes"
KEYS = (
    ConfigKey("endpoint", "text", None, "API URL in place of the cluster's own service. Plain http only on loopback."),
    ConfigKey("token_file", "text", f"{SERVICE_ACCOUNT}/token", "Service account's token; read for each request."),
    ConfigKey("ca_file", "text", f"{SERVICE_ACCOUNT}/ca.crt", "The only certificates to trust, as PEM."),
    ConfigKey("timeout_s", "seconds", 10.0, "Of one request."),
    ConfigKey("stop_bound_s", "seconds", 120.0, "Within which pods are gone: their grace (30 s by default), and more."),
)

# All requests of one call. The halt waits 30 s for the reply to a stop.
CALL_S: Final = 25.0
TRIES: Final = 5  # Of a change to a node, which the kubelet changes as well.
# Of rung 1. Not 0: then the API server forgets the pod at once, while its processes may live.
SHORTEST_GRACE_S: Final = 1
INCIDENT: Final = "costgov.io/incident"
REPLICAS_BEFORE: Final = "costgov.io/replicas-before"
TAINT: Final = "costgov.io/halted"
JOBS_REMEMBERED_MAX: Final = 256
NOT_IN_A_POD: Final = "ranks_in_no_pod"  # Of a pod that the kernel shows: deploy/kubernetes' DaemonSet has hostPID.
POD_OF_ANOTHER: Final = "ranks_in_pods_of_another_job"
FOREIGN: Final = frozenset({NOT_IN_A_POD, POD_OF_ANOTHER})
# "kubepods-burstable-pod0a1b..._....slice" (systemd), "kubepods/burstable/pod0a1b...-..." (cgroupfs). The first counts:
# what is below it may be the pod's own.
_POD_UID: Final = "[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_POD: Final = re.compile(rf"/(?:kubepods[a-z-]*-)?pod({_POD_UID})(?:\.slice)?(?:/|$)")


class KubernetesScheduler:
    """`remote_ports.Scheduler`."""

    name = NAME

    def __init__(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.stop_bound_s = float(config["stop_bound_s"])
        self._api = KubeApi(config, environ)
        # Once its pod is gone nobody can say whose it was.
        self._owners: dict[str, Owner] = {}
        self._members: dict[str, set[str]] = {}  # By job: uids of pods that were seen to be its own.
        self._between: dict[str, set[str]] = {}  # By job: uids of the Jobs of a JobSet, the RayCluster of a RayJob.

    def node_name(self, given: str) -> str:
        """The manifest hands the name of the node over, as COSTGOV_NODE__NAME."""
        return given

    def problems(self, asked: SchedulerJob) -> tuple[str, ...]:
        job = asked.name
        ends_at = time.monotonic() + CALL_S
        owner = self._owner(job, Family(self._api, ends_at))
        if isinstance(owner, str):
            return (f'scheduler_job: "{_shown(job)}" is not NAMESPACE/POD or NAMESPACE/KIND.GROUP/NAME; {owner}',)
        if isinstance(owner, KubeReply):
            return (f"Kubernetes did not say whose pod {_shown(job)} is ({owner.reason}); {_advice(owner)}",)
        if owner is None:
            return (f"{_shown(job)} is gone: there is nothing to end",)
        if owner.above is not None and owner.kind is POD:
            return (f"{owner.called} belongs to {owner.above}, which costgov cannot end: it would make the pod again",)
        if (why := self._not_its(asked, owner, Family(self._api, ends_at))) is not None:
            return (f"{owner.called} is not the run's: {why}; the label scheduler_job names the run's own pod",)
        found = [self._lacking(owner, verb, group, plural, ends_at) for verb, group, plural in _needs(owner)]
        if owner.above is not None:
            found.append(f"{owner.called} belongs to {owner.above}, which costgov does not know: it may start it again")
        return tuple(line for line in found if line is not None)

    def stop(self, asked: SchedulerJob, incident_id: str, rung: int) -> StopReply:
        job = asked.name
        ends_at = time.monotonic() + CALL_S
        family = Family(self._api, ends_at)
        owner = self._owner(job, family)
        if owner is None:
            return StopReply(StopAnswer.ACCEPTED, retryable=False, reason="already_gone")
        if isinstance(owner, str):
            return StopReply(StopAnswer.REFUSED, retryable=False, reason="not_a_job")
        if isinstance(owner, KubeReply):
            return StopReply(StopAnswer.REFUSED, owner.retryable, owner.reason)
        if owner.kind is POD and owner.above is not None:
            return StopReply(StopAnswer.REFUSED, retryable=False, reason="owner_not_known")
        if (why := self._not_its(asked, owner, family)) is not None:
            return StopReply(StopAnswer.REFUSED, retryable=why not in FOREIGN, reason=why)
        # Before the owner goes: afterwards nothing says which pods are its own.
        pods = family.pods(owner, self._between.setdefault(job, set()))
        ended = self._end(owner, incident_id, rung, ends_at)
        if not ended.ok and ended.status != 404:
            answer = StopAnswer.UNKNOWN if ended.may_be_done else StopAnswer.REFUSED
            return StopReply(answer, ended.retryable, ended.reason)
        # A StatefulSet ends its pods one after another.
        if (rung > 0 or owner.kind.value == 0) and owner.kind is not POD and isinstance(pods, list):
            self._delete_pods(owner, pods, rung, ends_at)
        return StopReply(
            StopAnswer.ACCEPTED, retryable=False, reason="accepted" if ended.ok else "already_gone",
            ended_as="" if owner.kind is POD else f"{NAME}:{owner.namespace}/{owner.kind.called}/{owner.name}",
        )  # fmt: skip

    def state(self, asked: SchedulerJob) -> BillingReply:
        job = asked.name
        family = Family(self._api, time.monotonic() + CALL_S)
        owner = self._owner(job, family)
        if isinstance(owner, str | KubeReply):
            # Without an owner that was seen, an absent pod may be a wrong name.
            reason = "not_a_job" if isinstance(owner, str) else owner.reason
            return BillingReply(BillingAnswer.UNKNOWN, reason)
        seen = self._owners[job] if owner is None else owner
        if (why := self._not_its(asked, seen, family)) is not None:
            return BillingReply(BillingAnswer.UNKNOWN, why)
        pods = family.pods(seen, self._between.setdefault(job, set()))
        if isinstance(pods, KubeReply):
            return BillingReply(BillingAnswer.UNKNOWN, pods.reason)
        if pods:
            leaving = sum(part(pod, "metadata").get("deletionTimestamp") is not None for pod in pods)
            return BillingReply(BillingAnswer.RUNNING, f"{len(pods)} pods on nodes, {leaving} of them terminating")
        if owner is None:
            return BillingReply(BillingAnswer.ENDED, f"{seen.kind.kind} gone, no pod on a node")
        if owner.is_over():
            return BillingReply(BillingAnswer.ENDED, f"{owner.kind.kind} over, no pod on a node")
        return BillingReply(BillingAnswer.RUNNING, f"{owner.kind.kind} active, no pod on a node yet")

    def drain(self, node: str, incident_id: str) -> StopReply:
        """Keep new pods from this node: `unschedulable`, and a taint that says which halt it was. Idempotent.

        Its pods stay, and it is billed on: the cloud's API ends the machine. Accepted: it was read back.
        """
        ends_at = time.monotonic() + CALL_S
        if name_of(node) is None:
            return StopReply(StopAnswer.REFUSED, retryable=False, reason="not_a_node")
        path = path_of("/api/v1", None, "nodes", node)
        taint = {"key": TAINT, "value": _label_value(incident_id), "effect": "NoSchedule"}
        reply = KubeReply("timeout")
        for _ in range(TRIES):
            now = self._api.get(path, ends_at)
            if not now.ok:
                return StopReply(StopAnswer.REFUSED, now.retryable, now.reason)
            # A patch replaces the whole list. With the version that was read, nobody else's taint is lost by it.
            others = [one for one in many(part(now.body, "spec"), "taints") if one.get("key") != TAINT]
            version = part(now.body, "metadata").get("resourceVersion")
            body = {
                "metadata": {"resourceVersion": version},
                "spec": {"unschedulable": True, "taints": [*others, taint]},
            }
            reply = self._api.merge(path, ends_at, body)
            if reply.status != 409:
                break
        if reply.ok:
            now = self._api.get(path, ends_at)
            if part(now.body, "spec").get("unschedulable") is True:
                return StopReply(StopAnswer.ACCEPTED, retryable=False, reason="cordoned")
            return StopReply(StopAnswer.UNKNOWN, retryable=True, reason=now.reason if not now.ok else "not_cordoned")
        return StopReply(StopAnswer.UNKNOWN if reply.may_be_done else StopAnswer.REFUSED, reply.retryable, reply.reason)

    def _not_its(self, asked: SchedulerJob, owner: Owner, family: Family) -> str | None:
        """Why this job is none that this run may end: not all of its ranks are in pods of it. None: they are."""
        if asked.places is None or asked.is_seen:  # A stop of this incident was accepted: it was looked at then.
            return None
        uids = {pod_of_place(place) for place in asked.places}
        if not uids or None in uids:
            return NOT_IN_A_POD
        known = self._members.setdefault(asked.name, set())
        if not uids <= known:
            # Also pods that have ended: the halt has ended the ranks before it asks for the job.
            pods = family.pods(owner, self._between.setdefault(asked.name, set()), ended=True)
            if isinstance(pods, KubeReply):
                return pods.reason
            known.update(uid for pod in pods if (uid := uid_of(pod)) is not None)
        return None if uids <= known else POD_OF_ANOTHER

    def _owner(self, job: str, family: Family) -> Owner | KubeReply | str | None:
        """As it is now. None: it was seen and is gone. A reply: why it is not known. Text: what is wrong with `job`."""
        seen = self._owners.get(job)
        if seen is not None:
            return family.again(seen)
        words = job.split("/")
        if not 2 <= len(words) <= 3 or name_of(words[0]) is None or name_of(words[-1]) is None:
            return "names of Kubernetes have small letters, digits, - and ."
        found = family.top(*words) if len(words) == 2 else self._named(words, family.ends_at)
        if isinstance(found, Owner):
            if len(self._owners) >= JOBS_REMEMBERED_MAX:
                oldest = next(iter(self._owners))
                del self._owners[oldest]
                self._between.pop(oldest, None)
                self._members.pop(oldest, None)
            self._owners[job] = found
        return found

    def _named(self, words: list[str], ends_at: float) -> Owner | KubeReply | str:
        namespace, (word, _, group), name = words[0], words[1].partition("."), words[2]
        known = KINDS.get((group, word))
        if known is None:
            return f"known kinds: {', '.join(sorted(f'{one.kind}.{one.group}' for one in KINDS.values()))}"
        # The group says which version it serves.
        reply = self._api.get(f"/apis/{known.group}", ends_at)
        version = part(reply.body, "preferredVersion").get("version")
        if not reply.ok:
            return reply
        if not isinstance(version, str) or not VERSION.fullmatch(version):
            return KubeReply("malformed")
        reply = self._api.get(Owner(known, version, namespace, name, "", {}).path, ends_at)
        uid = uid_of(reply.body)
        if not reply.ok or uid is None:
            return reply if not reply.ok else KubeReply("malformed")
        return Owner(known, version, namespace, name, uid, reply.body)

    def _end(self, owner: Owner, incident_id: str, rung: int, ends_at: float) -> KubeReply:
        fields = owner.ending()
        if fields is None:
            grace = {"gracePeriodSeconds": SHORTEST_GRACE_S} if owner.kind is POD and rung > 0 else {}
            # The owner stays until its pods are gone, so that they can be told from others'.
            return self._api.delete(owner.path, ends_at, owner.uid, propagationPolicy="Foreground", **grace)
        notes = {INCIDENT: incident_id}
        replicas = part(owner.item, "spec").get("replicas")
        if owner.kind.value == 0 and isinstance(replicas, int) and replicas > 0:
            notes[REPLICAS_BEFORE] = str(replicas)
        # With its uid: one that was made anew under this name is refused.
        return self._api.merge(owner.path, ends_at, {"metadata": {"uid": owner.uid, "annotations": notes}, **fields})

    def _delete_pods(self, owner: Owner, pods: list[Mapping[str, Any]], rung: int, ends_at: float) -> None:
        """Refusals are no news: reading back says which pods are left."""
        grace = {"gracePeriodSeconds": SHORTEST_GRACE_S} if rung > 0 else {}
        for pod in pods:
            name, uid = name_of(part(pod, "metadata").get("name")), uid_of(pod)
            if name is not None and uid is not None:
                self._api.delete(path_of("/api/v1", owner.namespace, "pods", name), ends_at, uid, **grace)

    def _lacking(self, owner: Owner, verb: str, group: str, plural: str, ends_at: float) -> str | None:
        """Everybody may ask what they may do themselves."""
        wanted = {"namespace": owner.namespace, "verb": verb, "group": group, "resource": plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }  # fmt: skip
        reply = self._api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", ends_at, review)
        where = f"{verb} {plural}{'.' + group if group else ''} in namespace {owner.namespace}"
        if not reply.ok:
            return f"Kubernetes did not say whether costgov may {where} ({reply.reason}); {_advice(reply)}"
        if part(reply.body, "status").get("allowed") is True:
            return None
        return f"costgov may not {where}, which ending {owner.called} needs; add the verb to its Role"


def _needs(owner: Owner) -> list[tuple[str, str, str]]:
    group, plural = owner.kind.group, owner.kind.plural
    ending = ("delete" if owner.ending() is None else "patch", group, plural)
    return list(dict.fromkeys([("get", group, plural), ending, ("list", "", "pods"), ("delete", "", "pods")]))


def _advice(reply: KubeReply) -> str:
    if reply.status in (401, 403):
        return "give the pod's service account the Role of deploy/kubernetes"
    if reply.reason.startswith("token_"):
        return "set automountServiceAccountToken: true, or scheduler.kubernetes.token_file"
    if reply.reason == "ca_not_readable":
        return "check scheduler.kubernetes.ca_file"
    return "check the name" if reply.status == 404 else "it is asked again"


def _label_value(text: str) -> str:
    """What a taint's value may hold: 63 characters, a letter or digit first and last."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def pod_of_place(place: str) -> str | None:
    """The uid of the pod to which a control group belongs, as the kubelet has named it."""
    found = _POD.search(place)
    return found.group(1).replace("_", "-") if found is not None else None


def _shown(job: str) -> str:
    return printable(cut(job, 128))


def build(config: Mapping[str, Any], surroundings: Surroundings) -> Scheduler:
    """ConfigError outside a pod without `endpoint`."""
    return KubernetesScheduler(config, surroundings.environ)
