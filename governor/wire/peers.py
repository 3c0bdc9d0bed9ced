"""Where nobody named a socket: the places of a governor, and who is believed there.

The shim's `connection.peers` has the same rules: it does not need this package, and is slow to import. A test compares
the two. Standard library only, so that commands start fast.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from typing import Final

SYSTEM_DIRECTORY: Final = "/run/costgov"
_UIDS: Final = 2**32 - 1  # The last one means none.
_ID_MAP: Final = "/proc/self/uid_map"

# --- where


def state_home(environ: Mapping[str, str], uid: int) -> str:
    """The user's $XDG_STATE_HOME. A user whom no table knows has none, nor a home."""
    stated = environ.get("XDG_STATE_HOME")
    if stated:
        return stated
    home = environ.get("HOME")
    try:
        return f"{home or pwd.getpwuid(uid).pw_dir}/.local/state"
    except KeyError:
        return "/.local/state"


def lasting_directory(environ: Mapping[str, str], uid: int) -> str:
    """Where a user's governor has its state, and after a logout its sockets."""
    return f"{state_home(environ, uid)}/costgov"


def user_directories(environ: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Where a user's governor has its sockets, its first choice first."""
    runtime, lasting = environ.get("XDG_RUNTIME_DIR"), lasting_directory(environ, uid)
    return (*((f"{runtime}/costgov",) if runtime else ()), f"{lasting}/run", lasting)


def chosen_directory(environ: Mapping[str, str], uid: int) -> str:
    """Which of them a user's governor starts in: the first in which no other user could take its place."""
    *chosen, lasting = user_directories(environ, uid)
    assert lasting, "the last one is for a governor whose user has logged out"
    return chosen[0] if problem_of(chosen[0], uid) is None else chosen[-1]


# --- who


def doubt(path: str, uid: int) -> str | None:
    """Why that uid is no governor of ours, at a path that nobody named; None: it is believed.

    Believed are root and our own uid where no other user could have turned the way to the socket, as by a link to
    another governor of ours, and whoever root let listen there.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if _is_given_by_root(directory, uid):
        return None
    if uid == 0 or is_own(uid):
        return problem_of(directory, os.geteuid())
    if uid == overflow_uid():
        return f"it is uid {uid}'s, which here is whoever has no number in this user namespace"
    return f"it is uid {uid}'s, who is neither root nor you, nor has root given it that directory"


def is_own(uid: int) -> bool:
    """Whether that is surely our own user: several users may have one number where some have none of their own."""
    return uid == os.geteuid() and (uid != overflow_uid() or has_all_uids())


def overflow_uid(path: str = "/proc/sys/kernel/overflowuid") -> int:
    """The number of whoever has none in our user namespace."""
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65_534


def has_all_uids(path: str = _ID_MAP) -> bool:
    """Whether every user has a number in our user namespace, as in the machine's own."""
    try:
        with open(path, encoding="utf-8") as file:
            return sum(int(line.split()[2]) for line in file) >= _UIDS
    except (OSError, ValueError, IndexError):
        return False


def _is_given_by_root(directory: str, uid: int) -> bool:
    """Whether only root can have put the socket there, or have given that uid the directory."""
    try:
        if _is_roots_alone(directory):
            return True
        above, name = os.path.split(os.path.dirname(directory))
        base = above if name == "runs" else directory
        facts = os.lstat(base)
        is_owner = stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid != overflow_uid()
        return is_owner and _is_roots_alone(os.path.dirname(base))
    except OSError:
        return False


def _is_roots_alone(directory: str) -> bool:
    """Whether nobody but root may change the way to the directory, nor what is in it. Links on the way count."""
    # In a user namespace that has no number for the machine's root, the system's directories are nobody's.
    is_systems = directory in (SYSTEM_DIRECTORY, os.path.dirname(SYSTEM_DIRECTORY))
    roots = (0, overflow_uid()) if is_systems else (0,)
    for way in {directory, os.path.realpath(directory)}:
        while True:
            facts = os.lstat(way)
            is_open = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(facts.st_mode)
            if is_open or facts.st_uid not in roots:
                return False
            if way == os.path.dirname(way):
                break
            way = os.path.dirname(way)
    return True


# --- whether another user could put something else where a governor's directory is


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
            if facts.st_uid not in (0, uid, overflow_uid()):
                return f"{directory}: {way} above it belongs to uid {facts.st_uid}, who could replace it; use another"
            if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX and not stat.S_ISLNK(facts.st_mode):
                return f"{directory}: others may write {way} above it and replace it; use another, or chmod go-w {way}"
    return None


def _others_may_write(facts: os.stat_result) -> bool:
    is_others_group = facts.st_gid not in (0, os.getegid())
    return bool(facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and is_others_group))
