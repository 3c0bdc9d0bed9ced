"""A fake Kubernetes API server: real HTTP on loopback before the fake cluster of fake_cluster.py. It is no cluster."""

from __future__ import annotations

import copy
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.contract.schedulers.fake_cluster import CUSTOM, SERVED, Cluster, Item, Key, RefusedError

ADMIN: Final = "fake-admin-token-2f6c"
MERGE: Final = "application/merge-patch+json"
PATCHES: Final = frozenset({MERGE, "application/json-patch+json", "application/strategic-merge-patch+json"})
VERBS: Final = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
Right = tuple[str, str, str]  # Verb, group, plural.


@dataclass
class FakeApi:
    url: str
    cluster: Cluster = field(default_factory=Cluster)
    # Of RBAC: None may do everything; a token that is not here is 401.
    rights: dict[str, set[Right] | None] = field(default_factory=lambda: {ADMIN: None})
    asked: list[tuple[str, str, Any]] = field(default_factory=list)  # Method, path and query, body.
    tokens: list[str] = field(default_factory=list)
    # Before a request is answered: a status to answer with, raw bytes in place of a body, or None.
    interferes: Callable[[str, str], int | bytes | None] = lambda *_: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str) -> int:
        return sum(one == method for one, _, _ in self.asked)


@contextmanager
def fake_api_server(tls: ssl.SSLContext | None = None) -> Iterator[FakeApi]:
    fake = FakeApi("")

    class Handler(_Handler):
        api = fake

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    fake.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024  # Head and body leave together: apart, the second waits 40 ms for the first's acknowledgement.

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.api.lock:
            try:
                status, body = self._decided(raw)
            except RefusedError as refused:
                status, body = refused.code, _status(refused)
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("Server", "costgov-fake-kubernetes")  # So that nobody takes it for a real one.
        self.end_headers()
        self.wfile.write(sent)
        self.wfile.flush()

    def _decided(self, raw: bytes) -> tuple[int, Any]:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        self.api.tokens.append(token)
        if scheme != "Bearer" or token not in self.api.rights:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        kind = self.headers.get("Content-Type", "")
        if self.command == "PATCH" and kind not in PATCHES:
            raise RefusedError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            raise RefusedError(400, "BadRequest", "the body is not JSON") from None
        self.api.asked.append((self.command, self.path, body))
        interfered = self.api.interferes(self.command, self.path)
        if isinstance(interfered, bytes):
            return 200, interfered
        if interfered is not None:
            raise RefusedError(interfered, "Interfered", "as the test wants it")
        return self._routed(token, body, kind)

    def _routed(self, token: str, body: Any, kind: str) -> tuple[int, Any]:
        parts = urlsplit(self.path)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        if words[:1] == ["apis"] and len(words) == 2 and words[1] in SERVED:
            versions = [{"groupVersion": f"{words[1]}/{one}", "version": one} for one in SERVED[words[1]][0]]
            return 200, {"kind": "APIGroup", "name": words[1], "versions": versions, "preferredVersion": versions[0]}
        if parts.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and self.command == "POST":
            asked = body["spec"]["resourceAttributes"]
            right = (asked["verb"], asked["group"], asked["resource"])
            return 201, body | {"status": {"allowed": self._may(token, right)}}
        key = _key(words)
        verb = VERBS.get(self.command, "get" if key[3] else "list")
        if not self._may(token, (verb, key[0], key[1])):
            raise RefusedError(
                403, "Forbidden", f'{key[1]} is forbidden: User "fake" cannot {verb} resource "{key[1]}"'
            )
        cluster = self.api.cluster
        if verb == "get":
            return 200, cluster.get(key)
        if verb == "list":
            return 200, _listed(cluster, key, {name: value[0] for name, value in parse_qs(parts.query).items()})
        if verb == "create":
            return 201, cluster.create((*key[:3], str(body["metadata"].get("name", ""))), body)
        if verb == "patch":
            if kind != MERGE:
                # A real server does the other two; not for a custom resource: no strategy is known of one.
                why = "custom resources have no strategic merge patch" if key[0] in CUSTOM else "the fake does none"
                raise RefusedError(415, "UnsupportedMediaType", why)
            return 200, cluster.patch(key, body)
        left = cluster.delete(key, body or {})
        return 200, left if left is not None else {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _may(self, token: str, right: Right) -> bool:
        rights = self.api.rights[token]
        return rights is None or right in rights


def _key(words: list[str]) -> Key:
    """Of /api/v1/..., /apis/GROUP/VERSION/..., with namespaces/NAME before what lies in one."""
    group, version, rest = ("", words[1], words[2:]) if words[0] == "api" else (words[1], words[2], words[3:])
    namespace, rest = (rest[1], rest[2:]) if rest[:1] == ["namespaces"] and len(rest) > 2 else ("", rest)
    if group not in SERVED or version not in SERVED[group][0] or not rest or rest[0] not in SERVED[group][1]:
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")
    return group, rest[0], namespace, rest[1] if len(rest) > 1 else ""


def _listed(cluster: Cluster, key: Key, query: dict[str, str]) -> Item:
    found = [item for one, item in sorted(cluster.items.items()) if one[:2] == key[:2] and key[2] in ("", one[2])]
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        field_name, wanted = term.split("!=") if "!=" in term else term.split("=")
        if field_name not in ("spec.nodeName", "status.phase", "metadata.name", "metadata.namespace"):
            raise RefusedError(400, "BadRequest", f"field label not supported: {field_name}")
        outer, inner = field_name.split(".")
        found = [one for one in found if (one.get(outer, {}).get(inner, "") == wanted) is ("!=" not in term)]
    begin, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(found)
    page = found[begin : begin + limit]
    following = {"continue": str(begin + limit)} if begin + limit < len(found) else {}
    kind = SERVED[key[0]][1][key[1]]
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": following, "items": copy.deepcopy(page)}


def _status(refused: RefusedError) -> Item:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": refused.message,
        "reason": refused.reason, "code": refused.code,
    }  # fmt: skip
