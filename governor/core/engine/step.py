"""`step`: one event in, effects out. The daemon, the simulator and policy replay call this and nothing else.

Pure: the time comes with the event. The state is the Node, which is mutable and owned by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from governor.core.base.policy import PolicySet
from governor.core.base.units import NS_PER_MS, MonoNs, UsdMicros, format_duration
from governor.core.engine import (
    alarms,
    budgeting,
    charging,
    halt_plan,
    incidents,
    launched_command,
    metering,
    names,
    node_journal,
    on_sources,
    on_trainer,
    run_ends,
    run_forecast,
    verdicts,
)
from governor.core.engine.command import ceilings, payers
from governor.core.engine.idle import limit, occupancy, stop
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.nodes import from_peers, sweep, to_peers
from governor.core.engine.orders import by_hand, of_fleet
from governor.core.engine.spent import marks, shared_budgets
from governor.core.engine.stops import replies
from governor.core.events.checkpoints import CheckpointRead, CheckpointWeighed, LastGoodSeen
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.ends import CommandEndSeen, CommandLeft, OomKillsSeen, RankFailed
from governor.core.events.fleet_orders import OrdersRead, SilentUsedUp
from governor.core.events.fleet_store import StoreAnswered
from governor.core.events.inputs import (
    Ack,
    BadHello,
    Beat,
    BillingRead,
    Bye,
    CommandExited,
    CommandLaunched,
    Disconnected,
    Event,
    FramesLost,
    Hello,
    LauncherExited,
    LaunchersSeen,
    PhaseChange,
    ProcessesSeen,
    Step,
    StopReplied,
    Tick,
    TrainerExited,
)
from governor.core.events.machine import (
    FilesLost,
    GovernorsSeen,
    GpuProcessesSeen,
    GpuSample,
    HaltMarksRead,
    HostMemory,
    HostSample,
    NodeDrained,
    PriceRead,
    RunRecalled,
    SourceTrouble,
    SpotNotice,
    UidRangesSeen,
)
from governor.core.events.operators import OperatorBudget, OperatorForget, OperatorHalt, OperatorHold
from governor.core.events.peers import OtherStopped, PeerTold
from governor.core.events.shown import RankShowed
from governor.core.events.streams import StreamOpened, StreamRead, StreamState, TokensSettled, WriterGone
from governor.core.halt.table import Fact
from governor.core.money.ledger import reserve

# Between two reads of a clock a busy machine may let so much pass. A shorter sleep of the machine is no sleep.
READ_LATE_MAX_NS: Final = 10 * NS_PER_MS


def step(node: Node, event: Event) -> list[Effect]:
    """Apply one event and return what to do, in order. Never raises for an event that the world may send."""
    effects = _HANDLERS[type(event)](node, event)
    return [*effects, *to_peers.beat(node, event.at)] if node.telling.is_due else effects


# --- time ---------------------------------------------------------------------------------------------------


def reload(node: Node, policies: PolicySet) -> list[Effect]:
    """Put new policies in force. An open halt keeps the plan of its verdict; rules keep their windows."""
    before, policies = node.policies, replace(policies, wrong=node.policies.wrong)
    node.policies = policies.observing() if node.facts.observe else policies
    node.idle.warned_at = None  # The time in the warning may have changed.
    for managed in node.runs.values():
        budgeting.refit(node, managed)
    names = [policy.name for policy in policies.policies]
    loaded = Record("policy", None, None, {"digest": policies.digest, "names": names})
    return [loaded, *verdicts.tell_fall_backs(node, before.fallen())]


def _boot_offset(before: int | None, tick: Tick) -> int:
    """Boot clock minus monotonic. It is the same while the machine is awake: the larger one was read later."""
    now = tick.boot - tick.at
    return before if before is not None and 0 <= now - before < READ_LATE_MAX_NS else now


def _on_tick(node: Node, tick: Tick) -> list[Effect]:
    is_first = node.boot_offset_ns is None
    node.wall_offset_ns, node.boot_offset_ns = tick.wall - tick.at, _boot_offset(node.boot_offset_ns, tick)
    holders = node.holders()
    metering.meter(node, tick, holders)
    metering.note_unheard(node, tick, is_first=is_first)
    for managed in node.runs.values():
        metering.count_split(node, managed, holders)
    # Persist before anything is decided: an incident must not have a spend that its run's snapshot does not have.
    effects = run_ends.watch_left(node, tick.at)
    effects += [*launched_command.watch(node, tick.at), *node_journal.persist_due(node, tick.at)]
    for managed in node.runs.values():
        _meter(node, managed, holders, tick.at)
    marks.note_waiting(node, tick.at)
    effects.extend(budgeting.apply(node, tick.at))
    effects.extend(shared_budgets.apply(node, tick.at))
    effects.extend(of_fleet.apply(node, tick.at))
    for managed in node.runs.values():
        if managed.incident is not None and not managed.incident.is_closed:
            effects.extend(pass_deadline(node, managed, tick.at))
        elif managed.run.alive:
            managed.rules.observe(tick)
            effects.extend(verdicts.judge(node, managed, tick.at, None))
            effects.extend(_silence(managed, tick.at))
            effects.extend(alarms.no_loss_alarms(managed))
            effects.extend(alarms.no_step_alarms(managed, tick.at))
            effects.extend(alarms.beside_alarms(managed))
            effects.extend(alarms.begun_anew_alarms(managed))
            effects.extend(verdicts.retry_held_back(node, managed, tick.at))
            effects.extend(run_forecast.warn_of_ceiling(node, managed, tick.at))
    if node.superseded:
        effects.extend(alarms.superseded_alarms(node, tick.at))
    effects.extend(stop.watch(node, tick.at))
    effects.extend(from_peers.watch(node, tick.at))
    effects.extend(to_peers.beat(node, tick.at))
    return effects


def _meter(node: Node, managed: ManagedRun, holders: dict[str, int], at: MonoNs) -> None:
    run, rate = managed.run, metering.rate_of(node, managed, holders)
    held = run.reserve_usd_micros
    if rate is not None:
        run.set_money(run.spend_usd_micros, rate, held)
        lasts = halt_plan.shortest_ns(managed)
        times = halt_plan.halt_times(node.facts, managed.policy, lasts, run, at)
        held = UsdMicros(reserve(rate, times.whole_ns) + charging.checkpoint_reserve(node, managed))
    run.set_money(ceilings.spend(node, managed), rate, held)
    managed.money.reserved_at = at
    if run.alive:
        managed.money.paid_by = payers.payer_for(node, managed, holders)
        marks.note_money(node, managed, at)


def pass_deadline(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """All that a tick does to an open halt. The rules see no tick until it is closed."""
    incident = managed.incident
    assert incident is not None
    if incident.halt.deadline is None or at < incident.halt.deadline:
        return []
    return incidents.feed(node, managed, Fact.DEADLINE, at)


def _silence(managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Report missing data once, and its end: a lost connection or an unreadable log. It alone causes no action."""
    unwatched = managed.run.is_unwatched(at)
    if unwatched == managed.reported.unwatched:
        return []
    managed.reported.unwatched = unwatched
    run = managed.run
    if not unwatched:
        return [Alarm("watched_again", run.run, f"run {run.run} is heard again")]
    since = run.stream.lost_at if run.jsonl_only else run.last_frame_at
    assert since is not None
    why = f" ({run.stream.problem})" if run.stream.problem else ""
    text = f"nothing heard of run {run.run} for {format_duration(at - since)}{why}: budget only"
    return [Alarm("unwatched", run.run, text)]


