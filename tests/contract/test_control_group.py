"""A control group of our own: this kernel's, where it may be made; what it is not told it must not break."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.machine.control_group import PREFIX, OwnGroup, Place, left_group, make_group, own_place, sweep

SAFETY_S = 60
WAITS = ["/bin/sh", "-c", "read line; (setsid sleep 3600 &)"]


@pytest.fixture
def place() -> Iterator[Place]:
    ours = own_place()
    if ours is None or not os.access(ours.directory, os.W_OK):
        pytest.skip("needs a control group of version 2 that may be written")
    name = f"contract-{os.getpid()}"
    made = Place(f"{ours.path.rstrip('/')}/{name}", ours.directory / name)
    made.directory.mkdir()
    yield made
    made.directory.rmdir()  # It has nothing below it any more.


def start(group: OwnGroup) -> subprocess.Popen[bytes]:
    return subprocess.Popen(WAITS, stdin=subprocess.PIPE, preexec_fn=group.join)  # noqa: PLW1509


def test_what_leaves_its_tree_stays_in_the_group_and_ends_with_it(place: Place) -> None:
    group = make_group("llama", place)
    assert group is not None
    assert not group.is_populated
    with start(group) as process:
        assert group.holds(process.pid)
        assert not group.holds(os.getpid())
        assert group.path == f"{place.path}/{group.directory.name}"
        process.communicate(b"\n", timeout=SAFETY_S)
    assert group.is_populated, "the shell is gone, and what it detached is not"
    assert group.kill()
    events = group.directory / "cgroup.events"
    while "populated 1" in events.read_text():
        pass
    assert not group.is_populated
    group.remove()
    assert not group.directory.exists()


def test_a_group_that_somebody_uses_is_no_leftover(place: Place) -> None:
    held = make_group("held", place)
    assert held is not None
    left = place.directory / f"{PREFIX}left-00000000"
    (left / "below").mkdir(parents=True)
    others = place.directory / "another-s"
    others.mkdir()
    next_one = make_group("next", place)
    assert next_one is not None
    assert sorted(one.name for one in place.directory.iterdir() if one.is_dir()) == sorted(
        [held.directory.name, next_one.directory.name, others.name]
    )
    others.rmdir()
    with start(next_one) as process:
        next_one.remove()  # Its holder leaves, its command goes on.
        sweep(place.directory)
        assert next_one.directory.exists()
        process.kill()
        process.communicate(timeout=SAFETY_S)
    sweep(place.directory)
    held.remove()
    assert not list(place.directory.glob(f"{PREFIX}*"))


def test_the_group_of_one_that_was_killed_is_had_again_but_not_by_who_is_in_it(place: Place) -> None:
    made = make_group("killed", place)
    assert made is not None
    assert left_group(made.path) is None, "it is held"
    assert left_group(place.path) is None, "it is none of ours"
    with start(made) as process:
        for fd in (made._procs, made._fd):  # As its end by SIGKILL does.
            os.close(fd)
        inside = f"from {left_group.__module__} import *; import sys; sys.exit(left_group({made.path!r}) is not None)"
        subprocess.run([sys.executable, "-c", inside], preexec_fn=lambda: into(made.directory), check=True)
        again = left_group(made.path)
        assert again is not None
        assert again.is_populated
        assert again.kill()
        process.communicate(timeout=SAFETY_S)
    assert not again.is_populated
    again.remove()
    assert left_group(made.path) is None, "it is gone"


def into(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def test_where_none_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert make_group("x", Place("/x", tmp_path / "missing")) is None
    assert make_group("x", Place("/x", tmp_path)) is None, "a directory that is no control group"
    assert list(tmp_path.iterdir()) == []
