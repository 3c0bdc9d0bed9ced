"""The end of a command whose log is not read to its end: it is read on for a while, then told what was not judged."""

from __future__ import annotations

from types import SimpleNamespace

from governor.adapters.trainers.jsonl_tail import Chunk
from governor.adapters.trainers.unjudged import ALARM, Unjudged
from governor.cli.run.outcome import Outcome
from governor.cli.run.supervise import LOGS_NS, closing_lines, logs_are_read
from governor.core.base.units import MonoNs
from governor.core.events.machine import SourceTrouble
from tests.unit.cli.test_supervise import Beside

AT = MonoNs(1)


def told(unjudged: Unjudged, **chunk: int) -> list[str]:
    events = unjudged.see(AT, Chunk(**chunk))  # type: ignore[arg-type]
    assert all(isinstance(event, SourceTrouble) and event.alarm == ALARM for event in events)
    return [event.text for event in events if isinstance(event, SourceTrouble)]


def test_a_log_that_grows_on_is_not_waited_for_and_the_end_says_what_was_not_judged() -> None:
    beside = Beside()
    unjudged = Unjudged("run-1", "/data/output.log")
    stream = SimpleNamespace(has_read=lambda _since: False, unjudged=unjudged)
    governor = beside.governor
    governor.streams = [stream]
    assert told(unjudged, unread=700) == []
    assert not logs_are_read(governor, beside.command)
    beside.clock.advance(LOGS_NS)
    assert logs_are_read(governor, beside.command)
    assert "700 bytes" in closing_lines(governor, beside.command, Outcome("run-1"))[0]
    (event,) = unjudged.end(AT)
    assert isinstance(event, SourceTrouble)
    assert "700 bytes" in event.text


def test_what_was_read_to_its_end_says_nothing() -> None:
    unjudged = Unjudged("run-1", "/data/output.log")
    assert told(unjudged, unread=700) == told(unjudged) == []
    assert (unjudged.line, unjudged.end(AT)) == (None, [])


def test_what_is_gone_is_told_when_it_begins_and_when_it_has_doubled() -> None:
    unjudged = Unjudged("run-1", "/data/output.log")
    assert [bool(told(unjudged, gone=100)) for _ in range(5)] == [True, True, False, True, False]
    assert unjudged.line is not None
    assert "500 bytes" in unjudged.line
    assert unjudged.end(AT) == [], "its alarm was raised"
