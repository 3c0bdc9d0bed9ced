"""The checkpoint that a halt has saved: who reads it, what was found, and what it means for the last good one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from governor.core.base.secrets import command_text, redacted
from governor.core.base.units import DurationNs, MonoNs, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.checkpoints import (
    CheckpointLook,
    CheckpointRead,
    LastGoodSeen,
    LookedFor,
    NamedCheckpoint,
    SavedCheckpoint,
)
from governor.core.events.effects import Alarm, FindLastGood, ReadCheckpoint
from governor.core.events.inputs import Ack
from governor.core.halt.incident import Incident
from governor.core.runs.last_good import LastGood, after_looks
from governor.core.runs.state import Run, is_nonfinite


def named_by(step: int | None, saved: SavedCheckpoint) -> NamedCheckpoint:
    """As a rank names what it has acknowledged."""
    return NamedCheckpoint(step, saved.path, mono_ns=saved.mono_ns, trained_finite=saved.trained_finite is True)


def take(managed: ManagedRun, ack: Ack) -> list[ReadCheckpoint | FindLastGood]:
    """Note what the ranks say that they have saved, and have it read."""
    incident = managed.incident
    assert incident is not None
    saved = ack.checkpoint
    assert saved is not None
    taken = {**saved.row(), "step": ack.step, "verified_by": "trainer"}
    if saved.kind == "good" and managed.run.last_good is not None:
        taken["last_good_before"] = managed.run.last_good.row()  # For the case that this one is none.
    incident.take_checkpoint(taken)
    asked_at = incident.at_of("asked")
    if asked_at is not None:
        managed.run.note_save(DurationNs(ack.at - asked_at))
    if saved.kind == "good":
        managed.run.name_last_good(named_by(ack.step, saved), ack.at)
        incident.take_last_good(managed.run.last_good)
    # A framework that saves by its own means may have removed the last good one to make room.
    if saved.path is None or saved.manifest is None:
        return [*find_last_good(managed, ack.at)]
    gid = next((rank.peer.gid for rank in managed.run.ranks.values() if rank.connection == ack.connection), None)
    finds = find_last_good(managed, ack.at, but=saved.path)
    read = ReadCheckpoint(incident.incident_id, incident.run, saved.path, saved.manifest, managed.run.uid, gid)
    return [read, *finds]


def take_finished(managed: ManagedRun, at: MonoNs) -> list[FindLastGood]:
    """A save from before the verdict may become whole after it: large files take a minute to be durable.

    One of a later step is the last good one of nothing: its weights are those of the finding.
    """
    incident, last = managed.incident, managed.run.last_good
    assert incident is not None
    step = last.step if last is not None else None
    known = incident.last_good.step if incident.last_good is not None else None
    if step is None or incident.step is None or not (known or -1) < step <= incident.step:
        return []
    incident.take_last_good(managed.run.last_good)
    return find_last_good(managed, at)


def find_last_good(managed: ManagedRun, at: MonoNs, *, but: str | None = None) -> list[FindLastGood]:
    """It is about to be told: look whether it is still there and finite. `but`: that one is read anyway."""
    run, incident = managed.run, managed.incident
    gid = next((rank.peer.gid for rank in run.ranks.values()), None)
    told = [run.last_good]
    if incident is not None and not incident.is_closed and _path(incident.last_good) != _path(run.last_good):
        told.append(incident.last_good)
    told = [one for one in told if one is not None and one.path not in (None, but, _read_unfit(incident))]
    chains = [(one, *_older(run, one)) for one in told if one is not None]
    _note_pending(managed, told)
    asked = [LookedFor(at, tuple(one.as_named for one in chain if one.path)) for chain in chains]
    return [FindLastGood(run.run, one, run.uid, gid) for one in asked]


def _read_unfit(incident: Incident | None) -> str | None:
    """The path of this halt's own checkpoint if it was read and is not fit: a look has no hashes, and sees less."""
    saved = (incident.checkpoint if incident is not None else None) or {}
    return saved.get("path") if any(saved.get(name) for name in ("torn", "fault", "nonfinite")) else None


def _note_pending(managed: ManagedRun, told: Sequence[LastGood | None]) -> None:
    """Until the answer is here, nothing is known. It may never come: the governor may end before."""
    run, incident = managed.run, managed.incident
    if incident is not None and incident.last_good is not None and incident.last_good in told:
        incident.take_last_good(incident.last_good.pending())
    if run.last_good is not None and run.last_good in told:
        run.take_last_good(run.last_good.pending(), run.last_good_at, run.named_before)


