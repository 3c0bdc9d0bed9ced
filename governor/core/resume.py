"""A governor that comes back: what it takes up from the journal, and what it leaves alone.

Within one boot a halt is resumed where it stood (monotonic deadlines still mean the same) and its stage's effects are
repeated; under another boot id the processes are gone by definition, and a node resumed tomorrow is not stopped again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from governor.core import halt as table
from governor.core.effects import Alarm, Effect, KeepIncident, Record
from governor.core.halt import Stage
from governor.core.halting import keep
from governor.core.node import Node, Tracked
from governor.core.rules import RuleBook
from governor.core.run_state import Run
from governor.core.snapshots import incident_of
from governor.core.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs

SUPERSEDED = "superseded_by_reboot"


def restore_runs(node: Node, snapshots: Iterable[Mapping[str, Any]], boot: BootNs, at: MonoNs) -> list[Effect]:
    """Take up the runs of this boot: owner, money, holds, latches, triggers. Ranks say hello again by themselves."""
    effects: list[Effect] = []
    for snapshot in snapshots:
        if snapshot["boot_id"] != node.facts.boot_id:
            continue
        run = Run(run=str(snapshot["run"]), uid=int(snapshot["uid"]), first_seen_at=at)
        run.attempt = str(snapshot["attempt"])
        run.attempt_at = at
        run.stage = snapshot["stage"]
        run.labels = dict(snapshot["labels"])
        run.tokens_total = snapshot["tokens_total"]
        run.step = snapshot["step"]
        run.last_good = snapshot["last_good"]
        run.save_longest_ns = snapshot["save_longest_ns"]
        run.first_step_at = snapshot["first_step_at"]
        run.working_since = snapshot["working_since"]
        run.last_good_at = snapshot["last_good_at"]
        run.last_frame_at = at  # Silence counts from our return: before it nobody listened.
        run.ended_at = None if snapshot["alive"] else at
        policy = node.policies.for_run(run.labels, run.stage)
        tracked = Tracked(run=run, policy=policy, book=RuleBook(policy, run))
        tracked.incidents_total = int(snapshot["incidents_total"])
        tracked.hold_until = snapshot["hold_until"]
        tracked.hold_reason = snapshot["hold_reason"]
        tracked.halts_wall = [WallNs(wall) for wall in snapshot["halts_wall"]]
        tracked.book.restore(snapshot["rules"])
        node.runs[run.run] = tracked
        node.ledger.carry_in(run.run, UsdMicros(int(snapshot["spend_usd_micros"])))
        if run.alive:
            # Our own downtime is node time too: charge it to those who held the node when we died.
            node.ledger.charged_to = BootNs(min(node.ledger.charged_to, int(snapshot["boot_ns"])))
            data = {"down_s": round((boot - int(snapshot["boot_ns"])) / NS_PER_S, 3), "spend_carried": True}
            effects.append(Record("restored", run.run, None, data))
    return effects


def restore_incidents(node: Node, snapshots: Iterable[Mapping[str, Any]], at: MonoNs, wall: WallNs) -> list[Effect]:
    """Resume open halts of this boot and close those of another, saying which is which."""
    node.wall_offset_ns = wall - at
    effects: list[Effect] = []
    for snapshot in snapshots:
        incident = incident_of(snapshot)
        if snapshot["boot_id"] != node.facts.boot_id:
            effects.extend(_supersede(snapshot, wall))
            continue
        tracked = node.runs.get(incident.run)
        if tracked is None:
            tracked = _run_of_incident(node, snapshot, at)
        tracked.incident = incident
        tracked.incidents_total = max(tracked.incidents_total, 1)
        tracked.launchers = incident.launchers
        tracked.run.ended_at = None
        node.incidents[incident.incident_id] = incident.run
        incident.note(at, wall, "restored", stage=incident.halt.stage.name)
        incident.halt, repeated = table.resume(incident.halt, at, incident.plan)
        effects.append(keep(node, tracked))
        effects.extend(repeated)
    return effects


def _run_of_incident(node: Node, snapshot: Mapping[str, Any], at: MonoNs) -> Tracked:
    """The run's own snapshot was lost: the incident's is enough to finish its halt."""
    run = Run(run=str(snapshot["run"]), uid=int(snapshot["uid"]), first_seen_at=at, attempt=str(snapshot["attempt"]))
    policy = node.policies.for_run({}, snapshot["stage"])
    tracked = Tracked(run=run, policy=policy, book=RuleBook(policy, run))
    node.runs[run.run] = tracked
    node.ledger.carry_in(run.run, UsdMicros(int(snapshot["spend_usd_micros"])))
    return tracked


def _supersede(snapshot: Mapping[str, Any], wall: WallNs) -> list[Effect]:
    incident = incident_of(snapshot)
    incident.halt = replace(incident.halt, stage=Stage.HALTED, deadline=None)
    incident_id = incident.incident_id
    note = {
        "mono_ns": 0,
        "wall_ns": wall,
        "what": SUPERSEDED,
        "detail": {"was": snapshot["halt_stage"], "boot_id": snapshot["boot_id"]},
    }
    closed = {
        **snapshot,
        "halt_stage": SUPERSEDED,
        "closed_wall_ns": wall,
        "timeline": [*snapshot["timeline"], note],
    }
    text = (
        f"incident {incident_id} was at {snapshot['halt_stage']} when the machine went down; it is up again, and this "
        "governor does not stop it for yesterday's run"
    )
    return [KeepIncident(incident_id, closed, closed=True), Alarm(SUPERSEDED, incident.run, text)]
