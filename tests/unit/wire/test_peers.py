"""Who is believed at a socket that nobody named: with real sockets, directories and other uids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.wire import control_client, peers
from governor.wire.control_client import Found, ask, ask_each, ask_first, socket_paths
from tests.unit.shim.governor_end import hello
from trainer_shim import wire
from trainer_shim.connection import peers as shim_peers
from trainer_shim.governor_socket import GovernorSocket, unwatched_line

STRANGER, SERVICE = 12_345, 12_346
DEADLINE_S = 10.0
CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")


@contextlib.contextmanager
def as_uid(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


Listen = Callable[..., socket.socket]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listen at a path as that uid: what the kernel tells whoever connects."""
    opened: list[socket.socket] = []

    def one_more(path: Path, uid: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, kind)
        opened.append(sock)
        with as_uid(uid):
            sock.bind(str(path))
            os.chmod(path, 0o777)
            sock.listen()
        sock.settimeout(DEADLINE_S)
        return sock

    yield one_more
    for sock in opened:
        sock.close()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """What $XDG_RUNTIME_DIR is on some login nodes and in some containers."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def of_root() -> Iterator[Path]:
    """A directory that root alone may change, as /run is."""
    made = Path(tempfile.mkdtemp(dir="/run"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def owned(directory: Path, uid: int, mode: int = 0o755) -> Path:
    directory.mkdir(parents=True)
    directory.chmod(mode)
    os.chown(directory, uid, uid)
    return directory


@pytest.fixture
def squatted(open_to_all: Path) -> Path:
    return owned(open_to_all / "costgov", STRANGER, 0o777)


def test_a_strangers_control_socket_is_asked_nothing(squatted: Path, listen: Listen) -> None:
    """It answered `halt` with "halting" while the run trained on."""
    fake = listen(squatted / "control.sock", STRANGER)
    answer = ask(Found(squatted / "control.sock"), {"cmd": "halt", "run": "e3"})
    assert (answer.ok, answer.code) == (False, "stranger")
    assert all(said in answer.error for said in (f"uid {STRANGER}", str(squatted), "--control")), answer.error
    assert "\n" not in answer.error
    fake.setblocking(False)
    with pytest.raises(BlockingIOError):
        fake.accept()


def test_a_strangers_process_behind_a_socket_of_our_own_is_asked_nothing(open_to_all: Path) -> None:
    """What counts is who listens, not whose the file is."""
    path = owned(open_to_all / "mine", 0) / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as fake:
        fake.bind(str(path))
        with as_uid(STRANGER):
            fake.listen()
        fake.settimeout(DEADLINE_S)
        assert ask(Found(path), {"cmd": "halt", "run": "e3"}).code == "stranger"
        conn, _ = fake.accept()
        assert conn.recv(1) == b""
        conn.close()


def test_the_governor_of_the_run_is_asked_behind_a_stranger(squatted: Path, tmp_path: Path, listen: Listen) -> None:
    """In either order, and where it refuses too."""
    listen(squatted / "control.sock", STRANGER)
    ours = listen(tmp_path / "c.sock", 0)
    paths = (Found(squatted / "control.sock"), Found(tmp_path / "c.sock"))
    refusal = b'{"ok":false,"error":"no run r","code":"no_such_run"}\n'
    for at, asked in enumerate((paths, paths[::-1])):
        answers: list[control_client.Answer] = []
        target = (lambda a, p: lambda: a.append(ask_first(p, {"cmd": "halt"}, DEADLINE_S)))(answers, asked)
        thread = threading.Thread(target=target)
        thread.start()
        conn, _ = ours.accept()
        conn.recv(1000)
        conn.sendall(refusal)
        conn.close()
        thread.join(DEADLINE_S)
        assert [one.code for one in answers] == ["no_such_run"], at


def test_a_stranger_is_told_of_where_nobody_else_answers(squatted: Path, tmp_path: Path, listen: Listen) -> None:
    listen(squatted / "control.sock", STRANGER)
    paths = (Found(tmp_path / "none.sock"), Found(squatted / "control.sock"))
    assert [one.code for one in ask_each(paths, {"cmd": "status"})] == ["stranger"]
    assert ask_first(paths, {"cmd": "halt"}).code == "stranger"


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("COSTGOV_CONTROL", "control.sock"),
        ("COSTGOV_PATHS__CONTROL_SOCKET", "control.sock"),
        ("COSTGOV_PATHS__RUNTIME_DIR", ""),
    ],
)
def test_a_path_that_a_person_named_is_believed(squatted: Path, listen: Listen, variable: str, below: str) -> None:
    """Root looks at a user's run so, and from a container one asks the host's governor."""
    other = listen(squatted / "control.sock", STRANGER)
    (path,) = socket_paths({variable: str(squatted / below)})
    answers: list[control_client.Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(path, {"cmd": "ping"}, DEADLINE_S)))
    thread.start()
    conn, _ = other.accept()
    conn.recv(1000)
    conn.sendall(b'{"ok":true,"data":{}}\n')
    conn.close()
    thread.join(DEADLINE_S)
    assert answers[0].ok


def test_whatever_nobody_named_is_found(squatted: Path) -> None:
    (squatted / "runs" / "r").mkdir(parents=True)
    (squatted / "runs" / "r" / "control.sock").touch()
    paths = socket_paths({"XDG_RUNTIME_DIR": str(squatted.parent), "HOME": "/nonexistent"})
    assert str(squatted / "runs" / "r" / "control.sock") in paths
    assert all(isinstance(path, Found) for path in paths)


Doubt = Callable[[str, int], str | None]


@pytest.mark.parametrize("doubt", [peers.doubt, shim_peers.doubt])
class TestTheRule:
    """One rule in two files: commands do not load the shim."""

    def test_root_and_oneself(self, open_to_all: Path, squatted: Path, doubt: Doubt) -> None:
        path = str(owned(open_to_all / "mine", SERVICE) / "control.sock")
        with as_uid(SERVICE):
            assert doubt(path, 0) is None
            assert doubt(path, SERVICE) is None
            assert f"it is uid {STRANGER}'s" in (doubt(path, STRANGER) or "")

    def test_oneself_where_another_could_have_turned_the_way(
        self, open_to_all: Path, squatted: Path, doubt: Doubt
    ) -> None:
        """A halt went to another governor of one's own, by the stranger's link."""
        squatted.chmod(0o755)
        private = owned(open_to_all / "mine", SERVICE)
        with as_uid(STRANGER):
            (squatted / "control.sock").symlink_to(private / "control.sock")
            (open_to_all / "way").symlink_to(private)
        for turned in (squatted / "control.sock", open_to_all / "way" / "control.sock"):
            with as_uid(SERVICE):
                for uid in (0, SERVICE):
                    assert doubt(str(turned), uid) is not None, turned
            assert doubt(str(turned), 0) is not None, turned
        with as_uid(SERVICE):
            assert doubt(str(private / "control.sock"), SERVICE) is None

    def test_whom_root_gave_the_directory(self, of_root: Path, doubt: Doubt) -> None:
        service = owned(of_root / "costgov", SERVICE)
        owned(service / "runs" / "r", SERVICE)
        for path in (service / "control.sock", service / "runs" / "r" / "control.sock"):
            assert doubt(str(path), SERVICE) is None
            assert doubt(str(path), STRANGER) is not None
        os.chown(service, STRANGER, STRANGER)
        of_root.chmod(0o1777)
        assert doubt(str(service / "control.sock"), STRANGER), "who could make it himself"
        of_root.chmod(0o775)
        assert doubt(str(service / "control.sock"), STRANGER) is not None

    def test_whoever_listens_where_only_root_can_put_a_socket(self, of_root: Path, doubt: Doubt) -> None:
        """A socket alone is mounted into a container: its directory there is root's."""
        assert doubt(str(of_root / "trainer.sock"), SERVICE) is None
        of_root.chmod(0o1777)
        assert doubt(str(of_root / "trainer.sock"), SERVICE) is not None

    def test_a_link_to_a_directory_that_root_did_give(self, open_to_all: Path, of_root: Path, doubt: Doubt) -> None:
        """Every user's home is one. The way to it is the stranger's own, and can be turned."""
        owned(of_root / "stranger", STRANGER)
        with as_uid(STRANGER):
            (open_to_all / "costgov").symlink_to(of_root / "stranger")
        assert doubt(str(open_to_all / "costgov" / "control.sock"), STRANGER) is not None
        (of_root / "link").symlink_to(of_root)
        assert doubt(str(of_root / "link" / "stranger" / "control.sock"), STRANGER) is None, "/var/run is root's link"
        (of_root / "way").symlink_to(open_to_all)
        assert doubt(str(of_root / "way" / "costgov" / "control.sock"), STRANGER) is not None

    def test_nobodys_number_where_everybody_has_one(self, open_to_all: Path, doubt: Doubt) -> None:
        """On the machine itself uid 65534 is a user like any other."""
        nobody = peers.overflow_uid()
        path = str(owned(open_to_all / "mine", nobody) / "control.sock")
        with as_uid(nobody):
            assert doubt(path, nobody) is None

    def test_to_nobodys_number_root_gives_no_directory(self, of_root: Path, doubt: Doubt) -> None:
        """In a user namespace it is the number of every owner who has none there."""
        nobody = peers.overflow_uid()
        assert doubt(str(owned(of_root / "costgov", nobody) / "control.sock"), nobody) is not None

    @pytest.mark.parametrize("is_mapped", [False, True])
    def test_nobodys_number_where_others_have_none(self, open_to_all: Path, doubt: Doubt, is_mapped: bool) -> None:
        """Whoever is 65534 in a user namespace believed every user of the machine."""
        nobody = peers.overflow_uid()
        path = str(owned(open_to_all / "theirs", nobody if is_mapped else STRANGER) / "control.sock")
        assert "no number in this user namespace" in in_user_namespace(doubt, path, nobody, is_mapped=is_mapped)


