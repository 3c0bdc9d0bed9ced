"""The money of a halt, by hand and to the micro-dollar: what was spent since its verdict is what it has wasted."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.engine import step as engine
from governor.core.engine.incident_json import incident_of
from governor.core.engine.incidents import persist_incident
from governor.core.engine.resume import restore_incidents
from governor.core.events.effects import PersistIncident, PersistRuns
from governor.core.events.inputs import ProcessesSeen, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.halt.incident import Incident
from governor.core.money.waste import Seen, SpendSplit, SpentOn
from governor.reports.incident import incident_markdown
from governor.text.incident_money import spent_text
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.money.test_waste import a_world, end, steps, until, wasted

MS = NS_PER_S // 1_000  # A micro-dollar, at a tenth of a cent a second.


def trained(**facts: object) -> World:
    """Three steps of a second; a tick each quarter second."""
    world = a_world(**facts)
    world.hear()
    steps(world, range(1, 4), began=1)
    until(world, 4)
    return world


def halt(world: World) -> Incident:
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    return incident


def gone(world: World, incident: Incident) -> None:
    """The ranks exit, and nobody else is seen."""
    now = MonoNs(world.mono)
    world.play(TrainerExited(now, "llama", 0))
    world.play(ProcessesSeen(now, incident.incident_id, ()))
    assert incident.is_closed


def killed_amid(world: World) -> dict[str, Any]:
    """A halt begins between two ticks, and half a second later its governor is killed. Returns what it has kept."""
    world.pass_time("run", 30 * MS)
    halt(world)
    world.pass_time("run", 500 * MS)
    world.tick()
    return dict(persist_incident(world.node, world.node.runs["llama"]).snapshot)


def again(world: World, kept: dict[str, Any]) -> Incident:
    """The next governor goes on with the halt."""
    world.restart()
    restore_incidents(world.node, [kept], MonoNs(world.mono), WallNs(world.boot + world.wall_offset))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    return incident


def since_verdict(world: World) -> int:
    kept = persist_incident(world.node, world.node.runs["llama"]).snapshot
    return int(kept["spend_usd_micros"]) - int(kept["spend_at_verdict_usd_micros"])


@pytest.mark.parametrize("into_tick", [0, 10, 149])
def test_a_halt_that_is_over_before_the_next_tick_costs_its_time(into_tick: int) -> None:
    """100 ms, and nothing of them is anybody's else: not the time before, nor the time after."""
    world = trained()
    world.pass_time("run", into_tick * MS)
    incident = halt(world)
    assert incident.spend_at_verdict_usd_micros == 4_000 + into_tick
    world.pass_time("run", 100 * MS)
    gone(world, incident)
    until(world, 6)
    assert (since_verdict(world), wasted(world)["halt"]) == (100, 100)
    assert wasted(world)["after_last_step"] == 1_000 + into_tick
    assert world.charged("llama") == world.node.ledger.spend("llama") == 4_100 + into_tick
    kept = persist_incident(world.node, world.node.runs["llama"]).snapshot
    assert "($0.0001 since the verdict)" in spent_text(kept)


def test_a_halt_of_several_ticks_ends_between_two() -> None:
    world = trained()
    world.pass_time("run", 30 * MS)
    incident = halt(world)
    for _ in range(5):
        world.pass_time("run", 250 * MS)
        world.tick()
    world.pass_time("run", 70 * MS)
    gone(world, incident)
    until(world, 9)
    assert (since_verdict(world), wasted(world)["halt"]) == (1_320, 1_320)


