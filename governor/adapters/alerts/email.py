"""Mail, by SMTP (RFC 5321) to a mail server: one message for each alert, with STARTTLS, or TLS from the start on 465.

The `Message-ID` is made of the alert's id and is the same over all attempts, so a mailbox that gets it twice can tell.
The messages of one halt refer to one thread. A refusal of our log-in, our address or all of the recipients is about the
server: alerts wait. A refusal of the message itself is final if its code is 5xx; 4xx is tried again. Where some
recipients are refused, the others have it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import queue
import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import IO, Any, Final

from governor.adapters.http.post import EXCHANGES_AT_ONCE_MAX, TIMEOUT_S, read_secret
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.alerts.catalogue import Alert
from governor.core.alerts.outbox import Delivery, Took
from governor.core.base.printable import printable
from governor.core.base.units import NS_PER_S, utc_text
from governor.ports import AlertReceiver
from governor.text.alert_line import details

NAME = "email"
KEYS = (
    ConfigKey("server", "text", None, "The mail server and its port: smtp.example.org:587, or :465 for TLS at once."),
    ConfigKey("sender", "text", None, "The address that the mail is from."),
    ConfigKey("to", "texts", None, "The addresses that get it, at most 16."),
    ConfigKey("user", "text", None, "Log in as this user, with the password of password_file."),
    ConfigKey("password_file", "text", None, "The file with the password, one line."),
    ConfigKey("insecure", "flag", False, "Send unencrypted where the server offers no TLS: everybody can read it."),
    ConfigKey("ca_file", "text", None, "Certificates to trust instead of the system's, as PEM."),
    ConfigKey("timeout_s", "seconds", TIMEOUT_S, "For one attempt, from the name's look-up to the last answer."),
)

TLS_PORT: Final = 465  # RFC 8314.
RECIPIENTS_MAX: Final = 16
LINES_MAX: Final = 1_000  # Of a conversation, which has some 20.
SHUTS_DOWN: Final = 421  # At any place of it: the server, not the message.
SUBJECT_CHARS_MAX: Final = 200
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
# What mail servers take without a question. No line break gets into a header or a command.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")
_PASSWORD: Final = re.compile(r"[ -~]{1,1024}")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}")


class _FewLines:
    """A connection's lines, which end after so many: smtplib would collect one answer without end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = LINES_MAX

    def readline(self, size: int) -> bytes:
        self._left -= 1
        return self._file.readline(size) if self._left >= 0 else b""

    def close(self) -> None:
        self._file.close()


class _Conversation(smtplib.SMTP):
    """One conversation, from the connection on."""

    def __init__(self, server: Server, helo: str, timeout_s: float, context: ssl.SSLContext) -> None:
        self._at_once = context if server.port == TLS_PORT else None
        super().__init__(server.host, server.port, helo, timeout_s)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        sock = socket.create_connection((host, port), timeout)
        return sock if self._at_once is None else self._at_once.wrap_socket(sock, server_hostname=host)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _FewLines(self.sock.makefile("rb"))
        return super().getreply()


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Mail:
    """`ports.AlertReceiver`."""

    replaces = False  # Every event is delivered.

    def __init__(self, config: Mapping[str, Any], server: Server, wall_ns: Callable[[], int]) -> None:
        self._server = server
        self._sender: str = config["sender"]
        self._to: tuple[str, ...] = config["to"]
        self._user: str | None = config["user"]
        self._password_file: str | None = config["password_file"]
        self._may_be_plain = bool(config["insecure"]) or (server.is_loopback and server.port != TLS_PORT)
        self._ca_file: str | None = config["ca_file"]
        self._timeout_s = float(config["timeout_s"])
        self._wall_ns = wall_ns
        self._places = threading.BoundedSemaphore(EXCHANGES_AT_ONCE_MAX)

    @property
    def where(self) -> str:
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"smtp://{host}:{self._server.port}"

    def problem(self) -> str | None:
        _, fault = self._password()
        if fault:
            return fault
        return "ca_not_readable" if self._context() is None else None

    def _password(self) -> tuple[str, str]:
        """The password, and why there is none. It is read each time."""
        if self._password_file is None:
            return "", ""
        lines = read_secret(self._password_file)
        if isinstance(lines, str):
            return "", lines
        return (lines[0], "") if len(lines) == 1 and _PASSWORD.fullmatch(lines[0]) else ("", "secret_malformed")

    def _context(self) -> ssl.SSLContext | None:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError:  # ssl.SSLError is one.
            return None

    def post(self, alert: Alert) -> Delivery:
        password, fault = self._password()
        if fault:
            return Delivery(Took.BUSY, fault)
        context = self._context()
        if context is None:
            return Delivery(Took.BUSY, "ca_not_readable")
        if not self._places.acquire(blocking=False):
            return Delivery(Took.BUSY, "connect_failed")  # Attempts hang already; this one has not begun.
        answers: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        held: list[_Conversation] = []

        def work() -> None:
            try:
                answers.put(self._deliver(alert, password, context, held))
            finally:
                answers.put(Delivery(Took.BUSY, "fault"))  # Only the first one counts.
                self._places.release()

        try:
            threading.Thread(target=work, name="mail", daemon=True).start()
        except RuntimeError:  # No thread can be started.
            self._places.release()
            return Delivery(Took.BUSY, "connect_failed")
        try:
            return answers.get(timeout=self._timeout_s)
        except queue.Empty:
            for talk in held:  # Wakes a thread that reads from a slow server.
                with contextlib.suppress(OSError):
                    if talk.sock is not None:
                        talk.sock.shutdown(socket.SHUT_RDWR)
            return Delivery(Took.BUSY, "timeout")

    def _deliver(self, alert: Alert, password: str, context: ssl.SSLContext, held: list[_Conversation]) -> Delivery:
        try:
            talk = _Conversation(self._server, _helo(alert.node), self._timeout_s, context)
        except smtplib.SMTPResponseException as error:
            return Delivery(Took.BUSY, _reason(error.smtp_code))
        except smtplib.SMTPException as error:
            return Delivery(Took.BUSY, _broken(error))
        except (OSError, UnicodeError):  # No such name, nobody there, a certificate that nobody vouches for.
            return Delivery(Took.BUSY, "connect_failed")
        held.append(talk)
        try:
            return self._converse(talk, alert, password, context)
        except ssl.SSLError:
            return Delivery(Took.BUSY, "connect_failed")
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            return answer_of(error)
        finally:
            talk.close()

    def _converse(self, talk: _Conversation, alert: Alert, password: str, context: ssl.SSLContext) -> Delivery:
        talk.ehlo_or_helo_if_needed()
        is_safe = self._server.port == TLS_PORT
        if not is_safe and talk.has_extn("starttls"):
            talk.starttls(context=context)
            talk.ehlo_or_helo_if_needed()
        elif not is_safe and not self._may_be_plain:
            return Delivery(Took.BUSY, "no_starttls")
        if self._user is not None:
            talk.login(self._user, password)
        refused = talk.send_message(mail(alert, self._sender, self._to), self._sender, self._to)
        with contextlib.suppress(OSError, smtplib.SMTPException):  # It has it.
            talk.quit()
        return Delivery(Took.TAKEN, "not_all_recipients" if refused else "smtp_250")


