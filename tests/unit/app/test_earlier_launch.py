"""What decides about a launch where nothing is seen of the one before: whether anybody holds its lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.adapters.command import launch_lock
from governor.app.earlier_launch import lives_elsewhere, taken_for_over
from governor.core.halt.elsewhere import Elsewhere

UNSEEN, REBOOTED = Elsewhere(is_unseen=True), Elsewhere(is_of_other_boot=True)


@contextmanager
def held(state_dir: Path) -> Iterator[None]:
    fd = launch_lock.join(state_dir)
    assert fd is not None
    yield
    os.close(fd)


@pytest.mark.parametrize(
    ("elsewhere", "where"),
    [(UNSEEN, "still runs in another PID namespace"), (REBOOTED, "still runs on another machine"), (Elsewhere(), "")],
)
def test_who_holds_it_refuses_a_launch_only_where_he_is_not_seen(
    elsewhere: Elsewhere, where: str, tmp_path: Path
) -> None:
    """What an earlier launch has left in our own namespace is seen: a server that it has started is no trainer."""
    with held(tmp_path):
        told = lives_elsewhere("llama", elsewhere, tmp_path)
        assert where in told if told is not None else not where


@pytest.mark.parametrize("elsewhere", [UNSEEN, REBOOTED])
def test_a_lock_that_nobody_holds_and_none_at_all_let_it_begin(elsewhere: Elsewhere, tmp_path: Path) -> None:
    assert lives_elsewhere("llama", elsewhere, tmp_path) is None
    with held(tmp_path):
        pass
    assert lives_elsewhere("llama", elsewhere, tmp_path) is None


def test_an_end_that_was_not_seen_is_told_and_a_reboot_is_none(tmp_path: Path) -> None:
    assert "nothing tells whether it still runs" in (taken_for_over("llama", UNSEEN, tmp_path) or "")
    with held(tmp_path):
        pass
    assert "it is taken for over" in (taken_for_over("llama", UNSEEN, tmp_path) or "")
    assert taken_for_over("llama", REBOOTED, tmp_path) is None
