"""What counts as one signal where it comes to us and to the process in our former place, which passes it on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from governor.daemon.signals import COPY_S, Copies

TERM, USR1 = signal.SIGTERM, signal.SIGUSR1
NEAR, FAR = COPY_S / 2, COPY_S * 2


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("what_comes", "heard"),
    [
        # (when, which, was it passed on)
        ([(0.0, TERM, False), (0.01, TERM, True)], [0.0]),
        ([(0.0, TERM, True), (0.01, TERM, False)], [0.0]),
        ([(0.0, TERM, False), (NEAR, TERM, True), (4.0, TERM, False), (4.0, TERM, True)], [0.0, 4.0]),
        ([(0.0, TERM, False), (0.0, TERM, True), (0.5, TERM, True), (0.5, TERM, False)], [0.0, 0.5]),
        ([(0.0, TERM, True), (0.1, TERM, True), (0.2, TERM, True)], [0.0, 0.1, 0.2]),  # To the other process alone.
        ([(0.0, TERM, False), (0.1, TERM, False)], [0.0, 0.1]),  # To us alone, as Ctrl-C of a terminal.
        ([(0.0, TERM, False), (FAR, TERM, True)], [0.0, FAR]),
        ([(0.0, TERM, False), (0.01, USR1, True)], [0.0, 0.01]),
    ],
)
def test_what_was_passed_on_and_what_came_directly_are_one_if_they_are_near(
    pipe: tuple[int, int], what_comes: list[tuple[float, signal.Signals, bool]], heard: list[float]
) -> None:
    now = [0.0]
    copies = Copies(lambda: now[0])
    copies.expect(pipe[0])
    found = []
    for now[0], signum, was_passed_on in what_comes:
        if was_passed_on:
            os.write(pipe[1], bytes([signum]))
        if not copies.is_second(signum):
            found.append(now[0])
    assert found == heard


def test_where_nobody_passes_signals_on_each_counts() -> None:
    assert not any(Copies(lambda: 0.0).is_second(TERM) for _ in range(3))
