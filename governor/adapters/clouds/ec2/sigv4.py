"""AWS Signature Version 4 for the one shape we send: a POST form to the root path.

The algorithm is AWS's public specification; the test suite compares it with botocore on random cases.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from governor.adapters.clouds.ec2.credentials import Credentials

FORM: Final = "application/x-www-form-urlencoded; charset=utf-8"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


def signed_headers(
    credentials: Credentials, *, host: str, service: str, region: str, body: bytes, at: datetime
) -> Mapping[str, str]:
    """Return every header of the request. `at` is UTC; `host` as sent, with its port if it is not the scheme's own."""
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
