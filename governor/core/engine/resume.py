"""A restarted governor: what it restores from the journal, and what it leaves alone.

Within one boot a halt resumes in its state (monotonic deadlines still mean the same), and the effects of that state
are repeated. Under another boot id the processes are gone by definition. A node resumed tomorrow is not stopped again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.rows import newer_of
from governor.core.base.run_names import names_of
from governor.core.base.units import (
    NS_PER_HOUR,
    NS_PER_S,
    BootNs,
    DurationNs,
    MonoNs,
    UsdMicros,
    WallNs,
    format_duration,
)
from governor.core.engine import budgeting, charging, idle_state, launched_command
from governor.core.engine.idle.limit import finish_left
from governor.core.engine.idle.stop import resume_stop
from governor.core.engine.idle_state import NODE
from governor.core.engine.incident_json import incident_of
from governor.core.engine.incidents import number_of, persist_incident
from governor.core.engine.managed_run import ManagedRun, OneOffs, Unweighed
from governor.core.engine.metering import charge_unstored
from governor.core.engine.node import RUNS_MAX, Node, make_past
from governor.core.engine.node_journal import metered_until, restore_node
from governor.core.events.effects import Alarm, Effect, PersistIncident, Record
from governor.core.fleet.member_rows import members_of
from governor.core.halt import table
from governor.core.halt.elsewhere import ends_unseen, leave_unseen
from governor.core.halt.left_launch import process_of
from governor.core.halt.state import GivenUp
from governor.core.money.budgets import TORN
from governor.core.money.ceiling_forecast import ceiling_report_of
from governor.core.money.charges import UNALLOCATED
from governor.core.money.lines import LineMeter
from governor.core.money.paid_tokens import bought_of
from governor.core.money.token_windows import TokenMeter
from governor.core.money.waste import SpendSplit
from governor.core.rules.evaluate import Rules
from governor.core.runs import intake, speakers
from governor.core.runs.life import LifeFact
from governor.core.runs.state import Run

# Only the wall clock measures an absence. Beyond a year it is more likely wrong than right.
ABSENCE_MAX_NS: Final = DurationNs(366 * 24 * NS_PER_HOUR)


def restore_runs(
    node: Node, snapshots: Iterable[Mapping[str, Any]], boot: BootNs, at: MonoNs,
    metered: Mapping[str, Any] | None = None,
) -> list[Effect]:  # fmt: skip
    """Restore known runs: owner, money, holds, latches, triggers. Ranks send a hello again by themselves.

    A run of an earlier boot is over, but its budget is not: spend, incident numbers and the breaker's count go on.
    An unreadable snapshot (another version's, a torn file's) costs its run's history, never our start.
    `metered`: see node_journal.metered_row(), of the governor before.
    """
    effects: list[Effect] = []
    known, kept = [], list(snapshots)
    moments: list[BootNs] = []  # When each snapshot of this boot was taken.
    is_continued = False  # There was metering in this boot.
    has_counters, taken_up = False, []  # Counters of groups. An older journal has none.
    for snapshot in kept:
        if snapshot.get("run") != UNALLOCATED:
            known.append(snapshot)
            continue
        try:
            if snapshot["boot_id"] == node.facts.boot_id:  # This counts even if the rest is unreadable.
                moments.append(BootNs(int(snapshot["boot_ns"])))
                is_continued = True
            restore_node(node, snapshot)
        except TORN as error:
            effects.append(unreadable("node", node.facts.node, error))
        effects.extend(_restore_idle(node, snapshot, at))
        has_counters = _restore_budgets(node, snapshot, effects)
    for place, snapshot in enumerate(known):
        try:
            if snapshot.get("salvaged"):  # Only its charges are left. It may come back to its budget.
                node.ledger.carry_in(str(snapshot["run"]), UsdMicros(int(snapshot["spend_usd_micros"])))
                node.ledger.make_past(str(snapshot["run"]))
                continue
            managed = managed_of(node, snapshot, at)
            spend, since = UsdMicros(int(snapshot["spend_usd_micros"])), BootNs(int(snapshot["boot_ns"]))
        except TORN as error:
            effects.append(unreadable("run", str(snapshot.get("run")), error))
            if node.unreadable_runs is not None:
                node.unreadable_runs.add(str(snapshot.get("run")))
            continue
        node.ledger.carry_in(managed.run.run, spend)
        taken_up.append(snapshot)
        if snapshot["boot_id"] == node.facts.boot_id:
            moments.append(since)
        if place < len(known) - RUNS_MAX:
            make_past(node, managed)  # It may come back to its budget.
            continue
        node.runs[managed.run.run] = managed
        if managed.run.alive:
            is_continued = True
            data = {"down_s": round((boot - since) / NS_PER_S, 3), "spend_carried": True}
            effects.append(Record("restored", managed.run.run, None, data))
    if not has_counters:
        budgeting.count_before(node, taken_up)
    newest = max(moments, default=None)
    seen = metered_until(metered, node.facts.boot_id, newest) if newest is not None else boot
    node.away_ns = DurationNs(max(0, boot - seen))
    gap = _charge_gap(node, kept, newest, metered, is_continued=is_continued)
    return [*effects, *gap, *(look for managed in node.runs.values() for look in charging.weigh_next(managed))]


def _restore_budgets(node: Node, snapshot: Mapping[str, Any], effects: list[Effect]) -> bool:
    """Returns whether the journal has counters of groups."""
    has_counters = False
    try:
        has_counters = budgeting.restore_counters(node, snapshot)
        effects.extend(budgeting.restore_live(node, snapshot))
        effects.extend(budgeting.typed_anew(node))
    except TORN as error:
        effects.append(unreadable("budgets", node.facts.node, error))
    return has_counters


def _charge_gap(
    node: Node, kept: Sequence[Mapping[str, Any]], newest: BootNs | None, metered: Mapping[str, Any] | None,
    *, is_continued: bool,
) -> list[Effect]:  # fmt: skip
    """Charge the unmetered time: within this boot by its clock, else by the provider's and the wall clock's times."""
    if is_continued and newest is not None:
        # The runs that held the node when we died pay from the newest moment on. Until then, all of the node's time is
        # in a charge, whatever became of the commit's other snapshots. A torn one costs a run's spend ten seconds.
        node.ledger.resume_from(newest)
        told = {snapshot.get("run") for snapshot in kept if "ranks" in snapshot}  # An older journal has none.
        left = [managed.run for name, managed in node.runs.items() if name in told and managed.run.alive]
        node.shares_left = {run.run: run.share for run in left}
        until = BootNs(min(metered_until(metered, node.facts.boot_id, newest), node.began))
        if until > newest:
            since_wall = WallNs(node.began_wall - (node.began - newest))
            charge_unstored(node, newest, until, since_wall, _held_in(node, kept, node.facts.boot_id))
    elif newest is None:
        own = [snapshot for snapshot in kept if snapshot.get("run") == UNALLOCATED]
        walls = [wall for snapshot in own or kept if isinstance(wall := snapshot.get("wall_ns"), int)]
        is_damaged = any(snapshot.get("salvaged") for snapshot in own)
        left_wall = WallNs(max(walls)) if walls else None
        if left_wall is not None and metered is not None:
            left_wall = WallNs(left_wall + _charge_of_boot_before(node, kept, metered, left_wall))
        for meter, since, lasted in _absences(node, left_wall, is_damaged=is_damaged):
            node.ledger.charge_absence(meter, since, lasted)  # Unallocated, and marked.
        doubt = _absence_doubt(node, left_wall)
        return [Alarm("absence_uncharged", None, doubt)] if doubt is not None else []
    return []


def _charge_of_boot_before(
    node: Node, kept: Sequence[Mapping[str, Any]], metered: Mapping[str, Any], left_wall: WallNs
) -> DurationNs:
    """Charge what was metered and not persisted when the machine went down. Its clock then measured how long it was."""
    boot_id = str(metered.get("boot_id"))
    moments = [moment for row in kept if row.get("boot_id") == boot_id and type(moment := row.get("boot_ns")) is int]
    if not moments:
        return DurationNs(0)
    newest = BootNs(max(moments))
    elapsed = DurationNs(min(metered_until(metered, boot_id, newest) - newest, ABSENCE_MAX_NS))
    if elapsed > 0:
        charge_unstored(node, BootNs(node.began - elapsed), node.began, left_wall, _held_in(node, kept, boot_id))
    return elapsed


def _held_in(node: Node, kept: Sequence[Mapping[str, Any]], boot_id: str) -> dict[str, int]:
    """The runs that held the node at the last commit of this boot, and their shares."""
    held = [row for row in kept if row.get("boot_id") == boot_id and row.get("alive") and row.get("run") in node.runs]
    paying = [row for row in held if not node.runs[str(row["run"])].is_strangers]
    return {str(row["run"]): max(1, len(row.get("ranks", ()))) for row in paying}


def _absences(
    node: Node, left_wall: WallNs | None, *, is_damaged: bool = False
) -> list[tuple[LineMeter, WallNs, DurationNs]]:
    """What was billed before this boot's first moment and is in no charge: which line, from when, for how long.

    `left_wall`: the journal's last moment, of any boot. Disks cost from then on. The machine costs from its launch, as
    the provider states it, or from `left_wall` if it was only rebooted. Under `costgov run` nothing of it is charged.
    `is_damaged`: the journal has lost this boot's moments. If no provider knows the launch, this boot's start is used.
    """
    if node.facts.exclusive:
        return []
    ledger, launched = node.ledger, node.facts.launched_at_wall
    if launched is None and is_damaged:
        launched = WallNs(node.began_wall - node.began)
    found: list[tuple[LineMeter, WallNs]] = []
    if launched is not None:
        found.append((ledger.compute, max(launched, left_wall or launched)))
    for meter in ledger.others:
        is_disk = meter.metered is not None and meter.metered.is_disk
        if is_disk and left_wall is not None:
            found.append((meter, left_wall))
        elif launched is not None:
            found.append((meter, max(launched, left_wall or launched)))
    lasted = [(meter, since, node.began_wall - since) for meter, since in found]
    # If the clock went back, the elapsed time is unknown.
    return [(meter, since, DurationNs(min(ns, ABSENCE_MAX_NS))) for meter, since, ns in lasted if ns > 0]


def _absence_doubt(node: Node, left_wall: WallNs | None) -> str | None:
    """Why an absence is not charged in full, in one line. None if it is, or if nothing was billed meanwhile."""
    if node.facts.exclusive or left_wall is None or not any(metered.is_disk for metered in node.ledger.other_lines):
        return None
    away = node.began_wall - left_wall
    if away < 0:
        return (
            f"the wall clock is {format_duration(-away)} behind the last charge: what disks have cost while the "
            "machine was off is in no charge; set the clock, and compare with the bill"
        )
    if away > ABSENCE_MAX_NS:
        days = ABSENCE_MAX_NS // (24 * NS_PER_HOUR)
        return (
            f"the last charge is {format_duration(away)} old by the wall clock: of that, disks are charged for {days} "
            "days; check the clock, and compare with the bill"
        )
    return None


def _restore_idle(node: Node, snapshot: Mapping[str, Any], at: MonoNs) -> list[Effect]:
    if "idle" not in snapshot:  # An older journal.
        return []
    try:
        same_boot = snapshot["boot_id"] == node.facts.boot_id
        node.idle = idle_state.restored(snapshot["idle"], at, same_boot=same_boot)
    except TORN as error:
        # A hold or a finished run's wish is lost. The node goes on.
        return [unreadable("idle", node.facts.node, error)]
    return finish_left(node, at)


def managed_of(node: Node, snapshot: Mapping[str, Any], at: MonoNs) -> ManagedRun:
    same_boot = snapshot["boot_id"] == node.facts.boot_id
    run = intake.restored(snapshot, at, same_boot=same_boot)
    policy = node.policy_for(run.run, run.stage, run.labels, run.uid)
    managed = ManagedRun(run=run, policy=policy, rules=Rules(policy, run))
    managed.history.incidents_total = int(snapshot["incidents_total"])
    # An older journal has the count alone. It gave no number that the count does not reach.
    last = max(managed.history.incidents_total, int(snapshot.get("last_incident", 0)))
    if last:
        node.note_number(run.run, last)
    managed.money.checkpoint_bytes_max = int(snapshot.get("checkpoint_bytes_max", 0))  # An older journal has none.
    managed.money.checkpoints_reported = tuple(str(name) for name in snapshot.get("checkpoints_charged", ()))
    # An older journal has neither.
    managed.history.one_offs = OneOffs(*(int(usd_micros) for usd_micros in snapshot.get("one_offs", ())))
    unweighed = dict(snapshot.get("unweighed", {}))
    managed.money.unweighed = {str(name): Unweighed.of(row) for name, row in unweighed.items()}
    managed.history.members = members_of(snapshot, run.run, run.uid, run.job, same_boot=same_boot)
    managed.history.halts_wall = [WallNs(int(wall)) for wall in snapshot["halts_wall"]]
    # An earlier boot's moment means nothing here. As with a meter, the window has its money and not its time.
    managed.history.begins_to_pay(BootNs(int(snapshot.get("paid_from", node.began))) if same_boot else node.began)
    managed.history.go_on(bought_of(snapshot, same_boot=same_boot))
    managed.history.is_given_back = bool(snapshot.get("given_back"))
    managed.history.take_over(snapshot.get("command"), int(snapshot.get("command_turn", 0)))  # An older one has none.
    managed.history.split = _split_of(snapshot, managed.history.meter)
    if "time" in snapshot:  # An older journal has none.
        managed.history.time = TimeAccount.restored(snapshot["time"], same_boot=same_boot)
    if not managed.history.split.has_begun and not run.ranks_before and "spend_split" in snapshot:
        speakers.forget_frames(run)  # Nobody has spoken for it: see metering.count_split().
    launched_command.restore_stranger(node, managed, is_strangers=bool(snapshot.get("strangers")))
    if "counts_to" in snapshot:  # An older journal has none.
        command, part = snapshot["counts_to"]
        node.ledger.book.runs.restore_part(run.run, str(command), int(part))
    if not same_boot:
        return managed
    managed.launch.remembered = tuple(process_of(row) for row in snapshot.get("processes", ()))
    managed.launch.learn(  # An older journal has none of these.
        (int(mark) for mark in snapshot.get("marks", ())),
        (str(cgroup) for cgroup in snapshot.get("cgroups", ())),
        (process_of(row) for row in snapshot.get("unsure", ())),
        *((str(one) for one in snapshot.get(name, ())) for name in ("programs", "places")),
    )
    managed.stream_position = snapshot.get("stream_position")
    # An older journal has none.
    managed.reported.ceilings = {
        scope: ceiling_report_of(row) for scope, row in dict(snapshot.get("ceilings_told", {})).items()
    }
    managed.history.hold(snapshot["hold_until"], snapshot["hold_reason"])
    managed.rules.restore(snapshot["rules"])
    # It may be held back. A reported verdict that waits for a hold's end is not reported again.
    managed.is_held_back = True
    return managed


def _split_of(snapshot: Mapping[str, Any], meter: TokenMeter | None) -> SpendSplit:
    row = snapshot.get("spend_split")
    if row is not None:
        return SpendSplit.restored(row)
    split, spent = SpendSplit(), int(snapshot["spend_usd_micros"])
    if "spend_split" in snapshot:
        split.wait(spent, snapshot.get("stage"))
    elif spent:  # An older journal has none. A run without spend had not begun to be counted, or has no price.
        split.begin_untold(spent, *((meter.trained_tokens, meter.wasted_tokens) if meter is not None else ()))
    return split


def unreadable(kind: str, name: str, error: Exception) -> Alarm:
    text = f"the journal's {kind} {name[:80]!r} cannot be taken up: {type(error).__name__} {error}"
    return Alarm(f"{kind}_unreadable", None, text)


def restore_incidents(node: Node, snapshots: Iterable[Mapping[str, Any]], at: MonoNs, wall: WallNs) -> list[Effect]:
    """Resume open halts of this boot. Close those of another boot as superseded, and those of whom nobody is seen."""
    node.wall_offset_ns = wall - at
    effects: list[Effect] = []
    for snapshot in snapshots:
        try:
            incident = incident_of(snapshot)
            if snapshot["boot_id"] != node.facts.boot_id:
                effects.extend(_supersede(snapshot, wall))
                if incident.run == NODE:
                    node.idle.incidents_total = max(node.idle.incidents_total, number_of(incident.incident_id))
                continue
            if incident.run == NODE:
                effects.extend(resume_stop(node, incident, at))
                continue
            if ends_unseen(snapshot):
                effects.extend(leave_unseen(snapshot, wall))
                continue
            incident.rename(_watched_as(node, snapshot))
            managed = node.runs.get(incident.run) or _run_of_incident(node, {**snapshot, "run": incident.run}, at)
        except (*TORN, AssertionError) as error:
            # It stays open in the journal for a version that can read it. Meanwhile its run is judged anew.
            effects.append(unreadable("incident", str(snapshot.get("incident_id")), error))
            continue
        managed.enter_halt(incident)
        if incident.run == snapshot["run"]:
            own, spent = managed.history.time, node.ledger.spend(incident.run)
            managed.history.time = newer_of(own, snapshot.get("time"), spent)
        incident.lower_verdict_spend(node.ledger.spend(incident.run))
        # A run is persisted every few seconds, so its count may be older than this incident. No number is given twice.
        node.note_number(incident.run, number_of(incident.incident_id))
        managed.history.incidents_total = max(managed.history.incidents_total, number_of(incident.incident_id))
        if not any(opened == incident.opened_wall for opened in managed.history.halts_wall):
            managed.history.halts_wall.append(incident.opened_wall)
        managed.launch.launchers = incident.launchers
        managed.launch.remembered = managed.launch.remembered or incident.rank_processes
        managed.run.move(LifeFact.HALT_RESUMED, at)
        node.enter(incident)
        incident.note(at, wall, "restored", stage=incident.halt.stage.name)
        halt, repeated = table.resume(incident.halt, at, incident.plan)
        incident.move(halt)
        effects.append(persist_incident(node, managed))
        effects.extend(repeated)
    return effects


def _watched_as(node: Node, snapshot: Mapping[str, Any]) -> str:
    """The name of the incident's run. A command that was launched since may have taken it from a stranger."""
    name = str(snapshot["run"])
    known = node.runs.get(name)
    if not snapshot.get("strangers") or not node.facts.exclusive or known is None or known.is_strangers:
        return name
    names = [own for own in names_of(name, int(snapshot["uid"])) if own != name]
    theirs = (own for own in names if own not in node.runs or node.runs[own].is_strangers)
    return next(theirs, names[-1])


