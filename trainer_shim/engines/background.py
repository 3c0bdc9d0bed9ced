"""When is a checkpoint of Lightning there? Its CheckpointIO may hand the writing to a thread and return at once.

AsyncCheckpointIO has an executor of one thread, whose queue tells. What another CheckpointIO does shows on the disk.
"""

from __future__ import annotations

import os
import stat
import zipfile
from concurrent import futures
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

_WRAPPED_MAX = 8
_SHAPE_OF_ZIP = b"PK"  # As torch saves. Its table of contents comes last.


class Write:
    """One save. Made before it begins; `returned` when save_checkpoint() has."""

    def __init__(self, trainer: Any, path: str) -> None:
        self._strategy = trainer.strategy
        self.path = absolute(path)
        # Another rank writes, and may have begun: for this one whatever is there is new.
        self._before = _identity(self.path) if trainer.is_global_zero else None
        self._markers: List["futures.Future[None]"] = []

    def returned(self) -> None:
        """What was queued so far is written before what is queued now."""
        for one in self._chain():
            executor = getattr(one, "_executor", None)
            if isinstance(executor, futures.ThreadPoolExecutor) and executor._max_workers == 1:
                self._markers.append(executor.submit(_nothing))

    def is_over(self) -> bool:
        """Whether the checkpoint is there. Raises what its writing has raised."""
        if not all(marker.done() for marker in self._markers):
            return False
        for one in self._chain():
            error = getattr(one, "_error", None)
            if isinstance(error, Exception):
                raise error
        return bool(self._markers) or _is_there(self.path, self._before)

    def when_over(self, tell: Callable[[], None]) -> bool:
        """Have `tell` called on the thread that writes; False where no such thread is known."""
        for marker in self._markers[-1:]:
            marker.add_done_callback(lambda _: tell())
        return bool(self._markers)

    def wait(self) -> None:
        """Until what was queued is written."""
        futures.wait(self._markers)

    def _chain(self) -> List[Any]:
        found: List[Any] = []
        one = getattr(self._strategy, "checkpoint_io", None)
        while one is not None and len(found) < _WRAPPED_MAX:
            found.append(one)
            one = getattr(one, "checkpoint_io", None)
        return found


# On a node that does not see what rank 0 writes none of them ever comes.
ANNOUNCEMENTS_MAX = 15


class Announcement(NamedTuple):
    """A good checkpoint of Lightning's, which is told when it is there."""

    write: Write
    record: Dict[str, Any]


def absolute(path: str) -> str:
    """Return a path as others find it, too: the governor works in another directory, and the script may change its."""
    return path if "://" in path else os.path.abspath(path)


_Identity = Tuple[int, int, int]


def _identity(path: str) -> Optional[_Identity]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_there(path: str, before: Optional[_Identity]) -> bool:
    """Whether what was written since `before` is whole. Directories and other machines' files are not looked into."""
    if "://" in path:
        return True
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return True
        if found.st_size == 0 or _identity(path) == before:
            return False
        with open(path, "rb") as file:
            return file.read(len(_SHAPE_OF_ZIP)) != _SHAPE_OF_ZIP or zipfile.is_zipfile(path)
    except OSError:
        return False


def _nothing() -> None:
    """Stands in a queue."""
