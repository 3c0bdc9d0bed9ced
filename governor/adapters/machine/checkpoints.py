"""The governor's own look at a checkpoint on disk. The manifest's format is the shim's, whose reader is stdlib only."""

from __future__ import annotations

import os

from governor.ports import CheckpointLook
from trainer_shim.checkpoint import read_manifest, verify_manifest


class DiskCheckpoints:
    """`ports.Checkpoints`: reads as the daemon's own user, so another user's 0700 directory is UNKNOWN, not torn."""

    def read(self, path: str, manifest: str) -> CheckpointLook:
        if not os.access(manifest, os.R_OK):
            reason = (
                "not readable by the governor" if os.path.exists(os.path.dirname(path) or "/") else "not visible here"
            )
            return CheckpointLook(None, 0, 0, reason)
        found = read_manifest(path)
        if found is None:
            return CheckpointLook(False, 0, 0, "the manifest cannot be parsed")
        files = [entry for entry in found["files"] if isinstance(entry, dict)]
        unreadable = [e["path"] for e in files if _forbidden(os.path.join(path, e["path"]))]
        if unreadable:
            return CheckpointLook(None, len(files), 0, f"{unreadable[0]} is not readable by the governor")
        faults = verify_manifest(path, hashes=True)
        hashed = sum(1 for entry in files if entry.get("sha256"))
        if faults:
            return CheckpointLook(False, len(files), 0, "; ".join(faults[:3]))
        return CheckpointLook(True, len(files), hashed, "every file is there with its size and hash")


def _forbidden(path: str) -> bool:
    return os.path.exists(path) and not os.access(path, os.R_OK)