# --- incidents, operators -----------------------------------------------------------------------------------


def _on_incident_event(node: Node, event: Any) -> list[Effect]:
    managed = node.of_incident(event.incident_id)
    if managed is None or managed.incident is None or managed.incident.incident_id != event.incident_id:
        return []  # An answer about an incident that is over.
    if managed is node.idle.stop:
        return stop.on_answer(node, managed, event)
    was_closed = managed.incident.is_closed
    effects = _INCIDENT_HANDLERS[type(event)](node, managed, event)
    if managed.incident.is_closed:
        effects += alarms.held_alarms(managed)
    if was_closed:  # What is found behind its end. The end itself has the run's row already: see incidents.feed.
        effects.append(node_journal.persist(node, event.at, managed))
    return effects


_INCIDENT_HANDLERS: Final[dict[type, Callable[[Node, ManagedRun, Any], list[Effect]]]] = {
    StopReplied: replies.on_stop_replied,
    BillingRead: replies.on_billing,
    NodeDrained: replies.on_drained,
    ProcessesSeen: incidents.on_processes,
    CheckpointRead: incidents.on_checkpoint_read,
}


def _on_command_launched(node: Node, event: CommandLaunched) -> list[Effect]:
    """It waits for the commit before it does anything: whoever launches this name after our crash must know it."""
    effects = names.ask_first(node, event)
    if not effects:
        names.free_for_command(node, event)
        effects = [*launched_command.on_launched(node, event), *metering.settle(node, event.at)]
        metering.leave_attempts(node, event.at)
    effects = [*effects, persist(node, event.at, durable=True)]
    node.request_persist()  # What its first tick charges waits for no period.
    return effects


