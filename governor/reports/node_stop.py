"""A node's own stop in its report: there is no trainer, no save and no process to end."""

from __future__ import annotations

from governor.core.engine.idle_state import NODE
from governor.core.halt.state import GivenUp
from governor.text.incident_money import is_unpriced
from governor.text.moments import Snapshot, moments, since_text, when
from governor.text.table import plain


def is_of_node(snapshot: Snapshot) -> bool:
    return bool(snapshot["run"] == NODE)


def node_summary(snapshot: Snapshot) -> str:
    """What happened, in one sentence."""
    why = plain(snapshot.get("text") or snapshot.get("reason") or "")
    return f"Node {plain(snapshot['node'])} {_became(snapshot)}: {why}; {_ended(snapshot)}."


def _became(snapshot: Snapshot) -> str:
    if snapshot.get("closed_wall_ns") is None:
        return "is being stopped"
    match GivenUp.of(snapshot["halt_stage"]):
        case GivenUp.ABANDONED:
            return "was to be stopped and goes on"
        case GivenUp.SUPERSEDED:
            return "was being stopped when it went down"
    return "was stopped"


def _ended(snapshot: Snapshot) -> str:
    verified = when(snapshot, "verified")
    if verified is not None:
        return f"the provider confirmed the end of billing after {since_text(verified)}"
    if snapshot["halt_stage"] == GivenUp.ABANDONED:
        why = next(
            (entry["detail"].get("why") for entry in snapshot["timeline"] if entry["what"] == GivenUp.ABANDONED), None
        )
        return f"{plain(why)}, before that" if why is not None else f"{newcomer(snapshot)} came before that"
    return "the end of billing is NOT confirmed"


def newcomer(snapshot: Snapshot) -> str:
    found = (
        entry["detail"].get("who")
        for entry in snapshot["timeline"]
        if entry["what"] in (GivenUp.ABANDONED, "came_late")
    )
    return plain(next(found, None) or "somebody")


def node_not_observed(snapshot: Snapshot) -> list[str]:
    """What the reader might assume although it was not observed."""
    seen = {str(entry["what"]) for entry in snapshot["timeline"]}
    lines = []
    if "verified" not in seen:
        last = next((m.text for m in reversed(moments(snapshot)) if m.what in ("billing", "stop_refused")), None)
        lines.append(f"The provider never confirmed that billing ended{f' (last: {last})' if last else ''}.")
    if snapshot["halt_stage"] == GivenUp.ABANDONED and "stop_refused" not in seen:
        lines.append("Whether a stop that was on its way takes the machine down all the same.")
    if snapshot.get("closed_wall_ns") is None:
        lines.append(f"The stop is not finished: stage {snapshot['halt_stage']}.")
    if snapshot.get("undurable"):
        lines.append("Some records were not on disk when they were acted upon (full or frozen disk).")
    if is_unpriced(snapshot):
        lines.append("The price of this machine is unknown, so what its idle time has cost is unknown.")
    return lines


def last_runs(snapshot: Snapshot) -> str:
    return ", ".join(plain(name) for name in snapshot["evidence"].get("last_runs", [])) or "none known"
