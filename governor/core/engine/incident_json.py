"""Incidents as plain JSON and back: the journal stores it, reports show it, a restarted governor resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from governor.core.base.identity import job_parts
from governor.core.base.policy import PROMISES
from governor.core.base.units import MonoNs, WallNs
from governor.core.engine.halt_plan import machine_of
from governor.core.engine.node import Node
from governor.core.fleet.members import NodePart
from governor.core.halt.incident import Incident
from governor.core.halt.left_launch import NEVER_LOOKED, LeftLaunch, process_of, process_row
from governor.core.halt.table import Fact, Halt, HaltPlan, HaltState, StopTarget
from governor.core.money.token_price import TokenPrices
from governor.core.runs.last_good import LastGood

# Fields that are written and read as they stand.
_PLAIN = (
    "incident_id",
    "run",
    "uid",
    "attempt",
    "stage",
    "reason",
    "text",
    "evidence",
    "policy",
    "rule",
    "trigger",
    "operator_uid",
    "step",
    "loss",
    "tokens_total",
    "targets",
    "ranks",
    "timeline",
    "agreed_step",
    "checkpoint",
    "spend_at_verdict_usd_micros",
    "spend_usd_micros",
    "spend_rate_usd_micros_per_hour",
    "resume",
    "pages",
    "undurable",
    "opened_wall",
    "closed_wall",
)
_ENUMS: dict[str, type[Enum]] = {"stage": HaltState, "stop_reply": Fact, "stop": StopTarget}
# Most of an incident, which is copied at every fact of its halt.
_UNCHANGING = frozenset({str, int, float, bool, type(None)})
# Of both, every field is a number, a text or one of these enums.
_FIELDS: dict[type, tuple[str, ...]] = {kind: tuple(field.name for field in fields(kind)) for kind in (Halt, HaltPlan)}


def incident_snapshot(node: Node, incident: Incident) -> dict[str, Any]:
    """Shares nothing with the incident: who keeps it sees later that something has changed."""
    plain = {name: _apart(getattr(incident, name)) for name in _PLAIN}
    plain["opened_wall_ns"] = plain.pop("opened_wall")
    plain["closed_wall_ns"] = plain.pop("closed_wall")
    return {
        **plain,
        **({"tokens_at": incident.tokens_at} if incident.tokens_at != incident.tokens_total else {}),
        **incident.prices.named("usd_micros_per_mtok"),
        **({"unpriced_ns": incident.prices.unpriced_ns} if incident.prices.unpriced_ns else {}),
        **({"wasted_usd_micros": dict(incident.wasted_usd_micros)} if incident.wasted_usd_micros is not None else {}),
        "last_good": incident.last_good.row() if incident.last_good is not None else None,
        "targets_unlisted": incident.targets_unlisted,
        **({"killed_unlisted": incident.killed_unlisted} if incident.killed_unlisted is not None else {}),
        "framework": incident.framework,
        "resumes": incident.resumes,
        **({"job": incident.job, "scheduler": job_parts(incident.job)[0]} if incident.job else {}),
        **({"bad_node": incident.bad_node} if incident.bad_node else {}),
        "kind": incident.plan.checkpoint,
        "opened_mono_ns": incident.opened_at,
        "boot_id": node.facts.boot_id,
        "node": node.facts.node,
        "cloud": node.facts.cloud,
        "instance_id": node.facts.instance_id,
        "price_source": node.price_source,
        "stays_billed": stays_billed(node, incident),
        "halt_stage": incident.stage_name,
        "halt": _plain_of(incident.halt),
        "plan": _plain_of(incident.plan),
        "rank_processes": [process_row(process) for process in incident.rank_processes],
        "launchers": [process_row(process) for process in incident.launchers],
        **({"launch": launch.row()} if (launch := _launch(node, incident)) is not None else {}),
        **({"in_doubt": True} if incident.is_in_doubt else {}),
        **({"named_uids": list(incident.named_uids)} if incident.named_uids else {}),
        **({"paid_by": incident.paid_by} if incident.paid_by is not None else {}),
        **({"strangers": True} if _is_strangers(node, incident) else {}),
        **_over_nodes(node, incident),
        **_wrong_max(node, incident),
        **_account(node, incident),
    }


def _launch(node: Node, incident: Incident) -> LeftLaunch | None:
    """The launch whose command the halt ends. None: it is of none, or of one that is not known any more."""
    command = node.command
    if incident.launch is not None:
        return replace(incident.launch, below=incident.below)
    if command is None or set(command.processes).isdisjoint(incident.launchers):
        return None
    return LeftLaunch.of_command(command, incident.below)


def _is_strangers(node: Node, incident: Incident) -> bool:
    managed = node.of_incident(incident.incident_id)
    return managed is not None and managed.is_strangers


def _account(node: Node, incident: Incident) -> dict[str, Any]:
    """What the run's time went to, while the halt is open. Its run's own row comes in a later commit.

    The letters do not wait for that one, so a governor may be killed between the two: see rows.newer_of().
    """
    managed = node.of_incident(incident.incident_id)
    if incident.is_closed or managed is None or managed.history.time.held.boot_to is None:
        return {}
    return {"time": managed.history.time.snapshot()}


def _over_nodes(node: Node, incident: Incident) -> dict[str, Any]:
    """Of a run with several nodes: by which id all call the halt, whose verdict it was, and every node's part."""
    others = [part.row() for _, part in sorted(incident.nodes.items())]
    return {
        "called": incident.called,
        "decided_by": incident.decided_by or node.facts.node,
        "wanted": incident.wanted,
        **({"obeyed": incident.obeyed} if incident.obeyed else {}),
        "nodes": [incident.own_part(node.facts.node, node.facts.cloud, node.facts.instance_id).row(), *others],
    }


