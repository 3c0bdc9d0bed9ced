"""Where a governor binds nothing: a directory that another user could replace, at any place on the way to it."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.trainers.listener import Listener, SocketUnavailable
from governor.settings.model import default_paths
from governor.wire.control_client import socket_paths
from governor.wire.peers import problem_above, problem_of

STRANGER, ME = 12_345, 12_346

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give directories away")


@pytest.fixture
def sticky() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def owned(directory: Path, uid: int, mode: int = 0o755) -> Path:
    directory.mkdir()
    directory.chmod(mode)
    os.chown(directory, uid, uid)
    return directory


def paths_of_mine(environ: dict[str, str], run: str | None) -> dict[str, str]:
    os.setresuid(ME, ME, 0)  # Whoever may write the system's directory is given that.
    try:
        return default_paths({}, environ, ME, run)
    finally:
        os.setresuid(0, 0, 0)


def test_a_governor_binds_nothing_below_a_strangers_directory(sticky: Path) -> None:
    """Its own directory was moved away, and the stranger's put in its place."""
    theirs = owned(sticky / "costgov", STRANGER)
    (theirs / "runs").mkdir()
    with pytest.raises(SocketUnavailable, match=f"{theirs} above it belongs to uid {STRANGER}"):
        Listener(str(theirs / "runs" / "control.sock"), socket.SOCK_STREAM, 0o600)
    assert list((theirs / "runs").iterdir()) == []


def test_what_is_made_in_a_directory_with_the_sticky_bit_is_ones_own(sticky: Path) -> None:
    """As /tmp/xdg-1000 is."""
    mine = owned(sticky / "xdg-1000", ME)
    assert problem_of(str(mine / "costgov"), ME) is None
    assert problem_above(str(mine / "costgov" / "runs" / "r"), ME) is None
    sticky.chmod(0o777)
    assert f"others may write {sticky} above it" in (problem_above(str(mine / "costgov"), ME) or "")
    sticky.chmod(0o1777)
    assert "others may write there" in (problem_of(str(sticky), ME) or "")


def test_a_group_that_may_write_above_it_is_others_too(sticky: Path) -> None:
    theirs = owned(sticky / "lab", 0, 0o775)
    os.chown(theirs, 0, STRANGER)
    assert "others may write" in (problem_above(str(theirs / "costgov"), ME) or "")
    os.chown(theirs, 0, os.getegid())
    assert problem_above(str(theirs / "costgov"), ME) is None


def test_a_link_of_another_user_on_the_way_is_his(sticky: Path) -> None:
    mine = owned(sticky / "mine", ME)
    (sticky / "way").symlink_to(mine)
    os.chown(sticky / "way", STRANGER, STRANGER, follow_symlinks=False)
    assert f"belongs to uid {STRANGER}" in (problem_above(str(sticky / "way" / "costgov"), ME) or "")


def test_what_is_above_ones_home_is_not_asked(sticky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group leader's directory, with the members' homes in it: he has all that is in them anyway."""
    home = owned(owned(sticky / "leader", STRANGER) / "me", ME)
    assert problem_above(str(home / ".local" / "costgov"), ME) is not None
    monkeypatch.setenv("HOME", str(home))
    assert problem_above(str(home / ".local" / "costgov"), ME) is None


def test_a_runtime_directory_of_a_stranger_is_left_and_ones_own_is_found(sticky: Path) -> None:
    home = owned(sticky / "home", ME)
    environ = {"HOME": str(home), "XDG_RUNTIME_DIR": str(sticky)}
    good = paths_of_mine(environ, "r")
    assert good["control_socket"] == f"{sticky}/costgov/runs/r/control.sock"
    owned(sticky / "costgov", STRANGER)
    for run in (None, "r"):
        path = Path(paths_of_mine(environ, run)["control_socket"])
        assert path.is_relative_to(home), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert str(path) in socket_paths(environ)
