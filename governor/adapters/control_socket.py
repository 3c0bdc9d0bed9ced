"""The control socket: one JSON request line in, one JSON response line out, then the connection ends.

The kernel identifies the client (SO_PEERCRED). The daemon decides what the client may do.
"""

from __future__ import annotations

import contextlib
import grp
import itertools
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.adapters.trainers.listener import OUT_OF_DESCRIPTORS, Listener, SocketUnavailable, peer_credentials
from governor.core.base.units import NS_PER_S
from trainer_shim.wire import worded

# A reason of 512 characters, escaped, fits twenty times.
REQUEST_BYTES_MAX: Final = 16 * 1024
RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024  # 100 incidents with every rank's stack are about 2 MB.
# For people and one exporter. `watch` on every screen of a team stays below it.
CONNECTIONS_MAX: Final = 32
# One user's stuck scripts leave room for the user who wants to halt.
CONNECTIONS_PER_UID_MAX: Final = 16
# From connect to the last byte of the answer. A client on this node is fast.
CONNECTION_AGE_MAX_NS: Final = 10 * NS_PER_S
ACCEPTS_PER_POLL: Final = 16  # A connect loop must not hold up the daemon's loop.
_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One question (`ports.ControlRequest`), to be answered once, now or later. `uid`, `pid`: the kernel's word."""

    uid: int
    pid: int
    conn: int
    body: Mapping[str, Any]


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    conn: int
    uid: int
    pid: int
    opened_ns: int
    received: bytearray = field(default_factory=bytearray)
    asked: bool = False
    answer: memoryview | None = None  # Bytes still to be sent.


class ControlServer:
    """Serves `path` with `mode` and, if the group exists, for `group`. Raises SocketUnavailable (one line).

    Call poll() when fileno() is readable and at least every second: poll() also ends silent connections.
    """

    def __init__(
        self, path: str, mode: int = 0o660, group: str | None = None, now_ns: Callable[[], int] = time.monotonic_ns,
        *, second: str | None = None,
    ) -> None:  # fmt: skip
        self._now_ns = now_ns
        self._listener = Listener(path, socket.SOCK_STREAM, mode, group_id(group), second)
        self.restore = self._listener.restore
        self._epoll = select.epoll()
        self._listener.watch_with(self._epoll)
        self._by_fd: dict[int, _Connection] = {}
        self._by_conn: dict[int, _Connection] = {}
        self._next_conn = itertools.count(1)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def poll(self) -> list[Request]:
        """Accept, read, continue sending, and return the complete requests. Bad requests are answered already."""
        requests: list[Request] = []
        self._listener.look_again()
        for fd, _ in self._epoll.poll(0, CONNECTIONS_MAX + 1):
            connection = self._by_fd.get(fd)
            if fd == self._listener.fileno():
                self._accept()
            elif connection is None:
                # An earlier event of this batch closed it.
                continue
            elif connection.answer is not None:
                self._flush(connection)
            else:
                requests.extend(self._read(connection))
        oldest_ns = self._now_ns() - CONNECTION_AGE_MAX_NS
        for connection in [c for c in self._by_fd.values() if c.opened_ns < oldest_ns]:
            self._close(connection)
        return requests

    def reply(self, conn: int, response: Mapping[str, Any] | bytes) -> None:
        """Answer and end the connection. A client that has left is no error. Bytes are sent as a finished line."""
        connection = self._by_conn.get(conn)
        if connection is None:
            return
        assert connection.answer is None, "a request is answered once"
        data = response if isinstance(response, bytes) else _line(response)
        if len(data) > RESPONSE_BYTES_MAX:
            data = _refusal("the answer is too large; ask for fewer incidents", "unavailable")
        connection.answer = memoryview(data)
        self._flush(connection)

    def close(self) -> None:
        for connection in list(self._by_fd.values()):
            self._close(connection)
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_POLL):
            sock = self._listener.accept()
            if sock is None:
                return
            pid, uid, _ = peer_credentials(sock)
            refusal = self._obstacle(uid)
            if refusal is not None:
                with contextlib.suppress(OSError):
                    sock.send(_refusal(refusal, "unavailable"))
                sock.close()
                continue
            connection = _Connection(sock, next(self._next_conn), uid, pid, self._now_ns())
            self._by_fd[sock.fileno()] = self._by_conn[connection.conn] = connection
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _obstacle(self, uid: int) -> str | None:
        of_uid = sum(1 for connection in self._by_fd.values() if connection.uid == uid)
        if len(self._by_fd) >= CONNECTIONS_MAX or of_uid >= CONNECTIONS_PER_UID_MAX:
            return "too many connections; try again in a moment"
        return None if self._listener.has_room() else OUT_OF_DESCRIPTORS

    def _read(self, connection: _Connection) -> list[Request]:
        try:
            data = connection.sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or connection.asked:
            # The client has left, or sends more than one request.
            self._close(connection)
            return []
        connection.received += data
        line, newline, _ = bytes(connection.received).partition(b"\n")
        if len(line) > REQUEST_BYTES_MAX:
            self._refuse(connection, f"the request is larger than {REQUEST_BYTES_MAX} bytes")
        elif newline:
            connection.asked = True
            connection.received.clear()
            return self._parsed(connection, line)
        return []

    def _parsed(self, connection: _Connection, line: bytes) -> list[Request]:
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(connection, "the request is not JSON")
            return []
        if not isinstance(body, dict) or not isinstance(body.get("cmd"), str):
            self._refuse(connection, 'the request is not an object with a "cmd"')
            return []
        return [Request(connection.uid, connection.pid, connection.conn, body)]

    def _refuse(self, connection: _Connection, error: str) -> None:
        connection.answer = memoryview(_refusal(error, "bad_request"))
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        assert connection.answer is not None
        try:
            sent = connection.sock.send(connection.answer, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        connection.answer = connection.answer[sent:]
        if connection.answer:
            self._epoll.modify(connection.sock.fileno(), select.EPOLLOUT)
        else:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._by_fd[connection.sock.fileno()]
        del self._by_conn[connection.conn]
        self._epoll.unregister(connection.sock.fileno())
        connection.sock.close()


def group_id(name: str | None) -> int | None:
    """Return the group's id, or None for None. SocketUnavailable if the group does not exist."""
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise SocketUnavailable(
            f'control.group: there is no group "{name}"; create it (groupadd --system {name}) or leave the key out'
        ) from None


def _line(response: Mapping[str, Any]) -> bytes:
    # A loss may be NaN, which strict JSON cannot hold; the wire's words replace it.
    return json.dumps(worded(response), separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"


def _refusal(error: str, code: str) -> bytes:
    return json.dumps({"ok": False, "error": error, "code": code}).encode() + b"\n"