def test_a_halt_that_is_never_seen_to_end_goes_on_costing() -> None:
    world = trained()
    world.pass_time("run", 30 * MS)
    halt(world)
    until(world, 64.03)
    assert (since_verdict(world), wasted(world)["halt"]) == (world.mono // MS - 4_030,) * 2


def test_over_a_restart_of_the_governor_amid_the_halt() -> None:
    """It is killed half a second after the verdict, comes back 2 s later, and sees the end 1.1 s after that."""
    world = trained()
    kept = killed_amid(world)
    world.pass_time("run", 2_000 * MS)
    incident = again(world, kept)
    world.tick()
    world.pass_time("run", 1_100 * MS)
    gone(world, incident)
    until(world, 9)
    assert (since_verdict(world), wasted(world)["halt"]) == (3_600, 3_600)
    assert world.charged("llama") == 4_030 + 3_600


def test_a_governor_that_is_killed_before_it_has_kept_the_runs_own_row() -> None:
    """The row of the incident comes first, 30 ms after the row that the run has. The governor is away for 2 s."""
    world = trained()
    world.pass_time("run", 30 * MS)
    halted = engine.step(world.node, OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    kept = next(dict(effect.snapshot) for effect in halted if isinstance(effect, PersistIncident))
    world.pass_time("run", 2_000 * MS)
    incident = again(world, kept)
    gone(world, incident)
    until(world, 9)
    kept = dict(persist_incident(world.node, world.node.runs["llama"]).snapshot)
    assert since_verdict(world) == 0, "nobody knows whose the time was"
    assert "nothing was charged since the verdict" in spent_text(kept)


def test_a_run_that_its_launcher_starts_anew_amid_the_halt_is_halted_longer() -> None:
    """No step of the new attempt has ended, so none of it is a start: the halt lasts for 2.1 s."""
    world = trained()
    world.pass_time("run", 30 * MS)
    incident = halt(world)
    until(world, 5.03)
    world.hear(attempt="a2", peer=peer(200))
    world.pass_time("run", 100 * MS)
    world.tick()
    until(world, 6.13)
    gone(world, incident)
    assert (since_verdict(world), wasted(world)["halt"]) == ((world.mono - 4_030 * MS) // MS,) * 2


def test_what_a_neighbour_pays_after_the_halt_is_its_own_again() -> None:
    """Half of the node each. After 100 ms of halt the other pays for all of it."""
    world = trained()
    world.hear(run="other", peer=peer(300), connection=hello(7).connection)
    until(world, 6)
    world.pass_time("run", 50 * MS)
    incident = halt(world)
    at_verdict = incident.spend_at_verdict_usd_micros
    assert at_verdict == 4_000 + 1_000 + 25
    world.pass_time("run", 100 * MS)
    gone(world, incident)
    before = world.node.ledger.spend("other")
    until(world, 6.25)
    assert (since_verdict(world), wasted(world)["halt"]) == (50, 50)
    assert world.node.ledger.spend("other") - before == world.mono // MS - 6_150


def test_a_first_step_that_ends_after_the_verdict_has_no_start_from_there_on() -> None:
    """A micro-dollar a nanosecond. The verdict comes at 5, the first step ends at 8 and is told at 10."""
    split = SpendSplit()
    told = MonoNs(8)
    split.count(Seen(10, int, first_step_at=told, step_at=told, halting_since=MonoNs(5)))
    assert split.by_cause() == {SpentOn.START_UP: 5, SpentOn.HALT: 5}


def test_an_end_that_the_next_governor_sees_before_its_first_tick_ends_the_halts_money_there() -> None:
    """It is killed half a second after the verdict, and comes back to find nobody."""
    world = trained()
    kept = killed_amid(world)
    world.pass_time("run", 100 * MS)
    incident = again(world, kept)
    gone(world, incident)
    until(world, 9)
    assert since_verdict(world) == wasted(world)["halt"] > 0


def test_a_halt_has_what_was_slept_between_the_tick_and_the_verdict_in_both_figures() -> None:
    """The next tick charges it: in the report it is since the verdict."""
    world = trained()
    world.pass_time("suspend", 2_000 * MS)
    incident = halt(world)
    world.pass_time("run", 250 * MS)
    world.tick()
    gone(world, incident)
    until(world, 9)
    assert (since_verdict(world), wasted(world)["halt"]) == (2_250, 2_250)


def test_a_verdict_before_the_first_tick_of_a_governor_has_what_its_gap_costs_in_both_figures() -> None:
    """A step is told after the verdict that ended before it."""
    world = trained()
    world.pass_time("run", 500 * MS)
    world.restart()
    world.hear()
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    world.pass_time("run", 100 * MS)
    world.play(a_step(4, when=world.mono / NS_PER_S, attempt_step=4, tokens=10_000, tokens_total=40_000))
    world.tick()
    incident = world.node.runs["llama"].incident
    assert incident is not None
    gone(world, incident)
    until(world, 9)
    assert since_verdict(world) == wasted(world)["halt"] > 0


def test_the_end_of_a_halt_is_one_row_of_its_run_with_what_it_has_spent() -> None:
    world = trained()
    incident = halt(world)
    now = MonoNs(world.mono)
    world.play(TrainerExited(now, "llama", 0))
    effects = engine.step(world.node, ProcessesSeen(now, incident.incident_id, ()))
    assert incident.is_closed
    [kept] = [effect for effect in effects if isinstance(effect, PersistRuns)]
    row = kept.runs["llama"]
    assert row["spend_usd_micros"] == incident.spend_usd_micros == 4_000


def test_a_halt_behind_what_was_trained_tells_both_also_over_a_restart() -> None:
    """Three steps of 10,000 tokens; another launch has trained the second again when it is halted."""
    world = trained()
    end(world)
    world.hear(attempt="a2", peer=peer(200))
    steps(world, range(2, 3), began=6)
    halt(world)
    kept = dict(persist_incident(world.node, world.node.runs["llama"]).snapshot)
    assert (kept["tokens_total"], kept["tokens_at"]) == (30_000, 20_000)
    assert "tokens 30,000, last at 20,000" in incident_markdown(kept)
    incident = again(world, kept)
    assert (incident.tokens_total, incident.tokens_at) == (30_000, 20_000)
    assert incident_of({name: value for name, value in kept.items() if name != "tokens_at"}).tokens_at == 30_000
