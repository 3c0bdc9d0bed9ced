"""Three or eight nodes, two ranks each, whose governors tell each other: one run's halt is one halt on all of them.

What holds without messages is in test_topology.py. `Talk.figures` draws when each node did what.
"""

from __future__ import annotations

import pytest

from tests.drills.components import needs
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.nodes import until
from tests.drills.fleet.talking import BAD_RANK, Talk, talking
from tests.drills.fleet.test_topology import assert_all_is_over, assert_one_whole_checkpoint

needs("torch")

WORTH_S = 10.0  # Sixteen ranks on two cores agree within a second, or some.


def assert_rank_0_went_last(talk: Talk) -> None:
    """Its node hosts the store: it signals when the others have seen their processes' end, and not before."""
    signalled = talk.when(talk.on(1), "term")
    ends = [talk.when(governor, "exited") for governor in talk.governors[1:]]
    assert signalled is not None
    assert all(end is not None and end <= signalled for end in ends), talk.figures()


def assert_one_incident(talk: Talk) -> None:
    """By one id, with one step and one checkpoint, on every node that has a governor's report."""
    incidents = [report for governor in talk.governors for report in governor.reports()]
    assert len(incidents) == len(talk.governors)
    assert {one["called"] for one in incidents} == {"drill.node2.1"}
    assert {one["decided_by"] for one in incidents} == {"node2"}
    assert len({one["agreed_step"] for one in incidents}) == 1
    for governor in talk.governors:
        saved, signalled = talk.when(governor, "saved"), talk.when(governor, "term")
        assert saved is not None
        assert signalled is not None
        assert saved <= signalled, f"{governor.node.name} did not wait for the save\n{talk.figures()}"


def assert_one_halt(talk: Talk) -> int:
    """Of all nodes, from the save to what each of them knows; returns what all have charged, in micro-dollars."""
    talk.until_halted()
    assert_one_whole_checkpoint(talk.training)
    talk.until_all_know()
    spent = talk.until_spend_adds_up()
    print(talk.figures())  # pytest -s shows it.
    assert_one_incident(talk)
    assert_rank_0_went_last(talk)
    assert_all_is_over(talk.made, talk.training, talk.governors)
    assert talk.training.restarted() == []
    return spent


@pytest.mark.parametrize("count", [3, 8])
def test_a_nan_is_one_halt_of_all_nodes_and_each_of_them_knows_its_end(fleet: MakeFleet, count: int) -> None:
    made = fleet(count)
    with talking(made, restarts=1) as talk:
        talk.begin()
        talk.training.until_worth(WORTH_S)
        talk.training.steer("nan", BAD_RANK)
        assert assert_one_halt(talk) > 0
        step = talk.training.step(0)
        for governor in talk.governors:
            shown = talk.shown(governor)
            assert (shown["called"], shown["agreed_step"]) == ("drill.node2.1", step)
            rows = {
                row["node"]: (row["gone"], row["stopped"], row["verified"], row["silent"]) for row in shown["nodes"]
            }
            assert rows == {node.name: (True, True, True, False) for node in made}
            instances = {row["node"]: row["instance"] for row in shown["nodes"]}
            assert instances == {node.name: node.cloud.instance_id for node in made}


def test_machines_that_go_off_with_their_stop_are_stopped_once_and_the_last_one_knows_that_all_ranks_are_gone(
    fleet: MakeFleet,
) -> None:
    """No governor lives to hear that its own stop was taken: what is on the disks is all that is left."""
    made = fleet(3)
    with talking(made) as talk:
        talk.begin()
        made.machines_go_off()
        talk.training.steer("nan", BAD_RANK)
        until(lambda: all(node.cloud.state() == "stopped" for node in made), "every machine is off")
        until(lambda: talk.training.running() == [], "every rank is gone")
        assert_one_whole_checkpoint(talk.training)
        assert_one_incident(talk)
        assert_rank_0_went_last(talk)
        until(lambda: [talk.stops(node) for node in made] == [(1, 1)] * len(made), "each is counted once")
        (last,) = talk.on(1).reports()
        assert {row["node"]: row["gone"] for row in last["nodes"]} == {node.name: True for node in made}
