"""How a run ends: who notices it, why it ended, and the alarm. `settle` alone says why.

Three look at an end, one after another: the process table, `costgov run`, which waited for its command, and the control
group, which counts out-of-memory kills. Each may know more than the one before.
"""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.secrets import redacted
from governor.core.base.units import MonoNs
from governor.core.engine import incidents, launched_command, saved_checkpoint
from governor.core.engine.alarms import held_alarms
from governor.core.engine.charging import note_shares
from governor.core.engine.command.payers import may_leave, next_payer
from governor.core.engine.idle import limit
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import charge_until, count_split, hand_over
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.spent.time import count_untold
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.ends import CommandEndSeen, Failure, OomKillsSeen, RunEnd
from governor.core.events.inputs import ProcessesSeen, TrainerExited
from governor.core.events.streams import WriterGone
from governor.core.halt.table import PAST_ASKING
from governor.core.runs.ends import cause_of, ended_text, is_of_passed_on, note_end, note_oom_kills, seen_cause
from governor.core.runs.last_good import LastGood
from governor.core.runs.life import LifeFact


def settle(
    node: Node, managed: ManagedRun, exit_code: int | None = None, seen: CommandEndSeen | None = None
) -> list[Effect] | None:
    """Note why the run ended. Returns the alarm of it, which only one of those who look gives.

    None: nothing is noted, because a halt is a cause of its own, or nothing was seen.
    """
    run, before = managed.run, managed.run.end
    if managed.incident is not None:
        return None
    cause = seen_cause(run) if seen is None else cause_of(run.failures, seen)
    if seen is None and cause is None:
        return None
    note_end(run, RunEnd(exit_code, cause))
    if seen is not None:
        return [] if is_of_passed_on(seen) else _crash_alarms(managed)
    # `costgov run` looks at its command's end, and says it then.
    return _crash_alarms(managed) if before is None and not node.facts.exclusive else []


def on_exited(node: Node, event: TrainerExited) -> list[Effect]:
    """The announced ranks are gone. A halt that still asks goes on to the sweep. Without a halt, the run has ended."""
    managed = node.runs.get(event.run)
    if managed is None:
        return []
    if managed.incident is not None and not managed.incident.is_closed:
        if managed.incident.halt.stage in PAST_ASKING:
            # Launchers and children may outlive the ranks. From TERM on, only the scan shows what is left.
            return []
        return incidents.on_processes(node, managed, ProcessesSeen(event.at, managed.incident.incident_id, ()))
    if not managed.run.alive or (event.exit_code is None and launched_command.is_other_launch(node, managed)):
        return []
    return _end(node, managed, event)


def on_writer_gone(node: Node, event: WriterGone) -> list[Effect]:
    if (managed := node.runs.get(event.run)) is not None:
        managed.is_left = True
    return []


