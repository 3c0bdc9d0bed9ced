"""A Unix listening socket that replaces a dead governor's file, refuses a live one's, and follows no symlink."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import select
import socket
import stat
import struct
import threading
from dataclasses import dataclass

from governor.adapters.machine import lock_file
from governor.wire.peers import problem_of

BACKLOG = 128  # Every rank of a large node may reconnect at once after our restart.
# Descriptors that connections leave free. A halt opens at once: the process table, a pidfd, its report, a checkpoint
# with its manifest, the journal's fallback file, and a call to the provider with name service and root certificates.
DESCRIPTORS_KEPT = 16
OUT_OF_DESCRIPTORS = "the governor is out of file descriptors: raise its LimitNOFILE"
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path less its terminator.
_UCRED = struct.Struct("3i")


class SocketUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The socket cannot be had. The message is one line: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A socket bound anew, which the loop has not begun to serve. `lock_fd`: a lock of its own, or the old one."""

    path: str
    sock: socket.socket
    inode: int
    lock_fd: int


class Listener:
    """Bind `path` with exactly `mode`. The file appears complete: bound, listening, group and permissions set.

    Raises `SocketUnavailable`. A lock file beside the socket distinguishes a live governor from a dead one's leftovers.
    """

    def __init__(
        self, path: str, kind: socket.SocketKind, mode: int, gid: int | None = None, second: str | None = None
    ) -> None:
        """`second`: where clients look too. It is bound while the directory of `path` is gone, as after a logout."""
        self.path = self._first = path
        self._second = second if len(os.fsencode(second or "")) + len(".new") <= SOCKET_PATH_BYTES_MAX else None
        self._kind, self._mode, self._gid = kind, mode, gid
        if len(os.fsencode(path)) + len(".new") > SOCKET_PATH_BYTES_MAX:
            raise SocketUnavailable(f"{path}: longer than the kernel's {SOCKET_PATH_BYTES_MAX} bytes for a socket")
        self._lock_fd = -1
        self._directory_mode: int | None = None  # Of the directory that was found, to make it again.
        self._restoring = threading.Lock()
        self._fresh: _Fresh | None = None
        self._is_closed = False
        fresh = self._made(path)
        self._sock, self._inode, self._lock_fd = fresh.sock, fresh.inode, fresh.lock_fd
        self._directory_mode = stat.S_IMODE(os.lstat(os.path.dirname(path) or ".").st_mode)
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
        """Serve a socket bound anew, and retry connections that could not be accepted for want of descriptors.

        Call it a few times a second.
        """
        if self._fresh is not None:
            self._serve_fresh()
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

    def restore(self) -> str | None:
        """Bind the socket again if its file is gone or replaced. Returns what was found and done; None: all is well.

        For one other thread: the file system may block. `look_again` then serves the new socket.
        """
        with self._restoring:
            if self._is_closed or self._fresh is not None:
                return None
        if self.path != self._first:
            with contextlib.suppress(SocketUnavailable):
                back = self._made(self._first)
                return self._offer(back, f"the socket {self._first} is bound again: its directory is back")
        gone = self._gone()
        if gone is None:
            return None
        try:
            return self._offer(
                self._made(self.path), f"{gone} while in use; it is bound again, and open connections go on"
            )
        except SocketUnavailable as error:
            found = f"{gone}, and it cannot be bound again: {error}"
        if self._second is not None:
            with contextlib.suppress(SocketUnavailable):
                fresh = self._made(self._second)
                return self._offer(
                    fresh,
                    f"{found}; it is bound at {self._second}, where commands and trainers look too, until it can be "
                    "bound again; open connections go on",
                )
        return (
            f"{found}; whoever connects from now on finds no governor there, "
            "open connections go on, and it is tried again every second"
        )

    def _offer(self, fresh: _Fresh, text: str) -> str | None:
        with self._restoring:
            if self._is_closed:
                self._discard(fresh)
                return None
            self._fresh = fresh
        return text

    def close(self) -> None:
        """Stop listening and remove the file, unless another one has taken its place."""
        with self._restoring:
            self._is_closed = True
            fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._discard(fresh)
        self._unlink(self.path, self._inode)
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

    def _gone(self) -> str | None:
        """Why nobody who connects to the path reaches us. None: they do, or it cannot be seen."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            directory = os.path.dirname(self.path) or "."
            if not os.path.isdir(directory):
                return f"the directory {directory} of the socket {self.path} was removed"
            return f"the socket {self.path} was removed"
        except OSError:
            return None
        return None if found.st_ino == self._inode else f"the socket {self.path} was replaced by another file"

    def _made(self, path: str) -> _Fresh:
        """A socket of our own at the path, under our lock."""
        known_fd = self._lock_fd if path == self.path else -1
        sock = socket.socket(socket.AF_UNIX, self._kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        lock_fd = -1
        try:
            _own_directory(os.path.dirname(path) or ".", self._directory_mode)
            keeps_lock = known_fd >= 0 and lock_file.is_named(known_fd, path + ".lock")
            lock_fd = known_fd if keeps_lock else _lock(path + ".lock")
            _remove_stale(path, self._kind)
            return _Fresh(path, sock, self._bind(sock, path), lock_fd)
        except (OSError, SocketUnavailable) as error:
            sock.close()
            if lock_fd not in (-1, self._lock_fd):
                lock_file.drop(path + ".lock", lock_fd)
            if isinstance(error, SocketUnavailable):
                raise
            raise SocketUnavailable(f"{path}: {error.strerror}; run as a user who may write there") from error

    def _bind(self, sock: socket.socket, path: str) -> int:
        # Bound under another name, then renamed: no peer ever finds a socket that refuses it or has the wrong mode.
        fresh = path + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        sock.bind(fresh)
        os.chmod(fresh, self._mode)
        if self._gid is not None:
            try:
                os.chown(fresh, -1, self._gid, follow_symlinks=False)
            except OSError as error:
                os.unlink(fresh)
                raise SocketUnavailable(
                    f"{path}: cannot be given to group {grp.getgrgid(self._gid).gr_name}: {error.strerror}; "
                    f"add the daemon's user to that group, or leave control.group out"
                ) from error
        sock.listen(BACKLOG)
        inode = os.lstat(fresh).st_ino
        os.rename(fresh, path)
        return inode

    def _serve_fresh(self) -> None:
        """Listen on the new socket instead of the old one. Connections that are open stay."""
        with self._restoring:
            fresh, self._fresh = self._fresh, None
            if fresh is None:
                return
            if self._epoll is not None:
                self._epoll.unregister(self._sock.fileno())
                self._epoll.register(fresh.sock.fileno(), select.EPOLLIN)
            self._is_paused = False
            self._sock.close()
            if self.path != fresh.path:
                self._unlink(self.path, self._inode)
                lock_file.drop(self.path + ".lock", self._lock_fd)
            elif self._lock_fd != fresh.lock_fd:
                os.close(self._lock_fd)
            self.path, self._sock, self._inode, self._lock_fd = fresh.path, fresh.sock, fresh.inode, fresh.lock_fd

    def _discard(self, fresh: _Fresh) -> None:
        self._unlink(fresh.path, fresh.inode)
        fresh.sock.close()
        if fresh.lock_fd != self._lock_fd:
            lock_file.drop(fresh.path + ".lock", fresh.lock_fd)

    @staticmethod
    def _unlink(path: str, inode: int) -> None:
        """Remove the file, unless another one has taken its place."""
        with contextlib.suppress(OSError):
            if os.lstat(path).st_ino == inode:
                os.unlink(path)

    def _release(self) -> None:
        self._sock.close()
        if self._lock_fd >= 0:
            lock_file.drop(self.path + ".lock", self._lock_fd)


def _own_directory(directory: str, mode: int | None) -> None:
    """Create the directory. Refuse one in which another user could put a socket or a link under our name."""
    if not os.path.isdir(directory):
        os.makedirs(directory, mode=0o755, exist_ok=True)
        if mode is not None:
            os.chmod(directory, mode)
    problem = problem_of(directory, os.geteuid())
    if problem is not None:
        raise SocketUnavailable(problem)


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
