"""Frames that wait: what the training thread queues and the listener thread sends, against a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.unit.shim.governor_end import Ends, Server, connected, hello, read, read_now
from trainer_shim import guard
from trainer_shim.governor_socket import BACKLOG_FRAMES, QUEUE_FRAMES_MAX, GovernorSocket
from trainer_shim.listener import (
    FRAMES_PER_TURN_MIN,
    SEND_PERIOD_NS,
    TURNS_PER_PERIOD_MAX,
    Listener,
    next_multiple,
)
from trainer_shim.progress import Progress
from trainer_shim.scalars import is_sound
from trainer_shim.signal_wakeup import SignalWakeup
from trainer_shim.watcher import Watcher

NS_PER_S = 1_000_000_000


def test_a_queued_frame_waits_and_keeps_its_time(ends: Ends) -> None:
    governor, peer = ends
    read(peer)
    before = time.monotonic_ns()
    governor.later("step", {"step": 1, "attempt_step": 1})
    after = time.monotonic_ns()
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(10)
    assert governor.queued == 1
    assert governor.send_queued()
    assert before <= read(peer)["mono_ns"] <= after
    assert governor.queued == 0


@pytest.mark.parametrize("how", ["post", "put"])
def test_what_leaves_at_once_takes_what_is_queued_along(ends: Ends, how: str) -> None:
    governor, peer = ends
    read(peer)
    governor.later("step", {"step": 1, "attempt_step": 1})
    governor.later("step", {"step": 2, "attempt_step": 2})
    if how == "post":
        governor.post("phase", {"phase": "eval"})
    else:
        governor.put("ack", {"incident": "i", "what": "agreed", "step": 2})
    kinds = [read(peer)["kind"] for _ in range(3)]
    assert kinds == ["step", "step", "phase" if how == "post" else "ack"]


def test_the_hello_comes_before_what_was_queued_for_the_last_connection(server: Server) -> None:
    governor, peer = connected(server)
    read(peer)
    governor.later("step", {"step": 1, "attempt_step": 1})
    peer.close()
    now = time.monotonic_ns()
    governor.receive(now)
    assert not governor.send_queued(), "nobody is connected"
    assert governor.connect(now)
    peer = server.accept()
    assert governor.send_queued()
    assert [read(peer)["kind"] for _ in range(2)] == ["hello", "step"]
    governor.close()
    peer.close()


def test_whoever_queues_faster_than_the_listener_sends_helps_it(ends: Ends) -> None:
    """Nobody listens here, and the peer reads nothing: what does not fit into its buffer is counted, none is kept."""
    governor, peer = ends
    steps = 2 * QUEUE_FRAMES_MAX
    for step in range(steps):
        governor.later("step", {"step": step, "attempt_step": step})
        assert governor.queued <= BACKLOG_FRAMES + 1
    governor.send_queued()
    seen = [frame["step"] for frame in iter(partial(read_now, peer), None) if frame["kind"] == "step"]
    assert seen == sorted(seen)
    assert len(seen) + governor.dropped["step"] == steps
    assert len(seen) > BACKLOG_FRAMES


def test_the_queue_is_bounded_and_counts_what_it_turned_away(ends: Ends) -> None:
    governor, _peer = ends
    held, done = threading.Event(), threading.Event()

    def hold() -> None:  # As a sender that was put to sleep by the machine.
        with governor._lock:
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(10)
    for step in range(BACKLOG_FRAMES):
        governor.later("step", {"step": step, "attempt_step": step})
    governor._queue.extend([("step", 0, {"step": 0, "attempt_step": 0})] * (QUEUE_FRAMES_MAX - BACKLOG_FRAMES))
    governor.later("step", {"step": 1, "attempt_step": 1})
    assert (governor.queued, governor.dropped["step"]) == (QUEUE_FRAMES_MAX, 1)
    done.set()
    holder.join(10)


def test_without_a_governor_nothing_is_kept() -> None:
    governor = GovernorSocket(["/nonexistent/s"], 0, hello)
    governor.later("step", {"step": 1, "attempt_step": 1})
    assert (governor.queued, governor.dropped["step"]) == (0, 1)


def test_a_frame_that_cannot_be_told_costs_itself_alone(ends: Ends) -> None:
    governor, peer = ends
    read(peer)
    known = guard.faults.get("a step frame", 0)
    governor.later("step", {"step": 1, "attempt_step": 1, "lr": object()})
    governor.later("step", {"step": 2, "attempt_step": 2})
    assert not governor.send_queued()
    frame = read(peer)
    assert (frame["step"], frame["dropped"]["step"]) == (2, 1)
    assert guard.faults["a step frame"] == known + 1


class Interrupted(dict):  # type: ignore[type-arg]
    """Fields whose encoding is interrupted, as a script's signal handler interrupts its own thread."""

    def __init__(self, handler: Callable[[], object], **fields: object) -> None:
        super().__init__(fields)
        self.handler: Callable[[], object] | None = handler

    def items(self):  # type: ignore[no-untyped-def]
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return super().items()


