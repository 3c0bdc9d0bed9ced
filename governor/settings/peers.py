"""The table [peers] of costgov.toml: governors of other nodes, and what proves them (docs/howto/many_nodes.md)."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from governor.core.base.units import is_whole
from governor.core.events.peers import NODES_MAX
from governor.settings.values import AbsolutePath, Table, Text

# Beside the metrics' 9477. 9478 is what people give a second one's metrics.
PEERS_PORT: Final = 9479
HOST_CHARS_MAX: Final = 253  # As long as a name in DNS.
# One label after the other; an underscore is no letter of a host's name, and is in many all the same.
_NAME: Final = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)


class HostPort(NamedTuple):
    host: str  # A name, or an address without brackets. Empty: every interface.
    port: int

    @property
    def is_literal(self) -> bool:
        return _ip(self.host) is not None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_host(text: str, port: int = PEERS_PORT) -> HostPort:
    """Read "node-1", "10.0.0.5:9479", "fe80::1", "[::1]:9479". ValueError says what to write."""
    host, _, ending = text.rpartition(":")
    if text.startswith("["):
        host, closed, ending = text[1:].partition("]")
        if not closed or ":" not in host or (ending and not ending.startswith(":")):
            raise ValueError(_wrong(text))
        ending = ending[1:]
    elif ":" in host or not host:  # An IPv6 address, or no port.
        host, ending = text, ""
    if ending:
        if not is_whole(ending) or len(ending) > 5 or not 0 < int(ending) <= 65_535:
            raise ValueError(f'"{text[:60]}": the port is a number from 1 to 65535')
        port = int(ending)
    if len(host) > HOST_CHARS_MAX or (_ip(host) is None and _NAME.fullmatch(host) is None):
        raise ValueError(_wrong(text))
    return HostPort(host, port)


def read_listen(text: str) -> HostPort:
    """Read ":9479" (every interface), "0.0.0.0:9479", "[::1]:9479"; port 0 is any free one. ValueError as above."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not is_whole(port) or len(port) > 5 or int(port) > 65_535 or (host and _ip(host) is None):
        raise ValueError(
            f'"{text[:60]}" is nowhere to listen: write ":{PEERS_PORT}", or an address of this node and a port'
        )
    return HostPort(host, int(port))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _wrong(text: str) -> str:
    return f'"{text[:60]}" is no host: write "node-1", "10.0.0.5:{PEERS_PORT}" or "[fd00::5]:{PEERS_PORT}"'


def _address(text: str) -> str:
    read_host(text)
    return text


def _listen(text: str) -> str:
    read_listen(text)
    return text


class Peers(Table):
    """Governors of the other nodes of our runs. Without a secret nothing is sent, and nothing is heard."""

    enabled: bool | None = None  # None: where secret_file is set.
    secret_file: AbsolutePath | None = None
    listen: Annotated[Text, AfterValidator(_listen)] = f":{PEERS_PORT}"
    addresses: tuple[Annotated[Text, AfterValidator(_address)], ...] = Field(default=(), max_length=NODES_MAX)

    @model_validator(mode="after")
    def _has_a_secret(self) -> Peers:
        if self.enabled and self.secret_file is None:
            raise ValueError("enabled needs a secret_file: what is told is signed with it")
        return self

    @property
    def is_enabled(self) -> bool:
        return self.secret_file is not None if self.enabled is None else self.enabled

    @property
    def listens_at(self) -> HostPort:
        return read_listen(self.listen)

    @property
    def hosts(self) -> tuple[HostPort, ...]:
        """Those without a port have the one that we listen at, where that is a fixed one."""
        port = self.listens_at.port or PEERS_PORT
        return tuple(read_host(address, port) for address in self.addresses)
