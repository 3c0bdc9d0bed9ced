"""Something that is asked again and again, on a thread of its own: the loop takes what was answered and never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Asker(Generic[Answer]):
    """Asks every `period_s`, from the first `take` on. An answer that nobody has taken gives way to the next one."""

    def __init__(self, name: str, period_s: float, ask: Callable[[], Answer | None]) -> None:
        """`ask` may block for as long as its own bounds let it. None: there is no answer this time."""
        self._name = name
        self._period_s = period_s
        self._ask = ask
        self._lock = threading.Lock()
        self._newest: Answer | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> Answer | None:
        """The newest answer, once; None when there is no new one."""
        if (self._thread is None or not self._thread.is_alive()) and not self._closing.is_set():
            self._begin()
        with self._lock:
            newest, self._newest = self._newest, None
        return newest

    def close(self) -> None:
        """Ask no more. A question that is under way is left behind: its thread ends with it."""
        self._closing.set()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._go_on, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # No thread is to be had: the next time, then.
            return
        self._thread = thread

    def _go_on(self) -> None:
        try:
            while not self._closing.is_set():
                answer = self._ask()
                if answer is not None:
                    with self._lock:
                        self._newest = answer
                self._closing.wait(self._period_s)
        except BaseException:
            self._closing.wait(self._period_s)  # The fault is printed with the thread's end; who takes begins another.
            raise
