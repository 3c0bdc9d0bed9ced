"""The governor against a real SEQPACKET listener."""

from __future__ import annotations

import os
import time

import pytest

from tests.unit.shim.governor_end import Ends, Server, connected, hello, read, send
from trainer_shim import wire
from trainer_shim.connection.outbox import RESEND_NS
from trainer_shim.governor_socket import RETRY_FIRST_NS, RETRY_MAX_NS, GovernorSocket, clip, unwatched_line


def test_hello_comes_first_and_is_resent_until_confirmed(ends: Ends) -> None:
    governor, peer = ends
    first = read(peer)
    assert (first["kind"], first["rank"]) == ("hello", 3)
    now = time.monotonic_ns()
    governor.flush(now + RESEND_NS + 1)
    assert first == read(peer)
    send(peer, kind="confirm", seq=first["seq"])
    assert governor.receive(now) == []
    assert governor.unconfirmed() == 0


def test_nobody_listening_counts_drops_and_tells_them_later(server: Server) -> None:
    governor = GovernorSocket([str(server.path)], 0, hello)
    assert not governor.post("step", {"step": 1, "attempt_step": 1})
    assert not governor.post("beat", {})
    assert governor.connect(time.monotonic_ns())
    peer = server.accept()
    read(peer)
    assert governor.post("step", {"step": 2, "attempt_step": 2, "loss": float("nan")})
    frame = read(peer)
    assert frame["dropped"] == {"step": 1, "beat": 1, "phase": 0}
    assert frame["loss"] == "nan"
    governor.close()
    peer.close()


def test_a_full_socket_drops_and_never_blocks(ends: Ends) -> None:
    governor, _peer = ends
    sent = 0
    while governor.post("phase", {"phase": "train", "detail": "x" * 400}):
        sent += 1
        assert sent < 1_000_000, "the buffer is bounded"
    assert governor.dropped["phase"] == 1
    assert governor.connected, "full is not lost"


def test_frames_and_request_queued_before_a_reset_are_still_read(server: Server) -> None:
    governor, peer = connected(server)
    governor.post("phase", {"phase": "train"})  # Unread at the peer's close: the kernel answers with ECONNRESET.
    request = {"incident": "i", "checkpoint": "good", "deadline_mono_ns": 1, "exit_after": True, "exit_code": 86}
    send(peer, kind="letter", **request)
    peer.close()
    assert [{"v": 1, "kind": "letter", **request}] == governor.receive(time.monotonic_ns())
    assert governor.receive(time.monotonic_ns()) == []
    assert not governor.connected
    assert governor.lost_since_ns is not None
    governor.close()


def test_a_reconnect_says_hello_anew_and_repeats_what_was_not_confirmed(server: Server) -> None:
    told = {"open_incident": None}
    governor = GovernorSocket([str(server.path)], 0, lambda: {**hello(), **told})
    assert governor.connect(time.monotonic_ns())
    peer = server.accept()
    read(peer)
    told["open_incident"] = {"incident": "i", "what": "agreed", "step": 7}
    governor.put("ack", {"incident": "i", "what": "agreed", "step": 7})
    ack = read(peer)
    peer.close()
    now = time.monotonic_ns()
    governor.receive(now)
    assert not governor.connected
    assert governor.connect(now)
    peer = server.accept()
    again = read(peer)
    assert (again["kind"], again["open_incident"]["what"]) == ("hello", "agreed")
    assert ack == read(peer)
    assert governor.lost_since_ns is None
    governor.close()
    peer.close()


def test_the_outbox_is_bounded_and_keeps_the_newest() -> None:
    governor = GovernorSocket(["/nonexistent/s"], 0, hello)
    for number in range(wire.OUTBOX_SLOTS + 3):
        governor.put("ack", {"incident": str(number), "what": "received"})
    assert governor.unconfirmed() == wire.OUTBOX_SLOTS


def test_retries_back_off_to_a_bound() -> None:
    governor = GovernorSocket(["/nonexistent/s", "x" * 200], 0, hello)
    waits = []
    for _ in range(8):
        assert not governor.connect(0)
        waits.append(governor.retry_at_ns)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] <= RETRY_MAX_NS * 6 // 5


def test_a_refusal_is_kept_and_not_argued_with(ends: Ends) -> None:
    governor, peer = ends
    send(peer, kind="refuse", reason="run belongs to another uid")
    assert governor.receive(0) == []
    assert not governor.connected
    assert governor.refused == "run belongs to another uid"
    assert governor.retry_at_ns > RETRY_MAX_NS
    assert "another uid" in unwatched_line(governor.paths, governor.refused)


@pytest.mark.parametrize("packet", [b"\xff\xfe", b"[1]", b"{}", b'{"v":1,"kind":"letter","incident":5}'])
def test_nonsense_from_the_governor_is_ignored(ends: Ends, packet: bytes, capfd: pytest.CaptureFixture) -> None:
    governor, peer = ends
    peer.send(packet)
    assert governor.receive(time.monotonic_ns()) == []
    assert governor.connected
    assert "ignored" in capfd.readouterr().err


def test_a_forked_child_holds_nothing_that_hides_our_death(server: Server) -> None:
    governor, peer = connected(server)
    read(peer)
    released, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(released, 1)  # Lives until the parent's end of the pipe closes.
        os._exit(0)
    os.close(released)
    governor.close()  # Our own copy goes, as if this rank died.
    assert peer.recv(10) == b"", "the child's copy would keep the connection open"
    os.close(release)
    assert os.waitpid(child, 0)[1] == 0
    peer.close()


def test_long_texts_are_cut_to_what_the_wire_carries() -> None:
    assert len(clip("x" * 10_000)) == wire.TEXT_CHARS_MAX


def test_a_governor_that_accepts_and_closes_is_tried_ever_more_rarely(server: Server) -> None:
    governor = GovernorSocket([str(server.path)], 0, hello)
    now = time.monotonic_ns()
    waits = []
    for _ in range(8):
        assert governor.connect(now)
        server.accept().close()
        governor.receive(now)
        assert not governor.connected
        waits.append(governor.retry_at_ns - now)
    assert waits[:3] == [RETRY_FIRST_NS, 2 * RETRY_FIRST_NS, 4 * RETRY_FIRST_NS]
    assert waits[-1] == RETRY_MAX_NS
    governor.close()


def test_a_connection_that_lasted_is_replaced_at_once(server: Server) -> None:
    governor, peer = connected(server)
    peer.close()
    later = time.monotonic_ns() + RETRY_MAX_NS
    governor.receive(later)
    assert not governor.connected
    assert governor.retry_at_ns == later
    governor.close()
