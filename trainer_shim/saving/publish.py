"""A checkpoint that a framework wrote by its own means gets its name only when it is whole, durable and judged.

Until then it lies in a staging directory beside the framework's own checkpoints, under a name that no framework looks
for. So a torn save is never the newest checkpoint, and a suspect one gets a name that nobody resumes from unasked.
"""

from __future__ import annotations

import os
import shutil

from .checkpoint import fsync

STAGING = "costgov-saving-"
SUSPECT = "costgov-suspect-"
_REPLACED = "replaced"


def staging_directory(directory: str, step: int) -> str:
    """Return where a framework writes its checkpoint of `step` first."""
    return os.path.join(directory, "%s%d" % (STAGING, step))


def publish(path: str, final: str) -> None:
    """Move checkpoint `path` out of its staging directory to `final`. Raises OSError.

    A checkpoint of the same name goes when the new one stands. So does what an earlier save left behind unfinished.
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
    for name in os.listdir(directory):
        if name.startswith(STAGING):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
