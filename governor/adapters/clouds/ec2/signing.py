"""The credentials that may stop this instance, and the signing of requests with them. Nothing here may be printed.

The algorithm is AWS's public specification. The test suite compares it with botocore on random cases.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from governor.adapters.clouds.ec2.metadata import Metadata, MetadataFailure
from governor.adapters.http.client import SecretFault, read_secret_file
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S

# Metadata has the role's next credentials at least this early.
REFRESH_BEFORE_NS: Final = 5 * NS_PER_MINUTE
FILE_BYTES_MAX: Final = 64 * 1024
# They become parts of a path and of headers. Names of roles as IAM allows them.
_ROLE: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")
_KEY: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at_wall_ns: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class NoCredentials:
    """`reason` has a stable name per source tried: "role:no_role_attached, file:not_found"."""

    reason: str


Source = Callable[[], Credentials | NoCredentials]


class CredentialCache:
    """The first source that answers, cached until shortly before it expires or the provider rejects it."""

    def __init__(self, sources: Mapping[str, Source], wall_ns: Callable[[], int]) -> None:
        self._sources = sources
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._kept: Credentials | None = None

    def get(self) -> Credentials | NoCredentials:
        with self._lock:
            if self._kept is not None and not self._expires_within(self._kept, REFRESH_BEFORE_NS):
                return self._kept
            reasons = []
            for name, source in self._sources.items():
                found = source()
                if isinstance(found, Credentials):
                    self._kept = found
                    return found
                reasons.append(f"{name}:{found.reason}")
            if self._kept is not None and not self._expires_within(self._kept, 0):
                # Old but valid: a metadata service that is down must not prevent the stop.
                return self._kept
            return NoCredentials(", ".join(reasons))

    def reject(self, rejected: Credentials) -> None:
        """The provider refused these. The next get() asks the source again."""
        with self._lock:
            if self._kept is rejected:
                self._kept = None

    def _expires_within(self, credentials: Credentials, margin_ns: int) -> bool:
        expires_at = credentials.expires_at_wall_ns
        return expires_at is not None and self._wall_ns() + margin_ns >= expires_at


def from_role(metadata: Metadata) -> Credentials | NoCredentials:
    """Read the instance role's temporary credentials from the metadata service."""
    listed = metadata.get("/latest/meta-data/iam/security-credentials/")
    if isinstance(listed, MetadataFailure):
        return NoCredentials("no_role_attached" if listed.reason == "http_404" else listed.reason)
    role = listed.decode("ascii", "replace").strip().partition("\n")[0]
    if not _ROLE.fullmatch(role):
        return NoCredentials("no_role_attached")
    body = metadata.get(f"/latest/meta-data/iam/security-credentials/{role}")
    if isinstance(body, MetadataFailure):
        return NoCredentials(body.reason)
    try:
        fields = json.loads(body)
        expires_at = datetime.fromisoformat(fields["Expiration"])
        keys = [fields[name] for name in ("AccessKeyId", "SecretAccessKey", "Token")]
        if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
            return NoCredentials("malformed")
        return Credentials(
            access_key_id=keys[0],
            secret_access_key=keys[1],
            session_token=keys[2],
            expires_at_wall_ns=int(expires_at.timestamp()) * NS_PER_S,
            source="instance role",
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return NoCredentials("malformed")


def from_file(path: Path, profile: str) -> Credentials | NoCredentials:
    """Read an AWS shared credentials file. It is read each time, so that a rotated file counts."""
    found = read_secret_file(path, FILE_BYTES_MAX)
    if isinstance(found, SecretFault):
        return NoCredentials(found.value)
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(found.decode("utf-8", "replace"))
        section = parser[profile]
        return Credentials(
            access_key_id=section["aws_access_key_id"],
            secret_access_key=section["aws_secret_access_key"],
            session_token=section.get("aws_session_token"),
            source="credentials file",
        )
    except configparser.Error:
        return NoCredentials("malformed")  # The parser's own message would quote the line.
    except KeyError:
        return NoCredentials("profile_or_key_missing")


def from_environment(environ: Mapping[str, str]) -> Credentials | NoCredentials:
    """Read AWS_ACCESS_KEY_ID and the like. Only on the user's request: a stray variable would override the role."""
    try:
        return Credentials(
            access_key_id=environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            session_token=environ.get("AWS_SESSION_TOKEN"),
            source="environment",
        )
    except KeyError:
        return NoCredentials("not_set")


# --- Signature Version 4, for the only form we send: a POST form to the root path -------------------------

FORM: Final = "application/x-www-form-urlencoded; charset=utf-8"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


def signed_headers(
    credentials: Credentials, *, host: str, service: str, region: str, body: bytes, at: datetime
) -> Mapping[str, str]:
    """Return every header of the request. `at` is UTC. `host` includes its port unless that is the scheme's default."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"content-type": FORM, "host": host, "x-amz-date": stamp}
    if credentials.session_token is not None:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{_folded(headers[name])}\n" for name in sorted(headers))
    canonical = f"POST\n/\n\n{listed}\n{names}\n{_sha256(body)}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{_sha256(canonical.encode())}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _folded(value: str) -> str:
    return " ".join(value.split())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
