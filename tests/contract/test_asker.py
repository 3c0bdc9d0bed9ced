"""What is asked beside the loop: the loop never waits, takes each answer once, and the newest."""

from __future__ import annotations

from queue import SimpleQueue

from governor.adapters.machine.host_watch import NoticeWatch, Poller
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, WallNs
from governor.core.events.machine import SpotNotice
from governor.remote_ports import Notice
from tests.contract.fakes import FakeClock
from tests.contract.fakes_cloud import FakeCloud

SAFETY_S = 30


class Oracle:
    """Answers when it is told to. A question asked says that the answer before it is there to be taken."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self.poller = Poller("oracle", 0.0, self._ask)

    def _ask(self) -> str | None:
        self._asked.put(None)
        return self._answers.get(timeout=SAFETY_S)

    def is_asked(self) -> None:
        self._asked.get(timeout=SAFETY_S)

    def was_never_asked(self) -> bool:
        return self._asked.empty()

    def answers(self, *answers: str | None) -> None:
        for answer in answers:
            self._answers.put(answer)
            self.is_asked()

    def close(self) -> None:
        self.poller.close()
        self._answers.put(None)


def test_the_loop_does_not_wait_for_an_answer_and_takes_the_newest_once() -> None:
    oracle = Oracle()
    assert oracle.poller.take() is None, "the question is under way"
    oracle.is_asked()
    oracle.answers("one", "two", None)
    assert oracle.poller.take() == "two", "no answer does not take away the one before"
    assert oracle.poller.take() is None
    oracle.close()


def test_who_is_closed_asks_no_more() -> None:
    oracle = Oracle()
    oracle.poller.close()
    assert oracle.poller.take() is None
    assert oracle.was_never_asked()


def test_a_notice_is_told_with_what_is_left_by_our_own_clock() -> None:
    clock, cloud = FakeClock(), FakeCloud()
    cloud.announced = Notice("terminate", WallNs(clock.wall() + 90 * NS_PER_S))
    watch = NoticeWatch(cloud, clock)
    events = []
    while not events:
        events = watch.poll(MonoNs(7))
    assert events == [SpotNotice(MonoNs(7), "terminate", DurationNs(90 * NS_PER_S))]
    watch.close()


def test_a_provider_that_gives_no_notice_is_not_asked() -> None:
    cloud = FakeCloud(gives_notice=False)
    assert NoticeWatch(cloud, FakeClock()).poll(MonoNs(7)) == []
    assert NoticeWatch(None, FakeClock()).poll(MonoNs(7)) == []
