"""A checkpoint that a framework wrote by its own means gets its name only when it is whole, durable and judged.

Until then it lies in a staging directory beside the framework's own checkpoints, under a name that no framework looks
for. So a torn save is never the newest checkpoint, and a suspect one gets a name that nobody resumes from unasked.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from typing import Dict

from trainer_shim import launch
from trainer_shim.guard import attempt, print_line

from .checkpoint import fsync, is_whole

STAGING = "costgov-saving-"
SUSPECT = "costgov-suspect-"
_REPLACED = "replaced"
_GONE = ".gone"
# Several runs may save in one directory. It has a digest of the run, and where each lock is seen that stands on it.
_OWNER = "owner"
_OWNER_BYTES_MAX = 1 << 20  # Thousands of nodes.
_IDLE_S = 86_400.0
_HELD: Dict[str, int] = {}  # The open file that has this process's lock, by run.


def staging_directory(directory: str, step: int) -> str:
    """Return where a framework writes its checkpoint of `step` first."""
    return os.path.join(directory, "%s%d" % (STAGING, step))


def sign(staging: str) -> None:
    """Say in a staging directory who writes there: which run, and this process by a lock that ends with it.

    A run has one at a time here: what an earlier save of its own has left unfinished is nobody's. Raises OSError.
    """
    _let_go()
    descriptor = os.open(os.path.join(staging, _OWNER), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    _HELD[_run()] = descriptor
    is_locked = _lock(descriptor, fcntl.LOCK_SH)  # Shared: of each node one process signs.
    run = _run().encode("ascii")
    if os.pread(descriptor, len(run), 0) != run:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, run + b"\n")
    where = _where(descriptor) if is_locked else "without locks"
    os.write(descriptor, where.encode("ascii") + b"\n")


def _let_go() -> None:
    descriptor = _HELD.pop(_run(), None)
    if descriptor is not None:
        attempt(fcntl.flock, descriptor, fcntl.LOCK_UN)  # Forked workers have the open file, too.
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Whether it is there: not every file system has locks. Raises BlockingIOError where somebody else's is."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _where(descriptor: int) -> str:
    """Return within what each sees the other's lock: one kernel, one mounted file system."""
    return "%s %d" % (launch.boot_id(), os.fstat(descriptor).st_dev)


def _run() -> str:
    """The same for all attempts of a run. A digest: arguments may be secret."""
    told = json.dumps([os.environ.get("COSTGOV_RUN"), launch.working_directory(), launch.resume_argv()])
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


def remove_abandoned(directory: str) -> None:
    """Remove what saves left unfinished whose processes are gone, of whichever run. A whole one stays."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        staging = os.path.join(directory, name)
        if not name.startswith(STAGING):
            continue
        if not name.endswith(_GONE):
            if not _set_aside(staging):
                continue
            print_line("removing %s: it is not whole, and who wrote there is gone" % staging)
            staging += _GONE
        shutil.rmtree(staging, ignore_errors=True)


def discard(staging: str) -> None:
    """Remove what a save of this run has left there, which has failed: others need its room.

    A whole one stays, and what another process has signed that lives: two runs may save the same step in one place.
    """
    if not os.path.isdir(staging) or _has_whole(staging):
        return
    _let_go()
    try:
        with open(os.path.join(staging, _OWNER), "rb") as stream:
            if _lock(stream.fileno(), fcntl.LOCK_EX):
                shutil.rmtree(staging, ignore_errors=True)
    except OSError:  # Nobody has signed it, or somebody else writes there.
        return


def _set_aside(staging: str) -> bool:
    """Rename it if it is abandoned, under a lock that nobody who writes there lets us have."""
    try:
        with open(os.path.join(staging, _OWNER), "rb+") as stream:
            is_locked = _lock(stream.fileno(), fcntl.LOCK_EX)
            run, *others = stream.read(_OWNER_BYTES_MAX).decode("ascii").rstrip("\n").split("\n")
            is_seen = is_locked and set(others) == {_where(stream.fileno())}
            is_ours = run == _run()
            # Nobody who writes there, on another machine or without locks, leaves all of it alone for so long.
            if _has_whole(staging) or not (is_seen or is_ours or _idle_s(staging) > _IDLE_S):
                return False
            os.rename(staging, staging + _GONE)
            return True
    except (OSError, ValueError):  # Nobody has signed it, or somebody writes there.
        return False


def _has_whole(staging: str) -> bool:
    """Whether a whole checkpoint lies there, or an earlier one that publish() has moved there and not replaced."""
    names = os.listdir(staging)
    step = os.path.basename(staging)[len(STAGING) :].partition(".")[0]
    earlier = os.path.join(os.path.dirname(staging), "checkpoint-" + step)
    if _REPLACED in names and not os.path.lexists(earlier):
        return True
    return any(is_whole(os.path.join(staging, name)) for name in names if name != _REPLACED)


def _idle_s(staging: str) -> float:
    """How long nothing has changed there."""
    folders = [parent for parent, _, _ in os.walk(staging)]
    files = [os.path.join(parent, name) for parent in folders for name in os.listdir(parent)]
    return time.time() - max(os.lstat(path).st_mtime for path in (*folders, *files))


def publish(path: str, final: str) -> None:
    """Move checkpoint `path` out of its staging directory to `final`. Raises OSError.

    A checkpoint of the same name goes when the new one stands. So does what earlier saves left behind unfinished.
    One that the framework has written where it stays is not moved.
    """
    staging, directory = os.path.dirname(path), os.path.dirname(final)
    if not os.path.basename(staging).startswith(STAGING):
        if path != final:
            os.rename(path, final)
        fsync(directory)
        return
    replaced = os.path.join(staging, _REPLACED)
    if os.path.lexists(final):
        os.rename(final, replaced)
    try:
        os.rename(path, final)
    except OSError:
        if os.path.lexists(replaced):
            os.rename(replaced, final)
        raise
    fsync(directory)
    _let_go()
    shutil.rmtree(staging, ignore_errors=True)
    remove_abandoned(directory)
