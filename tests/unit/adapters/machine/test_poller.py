"""A question that fails is no answer; the next one is asked all the same."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import Final

import pytest

from governor.adapters.clouds.ec2 import metadata
from governor.adapters.machine.host_watch import Poller
from governor.core.base.units import NS_PER_S, WallNs
from governor.remote_ports import Notice

LIMIT_S: Final = 10.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # It is printed, and that is right.
def test_a_question_that_breaks_does_not_end_the_asking() -> None:
    count = iter(range(10**9))
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def ask() -> int:
        number = next(count)
        asked.put(number)
        if number == 0:
            raise RecursionError
        return number

    poller = Poller("test", 0.01, ask)
    try:
        answer = None
        limit = time.monotonic() + LIMIT_S
        while answer is None and time.monotonic() < limit:  # As the loop does, tick by tick.
            answer = poller.take()
            if answer is None:
                with contextlib.suppress(queue.Empty):
                    asked.get(timeout=0.25)
        assert answer
    finally:
        poller.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'"stop"', b'{"action": 1}', b'{"action": "!"}', b"[" * 60_000])
def test_what_is_no_notice_is_none(body: bytes) -> None:
    assert metadata.notice_of(body) is None


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "soon", "2026-11-22T04:00"])
def test_a_time_that_is_none_does_not_hide_the_notice(when: str) -> None:
    assert metadata.notice_of(f'{{"action": "stop", "time": "{when}"}}'.encode()) == Notice("stop", None)


def test_a_notice_has_its_time() -> None:
    found = metadata.notice_of(b'{"action": "terminate", "time": "1970-01-01T00:02:00Z"}')
    assert found == Notice("terminate", WallNs(120 * NS_PER_S))
