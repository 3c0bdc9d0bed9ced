"""The control socket over real sockets: the exchange, and everything a hostile or broken client may do to it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from governor.adapters import control_socket
from governor.adapters.control_socket import ControlServer, Request
from governor.adapters.trainers.listener import BACKLOG, SocketUnavailable
from governor.core.base.units import NS_PER_S
from governor.wire.control_client import (
    Answer,
    ask,
    ask_each,
    ask_first,
    is_listened_on,
    socket_paths,
)

DEADLINE_S = 20.0
Connect = Callable[[], socket.socket]


class Time:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def server(tmp_path: Path, clock: Time) -> Iterator[ControlServer]:
    served = ControlServer(str(tmp_path / "control.sock"), now_ns=clock)
    yield served
    served.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "control.sock")


def serve(server: ControlServer, wanted: int = 1) -> list[Request]:
    """Run the server's side until so many requests are there."""
    requests: list[Request] = []
    while len(requests) < wanted:
        assert select.select([server], [], [], DEADLINE_S)[0], "nothing arrived"
        requests += server.poll()
    return requests


def in_thread(call: threading.Thread) -> threading.Thread:
    call.start()
    return call


def asking(path: str, request: dict[str, object], answers: list[Answer]) -> threading.Thread:
    return in_thread(threading.Thread(target=lambda: answers.append(ask(path, request, DEADLINE_S))))


@pytest.fixture
def connect(path: str) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def one_more() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.append(sock)
        sock.settimeout(DEADLINE_S)
        sock.connect(path)
        return sock

    yield one_more
    for sock in opened:
        sock.close()


def read_all(sock: socket.socket, server: ControlServer) -> bytes:
    """Read to the end of the connection while the server goes on running."""
    received = bytearray()
    while True:
        ready = select.select([sock, server], [], [], DEADLINE_S)[0]
        assert ready, "neither side has anything to do"
        if server in ready:
            server.poll()
        if sock in ready:
            data = sock.recv(1 << 20)
            if not data:
                return bytes(received)
            received += data


def test_a_question_is_answered_and_the_asker_is_the_kernels_word(server: ControlServer, path: str) -> None:
    answers: list[Answer] = []
    thread = asking(path, {"cmd": "ping", "uid": 0, "pid": 1}, answers)
    (request,) = serve(server)
    assert (request.uid, request.pid, request.body["cmd"]) == (os.geteuid(), os.getpid(), "ping")
    server.reply(request.conn, {"ok": True, "data": {"pong": 1}})
    thread.join(DEADLINE_S)
    assert answers == [Answer(True, data={"pong": 1})]


def test_an_answer_larger_than_the_socket_buffer_arrives_whole(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"status"}\n')
    (request,) = serve(server)
    server.reply(request.conn, {"ok": True, "data": "x" * (4 << 20)})
    assert len(json.loads(read_all(sock, server))["data"]) == 4 << 20


def test_an_answer_beyond_the_bound_is_refused_not_sent(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"status"}\n')
    (request,) = serve(server)
    server.reply(request.conn, {"ok": True, "data": "x" * control_socket.RESPONSE_BYTES_MAX})
    assert json.loads(read_all(sock, server))["code"] == "unavailable"


def test_a_loss_that_is_not_a_number_travels_as_a_word(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"status"}\n')
    (request,) = serve(server)
    server.reply(request.conn, {"ok": True, "data": [{"loss": float("nan")}]})
    assert json.loads(read_all(sock, server))["data"] == [{"loss": "nan"}]


def test_an_answer_may_come_later_than_the_next_question(server: ControlServer, connect: Connect) -> None:
    first, second = connect(), connect()
    first.sendall(b'{"cmd":"incidents"}\n')
    (slow,) = serve(server)
    second.sendall(b'{"cmd":"ping"}\n')
    (fast,) = serve(server)
    server.reply(fast.conn, {"ok": True, "data": 2})
    server.reply(slow.conn, {"ok": True, "data": 1})
    assert json.loads(read_all(second, server))["data"] == 2
    assert json.loads(read_all(first, server))["data"] == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"halt\n", "the request is not JSON"),
        (b"\xff\xfe\n", "the request is not JSON"),
        (b"[" * 15_000 + b"\n", "the request is not JSON"),
        (b"[]\n", 'the request is not an object with a "cmd"'),
        (b'{"cmd": 3}\n', 'the request is not an object with a "cmd"'),
        (b"x" * (control_socket.REQUEST_BYTES_MAX + 1), "the request is larger than 16384 bytes"),
    ],
)
def test_a_bad_request_is_answered_in_one_line_and_never_reaches_the_daemon(
    server: ControlServer, connect: Connect, sent: bytes, error: str
) -> None:
    sock = connect()
    sock.sendall(sent)
    assert json.loads(read_all(sock, server)) == {"ok": False, "error": error, "code": "bad_request"}


