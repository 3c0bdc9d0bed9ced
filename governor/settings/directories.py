"""Whether another user could put something else where a governor's directory is."""

from __future__ import annotations

import os
import stat
from typing import Final

_OVERFLOW_UID: Final = 65_534  # Whoever has no number in our user namespace, the machine's root too.


def problem_of(directory: str, uid: int) -> str | None:
    """Who beside root and `uid` could put a socket or a link into the directory, which may not be there yet."""
    try:
        facts = os.lstat(directory)
    except OSError:
        return problem_above(directory, uid)
    if not stat.S_ISDIR(facts.st_mode):
        return f"{directory}: not a directory of its own (a symbolic link?); name the real one"
    if facts.st_uid not in (0, uid):
        return f"{directory}: belongs to uid {facts.st_uid}, who could replace the socket"
    if _others_may_write(facts):
        return f"{directory}: others may write there and replace the socket; use a subdirectory of it"
    return problem_above(directory, uid)


def problem_above(directory: str, uid: int) -> str | None:
    """Who else could put another directory in its place. None is asked above one's home: its owner has all else too.

    In a directory with the sticky bit, as /tmp has, nobody moves what is another's.
    """
    home = os.path.expanduser("~")
    homes = {home, os.path.realpath(home)}
    for way in dict.fromkeys((os.path.abspath(directory), os.path.realpath(directory))):
        while way not in homes and way != os.path.dirname(way):
            way = os.path.dirname(way)
            if way in homes:
                break
            try:
                facts = os.lstat(way)
            except OSError:
                continue
            if facts.st_uid not in (0, uid, _OVERFLOW_UID):
                return f"{directory}: {way} above it belongs to uid {facts.st_uid}, who could replace it; use another"
            if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX and not stat.S_ISLNK(facts.st_mode):
                return f"{directory}: others may write {way} above it and replace it; use another, or chmod go-w {way}"
    return None


def _others_may_write(facts: os.stat_result) -> bool:
    is_others_group = facts.st_gid not in (0, os.getegid())
    return bool(facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and is_others_group))
