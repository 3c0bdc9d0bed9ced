"""Rows of the journal of another PID namespace: known by our own numbers if they are seen, else nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import BootNs, WallNs
from governor.core.engine.node_journal import node_snapshot, run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, PersistIncident
from governor.core.halt.elsewhere import (
    Elsewhere,
    as_seen,
    ends_unseen,
    left_elsewhere,
    unseen_runs,
)
from governor.core.halt.left_launch import Below, LeftLaunch, process_of, process_row
from governor.core.halt.state import GivenUp, StopTarget
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import a_step, at, make_node, only, play, training

THERE, HERE = 4_026_532_001, 4_026_532_002
LEFT = ProcessId(7, 500, "boot-1", THERE)
WALL = WallNs(10**18)


def seen_from(here: int = HERE, **places: ProcessId | None) -> Any:
    processes = FakeProcesses("boot-1", here)
    processes.elsewhere = {LEFT: places.get("left")}
    return processes.locate


def a_run(*rows: dict[str, Any]) -> dict[str, Any]:
    node = make_node()
    training(node)
    return {**run_snapshot(node, node.runs["llama"], at(1)), "processes": list(rows)}


def a_halt(stop: StopTarget, *processes: ProcessId) -> dict[str, Any]:
    node = make_node()
    training(node)
    effects = play(node, a_step(31, 1, loss=float("nan")))
    snapshot = [one for one in effects if isinstance(one, PersistIncident)][-1].snapshot
    rows = [process_row(process) for process in processes]
    plan = {**snapshot["plan"], "stop": stop.name}
    return {**snapshot, "rank_processes": rows, "launchers": [], "plan": plan}


def test_the_launch_of_a_halt_is_known_by_our_numbers_or_not_at_all() -> None:
    """Its command's number is that of its session, which another session has here."""
    left = LeftLaunch("llama", 0, (LEFT,), 5, (), Below((LEFT,), (LEFT,)))
    snapshot = {**a_halt(StopTarget.INSTANCE, LEFT), "launch": left.row()}
    here = ProcessId(4_007, 500, "boot-1", HERE)
    seen = LeftLaunch.of(as_seen(snapshot, seen_from(left=here))["launch"])
    assert (seen.processes, seen.below) == ((here,), Below((here,), (here,)))
    assert "launch" not in as_seen(snapshot, seen_from())
    assert "launch" in snapshot


def test_a_row_carries_its_namespace_there_and_back() -> None:
    assert process_of(process_row(LEFT)) == LEFT
    assert "pid_ns" not in process_row(replace(LEFT, pid_ns=0))


def test_the_same_number_and_start_in_another_namespace_is_another_process() -> None:
    assert replace(LEFT, pid_ns=HERE) != LEFT


def test_an_older_journals_process_is_taken_for_one_of_ours() -> None:
    row = process_row(replace(LEFT, pid_ns=0))
    seen = as_seen(a_run(row), seen_from())
    assert [process_of(one) for one in seen["processes"]] == [replace(LEFT, pid_ns=HERE)]
    assert "unseen" not in seen


def test_a_process_that_is_seen_is_known_by_our_number_for_it() -> None:
    ours = ProcessId(70_007, 500, "boot-1", HERE)
    seen = as_seen(a_halt(StopTarget.PROCESSES, LEFT), seen_from(left=ours))
    assert [process_of(one) for one in seen["rank_processes"]] == [ours]
    assert not ends_unseen(seen)


def test_one_that_was_seen_to_be_gone_is_not_unseen() -> None:
    seen = as_seen(a_halt(StopTarget.PROCESSES, LEFT), seen_from(left=LEFT))
    assert not ends_unseen(seen)


def test_a_run_of_whom_nobody_is_seen_has_no_process_and_keeps_its_spend() -> None:
    kept = as_seen({**a_run(process_row(LEFT)), "spend_usd_micros": 5}, seen_from())
    node = make_node()
    restore_runs(node, [kept], BootNs(at(2)), at(2))
    assert node.runs["llama"].processes() == (), "the first tick ends it"
    assert node.ledger.spend("llama") == 5
    (alarm,) = unseen_runs([kept])
    assert isinstance(alarm, Alarm)
    assert "whether they live is not known" in alarm.text


@pytest.mark.parametrize("torn", [{}, {"pid": "x"}, None])
def test_a_torn_row_is_left_to_whoever_takes_it_up(torn: Any) -> None:
    assert as_seen({"processes": [torn]}, seen_from()) == {"processes": [torn]}
    assert not ends_unseen({"unseen": [process_row(LEFT)]})


def test_a_halt_that_could_only_end_the_unseen_is_closed_and_claims_no_end() -> None:
    snapshot = as_seen(a_halt(StopTarget.PROCESSES, LEFT), seen_from())
    node = make_node()
    effects = restore_incidents(node, [snapshot], at(2), WALL)
    closed = only(effects, PersistIncident)
    assert closed.closed  # type: ignore[attr-defined]
    assert closed.snapshot["halt_stage"] == GivenUp.LEFT_UNSEEN  # type: ignore[attr-defined]
    assert "their end was not observed" in only(effects, Alarm).text  # type: ignore[attr-defined]
    assert all(managed.incident is None for managed in node.runs.values())


@pytest.mark.parametrize(
    ("stop", "others"), [(StopTarget.INSTANCE, ()), (StopTarget.PROCESSES, (ProcessId(9, 900, "boot-1", HERE),))]
)
def test_a_halt_that_stops_the_machine_or_has_somebody_to_end_goes_on(
    stop: StopTarget, others: tuple[ProcessId, ...]
) -> None:
    snapshot = as_seen(a_halt(stop, LEFT, *others), seen_from())
    node = make_node()
    restore_incidents(node, [snapshot], at(2), WALL)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert LEFT in incident.rank_processes, "of whom nothing says that he is gone"


def test_what_decides_is_what_was_going_at_the_last_commit() -> None:
    node = make_node()
    own = dict(node_snapshot(node))
    unseen = as_seen(a_run(process_row(LEFT)), seen_from())
    assert left_elsewhere([own, unseen], [], "boot-1") == Elsewhere(is_unseen=True)
    assert left_elsewhere([own, {**unseen, "alive": False}], [], "boot-1") == Elsewhere()
    assert left_elsewhere([{**own, "boot_id": "boot-0"}, unseen], [], "boot-1").is_of_other_boot
    assert not left_elsewhere([own, {**a_run(), "boot_id": "boot-0"}], [], "boot-1").is_of_other_boot, "long ago"
    halt = as_seen(a_halt(StopTarget.PROCESSES, LEFT), seen_from())
    assert left_elsewhere([own], [halt], "boot-1").halts == (halt["incident_id"],)
