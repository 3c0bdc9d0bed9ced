"""Why a halt ended above the ceiling. The reserve covers only what was declared."""

from __future__ import annotations

from governor.core.base.units import TICK_NS, MonoNs, UsdMicros, WallNs, format_duration, format_usd
from governor.core.halt.incident import Incident
from governor.core.money.budgets import Cap
from governor.core.money.lines import PriceRise

# The charge that a late price makes up for may itself reach the ceiling at the next tick.
JUST_BEFORE_NS = 2 * TICK_NS


def note_overrun(
    incident: Incident, cap: Cap, at: MonoNs, wall: WallNs, *, stop_bound_ns: int, rise: PriceRise | None
) -> None:
    """Put into the timeline by how much the ceiling was passed, if it was, and every observed cause."""
    over = cap.spend_usd_micros - cap.ceiling_usd_micros
    if over <= 0:
        return
    incident.note(
        at,
        wall,
        "ceiling_exceeded",
        scope=cap.scope,
        over_usd_micros=over,
        ceiling_usd_micros=cap.ceiling_usd_micros,
        because=causes(
            incident, cap.ceiling_usd_micros, stop_bound_ns, at,
            scope=cap.scope, rise=rise, rate=cap.rate_usd_micros_per_hour,
        ),
    )  # fmt: skip


def causes(
    incident: Incident,
    ceiling: UsdMicros,
    stop_bound_ns: int,
    at: MonoNs,
    *,
    scope: str | None = None,
    rise: PriceRise | None = None,
    rate: UsdMicros | None = None,
) -> list[str]:
    """The causes in words, from the incident's own timeline; never empty.

    `scope`: the ceiling's; None: the run's own. `rise`: the last rise of the machine's price. `rate`: the run's price
    per hour at the end.
    """
    found = []
    if rise is not None and rise.at >= incident.opened_at - JUST_BEFORE_NS:
        before, after = format_usd(rise.before), format_usd(rise.after)
        found.append(f"the price rose from {before}/h to {after}/h at or after the verdict")
    evidence = incident.evidence
    is_of_verdict = incident.trigger == "budget" and scope is not None and evidence.get("scope") == scope
    # A group's rate is what all its runs cost. One run exceeds it only if runs outside the group have left.
    rate_then = evidence.get("spend_rate_usd_micros_per_hour") if is_of_verdict else None
    rate_then = rate_then if rate_then is not None else incident.spend_rate_usd_micros_per_hour
    if not found and rate is not None and rate_then is not None and rate > rate_then:
        before, after = format_usd(rate_then), format_usd(rate)
        found.append(f"others left the node during the halt: its share rose from {before}/h to {after}/h")
    spent_then = evidence["spend_usd_micros"] if is_of_verdict else incident.spend_at_verdict_usd_micros
    if spent_then >= ceiling:
        found.append("the ceiling was passed before the verdict")
    elif incident.trigger != "budget":
        found.append("the verdict was another rule's, with less room than the reserve")
    first = {entry["what"]: entry["mono_ns"] for entry in reversed(incident.timeline)}
    if "restored" in first:
        found.append("the governor was down during the halt")
    if "egress" in first:
        found.append("the upload of the halt's checkpoint cost more than the earlier ones")
    if "stop_refused" in first:
        found.append("the provider refused a stop")
    asked_at = first.get("stop_requested")
    if asked_at is not None and at - asked_at > stop_bound_ns:
        took, bound = format_duration(at - asked_at), format_duration(stop_bound_ns)
        found.append(f"the stop took {took}, and the provider declares {bound}")
    return found or ["no cause was observed: the reserve was too small"]
