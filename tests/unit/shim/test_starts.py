"""Which start of its ranks a launch is in, and its name, as several ranks settle them; and where it may be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from trainer_shim.connection import starts
from trainer_shim.connection.starts import born, host_of, is_alive, job_of, restarts_of, start_of
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


def counted(restarts: int = 0) -> dict[str, str]:
    return {"TORCHELASTIC_RESTART_COUNT": str(restarts)}


def begin(store: MemoryStore, number: int, process: Process, machine: str = "") -> None:
    """That other process was the first rank of its machine in that start."""
    for opened in range(1, number + 1):
        store.settle(f"start/{opened}", "1")
    store.settle(f"start/{number}/{machine or starts._machine()}", born(process.pid))


def end(process: Process) -> None:
    process.kill()
    process.communicate()


def test_the_ranks_of_a_machine_are_in_one_start(sleeper: Callable[[], Process]) -> None:
    store = MemoryStore()
    begin(store, 1, sleeper())
    assert start_of(store, counted()) == 1
    assert start_of(store, counted()) == 1


def test_a_node_whose_agent_does_not_count_the_restart_is_in_the_same_start(sleeper: Callable[[], Process]) -> None:
    """Its own ranks had not failed: torchrun tells 0 there, and 1 where one had."""
    store, before = MemoryStore(), sleeper()
    begin(store, 1, before)
    begin(store, 1, before, "another")
    end(before)
    failed = MemoryStore()
    for key in ("start/1", f"start/1/{starts._machine()}", "start/1/another"):
        failed.settle(key, str(store.get(key)))
    assert start_of(store, counted(0)) == 2, "the first rank that it had is gone"
    assert start_of(failed, counted(1)) == 2, "its agent says so"


def test_what_another_node_has_begun_is_joined(sleeper: Callable[[], Process]) -> None:
    store = MemoryStore()
    begin(store, 3, sleeper(), "another")
    assert start_of(store, counted()) == 3


def test_a_start_that_no_rank_lived_to_see_leaves_no_gap() -> None:
    store = MemoryStore()
    assert start_of(store, counted(4)) == 5
    assert [store.get(f"start/{number}") for number in (1, 4, 5, 6)] == ["1", "1", "1", None]
    assert start_of(store, counted()) == 5, "a node that has not counted finds it"


def test_a_rank_stays_in_its_start_when_the_first_one_has_ended(sleeper: Callable[[], Process]) -> None:
    store, first = MemoryStore(), sleeper()
    begin(store, 1, first)
    starts._STARTS.pop(os.getpid(), None)
    try:
        assert starts.this_start(store) == 1
        end(first)
        assert starts.this_start(store) == 1
    finally:
        starts._STARTS.pop(os.getpid(), None)


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
