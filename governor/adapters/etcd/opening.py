"""From the table [fleet] to a store: the password's file, TLS, and the rows of one fleet among several."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from governor.adapters.etcd.store import EtcdConfig, EtcdStore
from governor.adapters.http.client import SecretFault, read_secret_file
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.fleet.scopes import ROOT
from governor.remote_ports import FleetReply, FleetStore
from governor.settings.fleet import Fleet

PASSWORD_BYTES_MAX: Final = 1_024


class FleetUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """Why etcd cannot be asked, in one line without a secret."""


_ADVICE: Final = {
    SecretFault.NOT_FOUND: "there is no such file",
    SecretFault.NOT_A_FILE: "this is no regular file",
    SecretFault.READABLE_BY_EVERYONE: "others may read it; chmod o-rwx, and change the password",
    SecretFault.NOT_READABLE: "the governor's user may not read it; give it to that user or its group, mode 0640",
}
assert set(_ADVICE) == set(SecretFault), "a fault without advice"


def open_store(settings: Fleet) -> FleetStore:
    """The fleet's store. Nothing is asked yet. FleetUnavailable: a file or an address is wrong."""
    password = ""
    if settings.password_file is not None:
        found = read_secret_file(settings.password_file, PASSWORD_BYTES_MAX)
        if isinstance(found, SecretFault):
            raise FleetUnavailable(f"{settings.password_file}: {_ADVICE[found]}")
        password = found.decode("utf-8", "replace").strip()
        if not password:
            raise FleetUnavailable(f"{settings.password_file}: the file is empty")
    files = (
        str(path) if path is not None else None for path in (settings.ca_file, settings.cert_file, settings.key_file)
    )
    ca_file, cert_file, key_file = files
    _check_readable(settings)
    config = EtcdConfig(
        settings.etcd, settings.user or "", password, ca_file, cert_file, key_file, plain=settings.plain
    )  # fmt: skip
    try:
        return OfFleet(EtcdStore(config), settings.name)
    except ssl.SSLError:
        raise FleetUnavailable(_not_pem(settings)) from None
    except ValueError as error:
        raise FleetUnavailable(str(error)) from None
    except OSError as error:
        raise FleetUnavailable(f"a file of TLS cannot be read: {error.strerror or type(error).__name__}") from None


def _check_readable(settings: Fleet) -> None:
    """OpenSSL does not say which file it was."""
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, name)
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise FleetUnavailable(f"{name} {path} cannot be read: {error.strerror or type(error).__name__}") from None


def _not_pem(settings: Fleet) -> str:
    try:
        ssl.create_default_context(cafile=settings.ca_file)
    except ssl.SSLError:
        return f"ca_file {settings.ca_file} holds no certificate in PEM"
    return f"cert_file {settings.cert_file} and key_file {settings.key_file} are no certificate and its key in PEM"


class OfFleet:
    """A store in which this fleet's rows are below `costgov/NAME/`: a right to that prefix is a right to this fleet."""

    def __init__(self, store: FleetStore, name: str) -> None:
        self._store, self._root = store, f"costgov/{name}/1/"
        self.bound_s = store.bound_s

    def transact(self, transaction: Transaction) -> FleetReply:
        return self._ours(
            self._store.transact(
                replace(
                    transaction,
                    compares=tuple((self._there(key), revision) for key, revision in transaction.compares),
                    puts=tuple((self._there(key), value) for key, value in transaction.puts),
                    deletes=tuple(self._there(key) for key in transaction.deletes),
                )
            ),
            [
                *(key for key, _ in (*transaction.compares, *transaction.puts)),
                *transaction.deletes,
            ],
        )

    def read(self, keys: Sequence[str]) -> FleetReply:
        return self._ours(self._store.read([self._there(key) for key in keys]), keys)

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        found = self._store.range(self._there(prefix), limit, self._there(after) if after else "")
        return self._ours(found, [prefix])

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        return self._ours(self._store.wait(self._there(prefix), after, wait_s), [prefix])

    def grant_lease(self, ttl_s: int) -> FleetReply:
        return self._store.grant_lease(ttl_s)

    def keep_alive(self, lease: int) -> FleetReply:
        return self._store.keep_alive(lease)

    def revoke_lease(self, lease: int) -> FleetReply:
        return self._store.revoke_lease(lease)

    def close(self) -> None:
        self._store.close()

    def _there(self, key: str) -> str:
        return self._root + key.removeprefix(ROOT)

    def _ours(self, reply: FleetReply, asked: Sequence[str]) -> FleetReply:
        if reply.answer is Answer.REFUSED and reply.where:
            kinds = sorted({key.removeprefix(ROOT).partition("/")[0] for key in asked})
            below = " and ".join(f"{self._root}{kind}/" for kind in kinds)
            return replace(reply, where=f"{reply.where}, rows {below}")
        rows = (replace(kept, key=ROOT + kept.key.removeprefix(self._root)) for kept in reply.rows)
        return replace(reply, rows=tuple(rows))


class NoStore:
    """Nobody can be asked: a file of [fleet] is wrong. Grants of before live on, and no new one is given."""

    bound_s = 0.0

    def _none(self) -> FleetReply:
        return FleetReply(Answer.UNREACHABLE, reason="not_configured")

    def transact(self, transaction: Transaction) -> FleetReply:
        return self._none()

    def read(self, keys: Sequence[str]) -> FleetReply:
        return self._none()

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        return self._none()

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        return self._none()

    def grant_lease(self, ttl_s: int) -> FleetReply:
        return self._none()

    def keep_alive(self, lease: int) -> FleetReply:
        return self._none()

    def revoke_lease(self, lease: int) -> FleetReply:
        return self._none()

    def close(self) -> None: ...
