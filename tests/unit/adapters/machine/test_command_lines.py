"""What a user's own command lines cost the governor: they have a bound, and nobody else's are cut for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from governor.adapters.machine.command_lines import (
    ARGV_WORDS_MAX,
    ARGVS_BYTES_MAX,
    ARGVS_OF_UID_BYTES_MAX,
    CommandLines,
)
from governor.adapters.machine.processes import LinuxProcesses
from governor.core.base.identity import ProcessId
from tests.contract.test_processes import make_proc

RANK = ("python", "train.py", "--lr", "0.1")
FAT = 32_000


def line(argv: Iterable[str]) -> bytes:
    return "".join(f"{word}\0" for word in argv).encode("utf-8", "surrogateescape")


def fat(number: int, words: int = FAT) -> bytes:
    """Each of its words takes 76 bytes as a str."""
    return b"\xff\0" * words + str(number).encode() + b"\0"


def size(argvs: Iterable[tuple[str, ...]]) -> int:
    distinct = {id(argv): argv for argv in argvs}.values()
    words = {id(word): word for argv in distinct for word in argv}.values()
    return sum(map(sys.getsizeof, distinct)) + sum(map(sys.getsizeof, words))


def fill(lines: CommandLines, uid: int) -> None:
    """Take all the room that this user gets."""
    for words in (2_000, 400, 40):
        argv: tuple[str, ...] = ("",)
        while not argv[-1].startswith("[cut: "):
            pid = len(lines.by_process) + 1_000
            argv = lines.keep(of(pid), uid, fat(pid, words))


def of(pid: int) -> ProcessId:
    return ProcessId(pid, 1, "boot")


def test_a_table_of_fat_command_lines_is_small_and_says_which_differ(tmp_path: Path) -> None:
    make_proc(tmp_path, os.getpid(), b"costgov\0daemon\0")
    fats = range(2_000_000, 2_000_060)
    for pid in fats:
        make_proc(tmp_path, pid, fat(pid))
    make_proc(tmp_path, 3_000_000, line(RANK))
    (tmp_path / "3000000" / "status").write_text("Name:\tpython\nUid:\t1001\t1001\t1001\t1001\n")
    processes = LinuxProcesses("boot", proc=str(tmp_path), look_bound_s=60)
    for _ in range(2):
        table = processes.table()
        assert size(facts.argv for facts in table.values()) <= ARGVS_OF_UID_BYTES_MAX + 60 * 4096
        assert len({table[pid].argv for pid in fats}) == 60
        assert max(len(facts.argv) for facts in table.values()) <= ARGV_WORDS_MAX + 1
        assert table[3_000_000].argv == RANK
    assert processes.facts(2_000_000) == table[2_000_000]


def test_one_command_line_of_many_processes_and_of_the_next_table_is_kept_once() -> None:
    first = CommandLines()
    argvs = [first.keep(of(pid), 1000, line(RANK)) for pid in range(3)]
    first.forget_before()
    second = CommandLines(first)
    argvs.append(second.keep(of(0), 1000, line(RANK)))
    assert argvs[0] == RANK
    assert len({id(argv) for argv in argvs}) == 1


@pytest.fixture(scope="module")
def crowded() -> CommandLines:
    """Twice as many users as there is room for, each with all that a user gets."""
    lines = CommandLines()
    for number in range(2 * ARGVS_BYTES_MAX // ARGVS_OF_UID_BYTES_MAX):
        fill(lines, 2000 + number)
    return lines


def test_users_together_take_no_more(crowded: CommandLines) -> None:
    assert size(crowded.by_process.values()) <= 1.1 * ARGVS_BYTES_MAX


@pytest.mark.parametrize(("uid", "is_whole"), [(0, True), (1000, False)])
def test_root_is_not_cut_for_users_who_are_many(crowded: CommandLines, uid: int, is_whole: bool) -> None:
    long = ("python", "train.py", *(f"--option-{n}" for n in range(100)))
    argv = crowded.keep(of(9_990_000 + uid), uid, line(long))
    assert (argv == long) is is_whole
    assert argv[:2] == ("python", "train.py")


def test_a_cut_word_is_not_shown_in_part() -> None:
    """A half of a secret looks like none."""
    lines = CommandLines()
    fill(lines, 1000)
    argv = lines.keep(of(2), 1000, line(("python", "-x", "s" * 6_000)))
    assert argv[:2] == ("python", "-x")
    assert (len(argv), argv[2].startswith("[cut: 6010 bytes in all, ")) == (3, True)
