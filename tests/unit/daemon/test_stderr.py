"""Who writes on a governor's standard error waits for no reader. What a reader takes late comes in order."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
import termios
from collections.abc import Iterator
from typing import IO

import pytest

from governor.daemon.stderr import ENTRY_BYTES, QueuedStream, stderr_that_never_waits

SAFETY_S = 60.0
AT_ONCE_S = 0.0


def lost_line(lines: int) -> str:
    return f"lost {lines}"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its two ends. It holds one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def read_until(fd: int, last: bytes) -> bytes:
    """What is read until it ends so."""
    seen = b""
    while not seen.endswith(last):
        seen += os.read(fd, 65536)
    return seen


def fill(writing: int) -> int:
    """Write until nothing more goes in, as before a reader that hangs. How many bytes went in."""
    os.set_blocking(writing, False)
    filled = 0
    try:
        while True:
            filled += os.write(writing, b"x")
    except BlockingIOError:
        os.set_blocking(writing, True)
    return filled


def test_a_pipe_that_nobody_reads_holds_up_no_writer_and_nothing_is_lost(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    filled = fill(writing)
    stream = QueuedStream(writing, lost_line)
    lines = [f"line {number} of a halt\n" for number in range(1000)]
    for line in lines:
        stream.write(line)
    assert not stream.drain(AT_ONCE_S), "all of it waits"
    assert read_until(reading, lines[-1].encode()) == b"x" * filled + "".join(lines).encode()
    assert stream.drain(SAFETY_S)


def test_of_more_than_is_kept_the_last_lines_are_shown_and_the_lost_ones_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    filled = fill(writing)
    stream = QueuedStream(writing, lost_line, bytes_max=10 * (len("line 100\n") + ENTRY_BYTES))
    for number in range(100, 200):
        stream.write(f"line {number}\n")
    shown = read_until(reading, b"line 199\n")[filled:].decode().splitlines()
    told = sum(int(line.split()[1]) for line in shown if line.startswith("lost "))
    numbers = [int(line.split()[1]) for line in shown if line.startswith("line ")]
    assert numbers[-10:] == list(range(190, 200))
    assert numbers == sorted(numbers)
    assert told >= 80, "all but those ten, and what the thread had taken"
    assert told + len(numbers) == 100


def test_a_line_that_redraws_itself_waits_once(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = QueuedStream(writing, lost_line)
    # The thread waits within this one, so the rest stays queued.
    first = "x" * 100_000 + "\n"
    stream.write(first)
    for step in range(1000):
        stream.write(f"\r\x1b[2Kstep {step}")
        stream.flush()
    stream.write("\nthe end\n")
    seen = read_until(reading, b"the end\n").decode()
    assert seen.removeprefix(first) == "\r\x1b[2Kstep 999\nthe end\n"


def test_a_terminal_that_is_stopped_holds_up_no_writer() -> None:
    keyboard, terminal = os.openpty()
    termios.tcflow(terminal, termios.TCOOFF)  # As Ctrl-S does.
    stream = QueuedStream(terminal, lost_line)
    assert stream.isatty()
    stream.write("step 1\n")
    assert not stream.drain(AT_ONCE_S)
    termios.tcflow(terminal, termios.TCOON)
    assert read_until(keyboard, b"step 1\r\n") == b"step 1\r\n"
    assert stream.drain(SAFETY_S)
    os.close(keyboard)
    os.close(terminal)


def test_a_descriptor_that_somebody_made_nonblocking_loses_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    stream = QueuedStream(writing, lost_line)
    lines = [f"line {number}\n" for number in range(2000)]
    for line in lines:
        stream.write(line)
    assert read_until(reading, lines[-1].encode()) == "".join(lines).encode()


def test_lines_that_could_not_be_written_are_told_when_the_next_can() -> None:
    reading, writing = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    fd = os.dup(full)
    stream = QueuedStream(fd, lost_line)
    stream.write("one\ntwo\n")
    assert stream.drain(SAFETY_S), "the disk is full, so nobody waits for it"
    os.dup2(writing, fd)
    stream.write("three\n")
    assert read_until(reading, b"three\n") == b"lost 2\nthree\n"
    for left in (reading, writing, full):
        os.close(left)


def test_what_print_writes_in_two_pieces_is_one_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = QueuedStream(writing, lost_line)
    print("half a pair: \ud800", file=stream, flush=True)
    assert read_until(reading, b"\n") == b"half a pair: \\ud800\n"


def opened(fd: int) -> IO[str]:
    return open(fd, "w", encoding="utf-8", closefd=False)


def test_the_end_waits_for_a_reader_that_is_slow(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    with opened(writing) as file, contextlib.redirect_stderr(file):
        with stderr_that_never_waits(lost_line):
            sys.stderr.write("the command that goes on\n")
        assert sys.stderr is file
        assert os.read(reading, 100) == b"the command that goes on\n", "it is there already"


def test_the_end_waits_no_longer_for_one_that_hangs(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fill(writing)
    with opened(writing) as file, contextlib.redirect_stderr(file):
        with stderr_that_never_waits(lost_line, AT_ONCE_S):
            sys.stderr.write("the command that goes on\n")
        sys.stderr.write("who writes later does not wait either\n")
        assert isinstance(sys.stderr, QueuedStream)
        read_until(reading, b"either\n")
        assert sys.stderr.drain(SAFETY_S)


def test_a_stream_without_a_descriptor_stays() -> None:
    memory = io.StringIO()
    with contextlib.redirect_stderr(memory), stderr_that_never_waits(lost_line):
        sys.stderr.write("seen")
    assert memory.getvalue() == "seen"


def test_what_is_copied_is_never_taken_for_a_line_that_is_redrawn(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    filled = fill(writing)
    stream = QueuedStream(writing, lost_line)
    stream.write("first\n")  # It waits for its reader, and the others behind it.
    for text in ("\rlive 1", "\rlive 2"):
        stream.write(text)
        stream.flush()
    stream.copy(b"\r 10%\nan epoch\n")
    stream.copy(b"\r 20%\n")
    stream.write("\rlive 3")
    stream.flush()
    seen = read_until(reading, b"live 3")[filled:]
    assert seen == b"first\n\rlive 2\r 10%\nan epoch\n\r 20%\n\rlive 3"
    assert stream.drain(SAFETY_S)
    assert stream.waiting_bytes == 0
