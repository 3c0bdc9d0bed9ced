"""Checkpoints that a rule asks for while the run trains on. No incident is opened, so nothing escalates from one."""

from __future__ import annotations

from governor.core.base.findings import Verdict
from governor.core.base.units import MonoNs
from governor.core.engine.node import Tracked
from governor.core.events.effects import Alarm, Ask, Effect
from governor.core.events.events import Ack

FAILURES = frozenset({"failed", "aborted", "declined"})


def ask(tracked: Tracked, verdict: Verdict, at: MonoNs) -> Ask:
    """A checkpoint without a halt: the run trains on. Not an incident, so nothing escalates when it fails."""
    return Ask(
        incident_id=f"{_names_of(tracked)}{verdict.rule}.{at}",
        run=tracked.run.run,
        checkpoint=verdict.checkpoint if verdict.checkpoint != "none" else "good",
        deadline=MonoNs(at + tracked.policy.halt.grace_ns),
        exit_after=False,
        reason=verdict.finding.reason,
    )


def is_merged(tracked: Tracked, ack: Ack) -> bool:
    """A checkpoint that a rule had asked for was open when the halt's letter came: the rank folded that one into it
    and goes on under its name, to exit. One that is not to exit has not heard of the halt yet."""
    return bool(ack.exit_after) and is_asked(tracked, ack)


def is_asked(tracked: Tracked, ack: Ack) -> bool:
    return ack.incident_id.startswith(_names_of(tracked))


def tell_failed(tracked: Tracked, ack: Ack) -> list[Effect]:
    """A checkpoint without a halt is not asked for again before its rule is quiet: somebody should know. One rank's
    word is the run's."""
    if ack.rank != min(tracked.run.ranks):
        return []
    rule = ack.incident_id.removeprefix(_names_of(tracked)).rpartition(".")[0]
    why = ack.reason or ack.what
    text = f'the checkpoint of run {tracked.run.run} that rule "{rule}" asked for has not been saved: {why}'
    return [Alarm("checkpoint_failed", tracked.run.run, text)]


def _names_of(tracked: Tracked) -> str:
    return f"{tracked.run.run}.checkpoint."
