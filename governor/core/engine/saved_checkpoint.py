"""The checkpoint that a halt has saved: who reads it, what was found, and what it means for the last good one."""

from __future__ import annotations

from governor.core.base.units import DurationNs, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.effects import Alarm, ReadCheckpoint
from governor.core.events.inputs import Ack, CheckpointRead


def take(managed: ManagedRun, ack: Ack) -> list[ReadCheckpoint]:
    """Note what the ranks say that they have saved, and have it read."""
    incident = managed.incident
    assert incident is not None
    assert ack.checkpoint is not None
    taken = {**ack.checkpoint, "step": ack.step, "verified_by": "trainer"}
    if ack.checkpoint.get("kind") == "good" and managed.run.last_good is not None:
        taken["last_good_before"] = dict(managed.run.last_good)  # For the case that this one is none.
    incident.take_checkpoint(taken)
    asked_at = incident.at_of("asked")
    if asked_at is not None:
        managed.run.note_save(DurationNs(ack.at - asked_at))
    if ack.checkpoint.get("kind") == "good":
        managed.run.set_last_good(ack.step, ack.checkpoint.get("path"), ack.at)
        incident.take_last_good(managed.run)
    path, manifest = ack.checkpoint.get("path"), ack.checkpoint.get("manifest")
    if not (isinstance(path, str) and isinstance(manifest, str)):
        return []
    gid = next((rank.peer.gid for rank in managed.run.ranks.values() if rank.connection == ack.connection), None)
    return [ReadCheckpoint(incident.incident_id, incident.run, path, manifest, managed.run.uid, gid)]


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
    if last is not None and last.get("path") == incident.checkpoint.get("path"):
        # When that one was saved is not remembered, so more work counts as unsaved, and none of it as saved.
        managed.run.take_last_good(incident.checkpoint.get("last_good_before"), None)
        incident.take_last_good(managed.run)
