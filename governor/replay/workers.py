"""Replays many logs on all cores. What comes out is the same, and in the same order, as on one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from governor.adapters.machine.parent_death import end_with
from governor.core.base.policy import Policy
from governor.replay.logs import STDIN
from governor.replay.one_log import Played, Terms, play_log

JOBS_MAX: Final = 256
# Logs that are played or wait, for each worker: the order is kept, and the results of ten thousand logs are not.
AHEAD: Final = 8
_NO_PICTURES: Final[Mapping[Path, Path]] = MappingProxyType({})


class WorkerEnded(Exception):  # noqa: N818 - the condition is the name.
    """A worker was ended from outside, mostly for want of memory. The message is one line."""


def cores() -> int:
    """As many as this process may use."""
    return min(JOBS_MAX, len(os.sched_getaffinity(0)))


class Workers:
    """Processes that play logs under the same terms. A context: none of them outlives it, nor this process."""

    def __init__(self, terms: Terms, jobs: int) -> None:
        """With one job everything is played in this process."""
        self._terms = terms
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._others = set(multiprocessing.active_children())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is None:
            return
        for child in set(multiprocessing.active_children()) - self._others:
            child.terminate()
        self._pool.shutdown(cancel_futures=True)

    def play(
        self, found: Sequence[Path], pictures: Mapping[Path, Path] = _NO_PICTURES,
        policies: tuple[Policy, ...] | None = None,
    ) -> Iterator[Played]:  # fmt: skip
        """Play each log, in the order given, under the terms' policies or these. Raises WorkerEnded.

        Standard input is read in this process.
        """
        terms = self._terms if policies is None else replace(self._terms, policies=policies)
        if min(self._jobs, len(found) - (STDIN in found)) < 2 or not self._has_pool():
            for path in found:
                yield play_log(path, terms, pictures.get(path))
            return
        waiting: deque[Callable[[], Played]] = deque()
        for path in found:
            at = pictures.get(path)
            own = partial(play_log, path, terms, at)
            waiting.append(own if path == STDIN else self._later(path, at, policies))
            if len(waiting) >= self._jobs * AHEAD:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def _has_pool(self) -> bool:
        """Make it if there is none yet. False where the system has no shared memory to wait on, as some containers."""
        if self._pool is None:
            # Forked, so that they inherit the terms as they are: a field map is told from the default by identity.
            context = multiprocessing.get_context("fork")
            with contextlib.suppress(NotImplementedError, OSError):
                self._pool = ProcessPoolExecutor(self._jobs, context, _begin, (self._terms, os.getpid()))
        return self._pool is not None

    def _later(self, path: Path, picture_at: Path | None, policies: tuple[Policy, ...] | None) -> Callable[[], Played]:
        """Have a worker play a log. What is returned waits for its result."""
        assert self._pool is not None
        try:
            future = self._pool.submit(_play, path, picture_at, policies)
        except BrokenProcessPool as error:
            raise _ended(path) from error

        def result() -> Played:
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise _ended(path) from error

        return result


def _ended(path: Path) -> WorkerEnded:
    return WorkerEnded(
        f"a process that plays logs was ended, perhaps for want of memory, at {path} or one of the logs behind it; "
        "--jobs 1 tells at which"
    )


_terms: Terms | None = None  # Of this worker.


def _begin(terms: Terms, parent: int) -> None:
    """Begin a worker: it ends with its parent, and leaves Ctrl-C to it."""
    global _terms
    _terms = terms
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)


def _play(path: Path, picture_at: Path | None, policies: tuple[Policy, ...] | None) -> Played:
    assert _terms is not None
    return play_log(path, _terms if policies is None else replace(_terms, policies=policies), picture_at)
