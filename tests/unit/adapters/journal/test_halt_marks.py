"""The file of halt marks: appended, synced, read whole, and of no force when it is damaged."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from governor.adapters.journal import halt_marks
from governor.adapters.journal.halt_marks import HaltMarkFile, HaltMarksUnusable, HaltMarkWatch
from governor.core.base.halt_marks import HaltMarks, Said
from governor.core.base.units import MonoNs
from governor.core.events.machine import FilesLost, HaltMarksRead
from governor.wire import peers
from tests.unit.core.base.test_halt_marks import NAN, mark, rearm
from tests.unit.wire.test_peers import in_user_namespace


def test_what_is_appended_is_read_by_everybody(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    assert file.read().entries == []
    file.append(mark(1))
    file.append(mark(2))
    assert file.append(rearm()).counted(NAN) == []
    assert [one.rule_key for one in HaltMarkFile(tmp_path / "m").read().entries] == [NAN] * 3
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o600


def test_the_same_word_again_adds_no_line(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    for _ in range(3):
        file.append(mark(1))
    assert len(file.append(rearm()).entries) == 2
    assert len(file.append(rearm()).entries) == 2


def test_writers_at_once_lose_no_line(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    threads = [threading.Thread(target=file.append, args=(mark(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read().counted(NAN)) == 8


def test_half_a_line_of_a_crash_was_never_confirmed_and_does_not_count(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    file.append(mark(1))
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + whole[:20])
    assert len(file.read().entries) == 1
    file.append(mark(2))
    assert len(file.read().entries) == 2
    file.path.write_bytes(b"\0" * 10)
    assert file.read().entries == []


@pytest.mark.parametrize(
    "damage",
    [
        b"\0\n", b"[" * 100_000 + b"\n", b"{}\n", b"\xff\xfe\n", b"\n", b'{"act":"mark"}\n', b'{"act":[]}\n',
        b'{"act":{}}\n', b"[]\n", b"null\n", b"9" * 5_000 + b"\n",
    ],
)  # fmt: skip
def test_any_other_damage_takes_all_force_and_is_one_line(tmp_path: Path, damage: bytes) -> None:
    file = HaltMarkFile(tmp_path / "m")
    file.append(mark(1))
    file.path.write_bytes(file.path.read_bytes() + damage)
    before = file.path.read_bytes()
    for act in (file.read, lambda: file.append(mark(2))):
        with pytest.raises(HaltMarksUnusable, match="m: line 2 is none of ours") as told:
            act()
        assert "\n" not in str(told.value)
    assert file.path.read_bytes() == before


def test_what_is_no_file_of_ours_is_not_followed_nor_waited_for(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    os.mkfifo(file.path)
    for act in (file.read, lambda: file.append(mark(1))):
        with pytest.raises(HaltMarksUnusable):
            act()
    file.path.unlink()
    (tmp_path / "elsewhere").write_bytes(b"")
    file.path.symlink_to(tmp_path / "elsewhere")
    for act in (file.read, lambda: file.append(mark(1))):
        with pytest.raises(HaltMarksUnusable):
            act()
    assert (tmp_path / "elsewhere").read_bytes() == b""


def written(file: HaltMarkFile) -> HaltMarkFile:
    file.append(mark(1))
    file.append(mark(2))
    return file


def refusal_of(file: HaltMarkFile) -> str:
    """Nothing of it is believed, and nothing is added to it."""
    before = file.path.read_bytes()
    told = set()
    for act in (file.read, lambda: file.append(mark(3))):
        with pytest.raises(HaltMarksUnusable) as refused:
            act()
        told.add(str(refused.value))
    assert file.path.read_bytes() == before
    (line,) = told
    assert line.startswith(f"{file.path}: ")
    return line


def test_what_others_may_write_is_not_believed(tmp_path: Path) -> None:
    file = written(HaltMarkFile(tmp_path / "m"))
    watch = HaltMarkWatch(file)
    assert list(watch.first()[0].wrong()) == [NAN]
    for mode in (0o602, 0o620, 0o666):
        file.path.chmod(mode)
        assert f"others may write it (mode {mode:o})" in refusal_of(file)
        assert watch.look() == (HaltMarks(), refusal_of(file))
    file.path.chmod(0o644)
    found = watch.look()
    assert found is not None
    assert list(found[0].wrong()) == [NAN], "who may read it is nobody's matter"
    os.link(file.path, tmp_path / "other")
    assert "has 2 names" in refusal_of(file)
    assert watch.look() == (HaltMarks(), refusal_of(file))
    watch.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_whose_it_may_be(tmp_path: Path) -> None:
    stranger, service = 12_345, 12_346
    file = written(HaltMarkFile(tmp_path / "m"))
    os.chown(file.path, stranger, stranger)
    assert f"belongs to uid {stranger}" in refusal_of(file)
    os.chown(tmp_path, service, service)
    assert f"belongs to uid {stranger}" in refusal_of(file)
    for uid in (service, 0):
        os.chown(file.path, uid, uid)
        assert len(file.read().entries) == 2
    file.path.unlink()
    file.append(mark(1))
    assert file.path.stat().st_uid == service, "root's first mark is for whoever has the directory"
    file.path.write_bytes(b"")
    os.chown(file.path, stranger, stranger)
    assert "belongs to uid" in refusal_of(file)
    assert file.path.stat().st_uid == stranger, "an empty file of somebody else may be held open"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("is_mapped", [False, True])
def test_where_users_share_a_number_it_is_believed_of_nobody(short_tmp: Path, is_mapped: bool) -> None:
    """In a user namespace: somebody else's file has the number of whoever has none there."""
    file = written(HaltMarkFile(short_tmp / "m"))
    for path in (file.path, short_tmp):
        os.chown(path, 12_345, 12_345)
    short_tmp.chmod(0o755)
    file.path.chmod(0o644)

    def read(_path: str, _uid: int) -> str:
        try:
            return f"read {len(file.read().entries)}"
        except HaltMarksUnusable as refused:
            return str(refused)

    assert f"belongs to uid {peers.overflow_uid()}" in in_user_namespace(read, "", 12_346, is_mapped=is_mapped)
    assert read("", 0) == "read 2"


