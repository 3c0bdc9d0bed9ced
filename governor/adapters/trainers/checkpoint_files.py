"""The files of a checkpoint, by name and size: what the reader lists, and what of it its user has written.

Traffic is charged by the bytes that a trainer says it has saved, and anybody's run may say anything. So only bytes that
are on a disk count, and each once: neither those of another user's files nor holes, links or second names.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# ZeRO-3 writes two files a rank and we a third: 6,000 for 2,000 ranks. Formats with a file for each chunk of a tensor
# have some ten thousand.
ENTRIES_MAX: Final = 100_000
LIST_TIME_MAX_S: Final = 5.0  # Of a checkpoint without a manifest. A cold directory of a network gives 1,000 entries.
BLOCK_BYTES: Final = 512  # Of st_blocks, whatever the file system's own are.
# A file system that compresses saves less than half of a weight. What has fewer blocks has holes.
SOLID_PARTS: Final = 2


class Weight(NamedTuple):
    """Of weigh()."""

    bytes: int | None  # None: it cannot be said.
    reason: str = ""


def weigh(
    path: str, step: Callable[[], None], uid: int, entries_max: int = ENTRIES_MAX, time_max_s: float = LIST_TIME_MAX_S
) -> Weight:
    """How many bytes the user's files have, in a directory or of one file. Those of others count for nothing."""
    seen: set[tuple[int, int]] = set()
    total, others = 0, 0
    try:
        for facts in _files(path, step, entries_max, time_max_s):
            if not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            if facts.st_uid == uid:
                total += on_disk(facts)
            else:
                others += 1
    except OSError as error:
        return Weight(None, f"cannot be looked at: {error.strerror}")
    except ValueError:  # A zero, or half of a surrogate pair.
        return Weight(None, "its path names no file")
    # A network's server may make all files nobody's.
    return Weight(total) if total or not others else Weight(None, "its files are another user's")


def on_disk(facts: os.stat_result) -> int:
    blocks = facts.st_blocks * BLOCK_BYTES
    return facts.st_size if blocks * SOLID_PARTS >= facts.st_size else blocks


def _files(path: str, step: Callable[[], None], entries_max: int, time_max_s: float) -> Iterator[os.stat_result]:
    facts = os.stat(path)
    if not stat.S_ISDIR(facts.st_mode):
        yield facts
        return
    until = time.monotonic() + time_max_s
    folders, count = [path], 0
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                step()
                count += 1
                if count > entries_max:
                    raise TimeoutError(0, "it has too many files")
                if time.monotonic() > until:
                    raise TimeoutError(0, f"its files took longer than {time_max_s:.0f} s")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)


def list_files(path: str, step: Callable[[], None]) -> tuple[list[tuple[str, int]], str | None]:
    """Names and sizes of the files below, and what was not listed. A link to a directory is not followed."""
    until = time.monotonic() + LIST_TIME_MAX_S
    files: list[tuple[str, int]] = []
    folders, unlisted = [""], None
    while folders:
        folder = folders.pop()
        try:
            for entry in os.scandir(os.path.join(path, folder)):
                step()
                name = os.path.join(folder, entry.name)
                if len(files) + len(folders) >= ENTRIES_MAX or time.monotonic() > until:
                    return files, f"files from {name} on"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_dir():
                    unlisted = name
                elif entry.is_file():
                    files.append((name, entry.stat().st_size))
        except OSError:
            unlisted = folder
    return files, unlisted
