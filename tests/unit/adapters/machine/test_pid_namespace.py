"""Which of our processes one of another PID namespace is: by the number within, its start and, if we may, the inode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters.machine.pid_namespace import INITIAL, OtherNamespaces
from governor.core.base.identity import ProcessId

LEFT = ProcessId(7, 500, "boot", 4_026_532_001)


def a_process(proc: Path, pid: int, within: str, ticks: int = 500) -> None:
    own = proc / str(pid)
    own.mkdir()
    (own / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}{within}\nUid:\t0\n")
    (own / "stat").write_text(f"{pid} (a) b) S 1 {pid} {pid} 0 -1 4194304 1 2 3 4 5 6 7 8 9 0 1 0 {ticks} 99 0")


def located(proc: Path, own: int) -> ProcessId | None:
    others = OtherNamespaces("boot", str(proc))
    others.own = own
    return others.locate(LEFT)


@pytest.mark.parametrize("within", ["\t7", "\t7\t1", "\t40\t7"])
def test_its_number_in_any_namespace_within_ours_tells_it(within: str, tmp_path: Path) -> None:
    a_process(tmp_path, 1, "")
    a_process(tmp_path, 7, "")  # Ours has that number too, and that start.
    a_process(tmp_path, 700, within)
    assert located(tmp_path, 99) == ProcessId(700, 500, "boot", 99)


def test_of_two_that_may_be_it_neither_is(tmp_path: Path) -> None:
    for pid in (1, 700, 701):
        a_process(tmp_path, pid, "\t7" if pid > 1 else "")
    assert located(tmp_path, INITIAL) is None


def test_the_inode_tells_two_apart_that_began_in_the_same_tick(tmp_path: Path) -> None:
    for pid in (700, 701):
        a_process(tmp_path, pid, "\t7")
        (tmp_path / str(pid) / "ns").mkdir()
        (tmp_path / str(pid) / "ns" / "pid").touch()  # Its inode stands for the namespace's.
    there = (tmp_path / "700" / "ns" / "pid").stat().st_ino
    others = OtherNamespaces("boot", str(tmp_path))
    assert others.locate(ProcessId(7, 500, "boot", there)) == ProcessId(700, 500, "boot", 0)


@pytest.mark.parametrize(("own", "is_gone"), [(INITIAL, True), (99, False)])
def test_who_is_not_seen_is_gone_only_where_everybody_is_seen(own: int, is_gone: bool, tmp_path: Path) -> None:
    a_process(tmp_path, 1, "")
    a_process(tmp_path, 700, "\t7", ticks=501)
    assert located(tmp_path, own) == (LEFT if is_gone else None)


def test_nor_where_others_are_hidden(tmp_path: Path) -> None:
    assert located(tmp_path, INITIAL) is None


def test_our_own_namespace_is_known() -> None:
    assert OtherNamespaces("boot", "/proc").own == os.stat("/proc/self/ns/pid").st_ino