def watch_left(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick: end the log of the command whose writer is gone, so that another one pays for what follows.

    Its next line would begin it anew.
    """
    effects: list[Effect] = []
    for managed in [*node.runs.values()]:  # Who takes the command's time may make another one past.
        if managed.is_left and may_leave(node, managed):
            effects += _end(node, managed, TrainerExited(at, managed.run.run, None))
    return effects


def _end(node: Node, managed: ManagedRun, event: TrainerExited) -> list[Effect]:
    is_gap_its = node.ledger.returning and node.account.goes_on  # Else another launch's was before it.
    if managed.is_unattached and node.boot_offset_ns is None and not is_gap_its:
        return []  # The command was over before the first tick, which charges it. Its end is seen again after that.
    charge_until(node, event.at)
    was_unattached = managed.is_unattached
    if was_unattached:  # No run ever reported for the command: the stand-in pays.
        hand_over(node, managed, event.at)
        launched_command.over(node, managed)
    managed.run.move(LifeFact.GONE, event.at)
    if (heir := next_payer(node, managed)) is not None:
        hand_over(node, heir, event.at, begins=True)
    if was_unattached and not managed.history.split.has_begun and managed.run.last_frame_at is None:
        count_untold(node, managed)
    count_split(node, managed)
    note_shares(node, event.at)
    finished = limit.on_ended(node, managed, event.at)
    finds = saved_checkpoint.find_last_good(managed, event.at)  # The alarm says that the look has not ended.
    run, alarms = managed.run, settle(node, managed, event.exit_code)
    cause = run.end.cause if alarms is not None and run.end is not None else None
    data = {"completed": run.completed, "exit_code": event.exit_code, "step": run.step, "cause": cause}
    record = Record("ended", event.run, None, data)
    told = [*held_alarms(managed), *(alarms or [])]
    return [record, persist(node, event.at, managed), *told, *finished, *finds]


def on_end_seen(node: Node, event: CommandEndSeen) -> list[Effect]:
    """`costgov run` has seen its command's end: that of the command's runs."""
    lines = tuple(replace(line, text=_redacted(node, line.text)) for line in event.last_lines)
    seen, effects = replace(event, last_lines=lines), list[Effect]()
    for managed in node.runs.values():
        is_its = launched_command.is_its(managed, event.run, event.processes)
        if not is_its or (event.exit_code == 0 and not _failed(managed)):
            continue
        alarms = settle(node, managed, event.exit_code, seen)
        if alarms is not None:
            told = Record("end_cause", managed.run.run, None, _row(managed, event.died_of), durable=True)
            effects += [told, persist(node, event.at, managed), *alarms]
    return effects


def on_oom_kills(node: Node, event: OomKillsSeen) -> list[Effect]:
    """Note a kill. The count may come after the end of the run that it explains."""
    managed = node.runs.get(event.run)
    if managed is None or not note_oom_kills(managed.run, event.count, event.at):
        return []
    before = managed.run.end
    # `costgov run` reads the count once more when it looks at its command's end.
    alarms = None if managed.run.alive or node.facts.exclusive else settle(node, managed)
    if alarms is None or managed.run.end == before:
        return []
    return [Record("end_cause", event.run, None, _row(managed)), persist(node, event.at, managed), *alarms]


def _row(managed: ManagedRun, died_of: str | None = None) -> dict[str, object]:
    run = managed.run
    assert run.end is not None, "the caller has settled it"
    return {"exit_code": run.end.exit_code, "signal": died_of, "cause": run.end.cause, "step": run.step}


def _failed(managed: ManagedRun) -> bool:
    """Whether a rank ended by an exception, whatever its launcher's exit code says. `deepspeed` may exit with 0."""
    failures = managed.run.failures.values()
    return not managed.run.ended_well and any(failure.thread is None for failure in failures)


def _crash_alarms(managed: ManagedRun) -> list[Effect]:
    """None for a person's Ctrl-C."""
    run = managed.run
    assert run.end is not None, "the caller has settled it"
    if run.failures and all(failure.name == "KeyboardInterrupt" for failure in run.failures.values()):
        return []
    step = "no step was seen" if run.step is None else f"step {run.step}"
    return [
        Alarm("crashed", run.run, f"run {run.run} {ended_text(run.end)}; {step}; {_last_checkpoint(run.last_good)}")
    ]


def _last_checkpoint(saved: LastGood | None) -> str:
    if saved is None:
        return "no checkpoint seen"
    fault = saved.gone or saved.torn or (saved.nonfinite and f"not finite: {saved.nonfinite}")
    unseen = f" (not looked into: {saved.unseen})" if saved.unseen else ""
    doubt = f" (do not resume from it: {fault})" if fault else unseen
    return f"last checkpoint: step {saved.step}, {saved.path}{doubt}"


# --- an exception that ends a rank ---


def redacted_failure(node: Node, failure: Failure) -> Failure:
    place = _redacted(node, failure.place) if failure.place is not None else None
    return replace(failure, name=_redacted(node, failure.name), text=_redacted(node, failure.text), place=place)


def _redacted(node: Node, text: str) -> str:
    return redacted([text], node.facts.redact_keys)[0]
