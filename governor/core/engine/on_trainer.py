"""What ranks report and what follows at once: refusals, new attempts, frames, acknowledgements."""

from __future__ import annotations

import math
from dataclasses import replace

from governor.core.base.identity import RUN_NAME, ConnectionId, is_next_training
from governor.core.base.policy import NO_POLICY
from governor.core.base.units import MonoNs
from governor.core.engine import (
    alarms,
    budgeting,
    charging,
    incidents,
    launched_command,
    names,
    on_sources,
    run_ends,
    saved_checkpoint,
    verdicts,
)
from governor.core.engine.alarms import refuse
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import close_gap, hand_over, take_back
from governor.core.engine.node import RUNS_MAX, RUNS_PER_UID_MAX, Node, owner_of
from governor.core.engine.node_journal import persist
from governor.core.engine.nodes import from_peers
from governor.core.engine.spent import time
from governor.core.engine.spent.tokens import begin_training, end_stage, meter_tokens
from governor.core.events.effects import Alarm, Confirm, Effect, RecallRun, Record
from governor.core.events.ends import RankFailed
from governor.core.events.inputs import (
    Ack,
    Beat,
    Bye,
    Disconnected,
    Hello,
    LaunchersSeen,
    PhaseChange,
    Step,
)
from governor.core.halt.table import PAST_ASKING, Fact, HaltState
from governor.core.runs import ends, intake, own_time, speakers
from governor.core.runs.ends import cause_of
from governor.core.runs.life import Life, LifeFact
from governor.core.runs.state import RANKS_MAX, Rank


def on_hello(node: Node, hello: Hello) -> list[Effect]:
    if isinstance(found := names.named(node, hello), RecallRun):
        return [found]  # It comes again with the answer.
    hello, effects = found
    refusal = _refusal(node, hello)
    if refusal is not None:
        return refuse(node, hello.connection, hello.peer, refusal, hello.at)
    managed = node.runs.get(hello.run)
    close_gap(node, managed)
    charging.charge_before(node, hello.run, hello.at)
    if managed is None:
        is_its = launched_command.speaks_for_it(node, hello)
        managed, displaced = names.enter(
            node, hello.run, hello.peer.uid, hello.stage, hello.labels, hello.at, of_command=is_its
        )
        effects.extend(displaced)
    if managed.run.attempt != hello.attempt:  # Two ranks may name two stages, and connect in turn.
        end_stage(node, managed, hello.stage)
    stood_in = managed.is_unattached
    if stood_in:
        speakers.set_uid(managed.run, hello.peer.uid)  # The command may have become another user.
    node.superseded.pop(hello.connection, None)
    node.ignored.pop(hello.connection, None)
    held = node.connections.get(hello.connection)
    if held is not None and held != (hello.run, hello.rank):
        # One connection belongs to one rank. Its previous rank would stay connected for ever.
        on_disconnected(node, Disconnected(hello.at, hello.connection))
    is_new, ranks_before = managed.run.attempt != hello.attempt, managed.run.known_ranks()
    was_over, had_ended_well = managed.run.life is Life.ENDED, managed.run.ended_well
    begins = managed.run.move(LifeFact.RANK_OF_NEW_ATTEMPT if is_new else LifeFact.RANK, hello.at).begins
    if begins:
        effects.extend(alarms.held_alarms(managed))
        managed.launch.forget_places(is_over=was_over)
        effects.extend(
            _begin_attempt(node, managed, hello, was_over=was_over) if is_new else _reconnect(managed, hello)
        )
    known_as = managed.run.stage, managed.run.labels
    rank = intake.apply_hello(managed.run, hello)
    managed.history.hear_attempt(managed.run.attempt, managed.run.saves_in, trains_again=managed.run.trains_again)
    if begins or managed.run.known_ranks() != ranks_before:
        charging.note_shares(node, hello.at)
        node.request_persist()  # A restarted governor shares the node's time by what the journal has.
    if known_as != (managed.run.stage, managed.run.labels):
        budgeting.refit(node, managed)  # With other labels, other budgets cover it.
    launched_command.on_rank(node, managed, hello, stood_in=stood_in)
    managed.was_announced = True
    hand_over(node, managed, hello.at, begins=begins)  # After attempt, stage and labels are set: its charges bear them.
    effects.extend(take_back(node, managed, hello.at))
    if begins and not managed.run.trains_again:
        charging.charge_launch(node, managed, hello.at)
    speakers.set_jsonl_only(managed.run, only=False)  # Also when a stream of this name was opened first.
    node.connections[hello.connection] = (hello.run, hello.rank)
    time.on_hello(managed, rank, hello.at, is_new=is_new, had_ended_well=had_ended_well)
    managed.rules.observe(hello)
    effects.append(Confirm(hello.connection, hello.seq))
    if managed.incident is not None and not managed.incident.is_closed:
        effects.extend(saved_checkpoint.take_finished(managed, hello.at))
        effects.extend(_rejoin(node, managed, rank, hello.at))
    return effects


