"""What etcd's adapter makes of answers that no healthy etcd gives: a scripted server on loopback in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.core.events.fleet_store import Answer, Transaction

PASSWORD = "b4ttery-staple"
CHANGE = Transaction((("costgov/1/a", 0),), (("costgov/1/a", "x"),))
APPLIED = {"header": {"revision": "7"}, "succeeded": True}
READ = {"header": {"revision": "7"}, "responses": [{"response_range": {}}]}
Script = Callable[[str, dict[str, Any], str], tuple[int, object]]


class Scripted(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        self.script, self.asked = script, list[str]()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)
        status, found = self.server.script(self.path, body, self.headers.get("Authorization", ""))
        self.send_response(status)
        self.end_headers()
        try:
            if found == "endless":
                while True:
                    self.wfile.write(b" " * 65_536)
            self.wfile.write(found if isinstance(found, bytes) else json.dumps(found).encode())
        except OSError:
            return  # The adapter has had enough.

    def log_message(self, *_: object) -> None: ...


Serve = Callable[[Script], Scripted]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Scripted] = []

    def begin(script: Script) -> Scripted:
        running.append(Scripted(script))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return running[-1]

    yield begin
    for one in running:
        one.shutdown()
        one.server_close()


@pytest.fixture
def store_of() -> Iterator[Callable[..., EtcdStore]]:
    made: list[EtcdStore] = []

    def make(*servers: Scripted | str, user: str = "", password: str = "") -> EtcdStore:
        urls = tuple(one if isinstance(one, str) else one.url for one in servers)
        made.append(EtcdStore(EtcdConfig(urls, user, password), try_s=5.0, whole_s=10.0))
        return made[-1]

    yield make
    for one in made:
        one.close()


StoreOf = Callable[..., EtcdStore]
LEADERLESS = (503, {"code": 14, "message": "etcdserver: leader changed"})


def test_a_transaction_that_lost_its_leader_is_unknown_and_is_not_sent_to_the_next(
    serve: Serve, store_of: StoreOf
) -> None:
    first, second = serve(lambda *_: LEADERLESS), serve(lambda *_: (200, APPLIED))
    assert store_of(first, second).transact(CHANGE).answer is Answer.UNKNOWN
    assert second.asked == []


def test_a_read_that_lost_its_leader_is_asked_of_the_next(serve: Serve, store_of: StoreOf) -> None:
    first, second = serve(lambda *_: LEADERLESS), serve(lambda *_: (200, READ))
    assert store_of(first, second).read(["costgov/1/a"]).answer is Answer.READ


def test_an_endpoint_that_nobody_listens_at_costs_nothing_but_a_turn(serve: Serve, store_of: StoreOf) -> None:
    gone = serve(lambda *_: (200, APPLIED))
    url = gone.url
    gone.shutdown()
    gone.server_close()
    second = serve(lambda *_: (200, APPLIED))
    assert store_of(url, second).transact(CHANGE).answer is Answer.APPLIED
    assert len(second.asked) == 1


def test_a_token_that_has_run_out_is_renewed_once(serve: Serve, store_of: StoreOf) -> None:
    given: list[str] = []

    def script(path: str, body: dict[str, Any], token: str) -> tuple[int, object]:
        if path.endswith("/authenticate"):
            given.append(f"token-{len(given)}")
            return 200, {"token": given[-1]}
        return (
            (200, APPLIED) if token == "token-1" else (401, {"code": 16, "message": "etcdserver: invalid auth token"})
        )

    server = serve(script)
    assert store_of(server, user="costgov", password=PASSWORD).transact(CHANGE).answer is Answer.APPLIED
    assert len(given) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"\xff\xfe", b'{"succeeded": true}', b'{"succeeded": true, "header": {"revision": "-1"}}',
     b'{"header": {"revision": "7"}, "responses": 3}', b"[" * 100_000],
)  # fmt: skip
def test_an_answer_that_is_none_of_etcd_s_is_no_answer(serve: Serve, store_of: StoreOf, body: bytes) -> None:
    store = store_of(serve(lambda *_: (200, body)))
    assert store.transact(CHANGE).answer is Answer.UNKNOWN
    assert store.read(["costgov/1/a"]).answer is Answer.UNREACHABLE


def test_an_endless_answer_ends_at_the_bound_and_is_no_answer(serve: Serve, store_of: StoreOf) -> None:
    assert store_of(serve(lambda *_: (200, "endless"))).transact(CHANGE).answer is Answer.UNKNOWN


def test_no_secret_stands_in_a_reason_or_a_repr(serve: Serve, store_of: StoreOf) -> None:
    server = serve(lambda *_: (400, {"code": 3, "message": f"authentication failed for {PASSWORD}"}))
    store = store_of(server, user="costgov", password=PASSWORD)
    reply = store.transact(CHANGE)
    assert (reply.answer, reply.reason) == (Answer.REFUSED, "authentication_failed")
    assert PASSWORD not in f"{reply!r} {store!r} {EtcdConfig((server.url,), 'costgov', PASSWORD)!r}"


# --- a watch ------------------------------------------------------------------------------------------------

BEGUN = b'{"result":{"header":{"revision":"7"},"created":true}}\n'
CHANGED = b'{"result":{"header":{"revision":"9"},"events":[{"kv":{"key":"YQ==","mod_revision":"9"}}]}}\n'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (BEGUN + CHANGED, (Answer.READ, 9)),
        (CHANGED, (Answer.READ, 9)),
        (BEGUN, (Answer.UNREACHABLE, 0)),  # It ended: nobody watches any more.
        (BEGUN + b'{"result":{"canceled":true,"compact_revision":"50"}}\n', (Answer.UNREACHABLE, 0)),
        (b'{"result":{"created":true,"canceled":true,"cancel_reason":"permission denied"}}\n', (Answer.UNREACHABLE, 0)),
        (BEGUN + b'{"error":{"grpc_code":14}}\n', (Answer.UNREACHABLE, 0)),
        (BEGUN + b'{"result":{"events":[1]}}\n', (Answer.UNREACHABLE, 0)),
        (b"[" * 5_000 + b"\n", (Answer.UNREACHABLE, 0)),
        (b"<html>\n", (Answer.UNREACHABLE, 0)),
        ("endless", (Answer.UNREACHABLE, 0)),
    ],
)
def test_what_a_watch_says(
    serve: Serve, store_of: Callable[..., EtcdStore], answer: object, expected: tuple[Answer, int]
) -> None:
    store = store_of(serve(lambda *_: (200, answer)))
    told = store.wait("costgov/1/order/", 6, 20.0)
    assert (told.answer, told.revision) == expected


def test_a_server_that_takes_the_watch_and_never_says_so_is_no_quiet_one(
    serve: Serve, store_of: Callable[..., EtcdStore]
) -> None:
    ended = threading.Event()

    def script(*_: object) -> tuple[int, object]:
        ended.wait(60.0)
        return 200, b""

    store = store_of(serve(script))
    assert store.wait("costgov/1/order/", 6, 0.3).answer is Answer.UNREACHABLE
    ended.set()


def test_a_watch_of_a_server_that_is_gone_is_no_quiet_one(store_of: Callable[..., EtcdStore]) -> None:
    assert store_of("http://127.0.0.1:9").wait("costgov/1/order/", 6, 20.0).answer is Answer.UNREACHABLE


def test_a_watch_has_the_token_of_its_user(serve: Serve, store_of: Callable[..., EtcdStore]) -> None:
    def script(path: str, _: dict[str, Any], token: str) -> tuple[int, object]:
        if path == "/v3/auth/authenticate":
            return 200, {"token": "t1"}
        return 200, CHANGED if token == "t1" else b"{}\n"

    store = store_of(serve(script), user="costgov", password=PASSWORD)
    assert store.wait("costgov/1/order/", 6, 20.0).answer is Answer.READ
