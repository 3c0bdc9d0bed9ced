"""A command that is over ends the loop, and what a call has answered by then is still taken."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.core.base.units import DurationNs
from governor.core.events.inputs import OperatorHold
from governor.daemon.launches import SupervisedCommand
from tests.fuzz.rig import Rig, default_policies
from tests.unit.core.engine.test_step import hello


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    before = signal.set_wakeup_fd(-1)
    one = Rig(tmp_path, default_policies())
    yield one
    one.end()
    signal.set_wakeup_fd(before)


def test_an_answer_that_comes_while_the_end_is_looked_for_is_taken(rig: Rig) -> None:
    """The call that gave it counts as over by then: nothing else waits for it."""
    rig.daemon.apply(hello(run="job"))
    held: list[OperatorHold] = []

    def is_over() -> bool:
        if not held:
            held.append(OperatorHold(rig.clock.mono(), "job", DurationNs(10**9), "late", 0))
            rig.daemon.post(held[0])
        return True

    rig.daemon.supervise(SupervisedCommand("job", (), (), should_end=is_over))
    assert rig.daemon.run()
    assert rig.node.runs["job"].history.hold_reason == "late"
