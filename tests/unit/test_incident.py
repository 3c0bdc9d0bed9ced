"""The record of one halt stays bounded, and keeps how it began and how it ended."""

from __future__ import annotations

from governor.core.events import OperatorHalt
from governor.core.incident import TIMELINE_MAX
from governor.core.units import WallNs
from tests.unit.test_engine import at, make_node, play, training


def test_a_timeline_that_is_full_still_takes_the_end_of_the_halt() -> None:
    node = make_node()
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident = node.runs["llama"].incident
    assert incident is not None
    for number in range(TIMELINE_MAX * 2):
        incident.note(at(32 + number), WallNs(0), "billing", state=f"running {number}")
    incident.note(at(2000), WallNs(0), "verified", state="stopped")
    assert len(incident.timeline) == TIMELINE_MAX
    assert incident.timeline[0]["what"] == "verdict"
    assert incident.timeline[-1]["what"] == "verified"
