"""Which start of its ranks a launch is in, and its name, as several ranks settle them; and where it may be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from trainer_shim.connection import starts
from trainer_shim.connection.starts import born, host_of, is_alive, job_of, restart_of, restarts_of, start_of
from trainer_shim.saving.store import MemoryStore

Process = subprocess.Popen[bytes]


@pytest.fixture
def sleeper() -> Iterator[Callable[[], Process]]:
    """Another rank of this machine, until it is ended."""
    made: list[Process] = []

    def start() -> Process:
        made.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def begin(store: MemoryStore, number: int, process: Process, machine: str = "") -> None:
    """That other process was the first rank of its machine in that start."""
    for opened in range(1, number + 1):
        store.settle(f"start/{opened}", "1")
    store.settle(f"start/{number}/{machine or starts._machine()}", born(process.pid))


def end(process: Process) -> None:
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def _is_anew() -> Iterator[None]:
    """No test has the start of another one's store."""
    starts._STARTS.pop(os.getpid(), None)
    yield
    starts._STARTS.pop(os.getpid(), None)


def test_the_ranks_of_a_machine_are_in_one_start(sleeper: Callable[[], Process]) -> None:
    store = MemoryStore()
    begin(store, 1, sleeper())
    assert start_of(store) == 1
    assert start_of(store) == 1


def test_a_start_is_over_when_its_first_rank_of_this_machine_is_gone(sleeper: Callable[[], Process]) -> None:
    store, before = MemoryStore(), sleeper()
    begin(store, 1, before)
    begin(store, 2, before)
    end(before)
    assert start_of(store) == 3
    assert [store.get(f"start/{number}") for number in (3, 4)] == ["1", None]


@pytest.mark.parametrize("first", [0, 1])
def test_agents_that_count_unlike_have_one_attempt(first: int, sleeper: Callable[[], Process]) -> None:
    """torchrun tells 0 on a node whose own ranks had not failed, and 1 where one had. The store may be a new one."""
    for store in (MemoryStore(), kept := MemoryStore()):
        if store is kept:
            begin(store, 1, before := sleeper())
            end(before)
        starts._STARTS.pop(os.getpid(), None)
        told = [restart_of(store, {"TORCHELASTIC_RESTART_COUNT": str(count)}) for count in (first, 1 - first)]
        assert told == [1 if store is kept else first] * 2


def test_what_another_node_has_begun_is_joined(sleeper: Callable[[], Process]) -> None:
    store = MemoryStore()
    begin(store, 3, sleeper(), "another")
    assert start_of(store) == 3


def test_a_rank_stays_in_its_start_when_the_first_one_has_ended(sleeper: Callable[[], Process]) -> None:
    store, first = MemoryStore(), sleeper()
    begin(store, 1, first)
    assert starts.this_start(store) == 1
    end(first)
    assert starts.this_start(store) == 1


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("2", 2), ("-1", 0), ("x", 0), ("²", 0), ("9" * 30, starts._COUNTS_MAX)]
)
def test_a_restart_count_is_a_number_of_restarts(text: str, count: int) -> None:
    assert restarts_of({"TORCHELASTIC_RESTART_COUNT": text}) == count


def test_a_process_lives_until_it_ends_as_a_zombie_too(sleeper: Callable[[], Process]) -> None:
    process = sleeper()
    name = born(process.pid)
    assert is_alive(name)
    assert not is_alive(name.replace("-", "-1", 1)), "the pid came back: it began at another time"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(name)
    assert not is_alive("nothing")
    assert is_alive("unknown-0-5"), "without /proc nobody is called dead"


def test_the_first_name_counts_for_all_and_no_two_launches_have_one() -> None:
    store = MemoryStore()
    name = job_of(store)
    assert job_of(store) == job_of(store, "another") == name
    assert job_of(MemoryStore()) != name
    assert job_of(MemoryStore(), name) == name, "the group was made anew, and with it the store"


@pytest.mark.parametrize(
    "text",
    ["10.77.0.1", "fd00::1", "[fd00::1]", "node1", "node1.cluster.local", "ip-10-0-0-1", "gpu_7", "a.b.", "0x.de"],
)
def test_what_others_may_find_is_told(text: str) -> None:
    assert host_of(text) == text.strip("[]")


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", "LOCALHOST", "localhost.localdomain", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]",
        "::ffff:127.0.0.1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "127.1", "2130706433",
        "0x7f000001", "a b", "a\nb", "a;b", "$(id)", "-oProxy", "a..b", "x" * 254, "ä", None, 7, "fe80::1%\n",
    ],
)  # fmt: skip
def test_what_names_no_other_machine_is_left_out(text: object) -> None:
    assert host_of(text) is None