def in_user_namespace(doubt: Doubt, path: str, uid: int, *, is_mapped: bool) -> str:
    """What is said there as that uid: it has its number, or none has one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(uid, uid, uid)
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_DUMPABLE, 1)  # Else its uid_map is root's.
            if libc.unshare(CLONE_NEWUSER) == 0:
                if is_mapped:
                    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1\n")
                os.write(writing, str(doubt(path, os.geteuid())).encode())
            else:
                os.write(writing, b"unavailable")
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        said = told.read()
    os.waitpid(child, 0)
    if said == "unavailable":
        pytest.skip("needs user namespaces")
    return said


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [("0 0 4294967295\n", True), ("0 1000 1\n1 100000 65536\n", False), ("", False), ("junk", False)],
)
def test_whether_every_user_has_a_number(tmp_path: Path, text: str, is_whole: bool) -> None:
    (tmp_path / "uid_map").write_text(text)
    assert peers.has_all_uids(str(tmp_path / "uid_map")) is is_whole
    assert shim_peers.has_all_uids(str(tmp_path / "uid_map")) is is_whole
    assert not peers.has_all_uids(str(tmp_path / "none"))


def test_a_halt_does_not_go_through_a_strangers_link(squatted: Path, tmp_path: Path, listen: Listen) -> None:
    other = listen(tmp_path / "c.sock", 0)
    with as_uid(STRANGER):
        (squatted / "control.sock").symlink_to(tmp_path / "c.sock")
    answer = ask(Found(squatted / "control.sock"), {"cmd": "halt", "run": "e3"})
    assert (answer.ok, answer.code) == (False, "stranger")
    assert f"belongs to uid {STRANGER}" in answer.error
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.accept()
    governor = GovernorSocket([str(squatted / "control.sock")], 0, hello, named=False)
    assert not governor.connect(time.monotonic_ns())


def test_a_trainer_says_nothing_to_a_stranger_and_trains_on(squatted: Path, listen: Listen) -> None:
    """A letter with exit_after parked it for ever."""
    path = squatted / "trainer.sock"
    fake = listen(path, STRANGER, socket.SOCK_SEQPACKET)
    governor = GovernorSocket([str(path)], 0, hello, named=False)
    assert not governor.connect(time.monotonic_ns())
    assert governor.retry_at_ns
    conn, _ = fake.accept()
    assert conn.recv(wire.FRAME_BYTES_MAX) == b"", "it hears no hello"
    conn.close()
    line = unwatched_line(governor.paths, None, governor.stranger)
    assert line.startswith(f"UNWATCHED: no governor at {path}: not believed at {path}: it is uid {STRANGER}'s")
    assert f"COSTGOV_SOCKET={path}" in line
    governor.close()


def test_a_trainer_believes_a_socket_that_was_named_and_the_next_one_behind_a_stranger(
    squatted: Path, tmp_path: Path, listen: Listen
) -> None:
    theirs = squatted / "trainer.sock"
    listen(theirs, STRANGER, socket.SOCK_SEQPACKET)
    named = GovernorSocket([str(theirs)], 0, hello)
    assert named.connect(time.monotonic_ns())
    named.close()
    listen(tmp_path / "t.sock", 0, socket.SOCK_SEQPACKET)
    found = GovernorSocket([str(theirs), str(tmp_path / "t.sock")], 0, hello, named=False)
    assert found.connect(time.monotonic_ns())
    assert (found.path, found.stranger) == (str(tmp_path / "t.sock"), None)
    found.close()


@pytest.mark.parametrize("rules", [peers, shim_peers], ids=["commands", "shim"])
def test_a_directory_of_whoever_has_no_number_is_given_to_nobody(of_root: Path, rules: Any) -> None:
    """Each user without a number has that one: root has not given it to the one who listens."""
    known, nobody = owned(of_root / "known", SERVICE), owned(of_root / "nobody", rules.overflow_uid())
    assert rules.doubt(str(known / "trainer.sock"), SERVICE) is None
    assert "no number in this user namespace" in rules.doubt(str(nobody / "trainer.sock"), rules.overflow_uid())