def _refusal(node: Node, hello: Hello) -> str | None:
    if RUN_NAME.fullmatch(hello.run) is None:
        return f"run name {hello.run[:40]!r} is not accepted: use letters, digits and . _ : @ + - (at most 128)"
    if not 0 <= hello.rank < max(1, hello.world_size):
        return f"rank {hello.rank} is outside world size {hello.world_size}"
    if launched_command.is_older(node, hello):
        return f"it is older than the command that was launched as {hello.run}: a rank of an earlier launch"
    known, owner = node.runs.get(hello.run), owner_of(node, hello.run)
    if owner not in (None, hello.peer.uid) and not (known is not None and known.is_unattached):
        return f"run {hello.run} belongs to uid {owner}; choose another name than uid {hello.peer.uid} did"
    if not launched_command.may_join(node, hello.run, hello):
        where = "outside of" if launched_command.speaks_for_it(node, hello) else "of"
        return f"run {hello.run} is {where} the command, and this rank is not; choose another name"
    if known is None:
        if not names.has_room(node, hello.peer.uid, of_command=launched_command.speaks_for_it(node, hello)):
            return f"{RUNS_MAX} runs are alive on this node already"
        if names.alive_of(node, hello.peer.uid) >= RUNS_PER_UID_MAX:
            return f"uid {hello.peer.uid} has {RUNS_PER_UID_MAX} runs alive on this node already"
        return None
    if hello.rank not in known.run.ranks and len(known.run.ranks) >= RANKS_MAX:
        return f"run {hello.run} has {RANKS_MAX} ranks on this node already"
    holder = known.run.ranks.get(hello.rank)
    if (
        holder is not None
        and holder.connected
        and known.run.attempt == hello.attempt
        and holder.peer.process != hello.peer.process
        and holder.connection in node.connections
    ):
        return f"rank {hello.rank} of run {hello.run} is pid {holder.peer.process.pid} already: give each run its name"
    return None


def _begin_attempt(node: Node, managed: ManagedRun, hello: Hello, *, was_over: bool) -> list[Effect]:
    incident = managed.incident
    first = managed.run.attempt == ""
    if incident is not None and incident.is_closed:
        managed.drop_latch()  # The latch was the old attempt's.
    for rank in managed.run.connected_ranks():
        alarms.supersede(node, managed, rank, hello)
    # A hello without a stage or labels keeps the previous ones, as in apply_hello().
    stage, labels = hello.stage if hello.stage is not None else managed.run.stage, hello.labels or managed.run.labels
    policy = node.policy_for(hello.run, stage, labels, hello.peer.uid)
    managed.judge_by(policy)
    began = hello.at if hello.started_at is None else hello.started_at
    trains_again = not was_over and _has_trained(managed, hello)
    intake.begin_attempt(managed.run, hello.attempt, began, trains_again=trains_again)
    if not first:
        managed.rules.new_attempt()
    data = {"attempt": hello.attempt, "policy": policy.name, "uid": hello.peer.uid, "world_size": hello.world_size}
    effects: list[Effect] = [Record("run", hello.run, None, data)]
    if node.policies.for_run(labels, stage) is NO_POLICY:
        staged = f"stage {stage}" if stage else "no stage"
        fate = "never halted" if policy is NO_POLICY else "halted by its budgets alone"
        text = f"no loaded policy matches run {hello.run} ({staged}): it is metered and {fate}"
        effects.append(Alarm("no_policy", hello.run, text))
    return effects


def _has_trained(managed: ManagedRun, hello: Hello) -> bool:
    """Whether this process has trained in the attempt before: a fold after a fold, DPO after SFT.

    A process that was not heard then is told by the attempt's name, unless another was heard as its rank.
    """
    process, ranks = hello.peer.process, managed.run.ranks
    if any(rank.peer.process == process for rank in ranks.values()):
        return True
    return hello.rank not in ranks and is_next_training(hello.attempt, managed.run.attempt)


def _reconnect(managed: ManagedRun, hello: Hello) -> list[Effect]:
    """Continue an attempt whose ranks had all exited: its launcher gives restarts the same number."""
    intake.begin_attempt(managed.run, hello.attempt, hello.at)
    managed.rules.new_attempt()
    if managed.incident is None:
        return []
    # The halt of this attempt is over and did not hold. Its latch would leave the new training unjudged.
    text = f"run {hello.run} trains again after incident {managed.incident.incident_id}: pid {hello.peer.process.pid}"
    managed.drop_latch()
    return [Alarm("back_after_halt", hello.run, text)]


