"""A log whose writer has taken room for it, and fills that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.trainers.jsonl_tail import JsonlTail
from tests.unit.adapters.trainers.test_jsonl_tail import Tail, line, steps

SIZE = 3_000_000


def allocated(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    os.posix_fallocate(fd, 0, SIZE)
    os.close(fd)


def zeroed(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(bytes(SIZE - file.tell()))


WAYS = (lambda path: os.truncate(path, SIZE), allocated, zeroed)


@pytest.fixture(params=WAYS, ids=("truncated up", "allocated", "zeros written"))
def take_room(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    way: Callable[[Path], None] = request.param
    return way


class Filled:
    """As a writer fills the file that it has taken room for."""

    def __init__(self, path: Path, take_room: Callable[[Path], None], *, begin: bytes = b"") -> None:
        self.path, self.at = path, len(begin)
        path.write_bytes(begin)
        take_room(path)

    def write(self, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.at)
            file.write(data)
        self.at += len(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_room_is_waited_at_and_read_as_it_is_filled(path: Path, take_room: Callable[[Path], None]) -> None:
    tail = JsonlTail(str(path), from_start=True)
    file = Filled(path, take_room)
    for step in range(1, 60):  # Past the bytes by which the file is known.
        file.write(line(step=step))
        chunk = tail.read()
        assert chunk.lines == (line(step=step).rstrip(),)
        assert (chunk.gone, chunk.faulty, chunk.unread, chunk.holds) == (0, 0, 0, False)
        assert tail.is_at_end


def test_what_a_burst_puts_there_is_read_once(path: Path, take_room: Callable[[Path], None]) -> None:
    tail = Tail(path, from_start=True)
    file = Filled(path, take_room, begin=line(step=0))
    assert steps(tail) == [0]
    file.write(b"".join(line(step=step, padding="x" * 1000) for step in range(1, 2000)))
    assert [step for _ in range(4) for step in steps(tail)] == list(range(1, 2000))


def test_history_ends_where_room_begins(path: Path, take_room: Callable[[Path], None]) -> None:
    """A log that is preallocated was never read where costgov began beside its trainer."""
    file = Filled(path, take_room, begin=line(step=1))
    tail = Tail(path)
    assert steps(tail) == []
    file.write(line(step=2))
    assert steps(tail) == [2]


def test_a_later_reader_goes_on_in_the_room(path: Path, take_room: Callable[[Path], None]) -> None:
    file = Filled(path, take_room, begin=line(step=1))
    before = JsonlTail(str(path), from_start=True)
    saved = before.read().position
    before.close()
    assert saved is not None
    file.write(line(step=2))
    after = JsonlTail(str(path))
    after.go_on(saved)
    assert after.read().lines == (line(step=2).rstrip(),)


def test_a_file_with_room_is_left_for_the_one_in_its_place(path: Path, take_room: Callable[[Path], None]) -> None:
    tail = Tail(path, from_start=True)
    Filled(path, take_room, begin=line(step=1))
    assert steps(tail) == [1]
    path.rename(path.with_suffix(".1"))
    path.write_bytes(line(step=2))
    assert steps(tail) == [2]


def test_a_writer_that_gives_its_room_back_has_cut_nothing_off(path: Path, take_room: Callable[[Path], None]) -> None:
    tail = JsonlTail(str(path), from_start=True)
    file = Filled(path, take_room, begin=line(step=1))
    tail.read()
    os.truncate(path, file.at)
    assert (tail.read().gone, tail.is_at_end) == (0, True)
    os.truncate(path, 0)
    assert tail.read().gone == 0


def test_a_line_behind_zeros_is_read(path: Path, take_room: Callable[[Path], None]) -> None:
    """A machine that lost power leaves zeros at the end, and the next launch writes behind them."""
    tail = Tail(path, from_start=True)
    Filled(path, take_room, begin=line(step=1))
    assert steps(tail) == [1]
    with path.open("ab") as file:
        file.write(line(step=2) + line(step=3))
    assert [step for _ in range(4) for step in steps(tail)][-1:] == [3]
    path.write_bytes(line(step=4) + bytes(100))
    assert steps(tail) == [4]
    with path.open("ab") as file:
        file.write(line(step=5))
    assert steps(tail) == [5]


@pytest.mark.parametrize("from_start", [True, False])
def test_a_terabyte_of_room_is_not_looked_through(path: Path, *, from_start: bool) -> None:
    tail = Tail(path, from_start=from_start)
    path.write_bytes(line(step=1))
    os.truncate(path, 1 << 42)
    assert steps(tail) == [1] * from_start
    assert tail.tail.is_at_end
