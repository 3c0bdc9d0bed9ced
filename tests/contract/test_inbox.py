"""Every Inbox: arrivals in order with the kernel's word on who sent them, bounded turns, sends that never block."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.adapters.trainers.inbox import CONNECTIONS_PER_UID_MAX, PACKETS_PER_CONNECTION, SeqpacketInbox
from governor.adapters.trainers.listener import SocketUnavailable
from governor.core.base.identity import Peer, ProcessId
from governor.ports import Arrival, Closed, Inbox, Opened, Packet, Rejected
from tests.contract.fakes import BOOT_ID, FakeInbox, FakeTrainer
from trainer_shim.wire import FRAME_BYTES_MAX

SAFETY_S = 30


class Trainer(Protocol):
    def send(self, packet: bytes) -> None: ...
    def hang_up(self) -> None: ...
    def letters(self) -> list[bytes]: ...
    def stop_reading(self) -> None: ...


class RealTrainer:
    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(SAFETY_S)
        self.sock.connect(path)

    def send(self, packet: bytes) -> None:
        self.sock.send(packet)

    def hang_up(self) -> None:
        self.sock.close()

    def letters(self) -> list[bytes]:
        found = []
        while select.select([self.sock], [], [], 0)[0]:
            found.append(self.sock.recv(FRAME_BYTES_MAX))
        return found

    def stop_reading(self) -> None:
        pass  # It does not read unless asked: the socket's buffer fills.


class ScriptedTrainer:
    def __init__(self, trainer: FakeTrainer) -> None:
        self._trainer = trainer

    def send(self, packet: bytes) -> None:
        self._trainer.send(packet[:FRAME_BYTES_MAX], truncated=len(packet) > FRAME_BYTES_MAX)

    def hang_up(self) -> None:
        self._trainer.hang_up()

    def letters(self) -> list[bytes]:
        return self._trainer.letters

    def stop_reading(self) -> None:
        self._trainer.is_full = True


class World(Protocol):
    inbox: Inbox

    def connect(self) -> Trainer: ...
    def close(self) -> None: ...


class RealWorld:
    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "costgov" / "trainer.sock")
        self.boot_id = SystemClock().boot_id
        self.inbox = SeqpacketInbox(self.path, LinuxProcesses(self.boot_id), self.boot_id, mode=0o600)
        self.trainers: list[RealTrainer] = []

    def connect(self) -> RealTrainer:
        self.trainers.append(RealTrainer(self.path))
        return self.trainers[-1]

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.sock.close()
        self.inbox.close_all()


class FakeWorld:
    def __init__(self, directory: Path) -> None:
        self.inbox = FakeInbox()

    def connect(self) -> ScriptedTrainer:
        peer = Peer(ProcessId(os.getpid(), 1, BOOT_ID), os.geteuid())
        return ScriptedTrainer(self.inbox.connect(peer))

    def close(self) -> None:
        self.inbox.close_all()


@pytest.fixture(params=[RealWorld, FakeWorld])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    make: Callable[[Path], World] = request.param
    world = make(tmp_path)
    yield world
    world.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealWorld]:
    world = RealWorld(tmp_path)
    yield world
    world.close()


def is_ready(inbox: Inbox, within_s: float = 0) -> bool:
    return bool(select.select([inbox.fileno()], [], [], within_s)[0])


def receive_all(inbox: Inbox) -> list[Arrival]:
    arrivals: list[Arrival] = []
    while is_ready(inbox):
        arrivals.extend(inbox.receive())
    return arrivals


def opened(inbox: Inbox) -> Opened:
    (arrival,) = receive_all(inbox)
    assert isinstance(arrival, Opened)
    return arrival


def test_a_connection_opens_with_the_kernels_word_on_who_it_is(world: World) -> None:
    world.connect()
    arrival = opened(world.inbox)
    assert arrival.peer.process.pid == os.getpid()
    assert arrival.peer.uid == os.geteuid()


def test_packets_arrive_in_order_under_their_connection(world: World) -> None:
    one, two = world.connect(), world.connect()
    one.send(b"1")
    two.send(b"2")
    one.send(b"3")
    arrivals = receive_all(world.inbox)
    first, second = (a.connection for a in arrivals if isinstance(a, Opened))
    packets = [(a.connection, a.data) for a in arrivals if isinstance(a, Packet)]
    assert [data for c, data in packets if c == first] == [b"1", b"3"]
    assert [data for c, data in packets if c == second] == [b"2"]


def test_what_was_sent_before_hanging_up_still_arrives_and_then_the_end(world: World) -> None:
    trainer = world.connect()
    connection = opened(world.inbox).connection
    trainer.send(b"last words")
    trainer.hang_up()
    packet, closed = receive_all(world.inbox)
    assert isinstance(packet, Packet)
    assert packet.data == b"last words"
    assert isinstance(closed, Closed)
    assert closed.connection == connection
    assert not world.inbox.send(connection, b"x")


def test_with_nothing_there_receive_returns_nothing_at_once(world: World) -> None:
    assert list(world.inbox.receive()) == []
    assert not is_ready(world.inbox)


def test_a_flooding_rank_waits_its_turn(world: World) -> None:
    loud, quiet = world.connect(), world.connect()
    first_turn = list(world.inbox.receive())
    assert len(first_turn) == 2
    for n in range(3 * PACKETS_PER_CONNECTION):
        loud.send(b"%d" % n)
    quiet.send(b"me too")
    turn = [a.data for a in world.inbox.receive() if isinstance(a, Packet)]
    assert b"me too" in turn
    assert len(turn) == PACKETS_PER_CONNECTION + 1
    rest = [a.data for a in receive_all(world.inbox) if isinstance(a, Packet)]
    assert len(rest) == 2 * PACKETS_PER_CONNECTION


def test_a_packet_beyond_the_wires_limit_is_marked_truncated(world: World) -> None:
    trainer = world.connect()
    packets = []
    for size in (FRAME_BYTES_MAX + 1, FRAME_BYTES_MAX):
        trainer.send(b"x" * size)  # One at a time: a default socket buffer holds hardly more than one of these.
        packets += [a for a in receive_all(world.inbox) if isinstance(a, Packet)]
    assert [(len(p.data), p.truncated) for p in packets] == [(FRAME_BYTES_MAX, True), (FRAME_BYTES_MAX, False)]


def test_a_letter_arrives(world: World) -> None:
    trainer = world.connect()
    assert world.inbox.send(opened(world.inbox).connection, b"letter")
    assert trainer.letters() == [b"letter"]


def test_sending_to_a_full_peer_returns_false_instead_of_blocking(world: World) -> None:
    trainer = world.connect()
    connection = opened(world.inbox).connection
    trainer.stop_reading()
    sent = 0
    while world.inbox.send(connection, b"x" * 1000):
        sent += 1
        assert sent < 100_000, "no socket buffers a hundred megabytes"
    assert not is_ready(world.inbox)


def test_closing_is_the_callers_act_and_yields_no_arrival(world: World) -> None:
    world.connect()
    connection = opened(world.inbox).connection
    world.inbox.close(connection, "done")
    world.inbox.close(connection, "twice")
    assert receive_all(world.inbox) == []
    assert not world.inbox.send(connection, b"x")


def test_connection_numbers_are_never_reused(world: World) -> None:
    seen = []
    for _ in range(3):
        trainer = world.connect()
        seen.append(opened(world.inbox).connection)
        trainer.hang_up()
        receive_all(world.inbox)
    assert len(set(seen)) == 3


# --- what only the real socket has -----------------------------------------------------------------------


def test_the_start_of_the_peer_is_its_identity(real: RealWorld) -> None:
    real.connect()
    facts = LinuxProcesses(real.boot_id).facts(os.getpid())
    assert facts is not None
    assert opened(real.inbox).peer.process == facts.process


def test_a_reset_loses_no_queued_packet(real: RealWorld) -> None:
    """A peer that closes without reading our letter makes the kernel say ECONNRESET before its own last packets."""
    trainer = real.connect()
    connection = opened(real.inbox).connection
    assert real.inbox.send(connection, b"a letter it never reads")
    trainer.send(b"ack")
    trainer.send(b"bye")
    trainer.hang_up()
    arrivals = receive_all(real.inbox)
    assert [a.data for a in arrivals if isinstance(a, Packet)] == [b"ack", b"bye"]
    assert arrivals[-1] == Closed(connection, "connection reset")


def test_descriptors_sent_along_are_not_kept(real: RealWorld) -> None:
    trainer = real.connect()
    opened(real.inbox)
    read_end, write_end = os.pipe()
    socket.send_fds(trainer.sock, [b"gift"], [write_end])
    os.close(write_end)
    assert [a.data for a in receive_all(real.inbox) if isinstance(a, Packet)] == [b"gift"]
    assert select.select([read_end], [], [], SAFETY_S)[0], "the kernel still holds the descriptor for us"
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_uid_that_is_not_allowed_is_told_so(tmp_path: Path) -> None:
    boot_id = SystemClock().boot_id
    path = str(tmp_path / "costgov" / "trainer.sock")
    inbox = SeqpacketInbox(path, LinuxProcesses(boot_id), boot_id, allow_uids=frozenset({os.geteuid() + 1}))
    trainer = RealTrainer(path)
    (arrival,) = receive_all(inbox)
    reason = f"uid {os.geteuid()} is not in allow_uids"
    assert arrival == Rejected(reason, os.geteuid(), os.getpid())
    assert reason.encode() in trainer.sock.recv(FRAME_BYTES_MAX)
    assert trainer.sock.recv(FRAME_BYTES_MAX) == b""
    trainer.hang_up()
    inbox.close_all()


def test_one_uid_cannot_take_every_connection(real: RealWorld) -> None:
    arrivals: list[Arrival] = []
    for _ in range(CONNECTIONS_PER_UID_MAX + 1):
        real.connect()
        arrivals.extend(receive_all(real.inbox))
    assert sum(isinstance(a, Opened) for a in arrivals) == CONNECTIONS_PER_UID_MAX
    assert isinstance(arrivals[-1], Rejected)
    real.trainers[0].hang_up()
    receive_all(real.inbox)
    real.connect()
    opened(real.inbox)


def test_a_dead_governors_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()
    boot_id = SystemClock().boot_id
    inbox = SeqpacketInbox(str(path), LinuxProcesses(boot_id), boot_id)
    RealTrainer(str(path)).hang_up()
    inbox.close_all()
    assert not path.exists()


def test_a_live_governors_socket_is_refused_and_left_alone(real: RealWorld) -> None:
    with pytest.raises(SocketUnavailable, match=rf"another governor \(pid {os.getpid()}\) serves this socket"):
        SeqpacketInbox(real.path, LinuxProcesses(real.boot_id), real.boot_id)
    real.connect()
    opened(real.inbox)


def make_live_stranger(path: Path) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.bind(str(path))
    stranger.listen()
    return stranger


def make_file(path: Path) -> None:
    path.write_text("precious")


def make_symlink(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere.sock")


def make_open_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def make_linked_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to("real")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (make_live_stranger, f"process {os.getpid()} listens there"),
        (make_file, "exists and is not a socket"),
        (make_symlink, "exists and is not a socket"),
        (make_open_directory, "others may write there"),
        (make_linked_directory, "symbolic link"),
    ],
    ids=["live stranger", "file", "symlink", "open directory", "linked directory"],  # A pid differs in each worker.
)
def test_a_path_that_is_not_ours_is_refused_with_one_line(
    tmp_path: Path, prepare: Callable[[Path], socket.socket | None], message: str
) -> None:
    path = tmp_path / "costgov" / "trainer.sock"
    path.parent.mkdir()
    stranger = prepare(path)
    with pytest.raises(SocketUnavailable, match=message) as caught:
        SeqpacketInbox(str(path), LinuxProcesses(BOOT_ID), BOOT_ID)
    assert "\n" not in str(caught.value)
    if stranger is not None:
        stranger.close()
    if prepare is make_file:
        assert path.read_text() == "precious"


def test_a_path_too_long_for_the_kernel_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketUnavailable, match="107 bytes"):
        SeqpacketInbox(str(tmp_path / ("x" * 108)), LinuxProcesses(BOOT_ID), BOOT_ID)


def test_the_socket_has_exactly_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "trainer.sock"
    inbox = SeqpacketInbox(str(path), LinuxProcesses(BOOT_ID), BOOT_ID, mode=0o660)
    assert path.stat().st_mode & 0o777 == 0o660
    inbox.close_all()
