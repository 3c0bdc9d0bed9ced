"""A Unix listening socket that replaces a dead governor's file, refuses a live one's, and follows no symlink."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import struct

from governor.adapters.machine import lock_file

BACKLOG = 128  # Every rank of a large node may reconnect at once after our restart.
# Descriptors that connections leave free. A halt opens at once: the process table, a pidfd, its report, a checkpoint
# with its manifest, the journal's fallback file, and a call to the provider with name service and root certificates.
DESCRIPTORS_KEPT = 16
OUT_OF_DESCRIPTORS = "the governor is out of file descriptors: raise its LimitNOFILE"
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path less its terminator.
_UCRED = struct.Struct("3i")


class SocketUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The socket cannot be had. The message is one line: what is wrong and what to do."""


class Listener:
    """Bind `path` with exactly `mode`. The file appears complete: bound, listening, permissions set.

    Raises `SocketUnavailable`. A lock file beside the socket distinguishes a live governor from a dead one's leftovers.
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
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # -1: given up, and not regained yet.
        self._epoll: select.epoll | None = None
        self._is_paused = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def watch_with(self, epoll: select.epoll) -> None:
        """Make `epoll` readable while a connection waits that can be accepted."""
        self._epoll = epoll
        epoll.register(self.fileno(), select.EPOLLIN)

    def look_again(self) -> None:
        """Retry connections that could not be accepted for want of descriptors. Call it a few times a second."""
        if self._is_paused and self._epoll is not None:
            self._is_paused = False
            self._epoll.modify(self.fileno(), select.EPOLLIN)
            self._take_spare()

    def accept(self) -> socket.socket | None:
        """Return the next connection (non-blocking), or None if none waits."""
        try:
            return self._accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._shed() and self._epoll is not None:
                # The waiting connection keeps us readable and cannot even be closed. Stop listening until look_again().
                self._is_paused = True
                self._epoll.modify(self.fileno(), 0)
            return None  # No connection waits, or the peer gave up.

    def has_room(self) -> bool:
        """Whether another connection leaves the descriptors free that a halt needs."""
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            for _ in range(DESCRIPTORS_KEPT):
                opened.callback(os.close, os.dup(self.fileno()))
            return True
        return False

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

    def _shed(self) -> bool:
        # Out of descriptors, the waiting connection would keep the listener readable and the loop spinning. Close the
        # spare descriptor, accept the connection with it, and hang up; its shim retries later. False: not even that
        # worked.
        with contextlib.suppress(OSError):
            os.close(self._spare_fd)
        self._spare_fd = -1
        with contextlib.suppress(OSError):
            self._accept().close()
            self._take_spare()
        return self._spare_fd >= 0

    def _take_spare(self) -> None:
        if self._spare_fd < 0:
            with contextlib.suppress(OSError):
                self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _bind(self, mode: int) -> None:
        # Bound under another name, then renamed: no peer ever finds a socket that refuses it or has the wrong mode.
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
    """Create the directory. Refuse one in which another user could put a socket or a link under our name."""
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
            os.unlink(path)  # Its governor died.
            return
        # EAGAIN: a live socket with a full backlog. EPROTOTYPE: a live socket of another kind.
        except OSError as error:
            raise SocketUnavailable(f"{path}: another program listens there ({error.strerror})") from error
        pid, *_ = peer_credentials(probe)
        raise SocketUnavailable(f"{path}: process {pid} listens there")


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """The pid, uid and gid of the peer at connect time, from the kernel. Pid 0: it is outside our pid namespace."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
