"""What each answer of the EC2 and Auto Scaling Query APIs means for a stop. One table, complete over HTTP statuses.

Codes: AWS's "Error codes for the Amazon EC2 API" and the service models shipped with botocore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from governor.core.events.events import StopAnswer


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
    # Ours, from the exchange itself.
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
    # Failed inside: nobody says how far it got.
    "InternalError": _OPEN,
    "InternalFailure": _OPEN,
    # Credentials: the next attempt fetches them anew.
    "AuthFailure": _WAIT,
    "ExpiredToken": _WAIT,
    "ExpiredTokenException": _WAIT,
    "RequestExpired": _WAIT,
    "SignatureDoesNotMatch": _WAIT,
    "InvalidClientTokenId": _WAIT,
    "InvalidAccessKeyId": _WAIT,
    # On its way between two states, or already going.
    "IncorrectInstanceState": _WAIT,
    "IncorrectSpotRequestState": _WAIT,
    # Somebody has to grant, unlock or correct something.
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
    # A dry run that passed. As the answer to a real call it would be a contradiction: nothing was stopped.
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
    """Classify an answer. A code that is not in the table is judged by its HTTP status (0: no answer)."""
    known = BY_CODE.get(code)
    return known if known is not None else by_status(status)


def by_status(status: int) -> Meaning:
    """Judge a status alone. Success without a reply that we understand is not success."""
    if status in _WAIT_STATUSES:
        return _WAIT
    if 300 <= status < 500:
        return _NO
    return _OPEN