def _wrong_max(node: Node, incident: Incident) -> dict[str, int]:
    """For whoever marks the halt: with how many false ones its rule falls back. 0: never."""
    managed = node.of_incident(incident.incident_id)
    if managed is None or managed.policy.name != incident.policy:
        return {}
    falls = incident.trigger not in PROMISES and any(rule.name == incident.rule for rule in managed.policy.rules)
    return {"wrong_max": managed.policy.wrong_max if falls and incident.operator_uid is None else 0}


def stays_billed(node: Node, incident: Incident) -> list[str]:
    """What the provider goes on billing after this halt. That includes the machine, unless the halt stops it."""
    known = list(node.facts.stays_billed)
    if incident.plan.stop is StopTarget.PROCESSES and node.facts.cloud != "none":
        return [f"{machine_of(node.facts)}: only the processes are ended", *known]
    return known


def incident_of(snapshot: Mapping[str, Any]) -> Incident:
    """Rebuild an incident. KeyError or ValueError when the snapshot is not one of ours."""
    plain = {name: snapshot[name] for name in _PLAIN if name not in ("opened_wall", "closed_wall")}
    closed = snapshot["closed_wall_ns"]
    launch = LeftLaunch.of(snapshot["launch"]) if "launch" in snapshot else None  # An older journal has none.
    is_given_up = closed is not None and snapshot["halt_stage"] not in HaltState.__members__
    return Incident(
        **plain,
        job=str(snapshot.get("job", "")),
        bad_node=str(snapshot.get("bad_node", "")),
        tokens_at=snapshot.get("tokens_at", snapshot["tokens_total"]),
        last_good=LastGood.of(snapshot["last_good"]),
        targets_unlisted=int(snapshot.get("targets_unlisted", 0)),
        killed_unlisted=snapshot.get("killed_unlisted"),
        framework=snapshot.get("framework"),
        resumes=snapshot.get("resumes"),
        opened_at=MonoNs(int(snapshot["opened_mono_ns"])),
        opened_wall=WallNs(int(snapshot["opened_wall_ns"])),
        closed_wall=WallNs(int(closed)) if closed is not None else None,
        halt=Halt(**_typed(Halt, snapshot["halt"])),
        plan=HaltPlan(**_typed(HaltPlan, snapshot["plan"])),
        rank_processes=tuple(process_of(row) for row in snapshot["rank_processes"]),
        launchers=tuple(process_of(row) for row in snapshot["launchers"]),
        named_uids=tuple(int(uid) for uid in snapshot.get("named_uids", ())),
        launch=launch,
        below=launch.below if launch is not None else NEVER_LOOKED,
        paid_by=snapshot.get("paid_by"),
        prices=TokenPrices.of(snapshot, "usd_micros_per_mtok"),
        wasted_usd_micros=snapshot.get("wasted_usd_micros"),
        given_up=str(snapshot["halt_stage"]) if is_given_up else "",
        **_nodes_of(snapshot),
    )


def _nodes_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """An older journal has none of these."""
    decided_by, called = snapshot.get("decided_by", ""), snapshot.get("called", "")
    parts = [NodePart.of(row) for row in snapshot.get("nodes", ())]
    return {
        "wanted": str(snapshot.get("wanted", "none")),
        "decided_by": str(decided_by) if decided_by != snapshot.get("node") else "",
        "obeyed": str(snapshot.get("obeyed", "")),
        "known_as": str(called) if called != snapshot["incident_id"] else "",
        "nodes": {part.node: part for part in parts if part.node != snapshot.get("node")},
    }


def _apart(value: Any) -> Any:
    """A copy as plain JSON has it. It shares nothing that can change."""
    if isinstance(value, Mapping):
        return {key: one if type(one) in _UNCHANGING else _apart(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [one if type(one) in _UNCHANGING else _apart(one) for one in value]
    return value


def _plain_of(value: Halt | HaltPlan) -> dict[str, Any]:
    named = [(name, getattr(value, name)) for name in _FIELDS[type(value)]]
    return {name: field.name if isinstance(field, Enum) else field for name, field in named}


def _typed(kind: type[Halt] | type[HaltPlan], plain: Mapping[str, Any]) -> dict[str, Any]:
    known = _FIELDS[kind]
    return {
        name: _ENUMS[name][value] if name in _ENUMS and value is not None else value
        for name, value in plain.items()
        if name in known
    }