def _run_of_incident(node: Node, snapshot: Mapping[str, Any], at: MonoNs) -> ManagedRun:
    """Make the run from its incident's snapshot: its own is missing or unreadable. This is enough for its halt."""
    run = Run(run=str(snapshot["run"]), uid=int(snapshot["uid"]), first_seen_at=at, attempt=str(snapshot["attempt"]))
    policy = node.policy_for(run.run, snapshot["stage"], {}, run.uid)
    managed = ManagedRun(run=run, policy=policy, rules=Rules(policy, run))
    launched_command.restore_stranger(node, managed, is_strangers=bool(snapshot.get("strangers")))
    node.runs[run.run] = managed
    # A run that was never persisted began after the node was persisted. Its time since then is still to be charged.
    if node.unreadable_runs is None or run.run in node.unreadable_runs:
        node.ledger.carry_in(run.run, UsdMicros(int(snapshot["spend_usd_micros"])))
    return managed


def _supersede(snapshot: Mapping[str, Any], wall: WallNs) -> list[Effect]:
    incident_id, run = str(snapshot["incident_id"]), str(snapshot["run"])
    note = {
        "mono_ns": 0,
        "wall_ns": wall,
        "what": GivenUp.SUPERSEDED,
        "detail": {"was": snapshot["halt_stage"], "boot_id": snapshot["boot_id"]},
    }
    closed = {
        **snapshot,
        "halt_stage": GivenUp.SUPERSEDED,
        "closed_wall_ns": wall,
        "timeline": [*snapshot["timeline"], note],
    }
    anew = "its idle time begins anew" if run == NODE else "this governor does not stop it for yesterday's run"
    text = (
        f"incident {incident_id} was at {snapshot['halt_stage']} when the machine went down; it is up again, and {anew}"
    )
    return [PersistIncident(incident_id, closed, closed=True), Alarm(GivenUp.SUPERSEDED, run, text)]
