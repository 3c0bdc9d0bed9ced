"""The shim's end of the SEQPACKET socket. Sends from any thread, connects and closes on the listener thread only.

A send that wakes the governor costs the training thread more than all else that we do in a step. So a frame that can
wait is queued, and the listener thread sends it within a quarter of a second.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from . import wire
from .connection.outbox import Outbox
from .connection.peers import doubt
from .guard import note, print_line
from .progress import Progress

SEND_BUFFER_BYTES = 4 << 20  # 6,554 packets of a stalled governor instead of 167; granted as root or by wmem_max.
RETRY_FIRST_NS = 100_000_000
RETRY_MAX_NS = 2_000_000_000  # A connect to a missing socket costs 10 µs; a restarted governor should not wait.
RETRY_REFUSED_NS = 30_000_000_000  # A governor that refused will do so until somebody changes a file.
QUEUE_FRAMES_MAX = 4_096  # About 2 MiB. A sender may fall so far behind while another holds the lock.
# A quarter of a second of 4,000 steps/s. Each send gives the interpreter up. Where the training thread never waits, the
# listener gets it back after 5 ms, and falls behind from 200 steps/s on. Then the training thread helps.
BACKLOG_FRAMES = 1_024
PACKETS_PER_TURN_MAX = 64  # Requests and confirms: more in one go means a flood, and beats must go on.
_SO_SNDBUFFORCE = 32
_UCRED = struct.Struct("@iII")
# MSG_NOSIGNAL everywhere: a script that gave SIGPIPE its default action back must not die with our governor.


class GovernorSocket:
    """`hello_fields` returns the hello fields of this moment; it runs at every (re)connect.

    `named`: a person has named the path, and whoever listens there is believed.
    """

    def __init__(
        self, paths: Sequence[str], rank: int, hello_fields: Callable[[], Dict[str, Any]], named: bool = True
    ) -> None:
        self.paths = tuple(paths)
        self.path = self.paths[0]
        self.dropped = {"step": 0, "beat": 0, "phase": 0}  # Since attach: a reconnect must not hide what it cost.
        self.refused: Optional[str] = None
        self.stranger: Optional[str] = None  # Who has listened where a governor should, in words.
        self.lost_since_ns: Optional[int] = time.monotonic_ns()  # None while connected.
        self.retry_at_ns = 0
        self._named = named
        self._rank = rank
        self._hello_fields = hello_fields
        self._any_dropped = False
        self._sock: Optional[socket.socket] = None
        self._old_socks: List[socket.socket] = []
        self._retry_ns = RETRY_FIRST_NS
        self._connected_ns = 0
        # One lock for queue and outbox: frames leave in the order in which they were made. It is reentrant: a script's
        # signal handler may save, or say bye, while its own thread is inside.
        self._lock = threading.RLock()
        self._queue: Deque[Tuple[str, int, Dict[str, Any]]] = deque()
        self._outbox = Outbox(rank)
        _close_in_children(self)

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def fileno(self) -> int:
        """The socket's descriptor, -1 while there is none."""
        sock = self._sock
        return -1 if sock is None else sock.fileno()

    def later(self, kind: str, fields: Dict[str, Any]) -> None:
        """Queue a step frame for the listener's next turn; `fields` is ours from here on. Any thread. Never blocks."""
        if self._sock is None or len(self._queue) >= QUEUE_FRAMES_MAX:
            self._drop(kind)
        else:
            self._queue.append((kind, time.monotonic_ns(), fields))
            if len(self._queue) > BACKLOG_FRAMES:
                self.send_queued(2)

    def post(self, kind: str, fields: Dict[str, Any]) -> bool:
        """Send a step, beat or phase now or never, behind what is queued; a lost one is counted.

        Any thread. Never blocks, no OSError.
        """
        self.later(kind, fields)
        return self.send_queued()

    @property
    def queued(self) -> int:
        """How many frames wait for the listener's turn."""
        return len(self._queue)

    def send_queued(self, frames_max: int = QUEUE_FRAMES_MAX) -> bool:
        """Send what was queued, now or never; False when nobody is connected or something was lost."""
        whole = True
        with self._lock:
            for _ in range(frames_max):
                sock = self._sock
                if sock is None:
                    return False
                try:
                    kind, mono_ns, fields = self._queue.popleft()
                except IndexError:
                    break
                whole = self._sent(sock, kind, mono_ns, fields) and whole
        return whole

    def _sent(self, sock: socket.socket, kind: str, mono_ns: int, fields: Dict[str, Any]) -> bool:
        if self._any_dropped:
            fields = dict(fields, dropped=self.dropped)
        try:
            sock.send(wire.encode_post(kind, self._rank, mono_ns, fields), socket.MSG_NOSIGNAL)
            return True
        except OSError:  # Full, absent, refused: all mean "not now". Only the listener closes.
            pass
        except (TypeError, ValueError) as error:  # No packet can carry it: drop it, or it keeps back what follows.
            note("a %s frame" % kind, error)
        self._drop(kind)
        return False

    def _drop(self, kind: str) -> None:
        self.dropped[kind] = self.dropped.get(kind, 0) + 1
        self._any_dropped = True

    def post_phase(self, progress: Progress, failure: Optional[Dict[str, Any]] = None) -> bool:
        """Send a phase frame from where the training thread is. `failure`: an exception that ends it there."""
        fields: Dict[str, Any] = {"phase": progress.phase, "step": progress.step, "progress_seq": progress.progress_seq}
        if progress.phase_from_ns:
            fields["since_ns"] = progress.phase_from_ns
        return self.post("phase", fields if failure is None else dict(fields, failure=failure))

    def put(self, kind: str, fields: Dict[str, Any]) -> None:
        """Queue a hello, ack or bye until it is confirmed, and try to send it at once. Any thread."""
        with self._lock:
            now_ns = time.monotonic_ns()
            self._outbox.add(kind, fields, now_ns)
            self.flush(now_ns)

    def flush(self, now_ns: int) -> None:
        """Send what is new to this connection, and again what was not confirmed in time."""
        with self._lock:
            for slot in self._outbox.slots():
                if slot.sent_ns is None and slot.kind != "hello":
                    self.send_queued()  # An ack of a step comes after the step.
                if not slot.is_due(now_ns):
                    continue  # Perhaps a signal handler has sent it just now.
                sock = self._sock
                if sock is None:
                    return
                try:
                    sock.send(slot.packet, socket.MSG_NOSIGNAL)
                except OSError:
                    return  # Order matters: what follows waits as well.
                slot.left(now_ns)

    def unconfirmed(self) -> int:
        """How many reliable frames still wait."""
        return len(self._outbox)

    def connect(self, now_ns: int) -> bool:
        """Try every path once, listener thread (or before it started). On failure sets `retry_at_ns`."""
        assert self._sock is None, "connect() while connected"
        self._close_old()
        for path in self.paths:
            sock = self._opened(path)
            if sock is None:
                continue
            try:
                self._greet()
            except BaseException:  # A hello that cannot be said, e.g. too large: our caller's to report.
                sock.close()
                raise
            self.path = path
            self.refused = self.stranger = None
            self.lost_since_ns = None
            self._connected_ns = now_ns
            with self._lock:  # The hello comes first.
                self._sock = sock
                self.flush(now_ns)
            return True
        self._retry_later(now_ns)
        return False

    def _opened(self, path: str) -> Optional[socket.socket]:
        sock = _open(path)
        why = None if sock is None or self._named else stranger(sock, path)
        if sock is None or why is None:
            return sock
        sock.close()
        self.stranger = "not believed at %s: %s; if it is your governor, set COSTGOV_SOCKET=%s" % (path, why, path)
        return None

    def _greet(self) -> None:
        hello = self._hello_fields()  # Outside our lock: it takes others'.
        with self._lock:
            self._outbox.reconnected(hello, time.monotonic_ns())

    def disconnect(self, now_ns: int, retry_after_ns: int = 0) -> None:
        """Let the connection go; listener thread only. After one that lasted, the next connect() is due at once."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self.lost_since_ns = now_ns
        # The next connect() closes it: a send() on another thread may use this descriptor number right now.
        self._old_socks.append(sock)
        if retry_after_ns:
            self._back_off(now_ns, retry_after_ns)
        elif now_ns - self._connected_ns >= RETRY_MAX_NS:
            self._retry_ns = RETRY_FIRST_NS
            self.retry_at_ns = now_ns
        else:
            # It was accepted and closed: hellos in a loop would take the interpreter from the training thread.
            self._retry_later(now_ns)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def receive(self, now_ns: int) -> List[Dict[str, Any]]:
        """Read what is there, settle confirms and refusals, return the requests. Listener thread only."""
        requests: List[Dict[str, Any]] = []
        for packet in self._packets(now_ns):
            frame = _decoded(packet)
            if frame is None:
                continue
            if frame["kind"] == "confirm":
                with self._lock:
                    self._outbox.confirm(frame["seq"])
            elif frame["kind"] == "refuse":
                self.refused = frame["reason"]
                self.disconnect(now_ns, RETRY_REFUSED_NS)
                return requests
            else:
                requests.append(frame)
        return requests

    def _packets(self, now_ns: int) -> List[bytes]:
        packets: List[bytes] = []
        resets = 0
        while len(packets) < PACKETS_PER_TURN_MAX:
            sock = self._sock
            if sock is None:
                break
            try:
                packet = sock.recv(wire.FRAME_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # A peer that closed with unread packets resets first. What it had sent us is still queued behind.
                if error.errno == errno.ECONNRESET and not resets:
                    resets = 1
                    continue
                packet = b""
            if not packet:
                self.disconnect(now_ns)
                break
            packets.append(packet)
        return packets

    def _retry_later(self, now_ns: int) -> None:
        self._back_off(now_ns, self._retry_ns)
        self._retry_ns = min(2 * self._retry_ns, RETRY_MAX_NS)

    def _back_off(self, now_ns: int, delay_ns: int) -> None:
        # The ranks of a node spread over a fifth of the delay: a restarted governor does not meet all at once.
        self.retry_at_ns = now_ns + delay_ns + (delay_ns // 5) * (self._rank % 8) // 8

    def _close_old(self) -> None:
        with self._lock:  # Nobody is inside a send() with one of these.
            while self._old_socks:
                self._old_socks.pop().close()

    def close(self) -> None:
        """Close everything: at the end, or in a forked child, whose copy would hide this rank's death."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._close_old()


