"""The script's own save_fn, and what it leaves to be written behind the training thread.

torch.distributed.checkpoint.async_save() returns when it has a copy of the state; a thread or a process writes it. The
checkpoint is there when its future is done. That is seen as save_fn() returns it, or as torch makes it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

from trainer_shim.guard import attempt, print_line

from . import hooks, trained

_DCP = "torch.distributed.checkpoint.state_dict_saver"
_SAVE_CALL, _LOAD_CALL = "save_fn(directory, tag, client_state)", "load_fn(directory, tag)"
_EXECUTORS = ("_ThreadBasedAsyncCheckpointExecutor", "_ProcessBasedAsyncCheckpointExecutor")
_IN_RESPONSE = ("staging_completion", "upload_completion")  # Of torch's AsyncSaveResponse.


class SaveFn:
    """save_fn() as a saver calls it: `pending` tells when what it has begun is written."""

    def __init__(self, save_fn: Callable[..., Any]) -> None:
        self._save_fn = save_fn
        self._begun: List[Any] = []
        self._told_older = False

    def __call__(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        self._begun = []
        before = _running()
        undo = hooks.Undo()
        attempt(_see_futures, self._begun, undo)
        try:
            returned = self._save_fn(directory, tag, client_state)
        finally:
            undo()
        for one in _futures_in(returned):
            if any(one is other for other in before):
                self._tell_older(one)
            else:
                self._begun.append(one)

    def _tell_older(self, one: Any) -> None:
        """A writer that serves all saves does not end with this one."""
        if not self._told_older:
            self._told_older = True
            ran = "ran before it was called: it is not waited for. What save_fn saves has to be written when it returns"
            print_line("save_fn returned %s, which %s" % (one, ran))

    def pending(self) -> bool:
        """Whether something is still being written. Raises what the writing has raised."""
        if not all(_is_over(one) for one in self._begun):
            return True
        for one in self._begun:
            _raise_what_it_raised(one)  # Asked again, it raises again.
        self._begun = []
        return False


def of(save_fn: Optional[Callable[..., Any]]) -> Optional[SaveFn]:
    """Return it as a saver calls it, None where there is none."""
    return None if save_fn is None else SaveFn(save_fn)


def tell_misfits(save_fn: Optional[Callable[..., Any]], load_fn: Optional[Callable[..., Any]], is_first: bool) -> None:
    """Say at once which one does not take the arguments that it will be called with: the first save may be a halt's."""
    for fn, call, without in ((save_fn, _SAVE_CALL, "no checkpoint"), (load_fn, _LOAD_CALL, "no checkpoint to resume")):
        _, error = attempt(_bind, fn, call)
        if error is not None:
            trained.warn_unsaved("%s: the call %s would fail: %s" % (without, call, error), is_first)


def _bind(fn: Optional[Callable[..., Any]], call: str) -> None:
    if fn is None:
        return
    try:
        taken = inspect.signature(fn)
    except ValueError:  # It has none to look at, as what is written in C.
        return
    taken.bind(*range(call.count(",") + 1))


def _see_futures(begun: List[Any], undo: hooks.Undo) -> None:
    """Put what DCP writes asynchronously into `begun`, until `undo`: most scripts keep the future to themselves."""
    dcp = sys.modules.get(_DCP)
    for executor in (getattr(dcp, name, None) for name in _EXECUTORS):
        if executor is not None and hasattr(executor, "execute_save"):
            hooks.replace(undo, executor, "execute_save", functools.partial(_keeping, begun))


def _keeping(begun: List[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def execute_save(*args: Any, **kwargs: Any) -> Any:
        future = original(*args, **kwargs)
        begun.extend(_futures_in(future))
        return future

    return execute_save


def _futures_in(returned: Any) -> Iterator[Any]:
    """What writes, alone, in a list or dictionary, or in what async_save() returns: see _is_over()."""
    inner = [getattr(returned, name) for name in _IN_RESPONSE if hasattr(returned, name)]
    if isinstance(returned, (list, tuple, dict)):
        inner = list(returned.values() if isinstance(returned, dict) else returned)
    for one in inner or [returned]:
        if _is_pools(one) or _is_popen(one) or any(callable(getattr(one, name, None)) for name in ("done", "is_alive")):
            yield one


def _running() -> List[Any]:
    """Threads and processes of now: what save_fn() begins is none of these."""
    processes = sys.modules.get("multiprocessing")
    children, _ = attempt(processes.active_children) if processes is not None else ([], None)
    return [*threading.enumerate(), *(children or [])]


def _is_over(one: Any) -> bool:
    """Futures of Python and of torch, a pool's results, processes and threads, each by its own word."""
    done = getattr(one, "done", None)
    if callable(done):
        return bool(done())
    if _is_pools(one):
        return bool(one.ready())
    return one.poll() is not None if _is_popen(one) else not one.is_alive()


def _is_pools(one: Any) -> bool:
    """As multiprocessing.pool.AsyncResult."""
    return all(callable(getattr(one, name, None)) for name in ("ready", "successful", "get"))


def _is_popen(one: Any) -> bool:
    return hasattr(one, "returncode") and callable(getattr(one, "poll", None))


def _raise_what_it_raised(one: Any) -> None:
    """`one` is over. A process says by its exit code alone that it has not written all."""
    result = getattr(one, "result", None) or getattr(one, "value", None) or (one.get if _is_pools(one) else None)
    if callable(result):
        result()
        return
    code = one.returncode if _is_popen(one) else getattr(one, "exitcode", None)
    if code:
        raise RuntimeError("the process that save_fn returned has ended with exit code %s" % code)
