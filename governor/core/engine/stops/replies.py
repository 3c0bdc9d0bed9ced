"""What a provider or a scheduler answers during a halt, as facts for the table."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.identity import JOB_NAME, SchedulerJob, job_parts
from governor.core.engine.incidents import feed, persist_incident
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import BillingAnswer, BillingRead, StopAnswer, StopReplied
from governor.core.events.machine import NodeDrained
from governor.core.halt import table
from governor.core.halt.table import StopTarget

# A mistyped or inverted check says "ended" from the first day on.
NEVER_SAID_RUNNING = "no proof: it has never said that the machine runs"
_STOP_WORDS = {
    StopAnswer.ACCEPTED: "stop_accepted",
    StopAnswer.REFUSED: "stop_refused",
    StopAnswer.UNKNOWN: "stop_unknown",
}


def job_to_end(node: Node, incident_id: str) -> SchedulerJob | None:
    """The job that this halt ends instead of a machine. The plan of the verdict says so, and no later setting."""
    managed = node.of_incident(incident_id)
    incident = managed.incident if managed is not None else None
    if incident is None or incident.incident_id != incident_id or incident.plan.stop is not StopTarget.JOB:
        return None
    assert managed is not None
    scheduler, name = job_parts(incident.job)
    return SchedulerJob(
        name, incident.uid, is_seen=incident.at_of("stop_accepted") is not None, scheduler=scheduler,
        places=managed.launch.places if node.facts.scheduler.job == "" else None,
    )  # fmt: skip


def on_stop_replied(node: Node, managed: ManagedRun, reply: StopReplied) -> list[Effect]:
    incident = managed.incident
    assert incident is not None
    incident.note(reply.at, node.wall(reply.at), _STOP_WORDS[reply.answer], reason=reply.reason)
    effects: list[Effect] = []
    if incident.plan.stop is StopTarget.JOB and reply.ended_as and JOB_NAME.fullmatch(reply.ended_as) is not None:
        incident.is_known_as(reply.ended_as)
    if reply.destroys and not incident.halt.destroyed:
        # Persisted at once: after a restart, only this tells why the provider knows no such machine.
        incident.move(replace(incident.halt, destroyed=True))
        effects.append(persist_incident(node, managed))
    return [*effects, *feed(node, managed, table.stop_fact(reply.answer, reply.retryable), reply.at)]


def on_drained(node: Node, managed: ManagedRun, drained: NodeDrained) -> list[Effect]:
    incident = managed.incident
    assert incident is not None
    what = "drained" if drained.is_drained else "not_drained"
    incident.note(drained.at, node.wall(drained.at), what, reason=drained.reason)
    effects: list[Effect] = [persist_incident(node, managed)]
    if not drained.is_drained:
        scheduler, name = job_parts(incident.bad_node)
        text = f"{scheduler} goes on using node {name}, whose GPU failed: it was not drained ({drained.reason})"
        effects.append(Alarm("node_not_drained", incident.run, f"{text}; drain it by hand ({incident.incident_id})"))
    return effects


def on_billing(node: Node, managed: ManagedRun, read: BillingRead) -> list[Effect]:
    incident = managed.incident
    assert incident is not None
    answer, state = read.answer, read.provider_state
    if incident.plan.stop is StopTarget.JOB:
        pass  # The scheduler's word. It has nothing to do with who answers for the machine.
    elif answer is BillingAnswer.RUNNING:
        node.note_running()
    elif answer is BillingAnswer.ENDED and not node.believes_the_end:
        answer, state = BillingAnswer.UNKNOWN, f"{state}, {NEVER_SAID_RUNNING}"
    what = "verified" if answer is BillingAnswer.ENDED else "billing"
    incident.note(read.at, node.wall(read.at), what, state=state)
    return feed(node, managed, table.billing_fact(answer), read.at)
