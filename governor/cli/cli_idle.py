"""What `costgov status` says of a node that nobody uses: since when, what follows, and how to keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.units import NS_PER_S, format_duration
from governor.text.cli_rows import plain


def idle_notes(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines with their style. None while nothing would stop the node: then idle time is no news."""
    notes = []
    if node.get("stop"):
        stop = node["stop"]
        notes.append(
            (f"node: being stopped, {stop['stage']}; costgov incident show {plain(stop['incident_id'])}", "bold red")
        )
    if node.get("hold"):
        hold = node["hold"]
        notes.append(
            (f"node: kept for another {_span(hold['left_s'])} by an operator: {plain(hold['reason'])}", "bold yellow")
        )
    if node.get("limit_s") is None or node.get("here") or node.get("stop"):
        return notes
    if node.get("unseen"):
        return [*notes, (f"node: no run is here, but nobody can tell who else is: {plain(node['unseen'])}", "yellow")]
    if node.get("idle_s") is None:
        return notes
    return [*notes, (f"node: idle for {_span(node['idle_s'])}, {_follows(node)}", "yellow")]


def _follows(node: Mapping[str, Any]) -> str:
    after = f"after {_span(node['limit_s'])} ({plain(node['limit_by'])})"
    if node.get("obstacle"):
        return f"and it is not stopped {after}: {plain(node['obstacle'])}"
    if node.get("observed"):
        return f"and would be stopped {after}; observe mode only says so"
    if node.get("stops_in_s") is None:
        return f"stops {after}"
    return f"stops in {_span(node['stops_in_s'])} ({plain(node['limit_by'])}); {plain(node['keep_it'])}"


def _span(seconds: float) -> str:
    return format_duration(round(seconds * NS_PER_S))