def test_a_failed_look_takes_no_force_and_the_next_one_tries_again(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    file.append(mark(1))
    watch = HaltMarkWatch(file)
    watch.first()
    file.append(mark(2))
    with no_descriptors():
        assert watch.look() is None
    found = watch.look()
    assert found is not None
    assert (len(found[0].counted(NAN)), found[1], watch.look()) == (2, "", None)
    watch.close()


def test_looks_that_go_on_failing_are_told_once_until_one_has_read_it(tmp_path: Path) -> None:
    file = written(HaltMarkFile(tmp_path / "m"))
    watch = HaltMarkWatch(file)
    with no_descriptors():
        assert (watch.first()[0].wrong(), "Too many open files" in watch.first()[1]) == ({}, True), "at the start"
        assert [watch.look() for _ in range(5)] == [None] * 5
    found = watch.look()
    assert found is not None
    assert (list(found[0].wrong()), found[1]) == ([NAN], "")
    file.append(mark(3))
    with no_descriptors():
        told = [watch.look() for _ in range(6)]
    assert [one is not None for one in told] == [False, False, True, False, False, False]
    assert watch.look() is not None
    watch.close()


def test_a_path_that_leads_nowhere_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "symbolic links" in HaltMarkWatch(HaltMarkFile(tmp_path / "loop" / "m")).first()[1]


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    with file.path.open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(HaltMarksUnusable, match="more than we write"):
        file.read()


def test_one_user_does_not_fill_the_file_of_all(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    own = replace(mark(1), uid=1001, for_all=False)
    lines = [replace(own, note=str(number)) for number in range(halt_marks.OF_ONE_UID_MAX)]
    file.path.write_text("".join(halt_marks.line_of(one) for one in lines))
    with pytest.raises(HaltMarksUnusable, match="which is the most"):
        file.append(own)
    file.append(mark(2))


def test_a_full_file_says_what_to_do(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    line = halt_marks.line_of(mark(1))
    file.path.write_text(line * (halt_marks.FILE_BYTES_MAX // len(line)))
    with pytest.raises(HaltMarksUnusable, match="move it aside"):
        file.append(mark(2))


def test_the_longest_entry_fits_into_a_line() -> None:
    wide = "\U0001f600"
    names = dict.fromkeys(("incident_id", "run", "policy", "rule", "trigger"), wide * 256)
    assert len(halt_marks.line_of(mark(1, note=wide * 512, **names))) <= halt_marks.LINE_BYTES_MAX


def test_the_watch_tells_a_change_once_and_what_is_wrong(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    watch = HaltMarkWatch(file)
    assert watch.first()[1] == ""
    assert watch.look() is None
    file.append(mark(1))
    found = watch.look()
    assert found is not None
    assert (list(found[0].wrong()), found[1], watch.look()) == ([NAN], "", None)
    file.path.write_bytes(b"broken\n")
    found = watch.look()
    assert found is not None
    assert (found[0].wrong(), "line 1" in found[1]) == ({}, True)
    file.path.unlink()
    found = watch.look()
    assert found is not None
    assert (found[0].wrong(), found[1]) == ({}, "")
    watch.close()


def test_the_loop_is_told_by_events(tmp_path: Path) -> None:
    file = HaltMarkFile(tmp_path / "m")
    file.path.write_bytes(b"broken\n")
    watch = HaltMarkWatch(file)
    deadline = threading.Event()
    found: list[object] = []
    while not found:
        found = [*watch.poll(MonoNs(1))]
        deadline.wait(0.01)
    watch.close()
    assert [type(one) for one in found] == [HaltMarksRead, FilesLost]
    assert Said("false") is Said.FALSE
