"""A real mail server (aiosmtpd) on loopback that behaves as told, one answer after the other, as the HTTP one does."""

from __future__ import annotations

import email
import email.policy
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from tests.contract.alerts.told import SAFETY_S, Answer, Asked, Told

PASSWORD = "correct horse S3CRET"
USER = "ada"


class Handler:
    """After the script's end everything is taken."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.refused: dict[str, str] = {}  # Recipients, and the answer to each.
        self.logged_in: list[str] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        answer = self.told.hear(Asked("DATA", ",".join(envelope.rcpt_tos), dict(message.items()), envelope.content))
        if answer.hangs:
            await server.loop.run_in_executor(None, self.told.released.wait, SAFETY_S)
        if answer.breaks_off:
            server.transport.close()
        status = 250 if answer.status == 200 else answer.status
        return f"{status} {answer.body.decode() or 'said'}"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logged_in.append(data.login.decode())
        is_known = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=is_known, handled=is_known)  # Not handled: the server answers 535.


class Server(Controller):
    def __init__(self, handler: Handler, tls: ssl.SSLContext | None, options: dict[str, Any]) -> None:
        super().__init__(handler, hostname="127.0.0.1", port=0, server_hostname="mail", ready_timeout=SAFETY_S)
        self.tls, self.options = tls, options

    def factory(self) -> SMTP:
        return SMTP(
            self.handler, hostname="mail", tls_context=self.tls, auth_required=bool(self.options.get("auth")),
            auth_require_tls=False, authenticator=self.handler.authenticate, **self.options.get("smtp", {}),
        )  # fmt: skip

    def _trigger_server(self) -> None:
        """The controller would connect to the port that it was told of: 0."""
        self.port = self.server.sockets[0].getsockname()[1]
        with socket.create_connection((self.hostname, self.port), SAFETY_S) as probe:
            probe.recv(1024)


@contextmanager
def mail_server(told: Told, tls: ssl.SSLContext | None = None, **options: Any) -> Iterator[Handler]:
    """`auth`: only who logs in may send. The address is `told.url`, as host:port."""
    handler = Handler(told)
    server = Server(handler, tls, options)
    server.start()
    told.url = f"127.0.0.1:{server.port}"
    try:
        yield handler
    finally:
        told.released.set()
        server.stop()


def tls_context(ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, ca.with_name("key.pem"))
    return context


__all__ = ["PASSWORD", "USER", "Answer", "Handler", "mail_server", "tls_context"]
