"""The mark of a launch: within its limits, of one launch alone, inherited by whatever leaves the tree."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from governor.adapters.machine.processes import parse_mark
from governor.core.base.identity import MARK_PART_BITS, carries
from trainer_shim.mark import MARK_BITS, MARK_MAX, PART_BITS, RLIMIT_LOCKS, ChildMark, mark_this_process, next_mark

SAFETY_S = 60
ALL_BITS = 2**MARK_BITS - 1
SHOW = "cat /proc/self/limits"


def test_governor_and_shim_take_a_mark_apart_alike() -> None:
    assert PART_BITS == MARK_PART_BITS
    assert MARK_BITS % PART_BITS == 0


@pytest.mark.parametrize("number", [0, 1, 12345678901, ALL_BITS])
def test_a_mark_is_of_full_length_and_the_next_level_has_half(number: int) -> None:
    first = next_mark(-1, -1, number)
    assert first is not None
    assert first.bit_length() == MARK_BITS
    second = next_mark(first, -1, number)
    assert second is not None
    assert second.bit_length() == MARK_BITS + PART_BITS
    assert carries(second, first)
    assert next_mark(second, -1, number) is None
    assert second <= MARK_MAX


def test_a_limit_of_the_machine_is_kept_as_the_outer_part_and_a_hard_one_leaves_no_room() -> None:
    mark = next_mark(1000, -1, 7)
    assert mark is not None
    assert carries(mark, 1000)
    assert next_mark(-1, 10**5, 7) is None
    small = next_mark(-1, 2**PART_BITS, 7)
    assert small is not None
    assert small.bit_length() == PART_BITS


def test_the_child_and_what_it_starts_are_marked_and_we_are_not() -> None:
    before = resource.getrlimit(RLIMIT_LOCKS)
    mark = ChildMark()
    assert mark.mark is not None
    with subprocess.Popen(
        ["env", "-i", "/bin/sh", "-c", f"read line; setsid {SHOW}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=mark.take,  # noqa: PLW1509
    ) as child:  # fmt: skip
        assert resource.getrlimit(RLIMIT_LOCKS) == before
        shown, _ = child.communicate(b"\n", timeout=SAFETY_S)
    assert parse_mark(shown) == mark.mark
    own = max(before[0], 0)
    assert parse_mark(subprocess.run(SHOW, shell=True, capture_output=True, check=True).stdout) == own


FORKS = """
import os, subprocess
from trainer_shim.mark import mark_this_process
mark = mark_this_process()
assert mark_this_process() == mark
os.write(1, b"%d\\n" % mark)
if os.fork() == 0:
    os.write(1, b"%d\\n" % (mark_this_process() or 0))
    os._exit(0)
os.wait()
"""


def test_a_process_is_marked_once_and_its_fork_anew_within_it() -> None:
    unmarked = (resource.RLIM_INFINITY,) * 2
    done = subprocess.run(
        [sys.executable, "-c", f"import resource; resource.setrlimit({RLIMIT_LOCKS}, {unmarked})\n{FORKS}"],
        capture_output=True, text=True, check=True, timeout=SAFETY_S,
    )  # fmt: skip
    first, second = map(int, done.stdout.split())
    assert second != first
    assert carries(second, first)


@pytest.mark.parametrize("raw", [b"", b"Limit  Soft\n", b"x\nMax file locks            unlimited  unlimited  locks\n"])
def test_without_a_mark_there_is_none(raw: bytes) -> None:
    assert parse_mark(raw) == 0


def test_this_process_is_marked_as_the_kernel_says() -> None:
    mark = mark_this_process()
    with open("/proc/self/limits", "rb") as limits:
        assert mark is None or parse_mark(limits.read()) == mark
    assert mark_this_process() == mark, os.getpid()
