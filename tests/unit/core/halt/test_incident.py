"""The record of one halt stays bounded, and keeps how it began and how it ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import WallNs
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.incidents import feed
from governor.core.engine.node import RUNS_MAX, Node
from governor.core.events.effects import CloseIncident
from governor.core.events.inputs import ProcessesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.halt.incident import PROCESSES_MAX, TARGETS_MAX, TIMELINE_MAX, Incident
from governor.core.halt.left_launch import Below, LeftLaunch, process_of
from governor.core.halt.state import Fact, HaltState, StopTarget
from governor.text.moments import moments, processes_text
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play, training


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


def halted() -> tuple[Node, Incident]:
    node = make_node(cloud="none")
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident = node.runs["llama"].incident
    assert incident is not None
    return node, incident


def brought_back(first: int, count: int) -> tuple[ProcessId, ...]:
    return tuple(ProcessId(pid, pid, "boot-1") for pid in range(first, first + count))


def row(pid: int) -> dict[str, object]:
    return {"pid": pid, "start_ticks": pid, "boot_id": "boot-1", "role": "child", "argv0": "bomb", "sent": "sent"}


def test_a_fork_bomb_fills_no_incident_and_its_number_is_told() -> None:
    node, incident = halted()
    listed = len(incident.targets)
    incident.add_targets(row(pid) for pid in range(1_000, 31_000))
    incident.add_targets(row(pid) for pid in range(1_000, 1_010))
    assert len(incident.targets) == TARGETS_MAX
    assert incident.targets_unlisted == 30_000 - (TARGETS_MAX - listed)
    snapshot = incident_snapshot(node, incident)
    assert f"{incident.targets_unlisted} processes" in processes_text(snapshot)
    assert incident_of(snapshot).targets_unlisted == incident.targets_unlisted
    del snapshot["targets_unlisted"]
    assert incident_of(snapshot).targets_unlisted == 0, "as an older version wrote it"


@pytest.mark.parametrize("below", [Below(), Below(missed=3)])
def test_whose_processes_were_not_all_noted_is_not_said_to_have_ended(below: Below) -> None:
    node, incident = halted()
    managed = node.runs["llama"]
    incident.launch = LeftLaunch("llama", 0, (process_of(row(700)),), 5, (), below)
    incident.note_below(below)
    incident.plan = replace(incident.plan, stop=StopTarget.PROCESSES)
    incident.move(replace(incident.halt, stage=HaltState.KILLED))
    (closes,) = [one for one in feed(node, managed, Fact.EXITED, at(40)) if isinstance(one, CloseIncident)]
    assert (closes.has_ended, incident.stage_name) == ((False, "left_unnoted") if below.missed else (True, "HALTED"))


def test_sigkill_is_told_of_as_many_as_it_has_reached_and_not_of_all_that_sigterm_had() -> None:
    """A governor that goes on may not know them all."""
    node, incident = halted()
    incident.add_targets(row(pid) for pid in range(1_000, 2_500))
    listed = [process_of(target) for target in incident.targets]
    incident.note(at(40), WallNs(0), "kill")
    incident.note_killed({*listed, *(process_of(row(pid)) for pid in range(2_000, 2_100))})
    again = incident_of(incident_snapshot(node, incident))
    again.note_killed(set(listed))
    told = {moment.what: moment.text for moment in moments(incident_snapshot(node, again))}
    assert "and 100 processes" in told["kill"]


def test_what_comes_back_for_ever_keeps_the_first_ranks_and_the_newest() -> None:
    node, incident = halted()
    ranks = incident.rank_processes
    for number in range(50):
        play(node, ProcessesSeen(at(40 + number), incident.incident_id, (), brought_back(1_000 + number * 100, 100)))
    assert len(incident.rank_processes) == PROCESSES_MAX
    assert incident.rank_processes[: len(ranks)] == ranks
    assert incident.rank_processes[-100:] == brought_back(1_000 + 49 * 100, 100)
    assert max(len(entry["detail"].get("pids", ())) for entry in incident.timeline) == 16
    assert incident.timeline[-1]["detail"]["count"] == 100


def test_only_the_last_incident_of_each_run_is_answered_for() -> None:
    node = make_node(cloud="none")
    for number in range(3 * RUNS_MAX):
        play(node, hello(0, number, attempt=f"a{number}", peer=peer(1_000 + number), world_size=1))
        play(node, OperatorHalt(at(number), "llama", "enough", 0))
        incident = node.runs["llama"].incident
        assert incident is not None
        play(node, *[ProcessesSeen(at(number), incident.incident_id, ())] * 2)  # The ranks, and whom the sweep found.
        assert incident.is_closed
        assert node.of_incident(incident.incident_id) is node.runs["llama"], "its last answers still find it"
    assert len(node.incidents) == 1


def test_a_launcher_that_is_left_to_another_run_is_not_told_as_ended() -> None:
    node, incident = halted()
    launcher = ProcessId(50, 50, "boot-1")
    incident.add_targets([{**row(50), "role": "launcher"}])
    incident.note(at(32), WallNs(0), "term")
    assert "launcher" in processes_text(incident_snapshot(node, incident))
    incident.note_left([launcher], [])
    told = next(moment.text for moment in moments(incident_snapshot(node, incident)) if moment.what == "term")
    assert told == "2 ranks; launcher left alone, for another run stands below"
    incident.note_left([launcher], [], of_others=[launcher])
    assert processes_text(incident_snapshot(node, incident)) == "2 ranks; launcher left alone, for it is another user's"
    incident.note_left([], [launcher])
    assert processes_text(incident_snapshot(node, incident)) == "2 ranks and launcher", "SIGKILL has reached it"
