"""The EC2 and Auto Scaling Query APIs: one call, and the meaning of each answer for a stop.

One table holds the meanings and covers every HTTP status. The codes are those of AWS's "Error codes for the Amazon EC2
API" and of the service models shipped with botocore.
"""

from __future__ import annotations

import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlencode, urlsplit

from governor.adapters.clouds.ec2.signing import CredentialCache, NoCredentials, signed_headers
from governor.adapters.http.client import HttpFailure, HttpReply, exchange, make_client
from governor.core.base.units import NS_PER_S
from governor.core.events.inputs import StopAnswer


@dataclass(frozen=True, slots=True)
class Meaning:
    answer: StopAnswer
    retryable: bool


_ACCEPTED = Meaning(StopAnswer.ACCEPTED, retryable=False)
_WAIT = Meaning(StopAnswer.REFUSED, retryable=True)  # The same call may succeed later.
_NO = Meaning(StopAnswer.REFUSED, retryable=False)  # A person or a higher rung has to change something.
_OPEN = Meaning(StopAnswer.UNKNOWN, retryable=True)  # It may have stopped: only billing() can tell.

BY_CODE: Final[Mapping[str, Meaning]] = {
    "ok": _ACCEPTED,
    # Our own codes, from the exchange itself.
    "connect_failed": _WAIT,
    "timeout": _OPEN,
    "broken_off": _OPEN,
    "too_large": _OPEN,
    "malformed": _OPEN,
    "no_credentials": _WAIT,
    # Throttled before anything happened.
    "RequestLimitExceeded": _WAIT,
    "EC2ThrottledException": _WAIT,
    "Throttling": _WAIT,
    "ThrottlingException": _WAIT,
    "RequestThrottled": _WAIT,
    "Unavailable": _WAIT,
    "ServiceUnavailable": _WAIT,
    "InsufficientCapacity": _WAIT,
    "ResourceContention": _WAIT,
    "ScalingActivityInProgress": _WAIT,
    # Failed inside: how far it got is unknown.
    "InternalError": _OPEN,
    "InternalFailure": _OPEN,
    # Credentials: the next attempt fetches new ones.
    "AuthFailure": _WAIT,
    "ExpiredToken": _WAIT,
    "ExpiredTokenException": _WAIT,
    "RequestExpired": _WAIT,
    "SignatureDoesNotMatch": _WAIT,
    "InvalidClientTokenId": _WAIT,
    "InvalidAccessKeyId": _WAIT,
    # Between two states, or already ending.
    "IncorrectInstanceState": _WAIT,
    "IncorrectSpotRequestState": _WAIT,
    # A person has to grant, unlock or correct something.
    "UnauthorizedOperation": _NO,
    "AccessDenied": _NO,
    "AccessDeniedException": _NO,
    "OperationNotPermitted": _NO,
    "UnsupportedOperation": _NO,
    "OptInRequired": _NO,
    "Blocked": _NO,
    "PendingVerification": _NO,
    "MissingAuthenticationToken": _NO,
    "InvalidInstanceID.NotFound": _NO,
    "InvalidInstanceID.Malformed": _NO,
    "InvalidInstanceID": _NO,
    "InvalidSpotInstanceRequestID.NotFound": _NO,
    "InvalidParameterValue": _NO,
    "InvalidParameterCombination": _NO,
    "InvalidAction": _NO,
    "MissingParameter": _NO,
    "UnknownParameter": _NO,
    "ValidationError": _NO,
    # A dry run that passed. A real call with this answer stopped nothing.
    "DryRunOperation": _NO,
}

CREDENTIAL_CODES: Final = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "http_401",
    }
)
CLOCK_CODES: Final = frozenset({"RequestExpired", "SignatureDoesNotMatch", "AuthFailure"})

_WAIT_STATUSES: Final = frozenset({401, 408, 421, 423, 425, 429, 503})


def meaning(code: str, status: int) -> Meaning:
    """Classify an answer. An unknown code is judged by its HTTP status (0: no answer)."""
    known = BY_CODE.get(code)
    return known if known is not None else by_status(status)


def by_status(status: int) -> Meaning:
    """Judge a status alone. Success without a reply that we understand is not success."""
    if status in _WAIT_STATUSES:
        return _WAIT
    if 300 <= status < 500:
        return _NO
    return _OPEN


# --- the Query APIs of EC2 and Auto Scaling: one signed POST per call ------------------------------------

BODY_BYTES_MAX: Final = 1024 * 1024  # One instance with all its volumes is some 20 KB.
# A smaller difference is explained by delay and the header's resolution of a second.
SKEW_TELLING_S: Final = 60
# From 2020 to 2100: another Date is no clock to sign by.
DATES_S: Final = (1_577_836_800, 4_102_444_800)
VERSIONS: Final[Mapping[str, str]] = {"ec2": "2016-11-15", "autoscaling": "2011-01-01"}

