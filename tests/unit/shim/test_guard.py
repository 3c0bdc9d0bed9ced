"""The one place that catches everything."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable

import pytest

from trainer_shim import guard

SAFETY_S = 10.0


def test_a_fault_costs_a_line_and_a_count_and_nothing_else(capfd: pytest.CaptureFixture) -> None:
    @guard.guarded(fallback=7)
    def hook(value: int) -> float:
        return 1 / value

    assert hook(2) == 0.5
    assert [hook(0), hook(0)] == [7, 7]
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1
    assert sum(count for name, count in guard.faults.items() if name.endswith("<locals>.hook")) == 2


@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_passes(exit_: type[BaseException]) -> None:
    @guard.guarded()
    def hook() -> None:
        raise exit_

    with pytest.raises(exit_):
        hook()


@pytest.mark.parametrize(("module", "is_caught"), [("torch.distributed.checkpoint.api", True), ("train", False)])
def test_what_torch_raises_that_is_no_exception_costs_no_step(module: str, is_caught: bool) -> None:
    """Its CheckpointException is one. A handler of the script's may end the training by another."""
    kind = type("CheckpointException", (BaseException,), {"__module__": module})

    def fail() -> None:
        raise kind("disk full")

    if is_caught:
        assert isinstance(guard.attempt(fail)[1], kind)
        return
    with pytest.raises(kind):
        guard.attempt(fail)


def test_attempt_returns_the_error() -> None:
    assert guard.attempt(int, "5") == (5, None)
    result, error = guard.attempt(int, "x")
    assert result is None
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("write", [lambda: guard.print_line("halted"), guard.flush_stdout])
def test_a_reader_that_hangs_holds_no_thread_of_ours(write: Callable[[], None]) -> None:
    """The thread that answers a halt says lines of its own, and a parked rank says one before it ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = os.write(writing, b"x" * 1_000_000)
    os.set_blocking(writing, True)
    with open(writing, "w", encoding="utf-8") as hung:
        hung.write("the script's own")  # Python keeps it until a flush.
        with contextlib.redirect_stderr(hung), contextlib.redirect_stdout(hung):
            thread = threading.Thread(target=write)
            thread.start()
            thread.join(SAFETY_S)
            is_held = thread.is_alive()
        assert os.read(reading, 2 * filled) == b"x" * filled
        thread.join()
    os.close(reading)
    assert not is_held


def test_a_stream_that_is_no_descriptor_takes_the_line() -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        guard.print_line("halted")
        guard.flush_stdout()
    assert said.getvalue() == "costgov: halted\n"


def test_a_stream_that_is_missing_costs_nothing() -> None:
    with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
        guard.print_line("halted")
        guard.flush_stdout()
