"""The file of a command's output: copied by whole lines as its reader takes them, and freed behind who has read it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.command.output import (
    BACKLOG_BYTES_MAX,
    HEAD_BYTES,
    KEPT_BYTES,
    PARTIAL_S,
    WAITING_BYTES_MAX,
    OutputCopy,
    make_output,
)

LINE = b"a line of sixty-four bytes, whose last one is where a line ends\n"
MIB = 1 << 20


class Reader:
    """Who takes the output, or does not."""

    def __init__(self) -> None:
        self.seen = b""
        self.waiting = 0
        self.told: list[str] = []

    def copy(self, path: Path, **how: Callable[[int, int, int], None]) -> OutputCopy:
        return OutputCopy(path, self.show, lambda: self.waiting, self.told.append, **how)

    def show(self, data: bytes) -> None:
        self.seen += data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_it_is_its_users_alone_and_that_of_the_launch_before_stays_beside_it(path: Path) -> None:
    for text in (b"first", b"second", b"third"):
        with make_output(path) as output:
            output.write(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (path.read_bytes(), path.with_name("output.log.1").read_bytes()) == (b"third", b"second")


def test_a_link_of_that_name_is_not_written_through(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"somebody's")
    path.symlink_to(tmp_path / "other")
    with make_output(path) as output:
        output.write(b"mine")
    assert (tmp_path / "other").read_bytes() == b"somebody's"


def test_whole_lines_are_shown_at_once_and_an_unfinished_one_after_a_while(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        output.write(b"one\ntwo\nthr")
        copy.step(0.0)
        assert reader.seen == b"one\ntwo\n"
        copy.step(0.1)
        copy.step(0.1 + PARTIAL_S)
        assert reader.seen == b"one\ntwo\nthr"
        output.write(b"ee\n\r 10%|#  ")
        copy.step(2.0)
        output.write(b"|\r 20%|## |")
        copy.step(2.1)
    assert reader.seen == b"one\ntwo\nthree\n\r 10%|#  |\r"


def test_a_slow_reader_loses_nothing_the_file_is_the_queue(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        output.write(LINE * 50_000)
        reader.waiting = WAITING_BYTES_MAX
        copy.step(0.0)
        assert reader.seen == b""
        reader.waiting = 0
        copy.step(0.1)
    assert reader.seen == LINE * 50_000


def _blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_what_was_shown_and_read_is_freed_but_for_its_first_bytes_and_the_last_mib(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        for _ in range(20):
            output.write(LINE * (MIB // len(LINE)))
        copy.step(0.0)
        assert _blocks(path) >= 20 * MIB, "nobody has judged it yet"
        copy.note_read(20 * MIB)
        copy.step(0.1)
        if reader.told:
            pytest.skip(reader.told[0])
    data = path.read_bytes()
    assert _blocks(path) <= 3 * MIB
    assert len(data) == 20 * MIB, "who appends to it goes on where it was"
    assert data[:HEAD_BYTES] == LINE * (HEAD_BYTES // len(LINE)), "a follower knows it by them"
    assert data[-KEPT_BYTES:] == LINE * (KEPT_BYTES // len(LINE))


def test_a_file_system_that_frees_nothing_is_told_of_once(path: Path, reader: Reader) -> None:
    def refuse(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    with make_output(path) as output:
        copy = reader.copy(path, free=refuse)
        for part in range(1, 9):
            output.write(LINE * (MIB // len(LINE)))
            copy.note_read(part * MIB)
            copy.step(float(part))
    assert len(reader.told) == 1
    assert str(path) in reader.told[0]


def test_nobody_who_reads_it_fills_no_disk_and_is_told_what_he_missed(path: Path, reader: Reader) -> None:
    freed: list[tuple[int, int]] = []
    with make_output(path) as output:
        copy = reader.copy(path, free=lambda _fd, offset, length: freed.append((offset, length)))
        reader.waiting = WAITING_BYTES_MAX
        os.truncate(path, 2 * BACKLOG_BYTES_MAX)
        output.write(LINE * (2 * MIB // len(LINE)))
        copy.step(0.0)
        reader.waiting = 0
        copy.step(0.1)
    assert freed == [(HEAD_BYTES, BACKLOG_BYTES_MAX + 2 * MIB - HEAD_BYTES)], "all but what a reader may come back for"
    first, _, rest = reader.seen.partition(b"\n")
    assert b"lost here" in first
    assert rest == LINE * (KEPT_BYTES // len(LINE) - 1), "it goes on with a whole line"


def test_a_burst_is_freed_while_it_is_shown(path: Path) -> None:
    """Showing 30 MiB takes a while, in which as much comes again."""
    freed: list[int] = []
    with make_output(path) as output:
        size = 0

        def show(_data: bytes) -> None:
            nonlocal size
            if size < 4 * BACKLOG_BYTES_MAX:
                size += MIB
                os.truncate(path, size)
            most.append(size - (freed[-1] if freed else 0))

        most: list[int] = []
        copy = OutputCopy(path, show, lambda: 0, lambda _: None, free=lambda _fd, at, count: freed.append(at + count))
        output.write(LINE)
        copy.step(0.0)
    assert size == 4 * BACKLOG_BYTES_MAX
    assert max(most) <= BACKLOG_BYTES_MAX + 4 * MIB


def test_one_that_was_emptied_is_copied_from_its_begin_on(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        output.write(LINE * 3)
        copy.step(0.0)
        os.truncate(path, 0)
        output.write(b"anew\n")
        copy.step(0.1)
    assert reader.seen == LINE * 3 + b"anew\n"


def test_one_that_was_emptied_and_has_grown_beyond_where_it_was_is_known_by_its_first_bytes(
    path: Path, reader: Reader
) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        output.write(LINE)
        copy.step(0.0)
        os.truncate(path, 0)
        output.write(b"anew\n" + LINE * 3)
        copy.step(0.1)
    assert reader.seen == LINE + b"anew\n" + LINE * 3


def test_what_was_not_shown_of_one_that_was_emptied_is_said(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        output.write(LINE * 3)
        reader.waiting = WAITING_BYTES_MAX
        copy.step(0.0)
        os.truncate(path, 0)
        output.write(b"anew\n")
        reader.waiting = 0
        copy.step(0.1)
    lost, _, rest = reader.seen.partition(b"\n")
    assert lost.endswith(b": %d" % (3 * len(LINE)))
    assert rest == b"anew\n"


def test_its_end_shows_the_unfinished_line_too_and_says_what_was_not_taken(path: Path, reader: Reader) -> None:
    with make_output(path) as output:
        copy = reader.copy(path)
        copy.begin()
        output.write(b"whole\nunfinished")
        assert copy.finish(60.0) == 0
        assert reader.seen == b"whole\nunfinished"
        stuck = reader.copy(path)
        reader.waiting = WAITING_BYTES_MAX
        stuck.begin()
        assert stuck.finish(0.0) == len(b"whole\nunfinished")
