"""Between the command's fork and its exec: what is told comes first, and what waits is nobody's but ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.command.gate import require_program, start_waiting

SAFETY_S = 30.0


def started(argv: list[str], tell: Callable[[int], None], **options: int) -> subprocess.Popen[bytes]:
    def start(wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, preexec_fn=wait, **options)  # type: ignore  # noqa: PLW1509

    return start_waiting(start, contextlib.nullcontext(), tell)


def test_it_runs_nothing_before_it_is_told_of(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []
    ran = tmp_path / "ran"

    def tell(pid: int) -> None:
        seen.append((pid, ran.exists() or Path(f"/proc/{pid}/exe").samefile("/bin/sh")))

    child = started(["sh", "-c", f"touch {ran}"], tell)
    assert child.wait(SAFETY_S) == 0
    assert (seen, ran.exists()) == ([(child.pid, False)], True)


def test_what_cannot_be_told_does_not_run(tmp_path: Path) -> None:
    def tell(_pid: int) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        started(["sh", "-c", f"touch {tmp_path / 'ran'}"], tell)
    assert not (tmp_path / "ran").exists()


def test_the_thread_that_has_forked_it_lives_as_long_as_it() -> None:
    """To who asks for a signal at its parent's death (`setpriv --pdeathsig`, bwrap, tini) that is its parent."""
    before = set(threading.enumerate())
    child = started(["cat"], lambda _pid: None, stdin=subprocess.PIPE)
    (thread,) = set(threading.enumerate()) - before
    assert thread.is_alive()
    child.communicate(b"", SAFETY_S)
    thread.join(SAFETY_S)
    assert not thread.is_alive()


def test_a_signal_to_the_process_that_waits_ends_it(tmp_path: Path) -> None:
    """Ours has a handler for it, of which the program knows nothing."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = started(["sh", "-c", f"touch {tmp_path / 'ran'}"], lambda pid: os.kill(pid, signal.SIGTERM))
        assert child.wait(SAFETY_S) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "ran").exists()


def test_an_empty_path_is_where_we_are(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.touch(0o755)
    with contextlib.chdir(tmp_path):
        require_program("train", {"PATH": ""})
        with pytest.raises(FileNotFoundError):
            require_program("other", {"PATH": ""})