def answer_of(error: OSError | smtplib.SMTPException | UnicodeError) -> Delivery:
    """What a failed conversation means for the alert. SMTPException is an OSError."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            return Delivery(Took.BUSY, _reason(max(code for code, _ in error.recipients.values())))
        case smtplib.SMTPDataError() if error.smtp_code != SHUTS_DOWN:
            took = Took.REFUSED if error.smtp_code >= 500 else Took.LATER
            return Delivery(took, _reason(error.smtp_code))
        case smtplib.SMTPResponseException():
            return Delivery(Took.BUSY, _reason(error.smtp_code))
        case smtplib.SMTPNotSupportedError() | UnicodeError():
            return Delivery(Took.BUSY, "no_auth")
        case smtplib.SMTPServerDisconnected():
            return Delivery(Took.BUSY, _broken(error))
        case TimeoutError():
            return Delivery(Took.BUSY, "timeout")
        case smtplib.SMTPException():
            return Delivery(Took.BUSY, "no_auth")  # None of its ways to log in is one of ours.
        case _:
            return Delivery(Took.BUSY, "broken_off")


def _broken(error: BaseException) -> str:
    """smtplib takes an answer that did not come in time for a connection that was closed."""
    return "timeout" if isinstance(error.__context__, TimeoutError) else "broken_off"


def _reason(code: int) -> str:
    return f"smtp_{code}" if 200 <= code < 600 else "broken_off"  # -1: its answer has none.


def mail(alert: Alert, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """The message. The same alert makes the same one, to the byte, but for the line that says how often it was said."""
    domain = sender.rpartition("@")[2]
    whose = f" run {alert.run}" if alert.run else ""
    told = EmailMessage(policy=SMTP)
    told["From"], told["To"] = sender, ", ".join(to)
    first = alert.text.partition("\n")[0]
    told["Subject"] = printable(f"[costgov] {alert.severity.word}: {alert.name}{whose}: {first}", " ")[
        :SUBJECT_CHARS_MAX
    ]
    told["Date"] = formatdate(alert.wall // NS_PER_S)
    told["Message-ID"] = f"<{alert.alert_id}@{domain}>"
    if alert.incident is not None:
        thread = hashlib.sha256(f"{alert.node} {alert.incident.incident_id}".encode("utf-8", "replace")).hexdigest()[
            :32
        ]
        told["In-Reply-To"] = told["References"] = f"<halt.{thread}@{domain}>"
    told["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday answers it.
    body = f"{alert.text}\n\nnode {alert.node}{',' if whose else ''}{whose}\n{details(alert)}\n{utc_text(alert.wall)}\n"
    told.set_content(body.encode("utf-8", "replace").decode(), cte="quoted-printable")
    return told


def _helo(node: str) -> str:
    """Our name for the greeting. The library's own way to find it asks a resolver."""
    return node if _HOST.fullmatch(node) else "localhost"


def build(config: Mapping[str, Any], surroundings: Surroundings) -> AlertReceiver:
    found = _SERVER.fullmatch(config["server"] or "")
    if found is None or not 0 < int(found[2]) < 65_536:
        raise ConfigError('server must be a host and a port such as "smtp.example.org:587"')
    server = Server(found[1].strip("[]"), int(found[2]))
    if _ADDRESS.fullmatch(config["sender"] or "") is None:
        raise ConfigError('sender must be an address such as "costgov@example.org"')
    to = config["to"] or ()
    if not 0 < len(to) <= RECIPIENTS_MAX or not all(_ADDRESS.fullmatch(one) for one in to):
        raise ConfigError(f'to must be 1 to {RECIPIENTS_MAX} addresses such as ["oncall@example.org"]')
    if (config["user"] is None) != (config["password_file"] is None):
        missing = "password_file" if config["password_file"] is None else "user"
        raise ConfigError(f"{missing} is missing: to log in takes both; leave both out to send without")
    if config["user"] is not None and _PASSWORD.fullmatch(config["user"]) is None:
        raise ConfigError("user must be printable ASCII")
    if config["insecure"] and config["user"] is not None and not server.is_loopback:
        raise ConfigError("insecure would send the password to whoever listens on the way; leave it or the user out")
    return Mail(config, server, surroundings.wall_ns)