def note_last_good(managed: ManagedRun, seen: LastGoodSeen) -> list[Alarm]:
    """Take what the looks have left, for whoever tells of it."""
    run, incident = managed.run, managed.incident
    seen = _with_ranks_word(run, seen)
    known, told = run.last_good, incident.last_good if incident is not None else None
    alarms: list[Alarm] = []
    if incident is not None and told is not None and seen.look_at(told.as_named) is not None:
        found = after_looks(told, _older(run, told), seen, _vouched_before(managed))
        incident.take_last_good(found)
        _suspect_own(incident, found)
        alarms = _alarms(run.run, told, found)
    if known is None or seen.look_at(known.as_named) is None:
        return alarms  # There is a newer one, perhaps in the same place.
    found = after_looks(known, run.named_before, seen, _vouched_before(managed))
    # When an older one was saved is not remembered, so that more work counts as unsaved, and none of it as saved.
    at = run.last_good_at if found.is_fit and found.path == known.path else None
    run.take_last_good(found, at, _older(run, found))
    return alarms or _alarms(run.run, known, found)


def _with_ranks_word(run: Run, seen: LastGoodSeen) -> LastGoodSeen:
    """A rank has seen a trained parameter in its part that is not finite: that is no buffer, and no few bytes of it."""
    harmed = {rank.harmed: rank.rank for rank in run.ranks.values() if rank.harmed is not None}
    ranks = {one.path: harmed[one.path, one.step] for one in seen.asked.named if (one.path, one.step) in harmed}
    looks = (
        replace(look, nonfinite=f"a trained parameter, says rank {ranks[look.path]}", few_harmed=None)
        if look.path in ranks else look
        for look in seen.looks
    )  # fmt: skip
    return replace(seen, looks=tuple(looks))


def _suspect_own(incident: Incident, found: LastGood) -> None:
    """If looks have shown that what this halt saved is not finite, it was not good."""
    own = next((one for one in (found, *found.passed_over) if one.path == _saved_path(incident)), None)
    if own is not None and own.nonfinite is not None and (incident.checkpoint or {}).get("kind") == "good":
        incident.verify_checkpoint({"kind": "suspect", "nonfinite": own.nonfinite})


# Their verdicts say that the loss, or what makes it, is not finite. Of a joined one nobody here knows the reason.
_DOUBTS: Final = ("nonfinite", "overflow_storm", "loss_vanished", "join")


def _vouched_before(managed: ManagedRun) -> int | None:
    """The run's finite losses vouch for what was saved before this step. None: nobody knows the loss.

    That of a step is computed before its weights change, and the next one shows whether they were sound. Where no next
    one came, its own has to do: what may be alone is given up only where a loss or a verdict says so.
    """
    run, incident = managed.run, managed.incident
    doubted = incident if _is_doubted(managed) else None
    if run.loss is None and doubted is None:
        return None
    harmed = [rank.finite_step for rank in run.ranks.values() if is_nonfinite(rank.loss)]
    steps = [run.finite_step, *harmed]
    if doubted is not None:
        steps.append(None if doubted.step is None else doubted.step - 1)
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return None
    is_disproved = doubted is not None or bool(harmed) or is_nonfinite(run.loss)
    return min(known) if is_disproved else min(known) + 1


def _is_doubted(managed: ManagedRun) -> bool:
    """Whether a verdict says that the loss is not to be believed from its step on."""
    return managed.incident is not None and managed.incident.trigger in _DOUBTS


def _alarms(run: str, known: LastGood, found: LastGood) -> list[Alarm]:
    """One for each that was not known to be unfit."""
    unfit_before = {one.path for one in (known, *known.passed_over) if not one.is_fit}
    alarms: list[Alarm] = []
    for one in (found, *found.passed_over):
        if one.is_fit or one.path in unfit_before:
            continue
        which = "the last good checkpoint" if one.path == known.path else "a checkpoint that was named as good"
        if one.gone is not None:
            alarms.append(Alarm("last_good_gone", run, f"{which}, of step {one.step}, {one.gone}: {one.path}"))
        elif one.torn is not None:
            text = f"{which}, of step {one.step}, is not whole: {one.torn}; do not resume from it: {one.path}"
            alarms.append(Alarm("checkpoint_torn", run, text))
        else:
            text = f"{which}, of step {one.step}, is not finite ({one.nonfinite}); do not resume from it: {one.path}"
            alarms.append(Alarm("checkpoint_nonfinite", run, text))
    return alarms


def _path(checkpoint: LastGood | None) -> str | None:
    return checkpoint.path if checkpoint is not None else None


def _older(run: Run, checkpoint: LastGood) -> tuple[LastGood, ...]:
    """Those that were named before it, behind what the trainer has named of the same step since: it was moved."""
    named = (*((run.last_good,) if run.last_good is not None else ()), *run.named_before)
    place = next((place for place, one in enumerate(named) if one.path == checkpoint.path), None)
    if place is None:
        return ()
    return (*(one for one in named[:place] if one.step == checkpoint.step), *named[place + 1 :])


