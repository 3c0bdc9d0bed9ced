"""A checkpoint that a framework wrote by its own means gets its name only when it is whole, durable and judged.

Until then it lies in a staging directory beside the framework's own checkpoints, under a name that no framework looks
for. So a torn save is never the newest checkpoint, and a suspect one gets a name that nobody resumes from unasked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from trainer_shim import launch

from .checkpoint import fsync

STAGING = "costgov-saving-"
SUSPECT = "costgov-suspect-"
_REPLACED = "replaced"
_OWNER = "owner"  # Several runs may save in one directory.


def staging_directory(directory: str, step: int) -> str:
    """Return where a framework writes its checkpoint of `step` first."""
    return os.path.join(directory, "%s%d" % (STAGING, step))


def sign(staging: str) -> None:
    """Say in a staging directory which run writes there: its next save may remove it. Raises OSError."""
    with open(os.path.join(staging, _OWNER), "w", encoding="ascii") as stream:
        stream.write(_run())


def _run() -> str:
    """The same for all attempts of a run. A digest: arguments may be secret."""
    told = json.dumps([os.environ.get("COSTGOV_RUN"), launch.working_directory(), launch.resume_argv()])
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


def _is_ours(staging: str) -> bool:
    try:
        with open(os.path.join(staging, _OWNER), encoding="ascii") as stream:
            return stream.read(len(_run()) + 1) == _run()
    except (OSError, ValueError):
        return False


def publish(path: str, final: str) -> None:
    """Move checkpoint `path` out of its staging directory to `final`. Raises OSError.

    A checkpoint of the same name goes when the new one stands. So does what an earlier save of this run left behind
    unfinished.
    """
    directory = os.path.dirname(final)
    replaced = os.path.join(os.path.dirname(path), _REPLACED)
    if os.path.lexists(final):
        os.rename(final, replaced)
    try:
        os.rename(path, final)
    except OSError:
        if os.path.lexists(replaced):
            os.rename(replaced, final)
        raise
    fsync(directory)
    own = os.path.basename(os.path.dirname(path))
    for name in os.listdir(directory):
        if name == own or (name.startswith(STAGING) and _is_ours(os.path.join(directory, name))):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
