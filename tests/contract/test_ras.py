"""The client of NCCL RAS against a fake of its text protocol. The fake says that it is one; no NCCL was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from governor.adapters.evidence import ras

TOLD = b"SERVER PROTOCOL 2\nOK\nthis is a fake of NCCL RAS\nJob summary\n  \x1b[31mcolour\n"


@contextmanager
def fake_ras(answer: bytes, *, closes: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """One client. `closes`: it ends the connection behind its answer, as NCCL does."""
    asked: list[bytes] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                data = b""
                while b"VERBOSE STATUS\n" not in data:
                    data += connection.recv(1024)
                asked.append(data)
                try:
                    connection.sendall(answer)
                except OSError:  # The client has what it keeps.
                    return
                if not closes:
                    over.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", asked
        finally:
            over.set()
            thread.join()


def test_the_lines_of_verbose_status_are_shown_and_steer_no_terminal() -> None:
    with fake_ras(TOLD) as (address, asked):
        lines = ras.verbose_status(address, 5.0)
    assert lines[:2] == ["this is a fake of NCCL RAS", "Job summary"]
    assert all(line.isprintable() for line in lines)
    assert asked[0].endswith(b"VERBOSE STATUS\n")


def test_one_that_says_no_more_is_waited_for_no_longer_and_what_came_is_shown_as_cut() -> None:
    with fake_ras(TOLD, closes=False) as (address, _):
        lines = ras.verbose_status(address, 0.3)
    assert lines[0] == "this is a fake of NCCL RAS"
    assert lines[-1].startswith("(cut")


def test_an_endless_answer_is_bounded() -> None:
    with fake_ras(TOLD + b"line\n" * 400_000) as (address, _):
        lines = ras.verbose_status(address, 5.0)
    assert len(lines) == ras.LINES_MAX + 1


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "localhost:0", "127.0.0.1:70000", "127.0.0.1:²"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ras.RasUnavailable):
        ras.verbose_status(address, 0.3)


def test_no_other_machine_is_asked() -> None:
    with pytest.raises(ras.RasUnavailable, match=r"192\.0\.2\.1"):
        ras.verbose_status("192.0.2.1:28028", 0.3)


def test_what_speaks_otherwise_is_not_shown() -> None:
    with fake_ras(b"HTTP/1.1 400 Bad Request\r\n") as (address, _), pytest.raises(ras.RasUnavailable):
        ras.verbose_status(address, 5.0)