def judge(managed: ManagedRun, read: CheckpointRead, wall: WallNs) -> list[Alarm | FindLastGood]:
    """Note what was found. One that is not whole, or not finite, is not the last good one."""
    incident, look = managed.incident, read.look
    assert incident is not None
    is_open = _is_open(managed, look)
    incident.note(
        read.at, wall, "checkpoint_read",
        whole=look.whole, files=look.files, hashed=look.hashed, reason=look.reason,
        **({"counted": look.counted} if look.whole else {}),
        **({"few_nonfinite" if is_open else "nonfinite": look.nonfinite} if look.nonfinite else {}),
    )  # fmt: skip
    alarms: list[Alarm | FindLastGood] = []
    is_withdrawn = False
    if incident.checkpoint is not None:
        if look.whole:
            incident.verify_checkpoint({"verified_by": "governor", "files": look.files, "hashes_equal": look.hashed})
        elif look.whole is False:
            incident.verify_checkpoint({"verified_by": "nobody", "torn": look.reason})
            is_withdrawn = True
        if look.nonfinite and not is_open and incident.checkpoint.get("kind") == "good":
            incident.verify_checkpoint({"kind": "suspect", "nonfinite": look.nonfinite})
            is_withdrawn = True
            text = f"checkpoint of incident {incident.incident_id} was saved as good and its weights are not finite"
            text += f": {look.nonfinite}; do not resume from it"
            alarms.append(Alarm("checkpoint_nonfinite", incident.run, text))
        if is_withdrawn:
            _withdraw(managed, read.at)
        elif look.whole:
            _note_unsampled(managed, look.unsampled)
    if look.whole is False:
        text = f"checkpoint of incident {incident.incident_id} is not whole: {look.reason}"
        alarms.append(Alarm("checkpoint_torn", incident.run, text))
    return [*alarms, *(find_last_good(managed, read.at) if alarms or is_open else [])]


def _is_open(managed: ManagedRun, look: CheckpointLook) -> bool:
    """Whether looks at those before it decide what a few tensors that are not finite mean."""
    last, checkpoint = managed.run.last_good, managed.incident.checkpoint if managed.incident is not None else None
    is_last = checkpoint is not None and last is not None and last.path == checkpoint.get("path")
    is_believed = not _is_doubted(managed) and _vouched_before(managed) is not None
    return bool(look.whole and look.few_harmed and is_last) and is_believed


def _note_unsampled(managed: ManagedRun, unsampled: str | None) -> None:
    """Say of the last good checkpoint, if this halt saved it, what of its weights nobody has looked into."""
    run, incident = managed.run, managed.incident
    assert incident is not None
    if run.last_good is not None and run.last_good.path == _saved_path(incident):
        run.take_last_good(replace(run.last_good, unsampled=unsampled), run.last_good_at, run.named_before)
        incident.take_last_good(run.last_good)


def _saved_path(incident: Incident) -> str | None:
    return incident.checkpoint.get("path") if incident.checkpoint is not None else None


def _withdraw(managed: ManagedRun, at: MonoNs) -> None:
    """The checkpoint that this halt saved is not the last good one after all: the one before it is."""
    incident, last = managed.incident, managed.run.last_good
    assert incident is not None
    assert incident.checkpoint is not None
    if last is not None and last.path == _saved_path(incident):
        before = LastGood.of(incident.checkpoint.get("last_good_before"))
        torn, nonfinite = (incident.checkpoint.get(name) for name in ("torn", "nonfinite"))
        refused = replace(last, refused_mono_ns=at, torn=torn, nonfinite=nonfinite)
        # Where none was before, this one stays named as what it is: nobody resumes from it, and no rank names it again.
        back, older = (refused, last) if before is None else (refused.in_favour_of(before), before)
        # When that one was saved is not remembered, so more work counts as unsaved, and none of it as saved.
        managed.run.take_last_good(back, None, _older(managed.run, older))
        incident.take_last_good(managed.run.last_good)


def resume_command(node: Node, managed: ManagedRun) -> str | None:
    """The command that launched the run. A script that calls resume() goes on from its newest whole checkpoint."""
    argv = managed.launch.command or managed.run.resume_argv
    if not argv:
        return None
    command = command_text(redacted(argv, node.facts.redact_keys))
    launched = node.launched
    # A rank's own directory need not be the one in which its launcher was started.
    is_launched = launched is not None and launched.cwd is not None and argv == launched.command
    cwd = launched.cwd if launched is not None and is_launched else managed.run.cwd
    return f"cd {command_text(redacted([cwd], node.facts.redact_keys))} && {command}" if cwd else command
