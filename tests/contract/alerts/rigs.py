"""Every kind of receiver against a real HTTP server on loopback that behaves as told, one answer after the other."""

from __future__ import annotations

import base64
import email
import email.policy
import html
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from governor.adapters import alerts
from governor.adapters.plugins import Surroundings
from governor.core.alerts.catalogue import Alert, OfIncident, Severity, State
from governor.core.base.units import UsdMicros, WallNs
from governor.core.money.token_price import TokenPrices
from governor.ports import AlertReceiver
from tests.contract.alerts.mail_server import PASSWORD, USER
from tests.contract.alerts.told import SAFETY_S, Answer, Asked, Told

TOKEN = "TOKEN0that-nobody-may-see"
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
PATH_SECRET = "T0KEN-in-the-path"
WALL_NS = 1_800_000_000 * 10**9


@contextmanager
def receiver_server(tls: ssl.SSLContext | None = None) -> Iterator[Told]:
    told = Told()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = told.hear(Asked(self.command, self.path, dict(self.headers.items()), body))
            if answer.hangs:
                told.released.wait(SAFETY_S)
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = 10**12 if answer.endless else len(answer.body) + (100 if answer.breaks_off else 0)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            try:
                self.wfile.write(answer.body)
                while answer.endless:
                    self.wfile.write(b"x" * 65_536)
            except OSError:
                told.hung_up.set()

        do_GET = do_PUT = do_POST  # noqa: N815 - http.server names its methods so.

        def log_message(self, *args: object) -> None: ...  # Whoever wants to know reads `asked`.

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        told.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield told
        told.released.set()
        server.shutdown()
        thread.join()


@dataclass
class Rig:
    """One kind, its keys, and how to read an alert's id from what it sends."""

    kind: str
    config: dict[str, Any]
    id_of: Callable[[Asked], str]
    text_of: Callable[[Asked], str]
    secrets: tuple[str, ...]
    server: Told
    secret_file: Path
    wall_ns: int = WALL_NS
    taken: str = "http_200"
    fails: Answer = field(default_factory=lambda: Answer(500))  # On this alert.
    # Contents of the secret's file that are none.
    malformed: tuple[str, ...] = ("", "two words\n", "\xff\n", "whsec_c2hvcnQ=\nwhsec_c2hvcnQ=\n")

    def elsewhere(self, url: str) -> AlertReceiver:
        """One that sends to another server."""
        return self.receiver(url=url)

    def trusting(self, url: str, ca_file: Path) -> AlertReceiver:
        return self.receiver(url=url, ca_file=str(ca_file))

    def receiver(self, **changes: Any) -> AlertReceiver:
        config = {"url": f"{self.server.url}/{PATH_SECRET}", "timeout_s": SAFETY_S, **self.config, **changes}
        surroundings = Surroundings(environ={}, wall_ns=lambda: self.wall_ns)
        return alerts.load(self.kind, config, "alert[1]", surroundings)


def webhook_rig(server: Told, directory: Path) -> Rig:
    file = directory / "webhook.secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    return Rig(
        "webhook", {"secret_file": str(file)},
        lambda asked: asked.headers["webhook-id"], lambda asked: json.loads(asked.body)["text"],
        (SECRET, SECRET.removeprefix("whsec_"), PATH_SECRET), server, file,
    )  # fmt: skip


def alertmanager_rig(server: Told, directory: Path) -> Rig:
    file = directory / "alertmanager.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return Rig(
        "alertmanager", {"token_file": str(file)},
        lambda asked: json.loads(asked.body)[0]["annotations"]["id"],
        lambda asked: json.loads(asked.body)[0]["annotations"]["summary"],
        (TOKEN, PATH_SECRET), server, file,
    )  # fmt: skip


def slack_rig(server: Told, directory: Path) -> Rig:
    file = directory / "slack.secret"
    file.write_text("/services/T0/B0/S3CRETxyz\n")
    file.chmod(0o600)

    def section(asked: Asked) -> Any:
        return json.loads(asked.body)["blocks"][1]

    return Rig(
        "slack", {"secret_file": str(file)},
        lambda asked: section(asked)["block_id"], lambda asked: html.unescape(section(asked)["text"]["text"]),
        ("S3CRETxyz",), server, file,
    )  # fmt: skip


@dataclass
class MailRig(Rig):
    """Its server is a mail server, of which `url` is host and port."""

    def receiver(self, **changes: Any) -> AlertReceiver:
        address = {"server": self.server.url, "sender": "costgov@example.org", "to": ["oncall@example.org"]}
        config = {**address, "timeout_s": SAFETY_S, **self.config, **changes}
        return alerts.load(self.kind, config, "alert[1]", Surroundings(environ={}, wall_ns=lambda: self.wall_ns))

    def elsewhere(self, url: str) -> AlertReceiver:
        return self.receiver(server=url.removeprefix("http://").rstrip("/"))

    def trusting(self, url: str, ca_file: Path) -> AlertReceiver:
        return self.receiver(server=url, ca_file=str(ca_file))


def mail_rig(server: Told, directory: Path) -> Rig:
    file = directory / "mail.password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)

    def text_of(asked: Asked) -> str:
        told = email.message_from_bytes(asked.body, policy=email.policy.default)
        return str(told.get_content()).replace("\r\n", "\n").partition("\n\nnode ")[0]

    return MailRig(
        "email", {"user": USER, "password_file": str(file)},
        lambda asked: asked.headers["Message-ID"].strip("<>").partition("@")[0], text_of,
        (PASSWORD,), server, file, taken="smtp_250", fails=Answer(451),
        malformed=("", "\xff\n", "one\ntwo\n", "tab\tbed\n"),
    )  # fmt: skip


# Those that post to a URL, and all.
HTTP_RIGS: dict[str, Callable[[Told, Path], Rig]] = {
    "alertmanager": alertmanager_rig,
    "slack": slack_rig,
    "webhook": webhook_rig,
}
RIGS: dict[str, Callable[[Told, Path], Rig]] = {**HTTP_RIGS, "email": mail_rig}


def an_alert(number: int = 1, **changes: Any) -> Alert:
    fields: dict[str, Any] = {
        "alert_id": f"msg_{number:032x}",
        "name": "unwatched",
        "severity": Severity.WARNING,
        "state": State.EVENT,
        "wall": WallNs(WALL_NS),
        "node": "node-a",
        "text": "run llama is not heard: is its node alive?",
        "see": "costgov status",
        "run": "llama",
        "stage": "8b",
        "labels": {"team": "pretrain"},
        "spend_usd_micros": UsdMicros(12_345_678),
        "ceiling_usd_micros": UsdMicros(300_000_000),
        "prices": TokenPrices(57_400, 61_250, None, 56_900),
    }
    return Alert(**{**fields, **changes})


def a_halt(halt_stage: str = "ASKED", ended_wall: int | None = None, number: int = 2) -> Alert:
    return an_alert(
        number,
        name="halt",
        severity=Severity.CRITICAL,
        state=State.FIRING if ended_wall is None else State.RESOLVED,
        incident=OfIncident("llama.node-a.1", halt_stage, "loss_nan", "nonfinite"),
        ended_wall=ended_wall,
    )
