"""The newest good files of what a framework saves by itself: they outlast what it saves while nothing is good.

A ModelCheckpoint with `save_last=True` writes one path over and over, and removes the file beside it that holds the
same. After a NaN both would be lost in one step.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, Optional, Set

from trainer_shim.guard import print_line

# So many of a framework's own saves after a NaN delete no older checkpoint to make room: until a halt is there.
SPARED_MAX = 3


class NewestGood:
    """The records of what was saved at the newest good step, by path. Kept alike on each rank."""

    def __init__(self) -> None:
        self._records: Dict[str, Dict[str, Any]] = {}
        self._harmed: Set[int] = set()  # Steps that were saved since, and are not good.

    def note(self, record: Dict[str, Any]) -> None:
        """A good checkpoint is there."""
        self._harmed = set()
        same = {path: one for path, one in self._records.items() if one["step"] == record["step"]}
        self._records = {**same, record["path"]: record}

    def note_harmed(self, step: int) -> None:
        """What is saved at `step` is not good."""
        self._harmed = {*self._harmed, step}

    def spares(self, path: str) -> bool:
        """Whether `path` may not be removed while nothing is good: for a few steps that goes for older ones, too."""
        return path in self._records or len(self._harmed) <= SPARED_MAX

    def make_way(self, path: str, moves: bool) -> Optional[Dict[str, Any]]:
        """`path` is about to be written, and not with anything good. If the newest good is there alone, rename that.

        Return its record then. `moves`: this rank writes. Renamed, and not linked: what opens the file to write would
        reach it by every name.
        """
        record = self._records.get(path)
        if record is None:
            return None
        others = {other: one for other, one in self._records.items() if other != path}
        if others:
            self._records = others
            return None
        stem, extension = os.path.splitext(path)
        kept = "%s-kept-step=%d%s" % (stem, record["step"], extension)
        if moves:
            if os.path.isdir(kept) and not os.path.islink(kept):  # An earlier attempt's, of the same step.
                shutil.rmtree(kept)
            os.replace(path, kept)
            print_line("%s is kept as %s: what is saved now is no good checkpoint" % (path, os.path.basename(kept)))
        record = dict(record, path=kept)
        self._records = {kept: record}
        return record
