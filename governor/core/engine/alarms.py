"""Alarms about training that is not watched or not judged: refused hellos, superseded ranks, runs without a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.core.base.findings import Reading
from governor.core.base.identity import ConnectionId, Peer
from governor.core.base.shares import Claim, first_to_go, user_of
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.managed_run import ManagedRun, SupersededRank
from governor.core.engine.node import Node, Refusal
from governor.core.events.effects import Alarm, CloseIncident, Effect, PersistIncident, Record, Refuse
from governor.core.events.forwards import Forwards
from governor.core.events.inputs import BadHello, FramesLost, Hello, Step
from governor.core.halt.state import GivenUp
from governor.core.runs.life import LifeFact
from governor.core.runs.state import Rank, is_nonfinite

# Four times the inbox's connections. A retry every 30 s gives no second alarm.
REFUSALS_REMEMBERED_MAX: Final = 1_024


def on_bad_hello(node: Node, event: BadHello) -> list[Effect]:
    node.frames_lost_total += 1
    return refuse(node, event.connection, event.peer, event.why, event.at)


def refuse(node: Node, connection: ConnectionId, peer: Peer, reason: str, at: MonoNs) -> list[Effect]:
    effects: list[Effect] = [Refuse(connection, reason)]
    node.idle.refused_at = at
    refusal = Refusal(reason, peer.uid)
    if node.refusals.pop(peer.process, None) != refusal:
        is_strangers = node.command is not None and peer.uid != node.command.uid
        who = f"pid {peer.process.pid} of uid {peer.uid}" if is_strangers else f"pid {peer.process.pid}"
        text = f"{who} trains UNWATCHED, its hello was refused: {reason}"
        effects.append(Alarm("hello_refused", None, text, peer.uid))
    node.refusals[peer.process] = refusal
    if len(node.refusals) > REFUSALS_REMEMBERED_MAX:  # By shares of the users: one's flood forgets nobody else's.
        claims = {process: Claim(user_of(node.uid_ranges, one.uid), 1) for process, one in node.refusals.items()}
        del node.refusals[first_to_go(claims)]
    return effects


def displace(node: Node, managed: ManagedRun, reason: str, at: MonoNs) -> list[Effect]:
    """Watch the run no longer, to make room for another. It is said, and its ranks are told."""
    run = managed.run
    gone = [rank.connection for rank in run.connected_ranks() if rank.connection is not None]
    for connection in gone:
        node.connections.pop(connection, None)
    run.move(LifeFact.GONE, at)
    given_up = _give_up_halt(node, managed, at)
    halt = (
        f"; its halt is not seen to its end ({managed.incident.incident_id})" if managed.incident and given_up else ""
    )
    text = f"run {run.run} of uid {run.uid} trains UNWATCHED: {reason}{halt}"
    return [*(Refuse(connection, reason) for connection in gone), *given_up, Alarm("run_displaced", run.run, text)]


def _give_up_halt(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Close the run's open halt as one that has not ended: nobody follows it any more, a governor after us neither."""
    incident = managed.incident
    if incident is None or incident.is_closed:
        return []
    incident.give_up(at, node.wall(at), GivenUp.GAVE_WAY)
    data = {"from": incident.halt.stage.name, "to": GivenUp.GAVE_WAY, "fact": "displaced"}
    return [
        PersistIncident(incident.incident_id, incident_snapshot(node, incident), closed=True),
        Record("transition", incident.run, incident.incident_id, data, durable=True),
        CloseIncident(incident.incident_id, incident.run, has_ended=False),
    ]


# --- superseded ranks: connected, while another attempt has taken over their run's name -----------------------
#
# Their frames belong to no run, so nothing is judged. One alarm says that they train on, another that a loss is no
# number.


# A launcher's restart kills the old ranks before it begins the new ones; their hang-ups arrive within a moment.
SUPERSEDED_AFTER_NS: Final = DurationNs(5 * NS_PER_S)
# One alarm a run in this time: two launches may fight for one name.
DISPLACED_PERIOD_NS: Final = DurationNs(60 * NS_PER_S)
PIDS_NAMED_MAX: Final = 8  # The ranks of one machine. More would only fill the line.
REMEDY: Final = "ranks of one launch need RANK and WORLD_SIZE, other launches a name each: attach(engine, run=…)"


def supersede(node: Node, managed: ManagedRun, rank: Rank, by: Hello) -> None:
    """Take the rank's connection from its run. During a halt, the halt deals with the rank."""
    assert rank.connection is not None
    node.connections.pop(rank.connection, None)
    # A process may begin a new attempt itself.
    if managed.incident is None and not rank.said_bye and rank.peer.process != by.peer.process:
        one = SupersededRank(by.run, managed.run.attempt, rank.peer.process.pid, by.at)
        node.superseded[rank.connection] = node.ignored[rank.connection] = one


