"""When a pidfile is read, and whether it says that a log's writer has ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.trainers.deciders import PidfileRead
from governor.adapters.trainers.stream_files import Asked, Seen, StreamFiles
from governor.adapters.trainers.streams import PIDFILE_SLACK_S, Stream, names_who_has_ended
from governor.core.events.effects import Record
from governor.core.events.inputs import Event, Step, TrainerExited
from governor.core.events.streams import StreamOpened, StreamState, WriterGone
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at
from tests.unit.followed_log import AtOnce, Watch

LINE = '{"step": 1, "loss": 2.0}\n'
LATE = 10_000  # Seconds of uptime from now on: no process of these tests is so old.


class Rig:
    """A log that nobody has begun to write, and what its stream reports at each look, a quarter of a second apart."""

    def __init__(self, directory: Path) -> None:
        self.log, self.pidfile = directory / "m.jsonl", directory / "pid"
        self.processes = FakeProcesses()
        self.now = 0.0

    def begin(self, begin: Callable[[str, StreamFiles, object], AtOnce] = AtOnce) -> list[Event]:
        entry = Jsonl(path=self.log, run="log", pidfile=self.pidfile)
        self.stream = Stream(entry, self.processes, begin=begin)
        return self.look()

    def launch(self, pid: int) -> None:
        self.processes.add(pid, start_ticks=pid % 10)
        self.pidfile.write_text(f"{pid}\n")
        self.log.touch()

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


class Waiting(AtOnce):
    """Its answers have no news that would wake anybody: each is taken at the next look."""

    is_fresh = is_silent = False

    def ask(self, asked: Asked) -> None:
        super().ask(asked)
        self.is_fresh = True

    def take(self) -> Seen | None:
        is_taken, self.is_fresh = not (self.is_fresh or self.is_silent), False
        return super().take() if is_taken else None


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def told(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events if isinstance(event, (Step, StreamOpened, StreamState, TrainerExited))]


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


def test_the_end_of_a_process_is_told_behind_the_last_line_it_wrote(rig: Rig) -> None:
    rig.launch(4321)
    rig.begin()
    rig.write()
    rig.processes.end(4321)
    assert told(rig.look(2)) == [Step, TrainerExited]


def test_also_where_it_wrote_that_behind_the_look_that_saw_it_end(rig: Rig) -> None:
    rig.launch(4321)
    rig.begin(Waiting)
    rig.look(20)  # The last of these has asked for a look, five seconds after the first.
    rig.write()
    rig.processes.end(4321)
    assert told(rig.look(3)) == [Step, TrainerExited]


def test_an_end_that_is_not_told_yet_is_told_before_the_next_launch(rig: Rig) -> None:
    rig.launch(4321)
    rig.begin(Waiting)
    rig.look(20)
    rig.processes.end(4321)
    assert told(rig.look()) == []
    rig.launch(4322)
    rig.write()
    assert told(rig.look(3)) == [TrainerExited, StreamOpened, Step]


def test_an_end_that_is_not_told_yet_waits_for_no_file_server(rig: Rig) -> None:
    rig.launch(4321)
    answerers: list[Waiting] = []

    def begin(name: str, files: StreamFiles, wake: object) -> Waiting:
        answerers.append(Waiting(name, files, wake))
        return answerers[-1]

    rig.begin(begin)
    rig.look(20)
    rig.processes.end(4321)
    rig.look()
    answerers[0].is_silent = True
    assert told(rig.look(30)) == [TrainerExited, StreamState]


def test_the_step_of_the_last_line_is_the_ended_runs(tmp_path: Path) -> None:
    assert [row.data["step"] for row in rows_of_the_end(tmp_path, last=2.0) if row.kind == "ended"] == [4]


def test_a_nan_in_the_last_line_is_judged(tmp_path: Path) -> None:
    assert [row.data["step"] for row in rows_of_the_end(tmp_path, last=math.nan) if row.kind == "verdict"] == [4]


def rows_of_the_end(directory: Path, last: float) -> list[Record]:
    """Of a process that has ended since its fourth line, before that was read."""
    watch = Watch(directory)
    watch.write(1, 3)
    watch.poll(1)
    watch.write(4, 4, loss=last)
    watch.processes.end(4321)
    return [effect for effect in watch.poll(1.25) if isinstance(effect, Record)]


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
