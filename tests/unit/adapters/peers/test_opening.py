"""The secret's file, what is said of it, and what `costgov doctor` finds; nothing of the secret is in any of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from governor.adapters.peers.envelope import key_of
from governor.adapters.peers.opening import SECRET_BYTES_MAX, findings, open_peers, read_key
from governor.adapters.peers.udp import PeersUnavailable
from governor.settings.peers import Peers
from tests.contract.fakes import FakeClock

HEX = "8f3a0c5d9e7b1426" * 4


def secret(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "peers.secret"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_secret_is_read_without_its_line_end(tmp_path: Path, mode: int) -> None:
    assert read_key(secret(tmp_path, HEX + "\n", mode)) == key_of(HEX.encode())


def test_other_bytes_may_be_shorter_than_digits(tmp_path: Path) -> None:
    text = "correct-horse-battery-staple-zxy"
    assert read_key(secret(tmp_path, text)) == key_of(text.encode())


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (HEX, 0o644), (HEX, 0o660), (HEX, 0o604), (HEX[:63], 0o600), ("correct-horse-battery-staple-zx", 0o600),
        ("", 0o600), ("ab" * 32, 0o600), ("x-" * (SECRET_BYTES_MAX // 2 + 1), 0o600),
    ],
)  # fmt: skip
def test_a_secret_that_is_none_is_refused_in_one_line_without_it(tmp_path: Path, text: str, mode: int) -> None:
    path = secret(tmp_path, text, mode)
    with pytest.raises(PeersUnavailable) as refused:
        read_key(path)
    line = str(refused.value)
    assert line.startswith(f"{path}: ")
    assert line.isprintable()
    assert "; " in line
    assert not text or text not in line
    [found, *_] = findings(Peers(secret_file=path, listen="127.0.0.1:0"), is_running=True)
    assert (found.level, f"{found.text}; {found.advice}") == ("fail", line)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(PeersUnavailable, match=str(path)):
            read_key(path)


def test_without_a_secret_there_is_nothing(tmp_path: Path) -> None:
    assert open_peers(Peers(), "node-a", FakeClock()) is None
    off = Peers(secret_file=tmp_path / "none", enabled=False)
    assert open_peers(off, "node-a", FakeClock()) is None
    assert [found.level for found in findings(off, is_running=False)] == ["ok"]


def test_what_is_shown_of_it_has_no_secret(tmp_path: Path) -> None:
    settings = Peers(secret_file=secret(tmp_path, HEX), listen="127.0.0.1:0", addresses=("127.0.0.2", "127.0.0.3:5"))
    peers = open_peers(settings, "node-a", FakeClock())
    assert peers is not None
    shown = f"{peers!r} {peers.document()} {settings!r}"
    found = list(findings(settings, is_running=False))
    peers.close()
    assert HEX not in shown
    assert key_of(HEX.encode()).hex() not in shown
    assert [one.level for one in found] == ["ok", "ok"]
    assert peers.document()["known"] == 2


def test_a_port_that_somebody_has_is_one_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        settings = Peers(secret_file=secret(tmp_path, HEX), listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(PeersUnavailable, match=r"peers\.listen"):
            open_peers(settings, "node-a", FakeClock())
        assert [one.level for one in findings(settings, is_running=False)] == ["ok", "fail"]
        # It is our own governor's.
        assert [one.level for one in findings(settings, is_running=True)] == ["ok", "ok"]