def superseded_alarms(node: Node, at: MonoNs) -> list[Effect]:
    """Report runs that lost their name to another attempt and train on. A restart's old ranks are gone by now."""
    pids: dict[tuple[str, str], list[int]] = {}
    for connection, rank in list(node.superseded.items()):
        if at - rank.since >= SUPERSEDED_AFTER_NS:
            del node.superseded[connection]
            pids.setdefault((rank.run, rank.attempt), []).append(rank.pid)
    effects: list[Effect] = []
    for (name, attempt), found in pids.items():
        managed = node.runs.get(name)
        said_at = managed.reported.superseded_at if managed is not None else None
        if managed is None or (said_at is not None and at - said_at < DISPLACED_PERIOD_NS):
            continue
        managed.reported.superseded_at = at
        text = (
            f"attempt {managed.run.attempt} has taken the name of run {name} over, and {len(found)} rank(s) of attempt "
            f"{attempt} train on UNWATCHED (pid {', '.join(map(str, sorted(found)[:PIDS_NAMED_MAX]))}"
            f"{', …' if len(found) > PIDS_NAMED_MAX else ''}): end one of the two, or give each run its name ({REMEDY})"
        )
        effects.append(Alarm("displaced", name, text))
    return effects


def on_superseded_step(node: Node, event: Step) -> list[Effect]:
    """Report a superseded rank's loss that is no number, once a rank: no rule judges its steps."""
    assert event.connection is not None
    one = node.ignored[event.connection]
    if one.is_loss_reported or not is_nonfinite(event.loss):
        return []
    node.ignored[event.connection] = replace(one, is_loss_reported=True)  # It trains on, so it still uses the node.
    text = (
        f"pid {one.pid} has loss {event.loss} at step {event.step} and is not judged: attempt {one.attempt} of run "
        f"{one.run} has lost its name to another, which trains beside it ({REMEDY})"
    )
    return [Alarm("displaced_nonfinite", one.run, text)]


# --- a figure that cannot be: it is left out, and one line says so ----------------------------------------------


def figure_alarms(managed: ManagedRun, step: Step) -> list[Effect]:
    """Report once an attempt of which a count is not believed. What it tells afterwards is weighed all the same."""
    run = managed.run
    news, attempt = run.belief.take_news(), (run.attempt, run.attempt_at)
    if managed.reported.figure == attempt:
        return []
    managed.reported.figure = attempt
    if news is None:
        news = f"step {step.step} says {step.left_out}, which is more than any training has: it is left out"
    return [Alarm("figure_refused", run.run, f"run {run.run}: {news}")]


def held_alarms(managed: ManagedRun) -> list[Effect]:
    """Report at the end of an attempt which tokens of its last step are counted nowhere."""
    run = managed.run
    lost = run.belief.let_go(run.tokens_total, run.trained_count.offset)
    return [] if lost is None else [Alarm("figure_refused", run.run, f"run {run.run}: {lost}")]


# --- a run that trains and shows no loss: its loss rules cannot judge it ---------------------------------------


# Steps of an attempt. If the shim can see a loop's loss, the first step shows it. The other steps allow for a warm-up.
LOSS_DUE_STEPS: Final = 20


def no_loss_alarms(managed: ManagedRun) -> list[Effect]:
    """Report once an attempt that rules cannot judge. It stands in `status`, metrics and console until a loss comes."""
    run = managed.run
    attempt = (run.attempt, run.attempt_at)
    if run.jsonl_only:
        return _loss_gone_alarms(managed, attempt)
    if run.loss is not None:
        managed.reported.no_loss = None
        return []  # The last step had one.
    if run.attempt_step < LOSS_DUE_STEPS or managed.reported.no_loss == attempt:
        return []
    findings = managed.rules.findings
    blind = [
        rule.name
        for rule in managed.policy.rules
        if (finding := findings.get(rule.name)) is not None
        and finding.reading is Reading.UNKNOWN
        and finding.reason == "no_loss_seen"
    ]
    # The pipeline stage that has the loss may be on another node, whose governor sees it.
    if not blind or (run.framework == "pipeline" and not run.covers_world()):
        return []
    managed.reported.no_loss = attempt
    text = (
        f'no loss is seen in {run.attempt_step} steps: rule "{blind[0]}" cannot judge run {run.run}; let the model '
        "return its loss, or pass it through `shim.loss(loss)` before backward()"
    )
    return [Alarm("no_loss", run.run, text)]


def _loss_gone_alarms(managed: ManagedRun, attempt: tuple[str, MonoNs]) -> list[Effect]:
    """The writer of a foreign log decides what it holds, and how often. What it had, and has no more, is said."""
    run = managed.run
    gone = run.loss_rhythm.gone_for(run.attempt_step)
    if gone is None:
        managed.reported.no_loss = None
        return []
    if managed.reported.no_loss == attempt:
        return []
    managed.reported.no_loss = attempt
    text = (
        f"run {run.run}: its log has shown no loss for {gone} steps, and before it did: no rule that needs one can "
        "judge it, and a NaN may be written as nothing; look at its last lines"
    )
    return [Alarm("no_loss", run.run, text)]


