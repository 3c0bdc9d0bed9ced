"""A lock file goes with its holder, and no two ever hold it: also not across the moment in which it is removed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.machine import lock_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.lock"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("2 1", "2 in another PID namespace, as a container has"),
        (f"2 {os.stat('/proc/self/ns/pid').st_ino}", "2"),
        ("2", "2"),
        ("2 0", "2"),
        ("", "unknown"),
    ],
)
def test_a_number_of_another_container_is_said_to_be_one(path: Path, written: str, told: str) -> None:
    fd = lock_file.take(str(path))
    os.pwrite(fd, written.encode().ljust(32), 0)
    with pytest.raises(lock_file.LockHeld) as held:
        lock_file.take(str(path))
    assert str(held.value) == told
    os.close(fd)


def test_a_held_lock_names_its_holder_and_leaves_no_file_behind(path: Path) -> None:
    fd = lock_file.take(str(path))
    with pytest.raises(lock_file.LockHeld, match=str(os.getpid())):
        lock_file.take(str(path))
    lock_file.drop(str(path), fd)
    assert not path.exists()


def test_a_dead_holders_file_is_taken_over(path: Path) -> None:
    path.write_text("12345")
    fd = lock_file.take(str(path))
    assert path.read_text().split()[0] == str(os.getpid())
    assert lock_file.note(fd) is None
    lock_file.drop(str(path), fd)


def test_a_note_outlives_its_holder_and_is_never_part_of_a_pid(path: Path) -> None:
    first = lock_file.take(str(path))
    lock_file.leave_note(first, "a long note")
    lock_file.leave_note(first, "a note")
    with pytest.raises(lock_file.LockHeld, match=rf"^{os.getpid()}$"):
        lock_file.take(str(path))
    os.close(first)  # Killed.
    second = lock_file.take(str(path))
    assert lock_file.note(second) == "a note"
    lock_file.drop(str(path), second)


class Interleaved:
    """Acts once, between somebody's open and their flock: where a holder may leave and another one come."""

    armed: Any = None

    def __call__(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event == "fcntl.flock" and self.armed is not None:
            act, self.armed = self.armed, None
            act()


BETWEEN = Interleaved()
sys.addaudithook(BETWEEN)


def test_a_lock_on_a_file_that_lost_its_name_is_none(path: Path) -> None:
    first = lock_file.take(str(path))
    BETWEEN.armed = lambda: lock_file.drop(str(path), first)
    second = lock_file.take(str(path))
    with pytest.raises(lock_file.LockHeld):
        lock_file.take(str(path))
    lock_file.drop(str(path), second)


def test_a_newcomer_that_was_quicker_keeps_us_out(path: Path) -> None:
    first = lock_file.take(str(path))
    held: list[int] = []

    def hand_over() -> None:
        lock_file.drop(str(path), first)
        held.append(lock_file.take(str(path)))

    BETWEEN.armed = hand_over
    with pytest.raises(lock_file.LockHeld):
        lock_file.take(str(path))
    (second,) = held
    lock_file.drop(str(path), second)


def test_a_file_that_is_anothers_by_now_is_not_removed(path: Path) -> None:
    fd = lock_file.take(str(path))
    path.unlink()
    path.write_text("another's")
    lock_file.drop(str(path), fd)
    assert path.read_text() == "another's"