# A provider's code is printed and journalled; a message would not be safe (it may quote the request).
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Call:
    action: str
    params: tuple[tuple[str, str], ...]
    service: str = "ec2"


@dataclass(frozen=True, slots=True)
class ApiReply:
    code: str  # "ok", the provider's own code, "http_502", "timeout" and the like.
    status: int  # 0: no answer.
    root: ElementTree.Element | None = None
    credentials_reason: str = ""

    @property
    def ok(self) -> bool:
        return self.code == "ok"

    @property
    def meaning(self) -> Meaning:
        return meaning(self.code, self.status)


class Ec2Api:
    def __init__(
        self,
        credentials: CredentialCache,
        *,
        endpoint: str | None,
        timeout_s: float,
        proxy: str | None,
        wall_ns: Callable[[], int],
        version: str,
    ) -> None:
        self._credentials = credentials
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._wall_ns = wall_ns
        self._version = version
        self._client = make_client(proxy=proxy)
        self._lock = threading.Lock()
        self._skew_s = 0

    @property
    def skew_s(self) -> int:
        """How far the provider's clock is ahead of ours in its last answer; 0 within a minute."""
        return self._skew_s

    def call(self, call: Call, region: str, incident_id: str = "") -> ApiReply:
        """Send once. `incident_id` goes into the user agent, where the provider's audit log shows it."""
        credentials = self._credentials.get()
        if isinstance(credentials, NoCredentials):
            return ApiReply("no_credentials", 0, credentials_reason=credentials.reason)
        url = self._endpoint or _public_endpoint(call.service, region)
        body = urlencode([("Action", call.action), ("Version", VERSIONS[call.service]), *call.params]).encode()
        # A wrong local clock must not keep a machine running: after the first answer we sign by the provider's clock.
        at = datetime.fromtimestamp(self._wall_ns() // NS_PER_S + self._skew_s, UTC)
        headers = signed_headers(
            credentials, host=urlsplit(url).netloc, service=call.service, region=region, body=body, at=at
        )
        agent = f"costgov/{self._version}" + (f" incident/{_plain(incident_id)}" if incident_id else "")
        answer = exchange(
            self._client,
            "POST",
            url,
            headers={**headers, "User-Agent": agent},
            content=body,
            deadline_s=self._timeout_s,
            body_bytes_max=BODY_BYTES_MAX,
        )
        reply = _read(answer)
        if isinstance(answer, HttpReply) and (reply.ok or reply.code in CLOCK_CODES):
            self._learn_skew(answer.date)
        if reply.code in CREDENTIAL_CODES:
            self._credentials.reject(credentials)
        return reply

    def _learn_skew(self, date: str | None) -> None:
        try:
            server_s = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        if not DATES_S[0] <= server_s < DATES_S[1]:
            return
        skew_s = round(server_s - self._wall_ns() / NS_PER_S)
        with self._lock:
            self._skew_s = skew_s if abs(skew_s) >= SKEW_TELLING_S else 0


def _read(answer: HttpReply | HttpFailure) -> ApiReply:
    if isinstance(answer, HttpFailure):
        return ApiReply(answer.reason, 0)
    try:
        # The size is bounded above. expat itself refuses entity bombs, and TLS authenticates the provider.
        root = ElementTree.fromstring(answer.body)  # noqa: S314
    except (ElementTree.ParseError, ValueError):
        return ApiReply("malformed" if answer.status == 200 else f"http_{answer.status}", answer.status)
    if answer.status == 200:
        # A captive portal also answers 200, but not in the provider's XML.
        is_reply = local_name(root).endswith("Response") and local_name(root) not in ("Response", "ErrorResponse")
        return ApiReply("ok" if is_reply else "malformed", 200, root if is_reply else None)
    code = next((text(error, "Code") for error in named(root, "Error")), None) or ""
    return ApiReply(code if _CODE.fullmatch(code) else f"http_{answer.status}", answer.status)


def _public_endpoint(service: str, region: str) -> str:
    return f"https://{service}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/"


def _plain(incident_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", incident_id)[:80]


# The services and their stand-ins differ in their XML namespace, so only local names are compared.


def local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def named(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield all descendants of this local name."""
    return element.iterfind(f".//{{*}}{name}")


def text(element: ElementTree.Element, path: str) -> str | None:
    """Return the stripped text at a path of local names ("instanceState/name"), or None if absent or empty."""
    found = element.find("/".join(f"{{*}}{part}" for part in path.split("/")))
    return (found.text or "").strip() or None if found is not None else None