# --- a process that trains something else beside what is watched ---------------------------------------------


def beside_alarms(managed: ManagedRun) -> list[Effect]:
    """Report once an attempt that its process trains something else unwatched. It stands in `status` until its end."""
    run = managed.run
    attempt = (run.attempt, run.attempt_at)
    if run.beside is None or managed.reported.beside == attempt:
        return []
    managed.reported.beside = attempt
    text = (
        f"a process of run {run.run} trains something else UNWATCHED beside what is judged ({run.beside}): attach() "
        "watches one training at a time; call finish() or close() on the handle of the one that is over, or attach one "
        "module with the optimizers of both"
    )
    return [Alarm("trains_beside", run.run, text)]


# --- a launch that does not go on from what the run has saved ---------------------------------------------------------


def begun_anew_alarms(managed: ManagedRun) -> list[Effect]:
    """Report once that resume() has found nothing though a checkpoint is known against which nothing is said.

    Its directory may have the time in its name. A script that loads by its own means may count from 0 and go on, and
    who goes back to an older checkpoint has meant it.
    """
    run, good = managed.run, managed.run.last_good
    attempt = (run.attempt, run.attempt_at)
    if run.step is None or not run.attempt_step or run.resumes != "called" or managed.reported.begun == attempt:
        return []
    managed.reported.begun = attempt
    if run.first_step_at is not None and run.first_step_at < run.attempt_at:
        return []  # The journal knows its steps: it was told then. What it has saved since is its own.
    if run.has_loaded:
        return []  # Between two steps, perhaps: those that were before that count from 0.
    if good is None or not good.step or not good.is_fit or run.step > run.attempt_step or good.step < run.step:
        return []
    if run.last_good_at is not None and run.last_good_at >= run.attempt_at:
        return []  # This attempt has saved it: a loop may tell of a checkpoint before it tells of its steps.
    text = (
        f"run {run.run} begins at step 0, since shim.resume() has found nothing where it looked: its last good "
        f"checkpoint is of step {good.step:,} ({good.path}), and what was trained is paid again; end it and load that "
        "one, or launch under another --name"
    )
    return [Alarm("begun_anew", run.run, text)]


# --- a run that computes and trains nothing: forward passes, and no optimizer step of them ---------------------------


# The shim tells of passes only when there are several steps' worth. A loop may look for a learning rate or a batch size
# meanwhile, which takes seconds.
STEPLESS_NS: Final = DurationNs(30 * NS_PER_S)
FIRST_STEPLESS_NS: Final = DurationNs(300 * NS_PER_S)  # How many passes the first step takes nobody knows.
STEPLESS_STEPS: Final = 3
_UNSEEN_OPTIMIZER: Final = "it steps an optimizer that attach() was not given"
MAY_STEP: Final = frozenset({"train", "compile"})


def no_step_alarms(managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Report once that forward passes go on after a step and no step is made of them."""
    run = managed.run
    ranks = [
        rank for rank in run.ranks.values() if rank.forwards is not None and rank.connected and rank.phase in MAY_STEP
    ]
    about = (run.attempt, run.attempt_at, run.step)
    if not ranks or managed.reported.no_step == about:
        return []
    rank = max(ranks, key=lambda one: one.forwards.count if one.forwards is not None else 0)
    forwards = rank.forwards
    since = rank.step_at if rank.step_at is not None else rank.hello_at
    if forwards is None:
        return []
    least_ns = STEPLESS_NS if rank.step_at is not None or forwards.is_broken else FIRST_STEPLESS_NS
    if at - since < max(least_ns, int(STEPLESS_STEPS * (run.step_times.median() or 0.0) * NS_PER_S)):
        return []
    managed.reported.no_step = about
    text = (
        f"{forwards.count:,} forward passes since step {run.step or 0} and no optimizer step for "
        f"{format_duration(at - since)}: {_why_stepless(forwards)}; run {run.run} is paid for and does not train"
    )
    return [Alarm("no_step", run.run, text)]


def _why_stepless(forwards: Forwards) -> str:
    if not forwards.seen:
        return f"the loop drops its loss, probably because that is not finite, or {_UNSEEN_OPTIMIZER}"
    if not forwards.nonfinite:
        return f"the {forwards.seen} outputs that were looked at are finite: perhaps {_UNSEEN_OPTIMIZER}"
    if forwards.nonfinite == forwards.seen:
        return f"none of the {forwards.seen} outputs that were looked at is finite, and the loop drops them"
    finite = f"{forwards.seen - forwards.nonfinite} of the {forwards.seen} outputs that were looked at are finite"
    return f"the loop drops its loss, probably because that is not finite; {finite}"


def on_frames_lost(node: Node, event: FramesLost) -> list[Effect]:
    node.frames_lost_total += event.count
    return []
