"""The stop of a node that nobody uses: a halt of the pseudo-run NODE, with no rank to ask and no process to end.

Every stop request to the provider goes through `may_stop`: nobody was seen here for the whole idle time, by looks that
were never further apart than LOOK_GAP_NS and none of which was blind. After a restart of the governor that time begins
anew, also for a stop that is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from governor.core.base.policy import NO_POLICY
from governor.core.base.units import NS_PER_MINUTE, DurationNs, MonoNs, format_duration
from governor.core.engine import incidents
from governor.core.engine.halt_plan import node_plan
from governor.core.engine.idle.limit import PATIENCE_NS, Limit, due_at, finish_over, limit, standing, warn_ns
from governor.core.engine.idle.messages import (
    abandoned,
    came_late,
    cannot_stop,
    given_up,
    idle_text,
    unseen_text,
    warning,
)
from governor.core.engine.idle.occupancy import LOOK_GAP_NS, Occupant, left_since, live, occupants, unseen
from governor.core.engine.idle_state import NODE
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.stops import replies
from governor.core.events.effects import Alarm, Effect, Kill, PersistIncident, Record, StopCompute, Term
from governor.core.events.inputs import BillingRead, StopAnswer, StopReplied
from governor.core.events.operators import OperatorHold
from governor.core.halt import table
from governor.core.halt.incident import Incident
from governor.core.halt.state import GivenUp
from governor.core.halt.table import Fact, HaltState
from governor.core.money.charges import UNALLOCATED
from governor.core.rules.evaluate import Rules
from governor.core.runs.state import Run

STOPS_PERHAPS: Final = (StopAnswer.ACCEPTED, StopAnswer.UNKNOWN)


def may_stop(node: Node, after_ns: int, at: MonoNs) -> bool:
    """The one check before every stop, the first and each repeated one."""
    since = node.idle.since
    return since is not None and at - since >= after_ns


def open_stop(node: Node, wanted: Limit, at: MonoNs) -> list[Effect]:
    idle = node.idle
    assert idle.since is not None
    assert may_stop(node, wanted.after_ns, at), "stopped before its time"
    incident_id, idle.incidents_total = node.next_incident_id(NODE, idle.incidents_total)
    managed = pseudo_run(at)
    wall = node.wall(at)
    text = f"nobody has used this node for {format_duration(at - idle.since)} ({wanted.source})"
    incident = Incident(
        incident_id=incident_id,
        run=NODE,
        uid=0,
        attempt="",
        reason=wanted.reason,
        text=text,
        evidence={"idle_ns": at - idle.since, "limit_ns": wanted.after_ns, "last_runs": list(idle.last_runs)},
        policy=wanted.policy,
        rule="on_finish" if wanted.reason == "run_finished" else "idle_stop",
        trigger=wanted.reason,
        halt=table.open_halt(incident_id, NODE, wanted.reason, at),
        plan=node_plan(node.facts),
        opened_at=at,
        opened_wall=wall,
        spend_at_verdict_usd_micros=node.spent_by(NODE),
        spend_rate_usd_micros_per_hour=node.ledger.price_usd_micros_per_hour,
    )
    managed.enter_halt(incident)
    idle.stop, idle.finish = managed, None
    node.request_persist()
    node.enter(incident)
    incident.note(at, wall, "verdict", rule=incident.rule, reason=incident.reason, text=text)
    incident.note(at, wall, "nobody_here")
    halt, _ = table.step(incident.halt, Fact.VERDICT_NO_ASK, at, incident.plan)
    incident.move(halt)
    asked = incidents.ask_while_it_runs(node, incident)
    return _without_signals([*asked, *incidents.feed(node, managed, Fact.EXITED, at)])


def pseudo_run(at: MonoNs) -> ManagedRun:
    """The run that stands for the node in a halt. It is never among the node's runs."""
    run = Run(run=NODE, uid=0, first_seen_at=at)
    return ManagedRun(run=run, policy=NO_POLICY, rules=Rules(NO_POLICY, run))


def _without_signals(effects: list[Effect]) -> list[Effect]:
    """Drop the signals: this halt has no processes to end."""
    return [effect for effect in effects if not isinstance(effect, Term | Kill)]


