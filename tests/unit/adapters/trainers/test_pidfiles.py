"""When a pidfile is read, and whether it says that a log's writer has ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from governor.adapters.trainers.deciders import PidfileRead
from governor.adapters.trainers.streams import PIDFILE_SLACK_S, Stream, names_who_has_ended
from governor.core.events.inputs import Event, TrainerExited
from governor.core.events.streams import StreamOpened, WriterGone
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at
from tests.unit.followed_log import AtOnce

LINE = '{"step": 1, "loss": 2.0}\n'
LATE = 10_000  # Seconds of uptime from now on: no process of these tests is so old.


class Rig:
    """A log that nobody has begun to write, and what its stream reports at each look, a quarter of a second apart."""

    def __init__(self, directory: Path) -> None:
        self.log, self.pidfile = directory / "m.jsonl", directory / "pid"
        self.processes = FakeProcesses()
        self.now = 0.0

    def begin(self) -> list[Event]:
        entry = Jsonl(path=self.log, run="log", pidfile=self.pidfile)
        self.stream = Stream(entry, self.processes, begin=AtOnce)
        return self.look()

    def look(self, times: int = 1) -> list[Event]:
        seen: list[Event] = []
        for _ in range(times):
            seen += self.stream.poll(at(self.now))
            self.now += 0.25
        return seen

    def write(self) -> None:
        with self.log.open("a") as log:
            log.write(LINE)

    def gone(self, times: int = 30) -> int:
        """How often the writer is said to be gone."""
        return len([event for event in self.look(times) if isinstance(event, WriterGone)])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def named(events: list[Event]) -> list[int]:
    return [process.pid for event in events if isinstance(event, StreamOpened) for process in event.processes]


def test_a_pidfile_is_read_as_soon_as_it_is_there_and_its_end_is_seen_as_soon(rig: Rig) -> None:
    rig.begin()
    rig.processes.add(4321, start_ticks=1)
    rig.pidfile.write_text("4321\n")
    rig.write()
    assert named(rig.look()) == [4321]
    rig.processes.end(4321)
    assert [event.at for event in rig.look(8) if isinstance(event, TrainerExited)] == [at(0.5)]


def test_the_process_of_the_next_launch_is_named_as_soon_as_its_pidfile_is_there(rig: Rig) -> None:
    rig.processes.add(4321, start_ticks=1)
    rig.pidfile.write_text("4321\n")
    assert named(rig.begin()) == [4321]
    rig.processes.add(54321, start_ticks=2)
    rig.pidfile.write_text("54321\n")
    assert named(rig.look()) == [54321]


def test_a_zombie_has_ended(rig: Rig) -> None:
    rig.begin()
    rig.processes.add(4321, start_ticks=1, becomes_zombie=True)
    rig.pidfile.write_text("4321\n")
    rig.look()
    rig.processes.end(4321)
    assert len([event for event in rig.look(8) if isinstance(event, TrainerExited)]) == 1


def test_a_writer_that_nobody_saw_is_gone_once_all_that_it_wrote_is_read(rig: Rig) -> None:
    rig.begin()
    rig.write()
    rig.pidfile.write_text("4321\n")
    assert rig.gone(1) == 0
    rig.write()
    assert rig.gone(1) == 0, "there was more"
    assert rig.gone() == 1


def test_a_pidfile_of_before_says_nothing_of_this_launch(rig: Rig) -> None:
    rig.pidfile.write_text("4321\n")
    rig.begin()
    rig.write()
    assert rig.gone() == 0


def test_nor_does_one_of_before_that_is_put_there_now(rig: Rig) -> None:
    rig.begin()
    rig.write()
    rig.pidfile.write_text("4321\n")
    os.utime(rig.pidfile, (time.time() - 3600,) * 2)
    assert rig.gone() == 0


@pytest.mark.parametrize("text", ["", "later\n", "1\n", None])
def test_nor_does_one_that_names_no_process(rig: Rig, text: str | None) -> None:
    rig.begin()
    rig.write()
    rig.pidfile.write_text(text or "")
    if text is None:
        rig.pidfile.unlink()
    assert rig.gone() == 0


def test_nor_does_one_whose_number_is_now_anothers(rig: Rig) -> None:
    rig.begin()
    rig.write()
    rig.processes.add(4321, start_ticks=_ticks(LATE))
    rig.pidfile.write_text("4321\n")
    assert rig.gone() == 0


def test_nor_does_one_whose_process_lives(rig: Rig) -> None:
    rig.begin()
    rig.write()
    rig.processes.add(4321, start_ticks=1)
    rig.pidfile.write_text("4321\n")
    assert rig.gone() == 0


def test_a_launch_between_two_looks_takes_the_earlier_ones_end_back(rig: Rig) -> None:
    rig.begin()
    rig.write()
    rig.pidfile.write_text("4321\n")
    assert rig.gone(1) == 0
    rig.processes.add(54321, start_ticks=1)
    rig.pidfile.write_text("54321\n")
    assert rig.gone() == 0


@pytest.mark.parametrize(
    ("written_s", "start_s", "is_zombie", "has_ended"),
    [
        (0, None, False, True),
        (-PIDFILE_SLACK_S, None, False, True),
        (-PIDFILE_SLACK_S - 1, None, False, False),
        (0, -60, False, False),
        (0, -60, True, True),
        (0, LATE, True, False),
    ],
    ids=["gone", "gone, by a coarse clock", "of before", "lives", "a zombie", "another's zombie"],
)
def test_who_has_ended(written_s: float, start_s: float | None, is_zombie: bool, has_ended: bool) -> None:
    processes, now_s = FakeProcesses(), time.time()
    if start_s is not None:
        processes.add(4321, start_ticks=_ticks(start_s), becomes_zombie=True)
    if is_zombie:
        processes.end(4321)
    read = PidfileRead(4321, now_s + written_s, {})
    assert names_who_has_ended(read, now_s, processes) == has_ended
    assert not names_who_has_ended(None, now_s, processes)


def _ticks(later_s: float) -> int:
    """The start of a process so many seconds from now, in ticks of the machine's boot clock."""
    return round((time.clock_gettime(time.CLOCK_BOOTTIME) + later_s) * os.sysconf("SC_CLK_TCK"))