def _open(path: str) -> Optional[socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except (OSError, ValueError):  # Missing, refused, forbidden, backlog full, path too long or with a NUL.
        sock.close()
        return None
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, SEND_BUFFER_BYTES)
            break
        except OSError:  # Not root: then as much as wmem_max grants.
            continue
    return sock


def _decoded(packet: bytes) -> Optional[Dict[str, Any]]:
    try:
        frame = json.loads(packet)
    except ValueError:
        print_line("ignored %d bytes from the governor that are not JSON" % len(packet))
        return None
    found = wire.faults(frame, wire.GOVERNOR_FRAMES)
    if found:
        print_line("ignored a frame from the governor: %.200s" % found[0])
        return None
    checked: Dict[str, Any] = frame
    return checked


def _close_in_children(governor: GovernorSocket) -> None:
    known = weakref.ref(governor)

    def after_in_child() -> None:
        mine = known()
        if mine is not None:
            mine._lock = threading.RLock()  # The parent's listener may have held it at the fork.
            mine.close()

    os.register_at_fork(after_in_child=after_in_child)


def clip(text: str) -> str:
    """Cut a text to what a `str` field may carry."""
    return text if len(text) <= wire.TEXT_CHARS_MAX else text[: wire.TEXT_CHARS_MAX - 1] + "…"


def unwatched_line(paths: Tuple[str, ...], refused: Optional[str], stranger: Optional[str] = None) -> str:
    """The one line that says nobody is watching."""
    where = ", ".join(paths)
    if refused is not None:
        return "UNWATCHED: the governor at %s refused: %s" % (where, refused)
    return "UNWATCHED: no governor at " + where + ("" if stranger is None else ": " + stranger)


def stranger(sock: socket.socket, path: str) -> Optional[str]:
    """Say why whoever listens at a path that nobody named is no governor of ours; None: it is believed."""
    uid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    return doubt(path, uid)
