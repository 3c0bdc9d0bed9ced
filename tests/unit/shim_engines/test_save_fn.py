"""What save_fn() leaves to be written later, by whatever writes it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from trainer_shim.engines import save_fn


class TorchFuture:
    """As torch.futures.Future: it has value() and no result()."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def value(self) -> None:
        raise OSError("disk full")


class AsyncSaveResponse(NamedTuple):
    """As torch's: two futures by name."""

    staging_completion: Future[None]
    upload_completion: Future[None]


def called(returned: Any) -> save_fn.SaveFn:
    saved = save_fn.SaveFn(lambda *_: returned)
    saved("/ck", "cg_1", {})
    return saved


def test_a_save_fn_that_returns_nothing_or_a_path_has_written() -> None:
    assert not called(None).pending()
    assert not called("/ck/cg_1").pending()
    assert save_fn.of(None) is None


@pytest.mark.parametrize("kind", ["alone", "listed", "named", "response"])
def test_a_future_is_waited_for_wherever_it_is(kind: str) -> None:
    staged: Future[None] = Future()
    written: Future[None] = Future()
    staged.set_result(None)
    returned: dict[str, Any] = {"alone": written, "listed": [staged, written], "named": {"w": staged, "o": written}}
    returned["response"] = AsyncSaveResponse(staged, written)
    saved = called(returned[kind])
    assert saved.pending()
    written.set_result(None)
    assert not saved.pending()


def test_what_an_earlier_save_has_left_running_is_not_waited_for_by_the_next() -> None:
    """It has failed by then, ten minutes after it was due."""
    stuck: Future[None] = Future()
    returned: list[Any] = [stuck, None]
    saver = save_fn.SaveFn(lambda *_: returned.pop(0))
    saver("/ck", "cg_1", {})
    assert saver.pending()
    saver("/ck", "cg_2", {})
    assert not saver.pending()


def test_what_the_writing_raises_is_raised_whenever_it_is_asked() -> None:
    """Else what has failed is taken for written by whoever asks at the end of the training."""
    written: Future[None] = Future()
    saved = called(written)
    written.set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        saved.pending()
    with pytest.raises(OSError, match="disk full"):
        saved.pending()


def test_a_thread_and_a_future_of_torch_are_waited_for() -> None:
    until, torch_future = threading.Event(), TorchFuture()
    thread = threading.Thread(target=until.wait)
    thread.start()
    saved = called((thread, torch_future))
    assert saved.pending()
    until.set()
    thread.join()
    assert saved.pending()
    torch_future.is_done = True
    with pytest.raises(OSError, match="disk full"):
        saved.pending()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_writer_that_ran_before_save_fn_was_called_is_not_what_it_began(
    kind: str, capfd: pytest.CaptureFixture
) -> None:
    """A queue's worker never ends. No save would, and a halt would lose all."""
    context = multiprocessing.get_context("fork")
    until: Any = context.Event() if kind == "process" else threading.Event()
    writer: Any = (context.Process if kind == "process" else threading.Thread)(target=until.wait, daemon=True)
    writer.start()
    saved = save_fn.SaveFn(lambda *_: [None, writer])
    for number in range(2):
        saved("/ck", f"cg_{number}", {})
        assert not saved.pending()
    until.set()
    writer.join()
    said = capfd.readouterr().err
    assert said.count("costgov: save_fn returned <") == 1
    assert "ran before it was called: it is not waited for" in said


def test_a_process_is_waited_for_and_its_exit_code_tells_whether_all_is_written() -> None:
    """`subprocess` has poll() and no is_alive(): it counted as written at once."""
    for code, said in (("", None), ("; exit 3", "exit code 3"), ("; kill -9 $$", "exit code -9")):
        with subprocess.Popen(["sh", "-c", "read until" + code], stdin=subprocess.PIPE) as process:
            saved = called([process])
            assert saved.pending()
            process.communicate(b"\n")
            if said is None:
                assert not saved.pending()
                continue
            with pytest.raises(RuntimeError, match=said):
                saved.pending()


def test_a_forked_process_that_fails_has_not_written() -> None:
    context = multiprocessing.get_context("fork")
    until = context.Event()

    def write() -> None:
        until.wait()
        os._exit(1)

    process = context.Process(target=write)

    def save(*_: Any) -> Any:
        process.start()
        return process

    saved = save_fn.SaveFn(save)
    saved("/ck", "cg_1", {})
    assert saved.pending()
    until.set()
    process.join()
    with pytest.raises(RuntimeError, match="exit code 1"):
        saved.pending()


def test_the_result_of_a_pool_is_waited_for_and_raises_what_the_writing_has_raised() -> None:
    until = threading.Event()

    def write() -> None:
        until.wait()
        raise OSError("disk full")

    with multiprocessing.pool.ThreadPool(1) as pool:
        written = pool.apply_async(write)
        saved = called(written)
        assert saved.pending()
        until.set()
        written.wait()
        with pytest.raises(OSError, match="disk full"):
            saved.pending()


def test_what_dcp_writes_asynchronously_is_waited_for_where_the_script_keeps_its_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """dcp.async_save(), with the future in a variable of the script's."""
    written: Future[None] = Future()

    class Executor:
        def execute_save(self, state: str, *, checkpoint_id: str) -> Future[None]:
            assert (state, checkpoint_id) == ("weights", "/ck/cg_1")
            return written

    torch = ModuleType(save_fn._DCP)
    torch._ThreadBasedAsyncCheckpointExecutor = Executor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, save_fn._DCP, torch)
    before = Executor.execute_save

    def save(directory: str, tag: str, state: dict[str, Any]) -> None:
        assert Executor().execute_save("weights", checkpoint_id=f"{directory}/{tag}") is written

    saved = save_fn.SaveFn(save)
    saved("/ck", "cg_1", {})
    assert Executor.execute_save is before, "what the script saves at other times is its own"
    assert saved.pending()
    written.set_result(None)
    assert not saved.pending()


@pytest.mark.parametrize(
    ("save", "load", "named"),
    [
        (lambda _directory, _tag, _state: None, lambda _directory, _tag: None, ""),
        (lambda *_: None, lambda *_, **__: None, ""),
        (None, None, ""),
        (dict, dict.get, ""),  # Of C: nothing tells what they take, or they take it.
        (lambda _path: None, None, "save_fn(directory, tag, client_state)"),
        (lambda _a, _b, _c, _d: None, None, "save_fn(directory, tag, client_state)"),
        (lambda _a, _b, _c: None, lambda _path: None, "load_fn(directory, tag)"),
        ("/checkpoints", None, "save_fn(directory, tag, client_state)"),
    ],
)
def test_a_function_that_does_not_take_its_arguments_is_told_before_the_first_save(
    save: Any, load: Any, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COSTGOV_REQUIRED", raising=False)
    save_fn.tell_misfits(save, load, True)
    said = capsys.readouterr().err
    assert named in said if named else not said
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    if named:
        with pytest.raises(SystemExit):
            save_fn.tell_misfits(save, load, True)
