"""Our signer and botocore's agree on every request that we could send."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from urllib.parse import urlencode

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.adapters.clouds.ec2.signing import FORM, Credentials, signed_headers
from tests.sweeps import share_of

KEY = st.text(string.ascii_letters + string.digits + "/+=", min_size=1, max_size=64)
FIELDS = st.lists(st.tuples(st.text(min_size=1, max_size=12), st.text(max_size=40)), max_size=6)


@settings(max_examples=share_of(300), deadline=None)
@given(
    access=KEY,
    secret=KEY,
    token=st.none() | KEY,
    fields=FIELDS,
    region=st.sampled_from(["us-east-1", "eu-central-1", "us-gov-west-1", "cn-north-1", "ap-southeast-4"]),
    service=st.sampled_from(["ec2", "autoscaling"]),
    port=st.sampled_from(["", ":8443"]),
)
def test_signature_equals_botocores(
    access: str, secret: str, token: str | None, fields: list[tuple[str, str]], region: str, service: str, port: str
) -> None:
    host = f"{service}.{region}.amazonaws.com{port}"
    body = urlencode(fields).encode()
    oracle = AWSRequest("POST", f"https://{host}/", headers={"Content-Type": FORM}, data=body)
    SigV4Auth(BotocoreCredentials(access, secret, token), service, region).add_auth(oracle)
    # botocore reads the clock itself: sign for the instant that it took.
    at = datetime.strptime(oracle.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = signed_headers(
        Credentials(access, secret, token), host=host, service=service, region=region, body=body, at=at
    )
    assert oracle.headers["Authorization"] == ours["authorization"]
    assert oracle.headers.get("X-Amz-Security-Token") == ours.get("x-amz-security-token")


def test_credentials_never_show_themselves() -> None:
    shown = repr(Credentials("AKIAEXAMPLE", "secret-part", "token-part", source="instance role"))
    assert "instance role" in shown
    for part in ("AKIAEXAMPLE", "secret-part", "token-part"):
        assert part not in shown
