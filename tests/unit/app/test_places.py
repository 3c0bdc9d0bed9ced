"""Where a governor listens, and where commands and trainers look for it: one list, known to all three."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.app.settings_file import load_settings, places_told
from governor.settings.model import Paths
from governor.wire import peers
from governor.wire.control_client import socket_paths
from trainer_shim.connection import peers as shim_peers

STRANGER, ME = 12_345, 12_346

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give directories away")


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    """Directories that $XDG_RUNTIME_DIR may name, and a home."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    directories = {"own": (ME, 0o700), "others": (STRANGER, 0o700), "sticky": (0, 0o1777), "open": (0, 0o777),
                   "taken": (0, 0o1777), "taken/costgov": (STRANGER, 0o755), "home": (ME, 0o755)}  # fmt: skip
    for name, (uid, mode) in directories.items():
        (made / name).mkdir()
        (made / name).chmod(mode)
        os.chown(made / name, uid, uid)
    yield made
    shutil.rmtree(made)


RUNTIME = ("", "own", "others", "sticky", "open", "taken", "absent")
HOMES: tuple[dict[str, str], ...] = (
    {"HOME": "home"}, {"HOME": "home", "XDG_STATE_HOME": "home/state"}, {"XDG_STATE_HOME": "home/state"}, {},
    {"HOME": "", "XDG_STATE_HOME": ""},
)  # fmt: skip
NAMED: tuple[dict[str, str], ...] = (
    {}, {"COSTGOV_PATHS__RUNTIME_DIR": "home/named"}, {"COSTGOV_PATHS__SOCKET": "home/t", "COSTGOV_CONTROL": "home/c"},
    {"COSTGOV_SOCKET": "home/u", "COSTGOV_PATHS__CONTROL_SOCKET": "home/d"},
    {"COSTGOV_PATHS__RUNTIME_DIR": "home/named", "COSTGOV_SOCKET": "home/u", "COSTGOV_PATHS__SOCKET": "home/t"},
)  # fmt: skip


def environments(world: Path) -> Iterator[dict[str, str]]:
    for runtime, home, named in itertools.product(RUNTIME, HOMES, NAMED):
        environ = {**home, **named, **({"XDG_RUNTIME_DIR": runtime} if runtime else {})}
        yield {name: str(world / value) if value else value for name, value in environ.items()}


def paths_of(environ: dict[str, str]) -> Paths:
    os.setresuid(ME, ME, 0)  # Whoever may write the system's directory is given that.
    try:
        settings, problems = load_settings(None, None, environ)
    finally:
        os.setresuid(0, 0, 0)
    assert settings is not None, problems
    return settings.paths


def looked_at(environ: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where its user's trainers look, and its user's commands."""
    os.seteuid(ME)
    try:
        return shim_peers.socket_paths(environ)[0], socket_paths(environ)
    finally:
        os.seteuid(0)


def test_trainers_and_commands_look_where_a_governor_listens(world: Path) -> None:
    """After `su`, and wherever $XDG_RUNTIME_DIR was not to be trusted, a trainer was UNWATCHED beside its governor."""
    for environ in environments(world):
        paths, (trainers, commands) = paths_of(environ), looked_at(environ)
        assert str(paths.socket) in trainers, environ
        assert str(paths.control_socket) in commands, environ


def test_trainers_and_commands_look_at_the_same_places_in_the_same_order(world: Path) -> None:
    for environ in environments(world):
        assert peers.user_directories(environ, ME) == shim_peers.user_directories(environ, ME)
        trainers, commands = (
            [os.path.dirname(path) for path in paths if "/runs/" not in path] for paths in looked_at(environ)
        )
        is_named = any(name.startswith("COSTGOV") for name in environ)
        assert trainers == commands or is_named, environ
        assert shim_peers.socket_paths(environ)[1] == is_named


def test_whom_no_table_knows_has_places_too() -> None:
    assert peers.user_directories({}, 54_321)[0] == shim_peers.user_directories({}, 54_321)[0]


def test_a_governor_that_is_elsewhere_says_where(world: Path) -> None:
    home = {"HOME": str(world / "home")}
    os.setresuid(ME, ME, 0)
    try:
        for runtime, said in (("own", ""), ("", ""), ("others", f"belongs to uid {STRANGER}"), ("open", "chmod go-w")):
            environ = {**home, **({"XDG_RUNTIME_DIR": str(world / runtime)} if runtime else {})}
            settings, _ = load_settings(None, None, environ)
            assert settings is not None
            told = places_told(settings.paths, environ)
            assert (len(told), said in "".join(told)) == (1 if said else 0, True), told
            assert not told or str(world / "home/.local/state/costgov/run") in told[0]
        settings, _ = load_settings(None, {"paths": {"runtime_dir": str(world / "home/named")}}, home)
        assert settings is not None
        assert f"COSTGOV_SOCKET={world}/home/named/trainer.sock" in places_told(settings.paths, home)[0]
    finally:
        os.setresuid(0, 0, 0)