def in_time(call: Callable[[], object]) -> None:
    """On a thread of its own: what locks up shows as a thread that does not end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "locked up"


def test_a_handler_that_says_bye_inside_a_send_does_not_lock_up(ends: Ends) -> None:
    governor, peer = ends
    read(peer)
    for step in range(3):
        governor.later(
            "step", Interrupted(lambda: governor.put("bye", {"reason": "handler"}), step=step, attempt_step=step)
        )
    in_time(governor.send_queued)
    frames = [read(peer) for _ in range(6)]
    assert sorted(frame["step"] for frame in frames if frame["kind"] == "step") == [0, 1, 2]
    assert governor.unconfirmed() == 1 + 3, "the hello and each handler's bye wait for confirms of their own"


def test_a_handler_that_empties_the_queue_leaves_the_ack_behind_it_whole(ends: Ends) -> None:
    governor, peer = ends
    read(peer)
    for step in range(3):
        governor.later(
            "step", Interrupted(lambda: governor.post("phase", {"phase": "checkpoint"}), step=step, attempt_step=step)
        )
    in_time(lambda: governor.put("ack", {"incident": "i", "what": "saved", "step": 2}))
    kinds = [read(peer)["kind"] for _ in range(7)]
    assert sorted(kinds) == ["ack", *["phase"] * 3, *["step"] * 3]
    assert kinds[-1] == "ack", "an ack of a step comes after the step"


def test_no_two_reliable_frames_share_a_number(ends: Ends) -> None:
    governor, peer = ends
    record = Interrupted(lambda: governor.put("bye", {"reason": "handler"}), path="/ck")
    in_time(lambda: governor.put("ack", {"incident": "i", "what": "saved", "checkpoint": record}))
    seqs = [read(peer)["seq"] for _ in range(3)]  # With the hello's.
    assert len(set(seqs)) == 3


def test_a_handler_inside_put_does_not_meet_a_listener_that_reconnects(server: Server) -> None:
    """Two locks, taken in one order here and in the other there, would hang the training thread."""
    governor, peer = connected(server)
    read(peer)
    peer.close()
    reconnected = threading.Event()

    def reconnect() -> None:
        governor.receive(time.monotonic_ns())
        governor.connect(time.monotonic_ns())
        reconnected.set()

    def handler() -> None:
        threading.Thread(target=reconnect, daemon=True).start()
        reconnected.wait(0.2)  # The listener is in there, or waits for us.
        governor.post("phase", {"phase": "checkpoint"})

    record = Interrupted(handler, path="/ck")
    in_time(lambda: governor.put("ack", {"incident": "i", "what": "saved", "checkpoint": record}))
    assert reconnected.wait(10)
    governor.close()


def test_what_was_queued_before_an_ack_leaves_before_it_also_on_a_new_connection(server: Server) -> None:
    governor, peer = connected(server)
    read(peer)
    governor.later("step", {"step": 1, "attempt_step": 1})
    peer.close()
    now = time.monotonic_ns()
    governor.receive(now)
    governor.put("ack", {"incident": "i", "what": "saved", "step": 1})
    assert governor.connect(now)
    peer = server.accept()
    assert [read(peer)["kind"] for _ in range(3)] == ["hello", "step", "ack"]
    governor.close()
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
    assert is_sound({**SOUND, **change}) is sound


class Recorder:
    """The governor as the watcher uses it for steps."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, object]] = []

    def later(self, kind: str, fields: dict[str, object]) -> None:
        self.sent.append(("later", fields["step"]))

    def post(self, kind: str, fields: dict[str, object]) -> None:
        self.sent.append(("at once", fields["step"]))

    def close(self) -> None: ...