def _rejoin(node: Node, managed: ManagedRun, rank: Rank, at: MonoNs) -> list[Effect]:
    """Treat a rank that appears during its run's halt like the others: it gets the checkpoint request or the signal."""
    incident = managed.incident
    assert incident is not None
    effects: list[Effect] = []
    if rank.peer.process not in incident.rank_processes:
        incident.add_processes((rank.peer.process,))
        if incident.halt.stage in PAST_ASKING:
            incident.note(at, node.wall(at), "respawned", pids=[rank.peer.process.pid])
            return incidents.feed(node, managed, Fact.RESPAWNED, at)
    if incident.halt.stage in (HaltState.ASKED, HaltState.SAVING):
        effects.extend(incidents.ask_again(managed, rank.rank))
    return effects


def on_step(node: Node, event: Step) -> list[Effect]:
    managed: ManagedRun | None
    rank: Rank | None
    if event.connection is None:
        managed = on_sources.run_of_log(node, event.run, event.step, event.at)
        rank = None  # A stream has a run and no ranks.
    else:
        managed, rank = _rank_of(node, event.connection) or (None, None)
    if managed is None:
        return alarms.on_superseded_step(node, event) if event.connection in node.ignored else []
    run = managed.run
    node.frames_total += 1
    event, dated = (event, None) if rank is not None else on_sources.take_line(node, managed, event)
    intake.note_frame_wall(run, event.at + node.wall_offset_ns)
    if rank is not None and managed.money.metered[0] != run.attempt_at:
        begin_training(managed, rank, event)
    counted = intake.apply_step(run, rank, event, dated)
    time.on_step(managed, rank, event, dated)
    if counted is not None and run.tokens_total is not None:
        ended = run.step_ended_at
        if counted is not event and (lead := run.ranks.get(counted.rank)) is not None:  # It has waited for other ranks.
            ended = own_time.of_frame(lead, counted, run.began_at)
        assert ended is not None, "it is of a step"
        meter_tokens(node, managed, counted, ended)
    belief = run.belief
    told = alarms.figure_alarms(managed, event) if event.left_out is not None or belief.news is not None else []
    if belief.held is not None and belief.held.step == event.step:
        event = replace(event, tokens=None, tokens_total=None)  # No rule sees what is not believed.
    return told + verdicts.judge(node, managed, event.at, event) if managed.rules.observe(event) else told


def on_beat(node: Node, event: Beat) -> list[Effect]:
    found = _rank_of(node, event.connection)
    if found is None:
        return []
    managed, rank = found
    node.frames_total += 1
    was_broken = rank.forwards is not None and rank.forwards.is_broken
    intake.apply_beat(managed.run, rank, event)
    intake.note_frame_wall(managed.run, node.wall(event.at))
    managed.rules.observe(event)
    # An evaluation's passes are no steps that do not come.
    if was_broken or rank.forwards is None or not rank.forwards.is_broken or rank.phase not in alarms.MAY_STEP:
        # Such a beat can only meet conditions about time, and the next tick judges those.
        return []
    # The loop drops what is not finite and makes no step of it: the rules see the step that does not come.
    step = 1 + (rank.step if rank.step is not None else event.step or 0)
    missing = Step(event.at, event.connection, event.run, rank.rank, step, loss=math.nan, loss_expected=True)
    return verdicts.judge(node, managed, event.at, missing) if managed.rules.observe(missing) else []


def on_phase(node: Node, event: PhaseChange) -> list[Effect]:
    managed: ManagedRun | None
    rank: Rank | None
    if event.connection is None:
        managed, rank = on_sources.run_of_log(node, event.run, event.step, event.at), None
    else:
        managed, rank = _rank_of(node, event.connection) or (None, None)
    if managed is None:
        return []
    node.frames_total += 1
    intake.apply_phase(managed.run, rank, event)
    time.on_phase(managed, rank, event)
    managed.rules.observe(event)
    return []


