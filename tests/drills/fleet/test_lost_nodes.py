"""Governors that talk, and a node that is lost, cut off or without a governor: what the others do, and what it does.

Rank 3 tells of its NaN while the others hang: of a rank that waits in a collective nobody hears anything.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.drills.components import needs
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.governors import COMPILER, Governor
from tests.drills.fleet.nodes import until
from tests.drills.fleet.talking import BAD_RANK, HASTY, Talk, talking
from tests.drills.fleet.test_topology import assert_one_whole_checkpoint
from tests.drills.halt.conftest import BIN

needs("torch")


def lose(talk: Talk, befall: Callable[[], None]) -> None:
    """Let something befall nodes while the bad rank rests before a step; then its loss is no number."""
    training = talk.training
    training.steer("pace", BAD_RANK, "3.0")
    training.until_step(training.step(BAD_RANK) + 2, [BAD_RANK])
    befall()
    training.steer("alone", BAD_RANK)
    training.steer("nan", BAD_RANK)


def all_but(count: int, *lost: int) -> list[int]:
    return [number for number in range(1, count + 1) if number not in lost]


def knows_gone(governor: Governor) -> bool:
    return all(row["gone"] for row in governor.incident()["nodes"])


@pytest.mark.parametrize("count", [3, 8])
def test_a_node_that_died_without_a_word_holds_up_no_other_node(fleet: MakeFleet, count: int) -> None:
    made, others = fleet(count), all_but(count, 3)
    with talking(made) as talk:
        talk.begin(policy=HASTY)
        lose(talk, made[3].kill)
        talk.until_halted(*others)
        assert talk.training.running() == []
        assert talk.training.checkpoints() == []
        assert [talk.stops(made[number]) for number in others] == [(1, 1)] * len(others)
        assert talk.made.stops(made[3]) <= 1
        for number in others:
            incident = talk.on(number).incident()
            assert incident["called"] == "drill.node2.1"
            assert {row["node"]: row["silent"] for row in incident["nodes"]}["node3"] is True


@pytest.mark.parametrize("count", [4, 8])
def test_nodes_that_were_frozen_or_cut_off_hear_of_the_halt_when_they_are_back_and_nothing_is_stopped_twice(
    fleet: MakeFleet, count: int
) -> None:
    made, others = fleet(count), all_but(count, 3, 4)
    with talking(made) as talk:
        talk.begin(policy=HASTY)

        def befall() -> None:
            made[3].freeze()
            for number in (3, 4):
                made[number].cut()

        lose(talk, befall)
        talk.until_halted(*others)
        assert talk.training.running() == [4, 5, 6, 7]
        assert talk.on(4).incidents() == [], "it halts by its own rules only, and none has fired"
        for number in (3, 4):
            made[number].heal()
        made[3].thaw()
        until(lambda: talk.training.running() == [], "the ranks of the lost nodes are gone")
        for number in others:
            talk.on(number).until(lambda one=talk.on(number): knows_gone(one), "it hears that they are gone")
        assert talk.ids() == {"drill.node2.1"}
        assert [talk.stops(made[number]) for number in others] == [(1, 1)] * len(others)
        assert all(talk.made.stops(made[number]) <= 1 for number in (3, 4))


@pytest.mark.parametrize("count", [3, 8])
def test_a_node_without_a_governor_saves_with_the_others_and_is_stopped_when_its_governor_is_back(
    fleet: MakeFleet, count: int
) -> None:
    made, others = fleet(count), all_but(count, 3)
    with talking(made) as talk:
        talk.begin()
        talk.on(3).kill9()
        talk.training.steer("nan", BAD_RANK)
        talk.until_halted(*others)
        assert_one_whole_checkpoint(talk.training)
        assert [talk.stops(made[number]) for number in others] == [(1, 1)] * len(others)
        talk.on(3).start()
        until(lambda: made[3].cloud.state() == "stopped", "the machine of node 3 is stopped")
        until(lambda: talk.stops(made[3]) == (1, 1), "it was stopped once")
        # Its ranks may tell it of the NaN before its peers speak: that verdict is its own, until it hears of theirs.
        until(lambda: talk.ids() == {"drill.node2.1"}, "all nodes call it alike")


@pytest.mark.parametrize("count", [3, 8])
def test_two_people_at_once_a_governor_that_begins_again_and_a_wrong_clock_are_one_halt(
    fleet: MakeFleet, count: int
) -> None:
    made = fleet(count)
    with talking(made, env={"MASTER_ADDR": "node1"}) as talk:
        talk.begin(each={2: {"clock_off_s": 3600 if COMPILER else 0}})
        talk.training.steer("pace", 0, "1.0")
        halt = [str(BIN / "costgov"), "halt", "drill", "--reason", "enough"]
        asked = [made[number].start(halt, log="halt.log") for number in (2, 3)]
        third = talk.on(3)
        third.until(third.stage, "it halts")
        third.kill9()
        third.start()
        talk.until_halted()
        assert asked[0].wait() in (0, 7)
        assert asked[1].wait() in (0, 3, 7), "its governor was killed beside it, or before it was asked"
        talk.until_all_know()
        talk.until_spend_adds_up()
        assert talk.training.running() == []
        (called,) = talk.ids()
        assert called in ("drill.node2.1", "drill.node3.1")
        assert [talk.stops(node) for node in made] == [(1, 1)] * len(made)
