"""What several threads of a trainer share with us, at the moments at which threads are worst at sharing."""

from __future__ import annotations

import os
import select
import signal
import threading

from tests.unit.shim.governor_end import Ends
from trainer_shim.signal_wakeup import ReentrantEvent


def test_a_call_before_the_wait_has_record_and_calls_do_not_pile_up() -> None:
    wakeup = ReentrantEvent()
    for _ in range(1000):
        wakeup.set()
    wakeup.wait(10)
    wakeup.wait(0)  # Forgotten: this one runs into its time.
    thread = threading.Thread(target=wakeup.wait, args=(None,), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "a call was left over"
    wakeup.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_child_forked_while_another_thread_sends_does_not_hang(ends: Ends) -> None:
    """A data-loader worker is forked at any moment; a lock that the listener held at that one is never given back."""
    governor, _peer = ends
    held, done = threading.Event(), threading.Event()

    def send() -> None:
        with governor._lock:
            held.set()
            done.wait(10)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0)  # Behind the hooks that run after a fork.
    done.set()
    sender.join(10)
    ended = os.pidfd_open(child)
    try:
        assert select.select([ended], [], [], 10)[0], "the child hangs in a hook of ours"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ended)
