"""The trainer socket: a SEQPACKET listener. Packets in, checkpoint requests out, identities from the kernel."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from governor.adapters.machine.processes import LinuxProcesses, Stat, has_exited
from governor.adapters.trainers.listener import OUT_OF_DESCRIPTORS, Listener, peer_credentials
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.ports import Arrival, Closed, Opened, Packet, Rejected
from trainer_shim.wire import FRAME_BYTES_MAX, WIRE_VERSION, encode

# 16 GPUs × 16 runs. Beyond this, some process leaks connections.
CONNECTIONS_MAX: Final = 256
CONNECTIONS_PER_UID_MAX: Final = 128  # One user's leak must leave room for another user's run.
SILENT_S: Final = 5.0  # A shim says hello as soon as it is connected.
# epoll moves served connections to the end of its list, so the next call continues with the others.
CONNECTIONS_PER_RECEIVE = 32
# Per receive(): a flooding rank waits its turn. 32 × 8 × 64 KiB bounds memory to 16 MiB.
PACKETS_PER_CONNECTION = 8
ACCEPTS_PER_RECEIVE = 16  # A connect loop must not delay other packets.

SO_PEERPIDFD = 77  # Linux 6.5. Python's socket module lacks the constant.
_DONTWAIT = int(socket.MSG_DONTWAIT)  # A plain int: the enum's member costs a lookup at every call.

PID_NAMESPACE_REASON = (
    "your pid is not visible to the governor (it sits in another pid namespace): run it with the host's pids "
    "(docker --pid=host, hostPID: true) or share one namespace (--pid=container:NAME, shareProcessNamespace: true)"
)


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    peer: Peer
    since_s: float
    was_reset: bool = False


class SeqpacketInbox:
    """`ports.Inbox` on a Unix socket. A connection that the caller closes yields no `Closed` arrival.

    `allow_uids` None admits every uid that the socket's mode admits. Raises `SocketUnavailable` if the path cannot be
    had (see `listener`). `is_known` tells whether the hello of a connection was accepted.
    """

    def __init__(
        self, path: str, processes: LinuxProcesses, boot_id: str, *, mode: int = 0o666,
        allow_uids: frozenset[int] | None = None, is_known: Callable[[ConnectionId], bool] = lambda _: True,
        second: str | None = None,
    ) -> None:  # fmt: skip
        self._processes = processes
        self._boot_id = boot_id
        self._allow_uids = allow_uids
        self._is_known = is_known
        self._listener = Listener(path, socket.SOCK_SEQPACKET, mode, second=second)
        self.restore = self._listener.restore
        self._epoll = select.epoll()
        self._listener.watch_with(self._epoll)
        self._connections: dict[int, _Connection] = {}  # By file descriptor.
        self._fds: dict[ConnectionId, int] = {}
        self._ids: dict[int, ConnectionId] = {}
        self._next_id = itertools.count(1)
        # One byte more than allowed: a packet that fills the buffer was too large.
        self._buffer = memoryview(bytearray(FRAME_BYTES_MAX + 1))

    def fileno(self) -> int:
        return self._epoll.fileno()

    def receive(self) -> Sequence[Arrival]:
        arrivals: list[Arrival] = []
        self._listener.look_again()
        for turn in range(PACKETS_PER_CONNECTION):
            served = False
            for fd, _ in self._epoll.poll(0, CONNECTIONS_PER_RECEIVE):
                if fd in self._connections:
                    self._take(fd, arrivals)
                    served = True
                elif turn == 0 and fd == self._listener.fileno():
                    self._accept(arrivals)
            if not served:
                break
        return arrivals

    def send(self, connection: ConnectionId, packet: bytes) -> bool:
        assert len(packet) <= FRAME_BYTES_MAX, "the receiver would read a torn packet"
        fd = self._fds.get(connection)
        if fd is None:
            return False
        try:
            return self._connections[fd].sock.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(packet)
        # Full, reset or gone: all mean "not now", and receive() reports a lost connection.
        except OSError:
            return False

    def close(self, connection: ConnectionId, reason: str) -> None:
        fd = self._fds.get(connection)
        if fd is not None:
            self._forget(fd)

    def close_all(self) -> None:
        """Close every connection and remove the socket file."""
        for fd in list(self._connections):
            self._forget(fd)
        self._epoll.close()
        self._listener.close()

    def _accept(self, arrivals: list[Arrival]) -> None:
        for _ in range(ACCEPTS_PER_RECEIVE):
            sock = self._listener.accept()
            if sock is None:
                return
            self._admit(sock, arrivals)

    def _admit(self, sock: socket.socket, arrivals: list[Arrival]) -> None:
        pid, uid, gid = peer_credentials(sock)
        peer = self._identify(sock, pid, uid, gid)
        reason = self._refusal(uid, arrivals) if isinstance(peer, Peer) else peer
        if reason is not None or not isinstance(peer, Peer):
            _tell(sock, reason or "")
            sock.close()
            arrivals.append(Rejected(reason=reason or "", uid=uid, pid=pid))
            return
        connection = ConnectionId(next(self._next_id))
        self._connections[sock.fileno()] = _Connection(sock, peer, time.monotonic())
        self._fds[connection] = sock.fileno()
        self._ids[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        arrivals.append(Opened(connection, peer))

    def _identify(self, sock: socket.socket, pid: int, uid: int, gid: int) -> Peer | str:
        if pid == 0:
            return PID_NAMESPACE_REASON
        try:
            stat = self._stat_of_living(sock, pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return OUT_OF_DESCRIPTORS
            return f"process {pid} ended before it could be identified"
        if stat is None:
            return f"/proc/{pid} is not readable (hidepid?): mount /proc without hidepid for the governor"
        return Peer(ProcessId(pid, stat.start_ticks, self._boot_id, self._processes.pid_ns), uid, gid)

    def _stat_of_living(self, sock: socket.socket, pid: int) -> Stat | None:
        pidfd = _peer_pidfd(sock, pid)
        try:
            stat = self._processes.stat(pid)
            # The process is alive after its start time was read, so the number was its own all along.
            if has_exited(pidfd):
                raise ProcessLookupError(errno.ESRCH, "ended")
        finally:
            os.close(pidfd)
        return stat

    def _refusal(self, uid: int, arrivals: list[Arrival]) -> str | None:
        if self._allow_uids is not None and uid not in self._allow_uids:
            return f"uid {uid} is not in allow_uids"
        held = {
            fd: Held(one.peer.uid, one.since_s, self._is_known(self._ids[fd])) for fd, one in self._connections.items()
        }
        now_s = time.monotonic()
        found = makes_room(held, uid, now_s)
        if isinstance(found, int):
            silent = f"no hello in {SILENT_S:.0f} s" if held[found].is_silent(now_s) else "its uid has most of them"
            self._displace(found, f"closed for a trainer of uid {uid}: {silent}", arrivals)
        elif found is not None:
            return found
        return None if self._listener.has_room() else OUT_OF_DESCRIPTORS

    def _displace(self, fd: int, reason: str, arrivals: list[Arrival]) -> None:
        one = self._connections[fd]
        _tell(one.sock, reason)
        arrivals.append(Rejected(reason=reason, uid=one.peer.uid, pid=one.peer.process.pid))
        arrivals.append(Closed(self._ids[fd], reason))
        self._forget(fd)

    def _take(self, fd: int, arrivals: list[Arrival]) -> None:
        """Take one packet, or the end.

        epoll reports once for all connections that no packet is left. Asking here would cost an exception for each.
        """
        connection = self._connections[fd]
        try:
            # Without an ancillary buffer, the kernel discards descriptors that a hostile peer may send along.
            size = connection.sock.recv_into(self._buffer, 0, _DONTWAIT)
        except BlockingIOError:
            size = -1
        except OSError as error:
            if error.errno == errno.ECONNRESET and not connection.was_reset:
                # The peer closed without reading our checkpoint request. What it sent before is still queued.
                connection.was_reset = True
                return
            size = 0
        if size > 0:
            data = bytes(self._buffer[: min(size, FRAME_BYTES_MAX)])
            arrivals.append(Packet(self._ids[fd], connection.peer, data, size > FRAME_BYTES_MAX))
        # Zero is end of file. An empty packet looks the same, but no honest peer sends one.
        elif size == 0 or connection.was_reset:
            arrivals.append(Closed(self._ids[fd], "connection reset" if connection.was_reset else "peer closed"))
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        connection = self._connections.pop(fd)
        del self._fds[self._ids.pop(fd)]
        self._epoll.unregister(fd)
        connection.sock.close()


def _tell(sock: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError):  # It may be gone already. The arrival states the reason either way.
        refusal = {"v": WIRE_VERSION, "kind": "refuse", "reason": reason}
        sock.send(encode(refusal), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _peer_pidfd(sock: socket.socket, pid: int) -> int:
    """Return a pidfd of the connecting process. Raises OSError if it is gone."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    # Before Linux 6.5: by number. The pid may be reused between connect() and here.
    return os.pidfd_open(pid)


