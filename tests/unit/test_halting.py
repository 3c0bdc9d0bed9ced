"""What a halt may take: never more of the machine than the policy's word allows, and nothing at all in observe mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.effects import Alarm, Ask, StopCompute, Term
from governor.core.events import OperatorHalt, ProcessesSeen
from governor.core.halt import StopTarget
from governor.core.policy import HaltSettings
from tests.unit.test_engine import ack, at, make_node, play, training


@pytest.mark.parametrize(
    ("stop", "target"),
    [
        ("processes", StopTarget.PROCESSES),
        ("job", StopTarget.PROCESSES),
        ("auto", StopTarget.INSTANCE),
        ("instance", StopTarget.INSTANCE),
    ],
)
def test_the_machine_is_stopped_only_where_the_policy_says_so_or_leaves_it_to_us(stop: str, target: StopTarget) -> None:
    node = make_node()
    training(node)
    tracked = node.runs["llama"]
    tracked.policy = replace(tracked.policy, halt=HaltSettings(stop=stop))
    play(node, OperatorHalt(at(31), "llama", "enough", 0), ack("failed", 32))
    effects = play(node, ProcessesSeen(at(33), "llama.node-a.1", ()))
    assert tracked.incident is not None
    assert tracked.incident.plan.stop is target
    assert any(isinstance(effect, StopCompute) for effect in effects) == (target is StopTarget.INSTANCE)


def test_ranks_that_obey_another_governors_halt_are_joined_but_not_by_one_that_only_observes() -> None:
    for observe in (False, True):
        node = make_node(observe=observe)
        training(node)
        effects = play(node, ack("received", 31, incident_id="llama.node-b.1", exit_after=True))
        acted = any(isinstance(effect, (Ask, Term)) for effect in effects)
        assert acted is not observe
        assert ("joined" in [effect.name for effect in effects if isinstance(effect, Alarm)]) is observe
