"""Three nodes, two ranks each, a governor on each that knows of no other: what one run's halt does on all of them.

The ranks agree in their job's store, whoever asked; a governor whose ranks obey another one's request halts its own
node. Each node stops its own instance, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.drills.components import needs
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.governors import Governor
from tests.drills.fleet.nodes import Fleet
from tests.drills.fleet.training import Training
from trainer_shim.saving import checkpoint

needs("torch")

BAD_RANK = 3  # The second one of node 2.
Halted = tuple[Fleet, Training, list[Governor]]


@pytest.fixture
def halted(fleet: MakeFleet) -> Callable[[str], Halted]:
    """Return halted(how): six ranks train, one loses its numbers, and all nodes have halted."""

    def halt(how: str) -> Halted:
        made = fleet(3)
        with Training(made) as training:
            governors = made.govern()
            training.launch()
            training.know()
            for governor in governors:
                governor.until(lambda one=governor: one.step() > 3 and one.run()["ranks_connected"] == 2, "it trains")
                assert governor.run()["world_size"] == training.world_size
            assert training.running() == list(training.ranks)
            training.steer(how, BAD_RANK)
            for governor in governors:
                governor.until_stage("HALTED", "NEEDS_HUMAN")
            return made, training, governors

    return halt


def noted(incident: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [entry["detail"] for entry in incident["timeline"] if entry["what"] == what]


def assert_one_whole_checkpoint(training: Training) -> int:
    """Of all ranks, at the one step at which each of them stopped; returns that."""
    (name,) = training.checkpoints()
    path = training.place / "checkpoints" / name
    step = int(name.split("_")[1])
    assert name == f"cg_{step}_suspect"
    assert checkpoint.verify_manifest(str(path), hashes=True) == []
    named = json.loads((path / checkpoint.MANIFEST).read_text())
    assert named["world_size"] == training.world_size
    assert [training.step(rank) for rank in training.ranks] == [step] * training.world_size, training.logs()
    return step


def assert_all_is_over(made: Fleet, training: Training, governors: list[Governor]) -> None:
    assert training.running() == []
    for node, governor in zip(made, governors, strict=True):
        assert [line for line in node.processes().values() if "warm_nodes.py" in line] == []
        assert governor.incident()["halt_stage"] == "HALTED"
        assert node.cloud.state() == "stopped"
        assert (node.cloud.times_ended, made.stops(node)) == (1, 1)


def test_a_nan_of_one_rank_is_halted_by_its_own_governor_and_the_others_join(halted: Callable[[str], Halted]) -> None:
    made, training, governors = halted("nan")
    step = assert_one_whole_checkpoint(training)
    first, second, third = (governor.incident() for governor in governors)
    assert (second["rule"], second["reason"]) == ("nonfinite", "loss_nan")
    assert f"rank {BAD_RANK} " in second["text"]
    assert second["agreed_step"] == step
    assert {detail["step"] for detail in noted(second, "agreed")} == {step}
    for joined in (first, third):
        assert (joined["rule"], joined["reason"]) == ("join", "joined")
        assert second["incident_id"] in joined["text"]
        assert {detail["merged_into"] for detail in noted(joined, "merged")} == {second["incident_id"]}
    assert_all_is_over(made, training, governors)


def test_a_nan_that_every_governor_sees_is_one_checkpoint_and_one_stop_of_each_node(
    halted: Callable[[str], Halted],
) -> None:
    made, training, governors = halted("nan_spreads")
    assert_one_whole_checkpoint(training)
    incidents = [governor.incident() for governor in governors]
    assert incidents[1]["rule"] == "nonfinite"
    assert {incident["rule"] for incident in incidents} <= {"nonfinite", "join"}
    assert_all_is_over(made, training, governors)