def on_rank_failed(node: Node, event: RankFailed) -> list[Effect]:
    """A rank's code raised what nobody catches. The process ends of it, unless other threads keep it."""
    found = _rank_of(node, event.connection)
    if found is None:
        return []
    managed, rank = found
    node.frames_total += 1
    failure = run_ends.redacted_failure(node, event.failure)
    if not ends.note_failure(managed.run, rank.rank, failure):
        return []  # A rank may say it again and again.
    data = {"rank": rank.rank, "step": rank.step, "name": failure.name, "text": failure.text, "place": failure.place}
    record = Record("failure", managed.run.run, None, data)
    incident = managed.incident
    if incident is None or incident.is_closed or incident.at_of("raised") is not None:
        return [record]
    incident.note(event.at, node.wall(event.at), "raised", text=cause_of(managed.run.failures))
    return [record, incidents.persist_incident(node, managed)]


def on_ack(node: Node, event: Ack) -> list[Effect]:
    # Confirmed last: the shim forgets a confirmed ack, so its consequences must be persisted before.
    return [*_take_ack(node, event), Confirm(event.connection, event.seq)]


def _take_ack(node: Node, event: Ack) -> list[Effect]:
    found = _rank_of(node, event.connection)
    if found is None:
        return []
    managed, rank = found
    intake.note_frame(rank, event.at, None)
    incident = managed.incident
    if incident is not None and incident.is_of(event.incident_id):
        return incidents.on_ack(node, managed, event)
    if incident is not None and not incident.is_closed and verdicts.is_merged(managed, event):
        return incidents.on_ack(node, managed, replace(event, incident_id=incident.incident_id))
    if incident is not None and not incident.is_closed and event.merged_into:
        asked_by = {"asked_by": verdicts.asker(managed, event)} if event.merged_into == incident.incident_id else {}
        incident.note(event.at, node.wall(event.at), "merged", into=event.merged_into, rank=event.rank, **asked_by)
        return []
    if event.exit_after and event.what in ("received", "agreed", "saving") and (
        incident is None or incident.is_closed
    ):  # fmt: skip
        return from_peers.join_obeyed(node, managed, event)
    if event.what in incidents.FAILURES and (verdicts.is_asked(managed, event) or verdicts.is_scripts_own(event)):
        return verdicts.failed_checkpoint_alarms(managed, event)
    if event.what == "saved":
        managed.reported.failed_checkpoint = None
    if event.what == "saved" and event.checkpoint is not None and event.checkpoint.kind == "good":
        managed.run.name_last_good(saved_checkpoint.named_by(event.step, event.checkpoint), event.at)
    return charging.on_saved(node, managed, event) if event.what == "saved" else []


def on_bye(node: Node, event: Bye) -> list[Effect]:
    found = _rank_of(node, event.connection)
    kept: list[Effect] = []
    if found is not None:
        managed, rank = found
        intake.apply_bye(managed.run, rank, event.step)
        managed.history.time.rank_finishes(rank.rank, event.at)
        managed.rules.observe(event)
        if event.completed and not rank.completed:
            managed.history.complete_training(managed.run.attempt)
            intake.complete(managed.run, rank)
            # Confirmed last, like an ack: no rank reports its completion again to a restarted governor.
            if managed.run.ended_well:
                record = Record("run", event.run, None, {"completed": True, "step": managed.run.step}, durable=True)
                kept = [persist(node, event.at, managed, durable=True), record]
    return [*kept, Confirm(event.connection, event.seq)]


def on_disconnected(node: Node, event: Disconnected) -> list[Effect]:
    node.superseded.pop(event.connection, None)
    node.ignored.pop(event.connection, None)
    held = node.connections.pop(event.connection, None)
    managed = node.runs.get(held[0]) if held is not None else None
    if managed is not None:
        rank = intake.lose_connection(managed.run, event.connection, event.at)
        if rank is not None:
            account = managed.history.time
            (account.rank_ends if rank.said_bye else account.rank_is_lost)(rank.rank, event.at)
        managed.rules.observe(event)
    return []


def on_launchers(node: Node, event: LaunchersSeen) -> list[Effect]:
    managed = node.runs.get(event.run)
    if managed is not None:
        # Later hellos of a rank that trains say nothing about what began before its first. The look may come late.
        began = managed.run.first_step_at
        unsure = event.unsure if began is None or event.at <= began else ()
        managed.launch.learn(event.marks, event.cgroups, unsure, event.programs, (event.place,))
        if event.launchers:
            managed.launch.launchers = event.launchers
            managed.launch.command = event.command
        return take_back(node, managed, event.at)
    return []


def _rank_of(node: Node, connection: ConnectionId) -> tuple[ManagedRun, Rank] | None:
    """The run and rank behind a connection; None for a connection that we never accepted."""
    held = node.connections.get(connection)
    if held is None:
        return None
    managed = node.runs.get(held[0])
    if managed is None:
        return None
    rank = managed.run.ranks.get(held[1])
    return (managed, rank) if rank is not None and rank.connection == connection else None