def go_on(node: Node, here: list[Occupant], at: MonoNs) -> list[Effect]:
    managed = node.idle.stop
    assert managed is not None
    incident = managed.incident
    assert incident is not None
    halt = incident.halt
    is_due = halt.deadline is not None and at >= halt.deadline
    if here:
        if halt.stop_reply is Fact.STOP_ACCEPTED and not is_due:
            return _late(node, incident, here[0].text, at)
        # Wait for the answer to a requested stop: its result must not be guessed.
        is_asked = halt.stage is not HaltState.VERIFYING and halt.stop_reply is None and halt.stop_attempts > 0
        return [] if is_asked and not is_due else _abandon(node, incident, {"who": here[0].text}, at)
    after_ns = int(incident.evidence["limit_ns"])
    if not is_due or not may_stop(node, after_ns, at):
        # Also after a restart. Who came and went meanwhile is unknown, so the idle time must pass again.
        return []
    withdrawn = _withdrawn(node, incident)
    if withdrawn is not None:
        return _abandon(node, incident, {"why": withdrawn}, at)
    return _without_signals(incidents.feed(node, managed, Fact.DEADLINE, at))


def _withdrawn(node: Node, incident: Incident) -> str | None:
    """Why the stop is no longer wanted: the settings changed by restart or reload, or somebody repairs the node."""
    is_wish = incident.reason != "node_idle"  # An ended run's wish needs no setting to stay in force.
    wanted = standing(node)
    if node.facts.observe or (not is_wish and wanted is not None and wanted.observed):
        return "observe mode is on by now"
    if is_wish and incident.at_of("restored") is not None and node.away_ns >= PATIENCE_NS:  # As in finish_left().
        return f"no governor was here for {format_duration(node.away_ns)}"
    return None if is_wish or wanted is not None else "idle_stop is off by now"


def _late(node: Node, incident: Incident, who: str, at: MonoNs) -> list[Effect]:
    if incident.at_of("came_late") is not None:
        return []
    incident.note(at, node.wall(at), "came_late", who=who)
    return [Alarm("node_came_late", NODE, came_late(who, node.facts, incident.incident_id))]


def _abandon(node: Node, incident: Incident, reason: Mapping[str, str], at: MonoNs) -> list[Effect]:
    why = given_up(reason)
    incident.set_spend(node.spent_by(NODE))
    incident.give_up(at, node.wall(at), GivenUp.ABANDONED, **reason)
    data = {"from": incident.halt.stage.name, "to": GivenUp.ABANDONED, "fact": why}
    return [
        PersistIncident(incident.incident_id, incident_snapshot(node, incident), closed=True),
        Record("transition", NODE, incident.incident_id, data, durable=True),
        Alarm("node_stop_abandoned", NODE, abandoned(why, incident.halt, incident.incident_id)),
    ]


def on_answer(node: Node, managed: ManagedRun, event: StopReplied | BillingRead) -> list[Effect]:
    """Take the provider's answer about the node's own stop."""
    incident = managed.incident
    assert incident is not None
    if incident.is_closed:
        if (
            isinstance(event, StopReplied)
            and event.answer in STOPS_PERHAPS
            and incident.at_of(GivenUp.ABANDONED) is not None
        ):
            return _late(node, incident, "whoever is here", event.at)
        return []
    if isinstance(event, StopReplied):
        effects = replies.on_stop_replied(node, managed, event)
    else:
        effects = replies.on_billing(node, managed, event)
    if managed.incident is not None and managed.incident.is_closed:
        node.idle.is_done = True
    return _without_signals(effects)


def resume_stop(node: Node, incident: Incident, at: MonoNs) -> list[Effect]:
    """Resume the open stop of this boot. Billing is read at once. The stop is not repeated before `may_stop` allows."""
    idle = node.idle
    idle.stop = managed = pseudo_run(incident.opened_at)
    managed.enter_halt(incident)
    idle.spent_before_usd_micros = node.ledger.spend(UNALLOCATED) - incident.spend_usd_micros
    idle.incidents_total = max(idle.incidents_total, incidents.number_of(incident.incident_id))
    node.enter(incident)
    incident.note(at, node.wall(at), "restored", stage=incident.halt.stage.name)
    halt, repeated = table.resume(incident.halt, at, incident.plan)
    incident.move(halt)
    again: list[Effect] = [effect for effect in repeated if not isinstance(effect, StopCompute)]
    return [incidents.persist_incident(node, managed), *_without_signals(again)]


