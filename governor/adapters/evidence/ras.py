"""NCCL's own view of a job, by its RAS service: a text protocol on a TCP port of loopback, NCCL 2.24 and newer."""

from __future__ import annotations

import socket
import time
from typing import Final

from governor.core.base.printable import printable
from governor.core.base.units import is_whole

DEFAULT_ADDRESS: Final = "localhost:28028"
ANSWER_BYTES_MAX: Final = 256 * 1024
LINES_MAX: Final = 400
CONNECT_S: Final = 1.0
_CHUNK_BYTES: Final = 16 * 1024
_HELLO: Final = b"CLIENT PROTOCOL 2\n"
_LOOPBACK: Final = ("127.", "::1")


class RasUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """One line: why there is no answer."""


def verbose_status(address: str, within_s: float) -> list[str]:
    """The lines of `VERBOSE STATUS`, whole or as far as they came. RasUnavailable where nothing answers."""
    host, port = _place(address)
    deadline = time.monotonic() + within_s
    try:
        where = next(iter(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)), None)
    except OSError as error:
        raise RasUnavailable(f"{address}: {error.strerror}") from error
    if where is None or not str(where[4][0]).startswith(_LOOPBACK):
        raise RasUnavailable(f"{address} is not an address of this machine, and no other one is asked")
    try:
        with socket.create_connection((str(where[4][0]), port), timeout=min(CONNECT_S, within_s)) as sock:
            timeout = max(1, int(within_s))
            sock.sendall(_HELLO + f"TIMEOUT {timeout}\n".encode() + b"VERBOSE STATUS\n")
            data, is_cut = _read(sock, deadline)
    except ConnectionRefusedError:
        raise RasUnavailable(f"no NCCL RAS at {address}: no job of NCCL 2.24 or newer runs here") from None
    except OSError as error:
        raise RasUnavailable(f"NCCL RAS at {address}: {error.strerror or 'no answer'}") from error
    if not data.startswith(b"SERVER PROTOCOL"):
        raise RasUnavailable(f"what listens at {address} is not NCCL RAS")
    lines = [printable(line) for line in data.decode("utf-8", "replace").splitlines()]
    told = [line for line in lines[1:] if line != "OK"][:LINES_MAX]
    return [*told, "(cut: it had said no more in time, or more than is kept)"] if is_cut else told


def _read(sock: socket.socket, deadline: float) -> tuple[bytes, bool]:
    """All until the peer ends, and whether that was too long or too much."""
    data = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            chunk = sock.recv(_CHUNK_BYTES)
        except TimeoutError:
            break
        if not chunk:
            return bytes(data), False
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            return bytes(data[:ANSWER_BYTES_MAX]), True
    return bytes(data), True


def _place(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not is_whole(port) or not 0 < int(port) < 65536:
        raise RasUnavailable(f"NCCL_RAS_ADDR {address[:60]!r} is not HOST:PORT")
    return host.strip("[]") or "localhost", int(port)
