"""Waking a thread of ours from anywhere, also from a signal handler that interrupts somebody who is doing just that."""

from __future__ import annotations

import queue
from typing import Optional


class Wakeup:
    """As threading.Event, whose own lock would hang such a handler for good; SimpleQueue.put() is reentrant."""

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[None]" = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the waiter, now or when it comes to wait."""
        if self._calls.qsize() < 2:  # More say nothing more.
            self._calls.put(None)

    def wait(self, timeout_s: Optional[float]) -> None:
        """Return at a call, also at one made before, or after the time. What was called is then forgotten."""
        try:
            self._calls.get(timeout=timeout_s)
            while True:
                self._calls.get_nowait()
        except queue.Empty:
            pass
