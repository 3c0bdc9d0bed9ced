"""A Unix listening socket that replaces a dead governor's file, refuses a live one's, and follows no symlink."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct

from governor.adapters import lock_file

BACKLOG = 128  # Every rank of a large node reconnecting at once after our restart.
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path less its terminator.
_UCRED = struct.Struct("3i")


class SocketUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The socket cannot be had. The message is one line: what is wrong and what to do."""


class Listener:
    """Bind `path` with exactly `mode`. The file appears complete: bound, listening, permissions set.

    Raises `SocketUnavailable`. A lock file beside the socket tells a live governor from a dead one's leftovers.
    """

    def __init__(self, path: str, kind: socket.SocketKind, mode: int) -> None:
        self.path = path
        if len(os.fsencode(path)) + len(".new") > SOCKET_PATH_BYTES_MAX:
            raise SocketUnavailable(f"{path}: longer than the kernel's {SOCKET_PATH_BYTES_MAX} bytes for a socket")
        self._sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._lock_fd = -1
        try:
            _own_directory(os.path.dirname(path) or ".")
            self._lock_fd = _lock(path + ".lock")
            _remove_stale(path, kind)
            self._bind(mode)
        except OSError as error:
            self._release()
            raise SocketUnavailable(f"{path}: {error.strerror}; run as a user who may write there") from error
        except SocketUnavailable:
            self._release()
            raise
        self._inode = os.lstat(path).st_ino
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> socket.socket | None:
        """Return the next connection (non-blocking), or None when none waits."""
        try:
            return self._accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._shed()
            return None  # Nobody waits, or the connector gave up meanwhile.

    def close(self) -> None:
        """Stop listening and remove the file, unless another one has taken its place."""
        with contextlib.suppress(OSError):
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.close(self._spare_fd)
        self._release()

    def _accept(self) -> socket.socket:
        sock, _ = self._sock.accept()
        sock.setblocking(False)
        return sock

    def _shed(self) -> None:
        # Out of descriptors: the waiting connection would keep the listener readable and us spinning. Give up the
        # spare one, take the connection with it, and hang up: its shim tries again later.
        with contextlib.suppress(OSError):
            os.close(self._spare_fd)
        self._spare_fd = -1
        with contextlib.suppress(OSError):
            self._accept().close()
            self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _bind(self, mode: int) -> None:
        # Bound beside its name and renamed: no connector ever meets a file that refuses it or has the wrong mode.
        fresh = self.path + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        self._sock.bind(fresh)
        os.chmod(fresh, mode)
        self._sock.listen(BACKLOG)
        os.rename(fresh, self.path)

    def _release(self) -> None:
        self._sock.close()
        if self._lock_fd >= 0:
            lock_file.drop(self.path + ".lock", self._lock_fd)


def _own_directory(directory: str) -> None:
    """Create the directory, or refuse one in which somebody else could put a socket or a link under our name."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    facts = os.lstat(directory)
    if not stat.S_ISDIR(facts.st_mode):
        raise SocketUnavailable(f"{directory}: not a directory of its own (a symbolic link?); name the real one")
    if facts.st_uid not in (0, os.geteuid()):
        raise SocketUnavailable(f"{directory}: belongs to uid {facts.st_uid}, who could replace the socket")
    others_may_write = facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and facts.st_gid != os.getegid())
    if others_may_write:
        raise SocketUnavailable(f"{directory}: others may write there and replace the socket; use a subdirectory of it")


def _lock(path: str) -> int:
    try:
        return lock_file.take(path)
    except lock_file.LockHeld as held:
        raise SocketUnavailable(f"{path}: another governor (pid {held}) serves this socket") from None


def _remove_stale(path: str, kind: socket.SocketKind) -> None:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode):
        raise SocketUnavailable(f"{path}: exists and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # Nobody listens: its governor died.
            return
        except OSError as error:  # EAGAIN: a full backlog is alive. EPROTOTYPE: a live socket of another kind.
            raise SocketUnavailable(f"{path}: another program listens there ({error.strerror})") from error
        pid = _UCRED.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        raise SocketUnavailable(f"{path}: process {pid} listens there")
