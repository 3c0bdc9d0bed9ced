"""A log that grows faster than it is read, and is freed or cut off before it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.adapters.trainers.test_jsonl_tail import Tail, line, steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def tail(path: Path) -> Tail:
    return Tail(path)


def test_a_burst_without_a_line_is_passed_faster_than_lines_are_read(path: Path) -> None:
    """A binary file that was printed must not hold up the next NaN for a minute."""
    tail = Tail(path, from_start=True)
    path.write_bytes(line(step=1) + b"\xff" * (30 << 20) + b"\n" + line(step=2))
    assert [n for _ in range(4) for n in steps(tail)] == [1, 2]
    assert tail.faulty_total == 1


@pytest.mark.parametrize("from_step", [True, False])
def test_what_was_freed_before_it_was_read_is_passed_at_once_and_counted(path: Path, *, from_step: bool) -> None:
    """`from_step`: lines stand before the hole. Else it begins in an unfinished one."""
    tail = Tail(path, from_start=True)
    first = line(step=1) + (b"" if from_step else b'{"step": 7')
    with path.open("wb") as file:
        file.write(first.ljust(128 << 10, b"\n" if from_step else b"x"))
        file.truncate(200 << 20)
        file.seek(200 << 20)
        file.write(b'"step": 9}\n' + line(step=2))
    found, gone = [], 0
    for _ in range(4):
        chunk = tail.tail.read()
        gone += chunk.gone
        found += [json.loads(one)["step"] for one in chunk.lines if one]
    assert found == [1, 2]
    assert gone == (200 << 20) - (128 << 10) + (0 if from_step else (128 << 10) - len(line(step=1)))
    assert not tail.tail.read().holds


def test_zeros_that_were_written_are_no_hole(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1) + bytes(100_000) + b"\n" + line(step=2))
    chunk = tail.tail.read()
    assert [len(one) for one in chunk.lines][1] == 100_000
    assert (chunk.gone, len(chunk.lines)) == (0, 3)


def test_what_is_there_and_not_read_yet_is_said(path: Path, tail: Tail) -> None:
    steps(tail)
    path.write_bytes(line(step=1, padding="x" * 1000) * 3000)
    looks = [tail.tail.read() for _ in range(3)]
    assert [look.holds for look in looks] == [True, True, False]
    assert looks[0].unread == path.stat().st_size - (1 << 20)
    with path.open("ab") as file:
        file.write(line(step=2, padding="x" * 1000) * 3000)
    tail.tail.read()
    os.truncate(path, 0)
    assert tail.tail.read().gone == looks[0].unread, "cut off before it was read"
