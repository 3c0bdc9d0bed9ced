"""[peers]: hosts and places to listen at, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from governor.core.events.peers import NODE_BYTES_MAX, NODES_MAX
from governor.settings.peers import PEERS_PORT, HostPort, Peers, read_host, read_listen
from tests.unit.app.test_settings_file import bad, config

SECRET = Path("/etc/costgov/peers.secret")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node-1", HostPort("node-1", PEERS_PORT)),
        ("gpu_7.rack-2.example.org:5", HostPort("gpu_7.rack-2.example.org", 5)),
        ("10.0.0.5", HostPort("10.0.0.5", PEERS_PORT)),
        ("10.0.0.5:65535", HostPort("10.0.0.5", 65_535)),
        ("fd00::5", HostPort("fd00::5", PEERS_PORT)),
        ("[fd00::5]", HostPort("fd00::5", PEERS_PORT)),
        ("[fd00::5]:80", HostPort("fd00::5", 80)),
    ],
)
def test_a_host_as_people_write_it(text: str, found: HostPort) -> None:
    assert read_host(text) == found
    assert read_host(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", ":5", "a:0", "a:65536", "a:5x", "a:\u0665", "[::1", "[::1]5", "[a]:5", "a..b", "-a", "a" * 254,
     "a\n", "\ud800", "http://a", "a/b", "a:1:b", "\u24d0.example"],
)  # fmt: skip
def test_a_host_that_is_none_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|number from 1"):
        read_host(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":9479", HostPort("", 9479)), (":0", HostPort("", 0)), ("10.0.0.5:1", HostPort("10.0.0.5", 1)),
        ("[::]:9479", HostPort("::", 9479)), ("[::1]:5", HostPort("::1", 5)),
    ],
)  # fmt: skip
def test_a_place_to_listen_at(text: str, found: HostPort) -> None:
    assert read_listen(text) == found


@pytest.mark.parametrize("text", ["", "9479", ":", "node-1:9479", ":65536", "10.0.0.5", "10.0.0.5:x", "[::1]"])
def test_a_place_that_is_none_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="nowhere to listen"):
        read_listen(text)


def test_a_secret_turns_it_on() -> None:
    assert not Peers().is_enabled
    assert Peers(secret_file=SECRET).is_enabled
    assert not Peers(secret_file=SECRET, enabled=False).is_enabled
    with pytest.raises(ValidationError, match="secret_file"):
        Peers(enabled=True)


def test_hosts_have_the_port_that_we_listen_at() -> None:
    assert Peers(addresses=("a", "b:5"), listen=":7").hosts == (HostPort("a", 7), HostPort("b", 5))
    assert Peers(addresses=("a",), listen=":0").hosts == (HostPort("a", PEERS_PORT),)


def test_addresses_are_bounded() -> None:
    assert len(Peers(addresses=("a",) * NODES_MAX).hosts) == NODES_MAX
    with pytest.raises(ValidationError):
        Peers(addresses=("a",) * (NODES_MAX + 1))


def test_a_node_whose_name_others_would_refuse_says_so(tmp_path: Path) -> None:
    text = f'[node]\nname = "{"n" * (NODE_BYTES_MAX + 1)}"\n'
    problems = bad(config(tmp_path, text + f'[peers]\nsecret_file = "{SECRET}"\n'))
    assert len(problems) == 1
    assert "node.name" in problems[0]
