"""Recordings on disks that fail as disks do: nobody who hands over a line waits; what was lost is said and counted."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.adapters.trainers import recordings
from governor.adapters.trainers.recordings import RecordingFiles
from tests.drills.test_journal_disk import SAFETY_S, ext4, fill, mounted, needs_ext4, needs_root, run
from tests.unit.adapters.trainers.test_recordings import FACTS, LIMITS, big, hello, kinds, read, step, steps


def until(look: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + SAFETY_S
    while not look():
        assert time.monotonic() < deadline_s, f"not seen in {SAFETY_S} s: {what}"
        os.sched_yield()


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Thawed by a timer, too: whoever waits for it by mistake fails, and does not wait for ever."""
    run("fsfreeze", "--freeze", str(disk))
    thaw = ["fsfreeze", "--unfreeze", str(disk)]
    timer = threading.Timer(SAFETY_S, subprocess.call, [thaw])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        assert subprocess.call(thaw) == 0, f"it was thawed after {SAFETY_S} s: somebody waited for it"


def begun(root: Path) -> RecordingFiles:
    """With a first step on disk."""
    files = RecordingFiles(root, LIMITS, FACTS)
    files.hello("r", hello())
    files.put("r", hello())
    files.put("r", step(1))
    files.flush("r")
    until(lambda: (root / "r").exists() and steps(root / "r") == [1], "the first step is on disk")
    return files


@needs_root
def test_a_full_disk_costs_lines_that_are_counted_and_leaves_every_file_whole(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as state:
        root = state / "recordings"
        files = begun(root)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            fill(state / "filler")
        for number in range(2, 22):
            files.put("r", big(number))
        files.flush("r")
        until(lambda: files.lost_total, "lines are lost")
        assert files.problem == f"{root}: No space left on device"
        assert steps(root / "r") == [1], "nothing of what did not fit"
        (state / "filler").unlink()
        files.put("r", step(22))
        files.flush("r")
        until(lambda: files.problem is None, "it is written again")
        files.close()
        found, problem = read(root / "r")
        assert problem is None
        assert kinds(found) == ["head", "hello", "step", "gap", "hello", "step"]
        assert found[3][1]["lines"] == files.lost_total == 20


@needs_ext4
def test_a_frozen_disk_holds_up_nobody_and_is_said(tmp_path: Path) -> None:
    with ext4(tmp_path) as state:
        files = begun(state / "recordings")
        number = 2
        with frozen(state):

            def another() -> str | None:
                nonlocal number
                files.put("r", step(number, "x" * 60_000))
                files.flush("r")
                number += 1
                return files.problem

            until(another, "the disk's silence is said; for so long each of them returns at once")
            assert files.problem == f"{state}/recordings: no answer from the disk"
            begun_s = time.monotonic()
            files.close()
            # The bound is the product's promise; SAFETY_S allows for a machine that does not run us.
            assert time.monotonic() - begun_s < recordings.CLOSE_BOUND_S + SAFETY_S
        kept = state / "recordings" / "r"
        until(lambda: len(steps(kept)) + files.lost_total == number - 1, "what was held is written, the rest counted")
        assert files.lost_total > 0
        assert files.problem is None
