"""Why a halt ended above the ceiling: the reserve answers for what was declared, and for nothing else."""

from __future__ import annotations

from governor.core.incident import Incident
from governor.core.node import Node, Tracked
from governor.core.units import MonoNs, UsdMicros, format_duration


def note_overrun(node: Node, tracked: Tracked, at: MonoNs) -> None:
    """Put into the timeline by how much the run has passed its ceiling, and every cause that was observed."""
    incident, ceiling = tracked.incident, tracked.policy.budget.ceiling_usd_micros
    assert incident is not None, "the caller has just closed one"
    spent = node.ledger.spend(incident.run)
    if ceiling is None or spent <= ceiling:
        return
    incident.note(
        at,
        node.wall(at),
        "ceiling_exceeded",
        over_usd_micros=spent - ceiling,
        ceiling_usd_micros=ceiling,
        because=causes(incident, ceiling, node.facts.stop_bound_ns, at),
    )


def causes(incident: Incident, ceiling: UsdMicros, stop_bound_ns: int, at: MonoNs) -> list[str]:
    """In words, from the incident's own timeline; never empty."""
    found = []
    if incident.spend_at_verdict_usd_micros >= ceiling:
        found.append("the ceiling was passed before the verdict")
    elif incident.trigger != "budget":
        found.append("the verdict was another rule's, with less room than the reserve")
    first = {entry["what"]: entry["mono_ns"] for entry in reversed(incident.timeline)}
    if "restored" in first:
        found.append("the governor was down during the halt")
    if "stop_refused" in first:
        found.append("the provider refused a stop")
    asked_at = first.get("stop_requested")
    if asked_at is not None and at - asked_at > stop_bound_ns:
        took, bound = format_duration(at - asked_at), format_duration(stop_bound_ns)
        found.append(f"the stop took {took}, and the provider declares {bound}")
    return found or ["no cause was observed: the reserve was too small"]
