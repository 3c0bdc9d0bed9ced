"""A lock that a command and what it starts hold together, so that who lives is known where nobody can be seen.

Another PID namespace (a container, the host around one) does not show their processes, and another machine with the
same directory neither. A descriptor is inherited, and whoever has one holds the lock. Python's launchers close it for
their ranks: these take it again, at attach().
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from governor.adapters.machine.regular_file import NotRegularError
from trainer_shim.mark import LAUNCH_LOCK

NAME: Final = "launch.lock"
_TRIES: Final = 50
_TRY_AGAIN_S: Final = 0.002
DESCRIPTOR_MIN: Final = 100  # Scripts number theirs from 3 on, and would put another in its place (`exec 3>log`).


def join(state_dir: Path) -> int | None:
    """A descriptor for the command to inherit. None where there is no such lock: nothing is known of it then."""
    try:
        fd = _shared(path_of(state_dir))
    except OSError:
        return None
    _put_stamp(fd)
    with contextlib.suppress(OSError):  # RLIMIT_NOFILE leaves no room for it.
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR_MIN)
        os.close(fd)
        fd = high
    return fd


def _put_stamp(fd: int) -> None:
    """A journal that does not know this launch has another stamp. A lock without a new one is better than none."""
    try:
        os.utime(fd, ns=(time.time_ns(),) * 2)
    except OSError:  # The file is another user's (a squashed NFS): who may write it may set the present time.
        with contextlib.suppress(OSError):
            os.utime(fd)


def _shared(path: Path) -> int:
    try:
        return _open(path)
    except (BlockingIOError, NotRegularError):
        # Who has inherited a descriptor, of whatever user, may have the file alone for good. Whoever that is, a command
        # may begin beside him: that was decided before. It and the next launches have a new file.
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        fd = _open(new)
        try:
            os.replace(new, path)
        except OSError:
            os.close(fd)
            raise
        return fd


def _open(path: Path) -> int:
    # For reading, which is enough: who inherits it writes nothing there. Not another user's to open. Of a FIFO in its
    # place nobody would ever open the other end.
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegularError(str(path))
        _share(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _share(fd: int) -> None:
    """Who asks whether somebody holds it has it alone for some microseconds. BlockingIOError where that goes on."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_TRY_AGAIN_S)


def is_held(state_dir: Path) -> bool | None:
    """Whether somebody of an earlier launch lives. None: there is no lock, or it cannot be tried."""
    try:
        fd = os.open(path_of(state_dir), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # A file system without locks.
        return None
    finally:
        os.close(fd)
    return False


def stamp(state_dir: Path) -> int | None:
    """When the last launch took it, which tells that one from every other. None: there is no lock."""
    try:
        return os.stat(path_of(state_dir), follow_symlinks=False).st_mtime_ns
    except OSError:
        return None


def holders(state_dir: Path, pids: Iterable[int]) -> frozenset[int]:
    """Which of these have the lock's file open, of those that we may look into. As root: of all, as a rule."""
    try:
        file = os.stat(path_of(state_dir))
    except OSError:
        return frozenset()
    return frozenset(pid for pid in pids if _has_open(pid, file))


def unreadable(pids: Iterable[int]) -> frozenset[int]:
    """Of which of these nobody can tell here what they have open: another user's, or one that shows nothing."""
    return frozenset(pid for pid in pids if _is_unreadable(pid))


def _is_unreadable(pid: int) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd")[:1]:  # CAP_DAC_READ_SEARCH shows their numbers alone.
            os.readlink(f"/proc/{pid}/fd/{fd}")
    except (FileNotFoundError, ProcessLookupError):  # It has ended.
        return False
    except OSError:
        return True
    return False


def _has_open(pid: int, file: os.stat_result) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        links = [f"{directory}/{fd}" for fd in os.listdir(directory)]
    except OSError:  # Another user's, or it has ended.
        return False
    for link in links:
        with contextlib.suppress(OSError):
            # By its name first: a look at a file itself waits for its file system, which may hang.
            if os.readlink(link).endswith(f"/{NAME}") and os.path.samestat(os.stat(link), file):
                return True
    return False


def path_of(state_dir: Path) -> Path:
    return state_dir / NAME


def told(state_dir: Path) -> dict[str, str]:
    """What a rank needs in its environment to take the lock."""
    return {LAUNCH_LOCK: os.path.abspath(path_of(state_dir))}
