"""Messages about a node that nobody uses. Each names the time, the reason, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from governor.core.base.units import NS_PER_MINUTE, format_duration
from governor.core.engine.halt_plan import machine_of
from governor.core.halt.state import Fact, Halt

if TYPE_CHECKING:  # A table in a terminal uses these messages without a node.
    from governor.core.engine.node import Node, NodeFacts

KEEP_IT: Final = "keep it with: costgov hold @node 2h --reason …"
SHORT_NS: Final = 5 * NS_PER_MINUTE  # Less leaves too little time to log in after a boot.


def cannot_stop(facts: NodeFacts) -> str | None:
    """Why an unused node is left running, and what to do; None if it may be stopped.

    This is stricter than a halt, which has a run to end. Waiting here costs only money. So it is reason enough to wait
    that nobody knows whether the disk outlives the stop.
    """
    if facts.cloud == "none":
        return "no cloud is configured: set cloud.provider in costgov.toml, or stop it yourself"
    if not facts.can_stop:
        return f"I cannot {facts.will_stop}: see `costgov doctor`"
    if facts.survives_stop is None:
        return f"nobody knows whether its disk outlives a stop: set cloud.{facts.cloud}.survives_stop if it does"
    return None if facts.survives_stop else "what is on its disk would not outlive the stop"


def idle_text(facts: NodeFacts, source: str, idle_ns: int, obstacle: str) -> str:
    return f"nobody has used this node for {format_duration(idle_ns)}: " + not_stopped_text(facts, source, obstacle)


def not_stopped_text(facts: NodeFacts, source: str, obstacle: str) -> str:
    billed = "; ".join((machine_of(facts), *(item for item in facts.stays_billed if facts.cloud != "none")))
    return f"{source}; it is not stopped: {obstacle}. This stays billed: {billed}"


def warning(node: Node, source: str, idle_ns: int, left_ns: int) -> str:
    since = f"nobody has used this node for {format_duration(idle_ns)}" if idle_ns > 0 else "nobody uses this node"
    return f"{since}: in {format_duration(left_ns)} I {node.facts.will_stop} ({source}); {KEEP_IT}"


def unseen_text(why: str, source: str) -> str:
    return f"no run is on this node, but nobody can tell who else is: {why}. It is not stopped meanwhile ({source})"


def given_up(reason: Mapping[str, str]) -> str:
    """Why a stop is given up: who came, or why it is no longer wanted."""
    return reason.get("why") or f"{reason.get('who', 'somebody')} is here"


def abandoned(why: str, was: Halt, incident_id: str) -> str:
    doubt = {
        Fact.STOP_REFUSED: "",
        Fact.STOP_BUSY: "",
        Fact.STOP_ACCEPTED: "; the provider had accepted it and did not do it: it may still",
    }.get(was.stop_reply or Fact.STOP_UNKNOWN, "; the provider's answer is not known: it may still go down")
    return f"{why}: the stop of this node is given up (incident {incident_id}){doubt}"


def came_late(who: str, facts: NodeFacts, incident_id: str) -> str:
    return (
        f"{who} came when the stop of {machine_of(facts)} was accepted already, or may have been: it goes down under "
        f"them (incident {incident_id}); start it again, and launch once more"
    )


def promise(facts: NodeFacts, idle_stop_ns: int, source: str, *, observed: bool) -> list[str]:
    """What start-up reports of an idle time that is set."""
    after = f"after {format_duration(idle_stop_ns)} with nobody here (no run, no GPU process)"
    obstacle = cannot_stop(facts)
    if obstacle is not None:
        return [f"problem: {source} wants this node stopped {after}, but {obstacle}"]
    if observed:
        return [f"{after} I would {facts.will_stop} ({source}); in observe mode it is only reported"]
    short = "; that is less than a login after a boot may take" if idle_stop_ns < SHORT_NS else ""
    return [f"{after} I will {facts.will_stop} ({source}); {KEEP_IT}{short}"]


def finish_promise(facts: NodeFacts, policies: Sequence[str], after_ns: int, *, exclusive: bool) -> list[str]:
    what = "the command has exited with 0" if exclusive else "a run has ended well"
    source = f'on_finish = "stop" of policy {", ".join(policies)}'
    obstacle = cannot_stop(facts)
    if obstacle is not None:
        return [f"problem: {source} wants this node stopped when {what}, but {obstacle}"]
    would = "would" if facts.observe else "will"
    return [f"{format_duration(after_ns)} after {what}, with nobody else here, I {would} {facts.will_stop} ({source})"]