def test_only_a_reason_to_halt_leaves_at_once() -> None:
    watcher = Watcher(hello(), Progress(threading.get_ident()), None, environ={}, signal=0)
    recorder = watcher._governor = Recorder()  # type: ignore[assignment]
    watcher._alive = True
    watcher.step_frame({**SOUND, "step": 1})
    watcher.step_frame({**SOUND, "step": 2, "loss": float("nan")})
    watcher.step_frame({**SOUND, "step": 3})
    watcher._alive = False
    watcher._let_go()
    assert recorder.sent == [("later", 1), ("at once", 2), ("later", 3)]  # type: ignore[attr-defined]


def test_ranks_wake_at_the_same_multiples() -> None:
    period = SEND_PERIOD_NS
    assert next_multiple(5 * period, period) == next_multiple(6 * period - 1, period) == 6 * period


class NoRequests:
    def receive(self, request: object) -> None:
        raise AssertionError("no request was sent")


class NoAgreement:
    def wake(self) -> None:
        raise AssertionError("no request was sent")


def broken_beat() -> None:
    raise RuntimeError("a beat that fails")


def listener_of(governor: GovernorSocket, wakeup: SignalWakeup, on_beat: Callable[[], None] = lambda: None) -> Listener:
    progress = Progress(threading.get_ident())
    return Listener(governor, wakeup, progress, NoRequests(), NoAgreement(), on_beat, lambda _: None)  # type: ignore[arg-type]


def test_a_queued_frame_waits_a_quarter_of_a_second_at_most(server: Server) -> None:
    governor, peer = connected(server)
    wakeup = SignalWakeup()
    listener = listener_of(governor, wakeup)
    listener._send(time.monotonic_ns())
    assert listener.due_ns() - time.monotonic_ns() <= NS_PER_S // 4
    governor.close()
    peer.close()
    wakeup.give_back()


def test_a_beat_that_fails_costs_no_steps(server: Server) -> None:
    governor, peer = connected(server)
    read(peer)
    wakeup = SignalWakeup()
    listener = listener_of(governor, wakeup, broken_beat)
    listener.start()
    governor.later("step", {"step": 1, "attempt_step": 1})
    assert read(peer)["kind"] == "step"
    assert listener.stop(10)
    governor.close()
    peer.close()
    wakeup.give_back()


@pytest.fixture
def listening(server: Server) -> Iterator[tuple[GovernorSocket, Listener]]:
    governor = GovernorSocket([str(server.path)], 0, hello)
    assert governor.connect(time.monotonic_ns())
    wakeup = SignalWakeup()
    listener = listener_of(governor, wakeup)
    yield governor, listener
    assert listener.stop(10)
    governor.close()
    wakeup.give_back()


def test_the_listener_sends_a_long_queue_whole_and_in_order(
    server: Server,
    listening: tuple[GovernorSocket, Listener],
) -> None:
    governor, listener = listening
    peer = server.accept()
    read(peer)
    steps = 20 * FRAMES_PER_TURN_MIN * TURNS_PER_PERIOD_MAX + 1
    for step in range(steps):
        governor.later("step", {"step": step, "attempt_step": step})
    listener.start()
    seen = []
    while len(seen) < steps:  # The peer's own timeout of 10 s ends a wait for what never comes.
        frame = read(peer)
        if frame["kind"] == "step":
            seen.append(frame["step"])
    assert seen == list(range(steps))
    peer.close()
