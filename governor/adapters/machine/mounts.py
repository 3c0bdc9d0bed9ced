"""What is mounted where, from /proc/self/mountinfo (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line. `root`: the path inside the file system that is shown at `place`."""

    number: int
    root: str
    place: str
    kind: str  # The file system's type, such as "ext4" or "fuse.sshfs".
    options: tuple[str, ...]  # The file system's own.


def mounts() -> Iterator[Mount]:
    """OSError if they cannot be read. A line that is not understood is left out."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            before, _, after = line.rstrip("\n").partition(" - ")
            fields, rest = before.split(" "), after.split(" ")
            if len(fields) >= 6 and len(rest) >= 3:
                yield Mount(
                    int(fields[0]), _plain(fields[3]), _plain(fields[4]), rest[0], tuple(rest[-1].split(","))
                )  # fmt: skip


def mount_of(fd: int) -> int | None:
    """The number of the mount on which an open file stands; any descriptor will do. None: the kernel does not say."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)
    except (OSError, ValueError, IndexError):
        return None


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
