"""Every way in which a training may take a halt, with real processes and signals: the end is the same, and observed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.drills.halt.conftest import Halted
from trainer_shim.wire import HALT_EXIT_CODE

Trainee = Callable[..., Halted]


def test_polite_saves_acknowledges_and_ends(trainee: Trainee) -> None:
    halted = trainee("polite")
    assert halted.code == HALT_EXIT_CODE, halted.output
    whats = ["verdict", "asked", "received", "agreed", "saved", "term", "exited", "halted"]
    assert [what for what in halted.seen if what in whats] == whats
    assert halted.incident["checkpoint"]["verified_by"] == "governor"
    assert halted.incident["checkpoint"]["hashes_equal"] == halted.incident["checkpoint"]["files"]
    assert halted.running() == []


@pytest.mark.parametrize("mode", ["stolen", "foreign"])
def test_the_letter_alone_obliges_whoever_holds_the_signal(trainee: Trainee, mode: str) -> None:
    halted = trainee(mode)
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert "saved" in halted.seen
    assert halted.running() == []
    if mode == "foreign":
        assert not (halted.work / "foreign").exists(), "a handler that was there before is not run at our request"


@pytest.mark.parametrize("mode", ["deaf", "stuck", "stopped"])
def test_a_thread_that_never_comes_to_a_boundary_is_not_waited_for_beyond_the_grace(
    trainee: Trainee, mode: str
) -> None:
    halted = trainee(mode)
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert "saved" not in halted.seen
    assert "term" in halted.seen
    assert "exited" in halted.seen
    assert halted.running() == []


def test_deaf_to_sigterm_is_killed(trainee: Trainee) -> None:
    halted = trainee("deaf_term")
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert halted.seen.index("term") < halted.seen.index("kill") < halted.seen.index("exited")
    assert halted.running() == []


def test_data_loader_processes_that_outlive_their_leader_are_found(trainee: Trainee) -> None:
    halted = trainee("grandchildren")
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert "kill" in halted.seen
    assert halted.running() == []


def test_an_unreaped_zombie_counts_as_gone(trainee: Trainee) -> None:
    halted = trainee("zombie")
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert "kill" not in halted.seen, "nobody was left to kill"
    assert halted.running() == []
