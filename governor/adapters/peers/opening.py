"""From the table [peers] to a socket with a key: the secret's file, and what `costgov doctor` finds."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from governor.adapters.http.client import SecretFault, read_secret_file
from governor.adapters.peers.datagrams import UdpPeers
from governor.adapters.peers.envelope import key_of
from governor.adapters.peers.udp import PeersUnavailable, bound
from governor.ports import Clock
from governor.settings.peers import Peers

SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 4_096
_DISTINCT_MIN: Final = 8  # Of 32 random bytes more than 20 differ, of 64 random hex digits more than 10.
_HEX: Final = re.compile(rb"[0-9A-Fa-f]+")
_MAKE: Final = "make one with `openssl rand -hex 32`, and give every node the same"


def open_peers(settings: Peers, node: str, clock: Clock) -> UdpPeers | None:
    """The governors of other nodes, by [peers]. None: it is not enabled. PeersUnavailable says in one line why not."""
    if not settings.is_enabled:
        return None
    assert settings.secret_file is not None, "the settings refuse that"
    return UdpPeers(node, read_key(settings.secret_file), settings.listens_at, settings.hosts, clock)


def read_key(path: Path) -> bytes:
    """The key that the secret in this file makes. PeersUnavailable names the file, and nothing of what is in it."""
    found = read_secret_file(path, SECRET_BYTES_MAX + 1)
    if isinstance(found, SecretFault):
        raise PeersUnavailable(f"{path}: {_ADVICE[found]}")
    if _others_write(path):
        raise PeersUnavailable(f"{path}: others may write it; chmod 0640 {path}")
    secret = found.strip()
    if len(secret) > SECRET_BYTES_MAX:
        raise PeersUnavailable(f"{path}: longer than {SECRET_BYTES_MAX} bytes: this is no secret of governors; {_MAKE}")
    least = 2 * SECRET_BYTES_MIN if _HEX.fullmatch(secret) else SECRET_BYTES_MIN
    if len(secret) < least:
        raise PeersUnavailable(f"{path}: too short a secret: 64 hex digits, or 32 other bytes; {_MAKE}")
    if len(set(secret)) < _DISTINCT_MIN:
        raise PeersUnavailable(f"{path}: too simple a secret: who knows it can halt runs; {_MAKE}")
    return key_of(secret)


_ADVICE: Final = {
    SecretFault.NOT_FOUND: f"there is no such file; {_MAKE}",
    SecretFault.NOT_A_FILE: "this is no regular file; set peers.secret_file to one",
    SecretFault.READABLE_BY_EVERYONE: "others may read it, and halt runs with it; chmod o-rwx, and make a new one",
    SecretFault.NOT_READABLE: "the governor's user may not read it; give it to that user or its group, mode 0640",
}
assert set(_ADVICE) == set(SecretFault), "a fault without advice"


def _others_write(path: Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    except OSError:
        return False  # It was read a moment ago: who reads it again is told.


class Finding(NamedTuple):
    """As a check of `costgov doctor`: ok, warn or fail; its name, what was found, what to do."""

    level: str
    name: str
    text: str
    advice: str = ""


NAME: Final = "peers"


def findings(settings: Peers, *, is_running: bool) -> Iterator[Finding]:
    """What a start would meet, without a datagram. `is_running`: the port is a running governor's, and not tried."""
    if not settings.is_enabled:
        yield Finding("ok", NAME, "off: a halt of this node tells no other node (peers.secret_file)")
        return
    assert settings.secret_file is not None, "the settings refuse that"
    try:
        read_key(settings.secret_file)
        yield Finding("ok", NAME, f"{settings.secret_file}: the secret is readable, and by nobody else")
    except PeersUnavailable as unavailable:
        yield _told("fail", unavailable)
    if not is_running:
        try:
            bound(settings.listens_at).close()
        except PeersUnavailable as unavailable:
            yield _told("fail", unavailable)
            return
    count = len(settings.addresses)
    others = f"{count} configured address{'' if count == 1 else 'es'}" if count else "addresses from launches alone"
    yield Finding("ok", NAME, f"UDP {settings.listen}, {others}; what is told is signed, and not hidden")


def _told(level: str, unavailable: PeersUnavailable) -> Finding:
    text, _, advice = str(unavailable).partition("; ")
    return Finding(level, NAME, text, advice)
