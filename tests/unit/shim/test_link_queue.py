"""Frames that wait: what the training thread queues and the listener thread sends, against a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.shim.governor_end import Server, hello, linked, read
from trainer_shim import guard
from trainer_shim.doorbell import Doorbell
from trainer_shim.link import QUEUE_FRAMES_MAX, Link
from trainer_shim.listener import FRAMES_PER_TURN, SEND_PERIOD_NS, Listener, next_multiple
from trainer_shim.progress import Progress
from trainer_shim.scalars import told_sound


def test_a_queued_frame_waits_and_keeps_its_time(server: Server) -> None:
    link, peer = linked(server)
    read(peer)
    before = time.monotonic_ns()
    link.later("step", {"step": 1, "attempt_step": 1})
    after = time.monotonic_ns()
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(10)
    assert link.queued == 1
    assert link.send_queued()
    assert before <= read(peer)["mono_ns"] <= after
    assert link.queued == 0
    link.close()
    peer.close()


@pytest.mark.parametrize("how", ["post", "put"])
def test_what_leaves_at_once_takes_what_is_queued_along(server: Server, how: str) -> None:
    link, peer = linked(server)
    read(peer)
    link.later("step", {"step": 1, "attempt_step": 1})
    link.later("step", {"step": 2, "attempt_step": 2})
    if how == "post":
        link.post("phase", {"phase": "eval"})
    else:
        link.put("ack", {"incident": "i", "what": "agreed", "step": 2})
    kinds = [read(peer)["kind"] for _ in range(3)]
    assert kinds == ["step", "step", "phase" if how == "post" else "ack"]
    link.close()
    peer.close()


def test_the_hello_comes_before_what_was_queued_for_the_last_connection(server: Server) -> None:
    link, peer = linked(server)
    read(peer)
    link.later("step", {"step": 1, "attempt_step": 1})
    peer.close()
    now = time.monotonic_ns()
    link.receive(now)
    assert not link.send_queued(), "nobody is connected"
    assert link.connect(now)
    peer = server.accept()
    assert link.send_queued()
    assert [read(peer)["kind"] for _ in range(2)] == ["hello", "step"]
    link.close()
    peer.close()


def test_the_queue_is_bounded_and_counts_what_it_turned_away(server: Server) -> None:
    link, peer = linked(server)
    for step in range(QUEUE_FRAMES_MAX + 2):
        link.later("step", {"step": step, "attempt_step": step})
    assert (link.queued, link.dropped["step"]) == (QUEUE_FRAMES_MAX, 2)
    link.close()
    peer.close()


def test_without_a_governor_nothing_is_kept() -> None:
    link = Link(["/nonexistent/s"], 0, hello)
    link.later("step", {"step": 1, "attempt_step": 1})
    assert (link.queued, link.dropped["step"]) == (0, 1)


def test_a_frame_that_cannot_be_told_costs_itself_alone(server: Server) -> None:
    link, peer = linked(server)
    read(peer)
    known = guard.faults.get("a step frame", 0)
    link.later("step", {"step": 1, "attempt_step": 1, "lr": object()})
    link.later("step", {"step": 2, "attempt_step": 2})
    assert not link.send_queued()
    frame = read(peer)
    assert (frame["step"], frame["dropped"]["step"]) == (2, 1)
    assert guard.faults["a step frame"] == known + 1
    link.close()
    peer.close()


class Interrupting(dict):  # type: ignore[type-arg]
    """Fields whose encoding is interrupted by a script's signal handler that says bye on the same thread."""

    def __init__(self, link: Link) -> None:
        super().__init__(step=1, attempt_step=1)
        self.link = link

    def items(self):  # type: ignore[no-untyped-def]
        self.link.put("bye", {"reason": "handler"})
        return super().items()


def test_a_handler_that_says_bye_inside_a_send_does_not_lock_up(server: Server) -> None:
    link, peer = linked(server)
    read(peer)
    sender = threading.Thread(target=link.post, args=("step", Interrupting(link)), daemon=True)
    sender.start()
    assert {read(peer)["kind"], read(peer)["kind"]} == {"bye", "step"}
    sender.join(10)
    assert not sender.is_alive()
    link.close()
    peer.close()


SOUND = {"loss": 2.5, "loss_expected": True, "grad_norm": 1.0}


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({}, True),
        ({"grad_norm": None}, True),
        ({"loss": 0.0}, True),
        ({"loss": None, "loss_expected": False}, True),
        ({"loss": None}, False),
        ({"loss": float("nan")}, False),
        ({"loss": float("inf")}, False),
        ({"loss": float("-inf")}, False),
        ({"grad_norm": float("nan")}, False),
        ({"grad_norm": float("inf")}, False),
    ],
)
def test_what_may_be_a_reason_to_halt_is_not_sound(change: dict[str, object], sound: bool) -> None:
    assert told_sound({**SOUND, **change}) is sound


def test_ranks_wake_at_the_same_multiples() -> None:
    period = SEND_PERIOD_NS
    assert next_multiple(5 * period, period) == next_multiple(6 * period - 1, period) == 6 * period


class NoIncidents:
    def receive(self, ask: object) -> None:
        raise AssertionError("no letter was sent")


class NoConductor:
    def wake(self) -> None:
        raise AssertionError("no letter was sent")


@pytest.fixture
def listening(server: Server) -> Iterator[tuple[Link, Listener]]:
    link = Link([str(server.path)], 0, hello)
    assert link.connect(time.monotonic_ns())
    progress = Progress(threading.get_ident())
    doorbell = Doorbell()
    listener = Listener(link, doorbell, progress, NoIncidents(), NoConductor(), lambda: None)  # type: ignore[arg-type]
    yield link, listener
    assert listener.stop(10)
    link.close()
    doorbell.forget()


def test_the_listener_sends_a_long_queue_whole_and_in_order(
    server: Server,
    listening: tuple[Link, Listener],
) -> None:
    link, listener = listening
    peer = server.accept()
    read(peer)
    steps = 20 * FRAMES_PER_TURN + 1
    for step in range(steps):
        link.later("step", {"step": step, "attempt_step": step})
    listener.start()
    seen = []
    while len(seen) < steps:  # The peer's own timeout of 10 s ends a wait for what never comes.
        frame = read(peer)
        if frame["kind"] == "step":
            seen.append(frame["step"])
    assert seen == list(range(steps))
    peer.close()
