"""A command is launched again while the halt of its earlier launch stops the machine below it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from governor.cli.common import ExitCode
from governor.cli.run.relaunch import finish_stop
from governor.core.engine.node import Node
from governor.core.halt.incident import Incident
from governor.core.halt.state import HaltState, StopTarget
from governor.daemon.launches import SupervisedCommand
from tests.unit.core.engine.test_step import a_step, make_node, play, training


def halting(stage: HaltState, stop: StopTarget = StopTarget.INSTANCE) -> tuple[Node, Incident]:
    node = make_node()
    training(node)
    play(node, a_step(31, 1, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    incident.plan = replace(incident.plan, stop=stop)
    incident.move(replace(incident.halt, stage=stage))
    return node, incident


class Serving:
    """The loop of a governor: what it attends to, and what comes while it serves."""

    def __init__(self, node: Node, comes: Callable[[SupervisedCommand], None]) -> None:
        self.node, self.comes, self.begun = node, comes, 0
        self.said: list[str] = []

    def supervise(self, supervised: SupervisedCommand) -> None:
        self.supervised = supervised

    def run(self, begin: list[Any]) -> bool:
        self.begun += 1
        assert begin == ["resumes"]
        assert not self.supervised.should_end()
        self.comes(self.supervised)
        return True

    def launch(self) -> int | None:
        governor: Any = SimpleNamespace(node=self.node, daemon=self, begin=["resumes"])
        return finish_stop(governor, "llama", ["train"], self.said.append)


@pytest.mark.parametrize("stage", [HaltState.STOPPING, HaltState.VERIFYING])
def test_the_stop_goes_on_to_its_end_and_nothing_is_launched_to_be_killed_at_once(stage: HaltState) -> None:
    node, incident = halting(stage)

    def verified(supervised: SupervisedCommand) -> None:
        incident.move(replace(incident.halt, stage=HaltState.HALTED))
        assert supervised.should_end()

    serving = Serving(node, verified)
    assert serving.launch() == ExitCode.HALTED
    assert serving.supervised.processes == ()
    (line,) = serving.said
    assert line.startswith(
        f"costgov: not launched: the halt of an earlier launch (incident {incident.incident_id}) is "
    )


def test_who_sends_a_signal_leaves_with_the_stop_unseen() -> None:
    node, _ = halting(HaltState.VERIFYING)

    def interrupted(supervised: SupervisedCommand) -> None:
        assert supervised.on_signal(signal.SIGUSR1), "it ends nothing"
        assert not supervised.on_signal(signal.SIGINT)

    serving = Serving(node, interrupted)
    assert serving.launch() == ExitCode.NEEDS_HUMAN


@pytest.mark.parametrize(
    ("stage", "stop"),
    [
        (HaltState.TERMED, StopTarget.INSTANCE),
        (HaltState.NEEDS_HUMAN, StopTarget.INSTANCE),
        (HaltState.HALTED, StopTarget.INSTANCE),
        (HaltState.STOPPING, StopTarget.PROCESSES),
    ],
)
def test_any_other_halt_is_not_waited_for(stage: HaltState, stop: StopTarget) -> None:
    serving = Serving(halting(stage, stop)[0], lambda _supervised: None)
    assert (serving.launch(), serving.said, serving.begun) == (None, [], 0)
