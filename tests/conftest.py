"""Shared by every tier. Keep it small: what one directory needs stands in its own conftest."""

from __future__ import annotations

import gc
import resource
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from governor.core.base.units import MonoNs
from governor.core.runs.life import TRANSITIONS, Cell, LifeFact
from governor.core.runs.state import Run
from tests import leftovers
from tests.sweeps import share_of
from trainer_shim import mark

# The gate plays the same examples everywhere and without a clock: what fails on one machine fails on all. To search on,
# with fresh examples each time: pytest --hypothesis-profile=search.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True, max_examples=share_of(100))
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("gate")

# A shell starts its background jobs with SIGINT and SIGQUIT ignored, and whatever they start inherits that: tests of
# what these do would then test nothing, or wait for ever.
for _signum, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _handler)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a short path: a Unix socket's address holds 107 bytes, and pytest's own paths are longer."""
    path = Path(tempfile.mkdtemp(prefix="cg-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True, scope="session")
def _only_cells_that_can_come() -> Iterator[None]:
    """A test in which the engine reaches a cell of a run's life that is said to be out of its reach has failed."""
    move = Run.move

    def checked(self: Run, fact: LifeFact, at: MonoNs) -> Cell:
        reason = TRANSITIONS[self.life, fact].cannot_come
        assert not reason, f"{fact} came in {self.life}. The table says: {reason}"
        return move(self, fact, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "move", checked)
        yield


@pytest.fixture(autouse=True)
def _unmarked() -> Iterator[None]:
    """The shim marks the process in which it attaches, for good. Of launches within launches there is room for few."""
    before, known = resource.getrlimit(leftovers.RLIMIT_LOCKS), list(mark._OF_THIS_PROCESS)
    yield
    if resource.getrlimit(leftovers.RLIMIT_LOCKS) != before:
        resource.setrlimit(leftovers.RLIMIT_LOCKS, before)
    mark._OF_THIS_PROCESS[:] = known


_MARK = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # A worker of xdist is a child of who watches already.
        config.stash[_MARK] = leftovers.begin()


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not walk through it again and again."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """pytest has collected, and told what a finaliser raised. What is left lives to the end: nobody walks it again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """A run that leaves a process behind has failed. One that was interrupted is left to the watcher."""
    yield
    mark = session.config.stash.get(_MARK, 0)
    if not mark or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    if found := leftovers.still_there(mark, leftovers.ENDING_S):
        lines = [f"  {pid}: {command[:200]}" for pid, command in found.items()]
        session.config.get_terminal_writer().write("\n".join(["\nleft behind by the tests:", *lines, ""]))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        leftovers.kill(mark)
