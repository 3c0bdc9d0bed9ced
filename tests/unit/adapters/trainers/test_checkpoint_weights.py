"""How many bytes of a checkpoint are charged: what its user has on the disk, and each byte once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoint_files import Weight, weigh
from governor.adapters.trainers.checkpoints import DiskCheckpoints

OWN = os.getuid()
KB = 1024


def weight(path: Path | str, uid: int = OWN) -> Weight:
    return weigh(str(path), lambda: None, uid)


def with_bytes(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def test_files_of_all_folders_count(tmp_path: Path) -> None:
    with_bytes(tmp_path / "cg_3" / "a", 64 * KB)
    with_bytes(tmp_path / "cg_3" / "deep" / "er" / "b", 32 * KB)
    assert weight(tmp_path / "cg_3") == Weight(96 * KB)
    assert weight(tmp_path / "cg_3" / "a") == Weight(64 * KB), "Lightning's are single files"


def test_holes_second_names_and_links_are_nothing(tmp_path: Path) -> None:
    one = with_bytes(tmp_path / "cg_3" / "a", 64 * KB)
    with open(tmp_path / "cg_3" / "holes", "wb") as file:
        file.truncate(10**13)
    for number in range(20):
        os.link(one, tmp_path / "cg_3" / f"again{number}")
    elsewhere = with_bytes(tmp_path / "data" / "c", 64 * KB)
    (tmp_path / "cg_3" / "link").symlink_to(elsewhere)
    (tmp_path / "cg_3" / "round").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "cg_3" / "pipe")
    assert weight(tmp_path / "cg_3") == Weight(64 * KB)


def test_of_another_users_files_nothing_is_said(tmp_path: Path) -> None:
    with_bytes(tmp_path / "cg_3" / "a", 64 * KB)
    assert weight(tmp_path / "cg_3", OWN + 1) == Weight(None, "its files are another user's")


@pytest.mark.parametrize("path", ["/nowhere/cg_3", "", "s3://bucket/cg_3", "/etc/passwd/cg_3", "a\0b", "\ud800"])
def test_what_is_not_here_cannot_be_seen(path: str) -> None:
    assert weight(path).bytes is None
    assert weight(path).reason


def test_an_empty_one_is_nothing(tmp_path: Path) -> None:
    assert weight(tmp_path) == Weight(0)


def test_more_files_than_are_counted_are_not_guessed(tmp_path: Path) -> None:
    for name in "abc":
        with_bytes(tmp_path / name, KB)
    assert weigh(str(tmp_path), lambda: None, OWN, 2) == Weight(None, "cannot be looked at: it has too many files")


def test_a_slow_directory_is_not_said_to_have_too_many_files(tmp_path: Path) -> None:
    with_bytes(tmp_path / "a", KB)
    assert (
        weigh(str(tmp_path), lambda: None, OWN, time_max_s=0.0).reason
        == "cannot be looked at: its files took longer than 0 s"
    )


def test_the_reader_says_it_or_why_not(tmp_path: Path) -> None:
    with_bytes(tmp_path / "a", 64 * KB)
    checkpoints = DiskCheckpoints()
    assert checkpoints.weigh(str(tmp_path), uid=OWN, gid=os.getgid()) == (64 * KB, "")
    found, reason = checkpoints.weigh("/nowhere/cg_3", uid=OWN, gid=os.getgid())
    assert (found, reason) == (None, "cannot be looked at: No such file or directory")
