"""Listing a thousand incidents: a real journal, a real socket, and nothing of it decoded on the loop's thread."""

from __future__ import annotations

import json
import queue
import select
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from governor.adapters.control_socket import ControlServer
from governor.adapters.journal.writer import SqliteJournal, open_journal
from governor.app import requests
from governor.daemon.incident_queries import QUESTIONS_AT_ONCE_MAX, IncidentQueries, answer_line
from governor.wire.control_client import INCIDENTS_MAX, Answer, ask
from tests.contract.fakes import FakeJournal

DEADLINE_S = 60.0


class Loop:
    """The part of the daemon's loop that the control socket sees, turned by hand on this thread."""

    def __init__(self, journal: Any, path: Path) -> None:
        self.control = ControlServer(str(path))
        self.path = str(path)
        self.performer = SimpleNamespace(journal=journal)
        self.incident_queries = IncidentQueries()
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.reply = self.control.reply

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.put(call)

    def turn(self, wanted: int = 1) -> list[dict[str, Any] | None]:
        """Take so many requests and return what was answered at once."""
        answered: list[dict[str, Any] | None] = []
        while len(answered) < wanted:
            assert select.select([self.control], [], [], DEADLINE_S)[0], "nothing arrived"
            for request in self.control.poll():
                answered.append(requests.answer(self, request))  # type: ignore[arg-type]
                if answered[-1] is not None:
                    self.control.reply(request.conn, answered[-1])
        return answered

    def finish(self, poller: threading.Thread) -> None:
        """Make the calls that came from other threads, and send until the client has it all."""
        self.calls.get(timeout=DEADLINE_S)()
        while poller.is_alive():
            self.control.poll()
            poller.join(0.01)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened, problem = open_journal(str(tmp_path / "costgov.db"), str(tmp_path))
    assert problem is None
    yield opened
    opened.close()


def snapshot(number: int) -> dict[str, Any]:
    told = {"run": "run7", "halt_stage": "HALTED", "reason": "loss_nan", "spend_usd_micros": 0, "loss": float("nan")}
    return {"incident_id": f"run7.gpu-17.{number}", "opened_wall_ns": number, "timeline": [], **told}


def asking(path: str, request: dict[str, Any], answers: list[Answer]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(ask(path, request, DEADLINE_S)))
    thread.start()
    return thread


def ask_of(loop: Loop, **request: Any) -> Any:
    answers: list[Answer] = []
    poller = asking(loop.path, {"cmd": "incidents", **request}, answers)
    assert loop.turn() == [None], "the answer comes later"
    loop.finish(poller)
    assert answers[0].ok, answers[0].error
    return [found["incident_id"] for found in answers[0].data]


def test_of_a_thousand_incidents_the_loop_decodes_and_encodes_none(journal: SqliteJournal, short_tmp: Path) -> None:
    for number in range(INCIDENTS_MAX):
        journal.close_incident(f"run7.gpu-17.{number}", snapshot(number))
    loop = Loop(journal, short_tmp / "c.sock")
    on_this_thread: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in ("loads", "dumps", "worded", "incidents"):
            on_this_thread[frame.f_code.co_name] += 1

    sys.setprofile(count)  # Of this thread alone: the loop's.
    try:
        ids = ask_of(loop, last=INCIDENTS_MAX)
    finally:
        sys.setprofile(None)
    assert ids == [f"run7.gpu-17.{number}" for number in range(INCIDENTS_MAX)]
    assert on_this_thread == {"loads": 1}, "the request itself"
    loop.control.close()


class SlowJournal(FakeJournal):
    """A disk that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()

    def incidents(self, last: int = 100) -> list[Mapping[str, Any]]:
        assert self.let.wait(DEADLINE_S)
        return super().incidents(last)


def test_while_the_disk_does_not_answer_the_loop_goes_on_and_questions_do_not_pile_up(short_tmp: Path) -> None:
    journal = SlowJournal()
    loop = Loop(journal, short_tmp / "c.sock")
    answers: list[Answer] = []
    askers = [asking(loop.path, {"cmd": "incidents"}, answers) for _ in range(QUESTIONS_AT_ONCE_MAX)]
    assert loop.turn(QUESTIONS_AT_ONCE_MAX) == [None] * QUESTIONS_AT_ONCE_MAX
    refused = asking(loop.path, {"cmd": "incidents"}, answers)
    (answered,) = loop.turn()
    assert answered is not None
    assert answered["code"] == "unavailable"
    refused.join(DEADLINE_S)
    pinged = asking(loop.path, {"cmd": "ping"}, answers)
    (answered,) = loop.turn()
    assert answered is not None
    assert answered["ok"]
    pinged.join(DEADLINE_S)
    journal.let.set()
    for _ in askers:
        loop.calls.get(timeout=DEADLINE_S)()
    for poller in askers:
        poller.join(DEADLINE_S)
    assert [answer.ok for answer in answers].count(True) == QUESTIONS_AT_ONCE_MAX + 1
    assert ask_of(loop) == []
    loop.control.close()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("last", ["run7.gpu-17.20"]),
        ("run7.gpu-17.2", ["run7.gpu-17.2"]),
        ("run7.gpu-17.1", ["run7.gpu-17.1"]),
        ("run7.gpu-17.20", ["run7.gpu-17.20"]),
        ("nope", []),
        ("run7", [f"run7.gpu-17.{number}" for number in range(1, 21)]),
    ],
)
def test_of_one_incident_only_that_one_is_sent(
    journal: SqliteJournal, short_tmp: Path, wanted: str, found: list[str]
) -> None:
    for number in range(1, 21):
        journal.close_incident(f"run7.gpu-17.{number}", snapshot(number))
    loop = Loop(journal, short_tmp / "c.sock")
    assert ask_of(loop, last=INCIDENTS_MAX, of=wanted) == found
    loop.control.close()


def test_an_answer_to_a_client_that_has_gone_is_no_error(journal: SqliteJournal, short_tmp: Path) -> None:
    loop = Loop(journal, short_tmp / "c.sock")
    loop.reply(12345, b'{"ok":true}\n')
    loop.control.close()


def test_nan_is_said_in_the_wires_words(journal: SqliteJournal) -> None:
    journal.close_incident("run7.gpu-17.1", snapshot(1))
    assert json.loads(answer_line(journal, 10, None), parse_constant=pytest.fail)["data"][0]["loss"] == "nan"
