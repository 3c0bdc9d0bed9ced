from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.contract.alerts.mail_server import mail_server, tls_context
from tests.contract.alerts.rigs import HTTP_RIGS, RIGS, Rig, Told, receiver_server


@pytest.fixture
def server() -> Iterator[Told]:
    with receiver_server() as told:
        yield told


@pytest.fixture(params=sorted(HTTP_RIGS))
def rig(request: pytest.FixtureRequest, server: Told, tmp_path: Path) -> Rig:
    """Every kind that posts to a URL."""
    return HTTP_RIGS[request.param](server, tmp_path)


@pytest.fixture(params=sorted(RIGS))
def any_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every kind there is. A new one is added to RIGS and passes the suite unedited."""
    with ExitStack() as stack:
        if request.param in HTTP_RIGS:
            told = stack.enter_context(receiver_server())
        else:
            stack.enter_context(mail_server(told := Told()))
        yield RIGS[request.param](told, tmp_path)


@pytest.fixture
def any_tls_url(any_rig: Rig, tls_ca: Path) -> Iterator[str]:
    """A server of the rig's kind, with the certificate that vouches for itself."""
    context = tls_context(tls_ca)
    with ExitStack() as stack:
        if any_rig.kind in HTTP_RIGS:
            yield stack.enter_context(receiver_server(context)).url
        else:
            stack.enter_context(mail_server(told := Told(), context))
            yield told.url


@pytest.fixture(scope="session")
def tls_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "drill")])
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8
    (directory / "key.pem").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    (directory / "ca.pem").write_bytes(certificate.public_bytes(pem))
    return directory / "ca.pem"