# --- the idle time, its warning, and the stop (docs/adr/0014) ------------------------------------------------
#
# Unknown is not idle. Somebody who comes before the provider has accepted the stop ends it.


# A sampler that crashed is started again within one minute.
UNSEEN_ALARM_NS: Final = DurationNs(5 * NS_PER_MINUTE)


def on_hold(node: Node, event: OperatorHold) -> list[Effect]:
    """Hold the node (`costgov hold @node`): the operator counts as somebody. After the hold, idle time begins anew."""
    idle = node.idle
    idle.hold_until = MonoNs(event.at + event.duration) if event.duration else None
    idle.hold_reason = event.reason
    data = {"act": "hold", "uid": event.uid, "reason": event.reason, "duration_ns": event.duration}
    idle.begin_anew()
    # The record comes after the persisted state that it reports, as for a run's hold.
    record = Record("operator", NODE, None, data, durable=True)
    return [persist(node, event.at, durable=True), record, *watch(node, event.at)]


def watch(node: Node, at: MonoNs) -> list[Effect]:
    """After everything else of the tick: see who is here, and what follows."""
    idle = node.idle
    if idle.hold_until is not None and at >= idle.hold_until:
        idle.hold_until = None
    idle.last_runs = tuple(live(node)) or idle.last_runs
    here, why = occupants(node, at), unseen(node, at)
    effects = finish_over(node, here, why, at)
    boot = node.ledger.charged_to  # At the last tick. A suspended machine that wakes is wanted.
    slept = idle.looked_at is None or max(at - idle.looked_at, boot - idle.looked_boot) > LOOK_GAP_NS
    came_and_went = idle.since is not None and left_since(node, idle.since)
    idle.looked_at, idle.looked_boot = at, boot
    if here or why is not None or slept:
        idle.since = idle.warned_at = None
    if here or came_and_went:
        idle.begin_anew()
    if why is None:
        idle.unseen_since = None
    if idle.since is None and not here and why is None:
        idle.since = at
        if not idle.is_stopping:
            idle.spent_before_usd_micros = node.ledger.spend(UNALLOCATED)
    if idle.is_stopping:
        return [*effects, *go_on(node, here, at)]
    if idle.since is not None:
        return [*effects, *_wait(node, at)]
    return [*effects, *(_unseen_alarm(node, why, at) if not here else [])]


def _unseen_alarm(node: Node, why: str | None, at: MonoNs) -> list[Effect]:
    """Unknown is not idle. If a stop is wanted, one alarm reports that it is unknown who is here."""
    idle, wanted = node.idle, limit(node)
    if why is None:
        return []
    idle.unseen_since = at if idle.unseen_since is None else idle.unseen_since
    if wanted is None or at - idle.unseen_since < UNSEEN_ALARM_NS:
        return []
    return _alarm_once(node, "node_unseen", unseen_text(why, wanted.source))


def _wait(node: Node, at: MonoNs) -> list[Effect]:
    idle, wanted = node.idle, limit(node)
    if wanted is None or idle.is_done:
        return []
    due = due_at(node, wanted)
    assert due is not None
    obstacle = cannot_stop(node.facts)
    if obstacle is not None or wanted.observed:
        if at < due:
            return []
        would = obstacle or "observe mode: it would be"
        assert idle.since is not None
        return _alarm_once(node, "node_stays_billed", idle_text(node.facts, wanted.source, at - idle.since, would))
    if idle.warned_at is None:
        if at < due - warn_ns(wanted):
            return []
        idle.warned_at = at
        due = due_at(node, wanted)
        assert due is not None
        return [Alarm("node_idle", NODE, warning(node, wanted.source, at - (idle.since or at), due - at))]
    return open_stop(node, wanted, at) if at >= due else []


def _alarm_once(node: Node, name: str, text: str) -> list[Effect]:
    if name in node.idle.alarmed:
        return []
    node.idle.alarmed.add(name)
    return [Alarm(name, NODE, text)]