def test_a_request_in_pieces_is_put_together(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    for piece in (b'{"cmd"', b':"pi'):
        sock.sendall(piece)
        assert select.select([server], [], [], DEADLINE_S)[0]
        assert server.poll() == []
    sock.sendall(b'ng"}\n')
    assert serve(server)[0].body == {"cmd": "ping"}


def test_a_second_question_on_the_same_connection_ends_it(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"ping"}\n')
    (request,) = serve(server)
    sock.sendall(b'{"cmd":"halt"}\n')
    assert read_all(sock, server) == b""
    server.reply(request.conn, {"ok": True})  # Its client has gone: no error.


def test_a_client_that_leaves_is_forgotten(server: ControlServer, connect: Connect) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"ping"}\n')
    (request,) = serve(server)
    sock.close()
    server.reply(request.conn, {"ok": True})
    assert select.select([server], [], [], 0)[0] == []


def test_a_silent_connection_is_ended_at_its_age_and_not_before(
    server: ControlServer, connect: Connect, clock: Time
) -> None:
    sock = connect()
    assert select.select([server], [], [], DEADLINE_S)[0]
    server.poll()
    clock.now_ns = control_socket.CONNECTION_AGE_MAX_NS
    server.poll()
    assert select.select([sock], [], [], 0)[0] == []
    clock.now_ns += 1
    server.poll()
    assert sock.recv(1) == b""


def test_a_client_that_does_not_read_holds_nothing_for_longer(
    server: ControlServer, connect: Connect, clock: Time
) -> None:
    sock = connect()
    sock.sendall(b'{"cmd":"status"}\n')
    (request,) = serve(server)
    server.reply(request.conn, {"ok": True, "data": "x" * (4 << 20)})
    assert select.select([server], [], [], 0)[0] == [], "a full peer must not make the loop spin"
    clock.now_ns = 11 * NS_PER_S
    server.poll()
    assert len(read_all(sock, server)) < 4 << 20


def test_one_user_cannot_take_every_connection(server: ControlServer, connect: Connect) -> None:
    held = [connect() for _ in range(control_socket.CONNECTIONS_PER_UID_MAX)]
    one_more = connect()
    answer = json.loads(read_all(one_more, server))
    assert answer == {"ok": False, "error": "too many connections; try again in a moment", "code": "unavailable"}
    held[0].sendall(b'{"cmd":"ping"}\n')
    assert serve(server)[0].body == {"cmd": "ping"}, "those who were there are still served"


def test_the_socket_has_exactly_its_mode_and_its_group(tmp_path: Path) -> None:
    import grp

    group = grp.getgrgid(os.getegid()).gr_name
    served = ControlServer(str(tmp_path / "c.sock"), 0o620, group)
    facts = os.stat(tmp_path / "c.sock")
    served.close()
    assert (stat.S_IMODE(facts.st_mode), facts.st_gid) == (0o620, os.getegid())
    assert not (tmp_path / "c.sock").exists()


def test_an_unknown_group_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SocketUnavailable, match='there is no group "no-such-group"; create it'):
        ControlServer(str(tmp_path / "c.sock"), 0o660, "no-such-group")
    assert not (tmp_path / "c.sock").exists()


def test_nobody_there_says_how_to_start_one(tmp_path: Path) -> None:
    answer = ask(str(tmp_path / "none.sock"), {"cmd": "ping"})
    assert (answer.ok, answer.code) == (False, "no_governor")
    assert answer.error.endswith("none.sock: start it with `systemctl start costgov` or `costgov run -- CMD`")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / "dead.sock"))
    dead.close()
    assert ask(str(tmp_path / "dead.sock"), {"cmd": "ping"}).code == "no_governor"
    assert ask("/" + "x" * 200, {"cmd": "ping"}).code == "no_governor"


def test_a_governor_that_says_nothing_is_told_from_none(server: ControlServer, path: str) -> None:
    answer = ask(path, {"cmd": "ping"}, timeout_s=0.05)
    assert (answer.code, "did not answer within 0.05 s" in answer.error) == ("silent", True)


def test_a_full_queue_is_waited_for(server: ControlServer, path: str, connect: Connect) -> None:
    """A governor that is busy for a moment accepts at its next turn: at once, an operator's halt would be refused."""
    for _ in range(BACKLOG + 1):
        connect()
    began = time.monotonic()
    assert ask(path, {"cmd": "ping"}, timeout_s=0.2).code == "silent"
    assert time.monotonic() - began > 0.1
    answers: list[Answer] = []
    thread = asking(path, {"cmd": "ping"}, answers)
    while thread.is_alive():
        server.poll()
    assert [answer.code for answer in answers] == ["unavailable"], "it had its turn behind all the others"


