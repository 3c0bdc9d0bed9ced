"""A governor that is killed between a verdict's commit and its run's: the account is the verdict's all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.attribution.rows import newer_of
from governor.core.base.findings import Response, Verdict, firing
from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.engine.incidents import open_incident
from governor.core.engine.resume import restore_incidents
from governor.core.events.effects import PersistIncident
from tests.unit.core.attribution.test_account import account_of, seconds, steps, sums_hold
from tests.unit.core.engine.test_metering import World
from tests.unit.core.money.test_waste import a_world, until

VERDICT = Verdict("llama", "p", "r", "hang", Response.HALT, True, firing("hang", "stands still", {}), None, "good")


def halted_and_killed(how_soon: str) -> tuple[World, dict[str, Any]]:
    """Ten steps, a rank that stands still, and a kill: before the run's row was committed, or behind it."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    until(world, 25)
    before = dict(world.runs)
    effects = world.take(open_incident(world.node, world.node.runs["llama"], VERDICT, MonoNs(world.mono)))
    place, first = next((place, one) for place, one in enumerate(effects) if isinstance(one, PersistIncident))
    row = json.loads(json.dumps(first.snapshot))
    if how_soon != "later":  # Of the effects those up to the incident's commit alone are on the disk.
        world.runs = before
        world.take(effects[:place])
    if how_soon == "unmetered":  # The ledger is to charge yet what the account has.
        world.metered = None
    return world, row


@pytest.mark.parametrize("away_s", [1, 8])
@pytest.mark.parametrize("how_soon", ["at once", "unmetered", "later"])
def test_a_hang_and_its_halt_outlive_the_governor(how_soon: str, away_s: int) -> None:
    world, incident = halted_and_killed(how_soon)
    whole = seconds(world)
    assert whole["hang"] > 5
    assert "unknown" not in whole
    world.pass_time("run", away_s * NS_PER_S)
    world.restart()
    restore_incidents(world.node, [incident], MonoNs(world.mono), WallNs(world.boot))
    sums_hold(world)
    world.tick()
    sums_hold(world)
    assert seconds(world) == {**whole, "halt": float(away_s)}


def test_a_torn_account_in_an_incident_stops_no_halt() -> None:
    world, incident = halted_and_killed("at once")
    world.restart()
    restore_incidents(world.node, [{**incident, "time": {"pool": "x"}}], MonoNs(world.mono), WallNs(world.boot))
    assert world.node.runs["llama"].incident is not None
    world.tick()
    sums_hold(world)


def test_the_newer_account_is_taken() -> None:
    """The incident's first row outlived later ones of the run: a full disk had no room for the incident's."""
    world, incident = halted_and_killed("later")
    world.pass_time("run", 4 * NS_PER_S)
    world.tick()
    counted = account_of(world).snapshot()
    again = newer_of(account_of(world), incident["time"], world.node.ledger.spend("llama"))
    assert again.snapshot() == counted