def _on_command_exited(node: Node, event: CommandExited) -> list[Effect]:
    """The command has no process left, so its stand-in has ended too."""
    launched_command.over(node)
    standing_in = [name for name, managed in node.runs.items() if managed.is_unattached]
    ends = [run_ends.on_exited(node, TrainerExited(event.at, name, event.exit_code)) for name in standing_in]
    node.left = None
    return [*(effect for end in ends for effect in end), *limit.on_command_exited(node, event)]


def _on_command_left(node: Node, event: CommandLeft) -> list[Effect]:
    was = (node.left, node.ended_lock)
    node.left, node.ended_lock = None, event.lock
    return [persist(node, event.at)] if was != (None, event.lock) else []


def _on_recalled(node: Node, event: RunRecalled) -> list[Effect]:
    effects, waiting = names.on_recalled(node, event), node.waiting.pop(event.run, [])
    return [*effects, *(effect for one in waiting for effect in step(node, one))]


_HANDLERS: Final[dict[type, Callable[[Node, Any], list[Effect]]]] = {
    Hello: on_trainer.on_hello,
    RunRecalled: _on_recalled,
    Step: on_trainer.on_step,
    PhaseChange: on_trainer.on_phase,
    Beat: on_trainer.on_beat,
    RankFailed: on_trainer.on_rank_failed,
    Ack: on_trainer.on_ack,
    Bye: on_trainer.on_bye,
    Disconnected: on_trainer.on_disconnected,
    FramesLost: alarms.on_frames_lost,
    BadHello: alarms.on_bad_hello,
    Tick: _on_tick,
    StopReplied: _on_incident_event,
    BillingRead: _on_incident_event,
    NodeDrained: _on_incident_event,
    ProcessesSeen: _on_incident_event,
    CheckpointRead: _on_incident_event,
    LastGoodSeen: incidents.on_last_good_seen,
    CheckpointWeighed: incidents.on_checkpoint_weighed,
    GpuProcessesSeen: occupancy.on_gpu_processes,
    GovernorsSeen: occupancy.on_governors,
    UidRangesSeen: names.on_uid_ranges,
    GpuSample: on_sources.on_gpu_sample,
    HostMemory: on_sources.on_host_memory,
    HostSample: on_sources.on_host_sample,
    FilesLost: on_sources.on_files_lost,
    SpotNotice: on_sources.on_spot_notice,
    CommandExited: _on_command_exited,
    CommandLeft: _on_command_left,
    PriceRead: charging.on_price_read,
    OperatorHalt: by_hand.on_halt,
    OperatorHold: by_hand.on_hold,
    OperatorBudget: budgeting.on_operator_budget,
    OperatorForget: names.on_operator_forget,
    TrainerExited: run_ends.on_exited,
    WriterGone: run_ends.on_writer_gone,
    CommandLaunched: _on_command_launched,
    CommandEndSeen: run_ends.on_end_seen,
    OomKillsSeen: run_ends.on_oom_kills,
    LauncherExited: launched_command.on_launcher_exited,
    LaunchersSeen: on_trainer.on_launchers,
    StreamOpened: on_sources.on_stream,
    StreamState: on_sources.on_stream_state,
    StreamRead: on_sources.on_stream_read,
    TokensSettled: on_sources.on_tokens_settled,
    SourceTrouble: on_sources.on_trouble,
    HaltMarksRead: verdicts.on_halt_marks,
    PeerTold: from_peers.on_peer_told,
    OtherStopped: sweep.on_other_stopped,
    StoreAnswered: shared_budgets.on_answer,
    OrdersRead: of_fleet.on_read,
    SilentUsedUp: sweep.on_used_up,
    RankShowed: lambda _node, _showed: [],  # People read it, see daemon/rank_looks.py.
}
