"""The files of a journal: the database, its WAL and its index; what is put aside, and what room there is."""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
from collections.abc import Sequence

SUFFIXES = ("-wal", "-shm", "")
CORRUPT_KEPT_MAX = 3  # Repeated corruption must not fill the disk with copies.
# Without a limit, a WAL that once grew keeps its size for good.
WAL_BYTES_MAX = 4 * 1024 * 1024
WAL_BYTES_LAID_OUT = 1024 * 1024  # About twenty commits of a halt beside a minute of other rows.
# On a smaller disk, rows need the room more than a halt needs the milliseconds.
ROOM_BYTES_MIN = 64 * WAL_BYTES_LAID_OUT


def put_aside(path: str, why: str, suffixes: Sequence[str] = SUFFIXES) -> str:
    """Keep what is at the path under another name, which is returned. The file itself also stays in place."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = f"{path}.{why}-{stamp}"
    for suffix in suffixes:
        with contextlib.suppress(FileNotFoundError):
            _link(path + suffix, aside + suffix)
    for old in sorted(glob.glob(f"{glob.escape(path)}.{why}-*Z"))[:-CORRUPT_KEPT_MAX]:
        remove(old)
    return aside


def put_in_place(path: str, fresh: str) -> None:
    """Rename a whole file to the path. The WAL of the one before must not be taken for its own."""
    for suffix in SUFFIXES[:-1]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)
    os.rename(fresh, path)


def why_lost(path: str, was: os.stat_result) -> str | None:
    """Why the path no longer leads to the file that is open. None: it does, or it cannot be seen."""
    directory = os.path.dirname(path) or "."
    try:
        found = seen(path)
        if found is not None:
            same = os.path.samestat(found, was)
            return None if same else f"the journal {path} was replaced by another file while in use"
        if not os.path.isdir(directory):
            return f"the journal's directory {directory} was removed while in use"
    except OSError:
        return None
    return f"the journal {path} was removed while in use"


def why_cut(path: str, was: os.stat_result | None) -> tuple[str | None, os.stat_result | None]:
    """What to say if the file was made shorter in place, which SQLite never does here; and the file as it is now."""
    try:
        found = seen(path)
    except OSError:
        return None, was
    if found is None or was is None or not os.path.samestat(found, was):
        return None, was
    if found.st_size >= was.st_size:
        return None, found
    sizes = f"from {was.st_size} to {found.st_size} bytes"
    return f"the journal {path} was cut {sizes} while in use: its history is damaged, put it back from a copy", found


def seen(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _link(path: str, name: str) -> None:
    try:
        os.link(path, name)
    # The file system has no links. An interruption from here on leaves the copy and no journal.
    except PermissionError:
        os.rename(path, name)


def remove(path: str) -> None:
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def room_lacking(path: str) -> int:
    """How much room a second copy needs, if there is less; else 0."""
    room = os.statvfs(os.path.dirname(path) or ".")
    # The rows pass through a WAL as long as the file itself.
    needed = 2 * sum(os.path.getsize(path + suffix) for suffix in ("", "-wal") if os.path.exists(path + suffix))
    return needed if room.f_bavail * room.f_frsize < needed else 0


def lay_out_wal(path: str) -> None:
    """Allocate the WAL's blocks now, so that commits overwrite instead of extending the file.

    A commit that overwrites waits for its own pages only. One that extends the file also waits for the file system's
    journal, which carries the work of every process. SQLite reads the WAL only as far as its frames are valid.
    """
    with contextlib.suppress(OSError):  # Without it, commits are only slower.
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            room = os.fstatvfs(fd)
            size = os.fstat(fd).st_size
            if size < WAL_BYTES_LAID_OUT and room.f_bavail * room.f_frsize >= ROOM_BYTES_MIN:
                os.pwrite(fd, bytes(WAL_BYTES_LAID_OUT - size), size)
                os.fsync(fd)
        finally:
            os.close(fd)
