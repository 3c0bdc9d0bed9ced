"""The checkpoint that a halt has saved: who reads it, what was found, and what it means for the last good one."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.units import DurationNs, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.checkpoints import CheckpointRead, LastGood, LastGoodSeen
from governor.core.events.effects import Alarm, FindLastGood, ReadCheckpoint
from governor.core.events.inputs import Ack


def take(managed: ManagedRun, ack: Ack) -> list[ReadCheckpoint | FindLastGood]:
    """Note what the ranks say that they have saved, and have it read."""
    incident = managed.incident
    assert incident is not None
    assert ack.checkpoint is not None
    taken = {**ack.checkpoint, "step": ack.step, "verified_by": "trainer"}
    if ack.checkpoint.get("kind") == "good" and managed.run.last_good is not None:
        taken["last_good_before"] = managed.run.last_good.row()  # For the case that this one is none.
    incident.take_checkpoint(taken)
    asked_at = incident.at_of("asked")
    if asked_at is not None:
        managed.run.note_save(DurationNs(ack.at - asked_at))
    if ack.checkpoint.get("kind") == "good":
        managed.run.set_last_good(ack.step, ack.checkpoint.get("path"), ack.at)
        incident.take_last_good(managed.run)
    # A framework that saves by its own means may have removed the last good one to make room.
    finds = find_last_good(managed)
    path, manifest = ack.checkpoint.get("path"), ack.checkpoint.get("manifest")
    if not (isinstance(path, str) and isinstance(manifest, str)):
        return [*finds]
    gid = next((rank.peer.gid for rank in managed.run.ranks.values() if rank.connection == ack.connection), None)
    finds = [find for find in finds if find.path != path]
    return [ReadCheckpoint(incident.incident_id, incident.run, path, manifest, managed.run.uid, gid), *finds]


def take_finished(managed: ManagedRun) -> None:
    """A save from before the verdict may become whole after it: large files take a minute to be durable.

    One of a later step is the last good one of nothing: its weights are those of the finding.
    """
    incident, last = managed.incident, managed.run.last_good
    assert incident is not None
    step = last.step if last is not None else None
    known = incident.last_good.step if incident.last_good is not None else None
    if step is not None and incident.step is not None and (known or -1) < step <= incident.step:
        incident.take_last_good(managed.run)


def find_last_good(managed: ManagedRun) -> list[FindLastGood]:
    """It is about to be told: look whether it is still there."""
    run = managed.run
    path = run.last_good.path if run.last_good is not None else None
    if path is None:
        return []
    gid = next((rank.peer.gid for rank in run.ranks.values()), None)
    return [FindLastGood(run.run, path, run.uid, gid)]


def note_last_good(managed: ManagedRun, seen: LastGoodSeen) -> list[Alarm]:
    """Keep what was seen beside the checkpoint's place, for whoever tells of it."""
    run, known = managed.run, managed.run.last_good
    if known is None or known.path != seen.path:
        return []  # There is a newer one.
    gone = seen.reason if seen.there is False else None
    unseen = seen.reason if seen.there is None else None
    # All work since the attempt's begin is unsaved where it is gone.
    run.take_last_good(replace(known, gone=gone, unseen=unseen), None if gone else run.last_good_at)
    incident = managed.incident
    if incident is not None and incident.last_good is not None and incident.last_good.path == seen.path:
        incident.take_last_good(run)
    if gone is None or known.gone:
        return []
    text = f"the last good checkpoint, of step {known.step}, {gone}: {seen.path}"
    return [Alarm("last_good_gone", run.run, text)]


def judge(managed: ManagedRun, read: CheckpointRead, wall: WallNs) -> list[Alarm]:
    """Note what was found. One that is not whole, or not finite, is not the last good one."""
    incident = managed.incident
    assert incident is not None
    incident.note(
        read.at, wall, "checkpoint_read",
        whole=read.whole, files=read.files, hashed=read.hashed, reason=read.reason,
        **({"counted": read.counted} if read.whole else {}),
        **({"nonfinite": read.nonfinite} if read.nonfinite else {}),
    )  # fmt: skip
    alarms: list[Alarm] = []
    if incident.checkpoint is not None:
        if read.whole:
            incident.verify_checkpoint({"verified_by": "governor", "files": read.files, "hashes_equal": read.hashed})
        elif read.whole is False:
            incident.verify_checkpoint({"verified_by": "nobody", "fault": read.reason})
            _withdraw(managed)
        if read.nonfinite and incident.checkpoint.get("kind") == "good":
            incident.verify_checkpoint({"kind": "suspect", "nonfinite": read.nonfinite})
            _withdraw(managed)
            text = f"checkpoint of incident {incident.incident_id} was saved as good and its weights are not finite"
            text += f": {read.nonfinite}; do not resume from it"
            alarms.append(Alarm("checkpoint_nonfinite", incident.run, text))
    if read.whole is False:
        text = f"checkpoint of incident {incident.incident_id} is not whole: {read.reason}"
        alarms.append(Alarm("checkpoint_torn", incident.run, text))
    return alarms


def _withdraw(managed: ManagedRun) -> None:
    """The checkpoint that this halt saved is not the last good one after all: the one before it is."""
    incident, last = managed.incident, managed.run.last_good
    assert incident is not None
    assert incident.checkpoint is not None
    if last is not None and last.path == incident.checkpoint.get("path"):
        # When that one was saved is not remembered, so more work counts as unsaved, and none of it as saved.
        managed.run.take_last_good(LastGood.of(incident.checkpoint.get("last_good_before")), None)
        incident.take_last_good(managed.run)