# --- who keeps a connection where there is no room for all -------------------------------------------------
#
# Silent ones go first, then the newest of whoever has most. Established trainers stay: no newcomer costs a uid
# within its share anything. With N uids at their worst, each has room for about CONNECTIONS_MAX / N.


@dataclass(frozen=True, slots=True)
class Held:
    """One open connection."""

    uid: int
    since_s: float
    is_known: bool  # Its hello was accepted.

    def is_silent(self, now_s: float) -> bool:
        return not self.is_known and now_s - self.since_s >= SILENT_S


def makes_room(held: Mapping[int, Held], uid: int, now_s: float) -> int | str | None:
    """Which connection is closed for a new one of this uid. None: there is room. A line: why the new one is refused.

    `held`: by descriptor, oldest first.
    """
    by_uid = Counter(one.uid for one in held.values())
    is_full, own = len(held) >= CONNECTIONS_MAX, by_uid[uid]
    if not is_full and own < CONNECTIONS_PER_UID_MAX:
        return None
    for fd, one in held.items():
        if one.is_silent(now_s) and (own < CONNECTIONS_PER_UID_MAX or one.uid == uid):
            return fd
    if own >= CONNECTIONS_PER_UID_MAX:
        return f"uid {uid} has {CONNECTIONS_PER_UID_MAX} connections open already"
    most = max(by_uid.values())
    if own + 1 >= most:
        return f"{CONNECTIONS_MAX} connections are open already, and uid {uid} has its share of them"
    newest_first = [(fd, one) for fd, one in held.items() if by_uid[one.uid] == most][::-1]
    return next((fd for fd, one in newest_first if not one.is_known), newest_first[0][0])