def test_something_that_is_no_governor_is_recognised(tmp_path: Path) -> None:
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.bind(str(tmp_path / "other.sock"))
    other.listen()
    answers: list[Answer] = []
    thread = asking(str(tmp_path / "other.sock"), {"cmd": "ping"}, answers)
    sock, _ = other.accept()
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    sock.close()
    thread.join(DEADLINE_S)
    other.close()
    assert answers[0].code == "garbled"


def test_a_refusal_before_the_question_is_read(tmp_path: Path) -> None:
    full = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    full.bind(str(tmp_path / "full.sock"))
    full.listen()
    answers: list[Answer] = []
    thread = asking(str(tmp_path / "full.sock"), {"cmd": "ping", "reason": "x" * (8 << 20)}, answers)
    sock, _ = full.accept()
    sock.sendall(b'{"ok":false,"error":"too many connections","code":"unavailable"}\n')
    sock.close()
    thread.join(DEADLINE_S)
    full.close()
    assert answers == [Answer(False, error="too many connections", code="unavailable")]


def test_governors_are_asked_until_one_knows_the_run(server: ControlServer, path: str, tmp_path: Path) -> None:
    knowing = ControlServer(str(tmp_path / "beside.sock"))
    answers: list[Answer] = []
    paths = (str(tmp_path / "none.sock"), path, str(tmp_path / "beside.sock"))
    request = {"cmd": "halt", "run": "r"}
    thread = in_thread(threading.Thread(target=lambda: answers.append(ask_first(paths, request, DEADLINE_S))))
    (first,) = serve(server)
    server.reply(first.conn, {"ok": False, "error": "no run r", "code": "no_such_run"})
    (second,) = serve(knowing)
    knowing.reply(second.conn, {"ok": True, "data": {"run": "r"}})
    thread.join(DEADLINE_S)
    knowing.close()
    assert answers == [Answer(True, data={"run": "r"})]


def test_a_governor_that_refuses_outranks_those_that_do_not_know(
    server: ControlServer, path: str, tmp_path: Path
) -> None:
    beside = ControlServer(str(tmp_path / "beside.sock"))
    answers: list[Answer] = []
    paths = (path, str(tmp_path / "beside.sock"))
    request = {"cmd": "halt", "run": "r"}
    thread = in_thread(threading.Thread(target=lambda: answers.append(ask_first(paths, request, DEADLINE_S))))
    server.reply(serve(server)[0].conn, {"ok": False, "error": "not yours", "code": "denied"})
    beside.reply(serve(beside)[0].conn, {"ok": False, "error": "no run r", "code": "no_such_run"})
    thread.join(DEADLINE_S)
    beside.close()
    assert answers == [Answer(False, error="not yours", code="denied")]


def test_where_nobody_is_every_place_is_named(tmp_path: Path) -> None:
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert f"{tmp_path}/a or {tmp_path}/b" in ask_first(paths, {"cmd": "ping"}).error
    assert ask_each(paths, {"cmd": "ping"}) == []


def test_governors_beside_a_command_are_found(tmp_path: Path) -> None:
    runs, system = tmp_path / "costgov" / "runs", str(tmp_path / "system" / "control.sock")
    for name in ("mine", "theirs"):
        (runs / name).mkdir(parents=True)
    (runs / "mine" / "control.sock").touch()
    (runs / "theirs" / "control.sock").symlink_to("nowhere")  # Root could write what another user may not.
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    found = [path for path in socket_paths(environ, system) if "/runs/" in path]
    assert found == [str(runs / "mine" / "control.sock")], "nor asked, who only refuses"
    assert str(runs / "theirs" / "control.sock") in socket_paths(environ, system, run="theirs")


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write every socket. Anybody else is refused by this one's mode."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_dead_socket_that_one_may_not_use_is_no_governor(tmp_path: Path) -> None:
    """The kernel asks for the right to write it before it sees that nobody listens."""
    alive, dead = str(tmp_path / "alive.sock"), str(tmp_path / "dead.sock")
    server = ControlServer(alive, 0o600)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(dead)
        sock.listen()
        assert is_listened_on(dead)
    os.chmod(dead, 0)
    os.chmod(alive, 0)
    with as_nobody():
        answers = ask_each((dead, alive), {"cmd": "ping"})
        first = ask_first((dead,), {"cmd": "hold"})
    server.close()
    assert [(answer.code, alive in answer.error) for answer in answers] == [("denied", True)]
    assert first.code == "no_governor"
    assert not is_listened_on(alive)
    assert is_listened_on(dead, str(tmp_path / "unreadable")), "where the list cannot be read, as the kernel said"
