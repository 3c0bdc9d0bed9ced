"""What counts to a command's name, beside which of its runs, and where that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.app.before_launch import refusal
from governor.cli.status_table import render_status
from governor.core.base.findings import Reading, Response
from governor.core.base.policy import Budget, PolicySet
from governor.core.base.shares import Claim
from governor.core.base.units import NS_PER_S, BootNs, UsdMicros, usd
from governor.core.engine.command.ceilings import counted
from governor.core.events.inputs import ProcessesSeen
from governor.core.events.operators import OperatorHalt
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_MAX
from governor.core.money.group_totals import PAST_MAX
from governor.core.views.status import budgets_status, run_status
from governor.reports.terminal import closing_line
from governor.text.screen import FILE
from tests.unit.core.engine.test_budgeting import set_live
from tests.unit.core.engine.test_commands_ceiling import BOX, CEILING_S, GOSU, OWNER, Launches, a_name, a_sandbox
from tests.unit.core.engine.test_launched_command import PRICE
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node, rule


def test_runs_of_the_commands_own_user_have_a_ceiling_each_as_in_a_sweep() -> None:
    one = a_name()
    for name in ("a", "b", "c"):
        assert one.launch()
        one.attach(name, OWNER)
        one.seconds(60)
        assert one.world.node.runs[name].run.caps == ()
        one.end()
    assert (one.used_s, one.halted) == (180, [])
    assert {name: one.world.node.ledger.spend(name) for name in "abc"} == dict.fromkeys("abc", usd(60))


def test_what_a_sandbox_costs_counts_to_each_of_them() -> None:
    one = a_name()
    one.launch()
    one.attach("a", OWNER)
    one.seconds(20)
    one.exit("a")
    one.attach("box", BOX)
    one.seconds(30)
    one.exit("box")
    one.attach("b", OWNER)
    one.seconds(10)
    assert {name: counted(one.world.node, name) for name in ("a", "b")} == {"a": usd(50), "b": usd(40)}
    one.seconds(100)
    assert one.halted == ["b"]
    assert usd(55) <= one.world.node.ledger.spend("b") <= usd(70)


def test_a_sandbox_beside_nobody_counts_what_the_last_of_the_owners_runs_has_cost() -> None:
    one = a_name()
    for name, length in (("a", 80), ("b", 30)):
        one.launch()
        one.attach(name, OWNER)
        one.seconds(length)
        one.end()
    one.launch()
    one.attach("box", BOX)
    one.seconds(10)
    assert counted(one.world.node, "b") == usd(40)
    [cap] = one.world.node.runs["box"].run.caps
    assert (cap.scope, cap.spend_usd_micros, cap.ceiling_usd_micros) == ("run:b", usd(40), usd(CEILING_S))
    assert one.halted == []


def test_a_sandbox_is_no_heir_of_the_command() -> None:
    one = a_name()
    one.launch()
    a_sandbox(one)
    one.end()
    one.launch()
    assert [name for name, managed in one.world.node.runs.items() if managed.is_unattached] == ["job"]


def test_an_owners_run_that_comes_beside_a_sandbox_is_the_heir() -> None:
    one = a_name()
    one.launch()
    one.attach("first", OWNER)
    one.seconds(5)
    one.exit("first")
    one.attach("box", BOX)
    one.seconds(5)
    one.attach("second", OWNER)
    one.seconds(40)
    assert one.world.node.account.run == "second"
    one.exit("second")
    one.seconds(5)
    [cap] = one.world.node.runs["box"].run.caps
    assert (cap.scope, cap.spend_usd_micros) == ("run:second", usd(50))


def test_a_journal_of_before_tells_the_sandboxes_that_took_the_time_over() -> None:
    one = a_name()
    one.launch()
    a_sandbox(one)
    one.end()
    world = one.world
    world.runs = {name: {k: v for k, v in row.items() if k != "counts_to"} for name, row in world.runs.items()}
    world.runs[UNALLOCATED] = {k: v for k, v in world.runs[UNALLOCATED].items() if k != "commands"}
    one.govern_anew()
    one.launch()
    assert counted(world.node, "job") == usd(20)


def test_of_a_nodes_row_that_cannot_be_read_the_runs_rows_have_what_counts() -> None:
    one = a_name()
    one.launch()
    a_sandbox(one)
    one.end()
    one.world.runs[UNALLOCATED] = {**one.world.runs[UNALLOCATED], "carry": "torn"}
    one.govern_anew()
    one.launch()
    assert counted(one.world.node, "job") == usd(20)


def test_names_that_memory_drops_count_on() -> None:
    one = a_name()
    one.launch()
    a_sandbox(one)
    one.end()
    for number in range(PAST_MAX + 10):
        one.world.node.ledger.carry_in(f"new{number}", usd(1))
        one.world.node.ledger.make_past(f"new{number}", Claim(BOX, 1))
    one.world.node.ledger.make_past("box1")
    assert one.world.node.ledger.spend("box1") == 0, "dropped"
    one.launch()
    assert counted(one.world.node, "job") == usd(20)


def test_a_budget_of_the_commands_name_holds_a_sandbox_that_has_none() -> None:
    node = make_node(rule(), cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE)
    one = Launches(World(node))
    set_live(node, 0, "run:job", 50)
    one.launch()
    one.attach("box", BOX)
    one.seconds(60)
    assert (one.halted[0], one.used_s <= 50) == ("box", True)


def test_what_a_sandbox_is_given_for_itself_raises_nothing() -> None:
    one = a_name()
    one.launch()
    one.attach("box", BOX)
    one.seconds(10)
    set_live(one.world.node, 10, "run:box", 1_000)
    one.seconds(100)
    assert (one.halted[0], one.used_s <= CEILING_S) == ("box", True)


def test_a_raised_budget_of_the_commands_name_lets_its_sandbox_go_on() -> None:
    one = a_name()
    one.launch()
    one.attach("box", BOX)
    one.seconds(10)
    set_live(one.world.node, 10, "run:job", 300)
    set_live(one.world.node, 10, "run:box", 300)
    one.seconds(150)
    assert one.halted == []


def test_every_view_tells_what_the_ceiling_counts() -> None:
    one = a_name()
    one.launch()
    one.attach("job", GOSU)
    one.attach("box", BOX)
    one.seconds(30)
    node, now = one.world.node, one.now
    told = run_status(node.runs["job"], now)
    assert told["command_ceiling"] == {"scope": "run:job", "ceiling_usd": CEILING_S, "spend_usd": 30}
    assert told["spend_usd"] == pytest.approx(15, abs=0.1)
    said = "run:job: $30.00 of $100.00 spent, by all runs of its command"
    assert said in render_status({"governor": {"node": "n"}, "runs": [told]}, FILE)
    assert said in closing_line(told, "ended with exit code 0")
    assert {row["scope"]: row["spend_usd"] for row in budgets_status(node, now)}["run:job"] == 30
    assert sum(node.ledger.spend(name) for name in node.runs) == usd(30), "the ledger's sum"


def test_the_line_of_a_refused_launch_and_a_share_of_the_ceiling_count_it_too() -> None:
    node = make_node(
        rule(), rule("budget"), rule("budget", name="half", response=Response.WARN, params={"at_frac": 0.5}),
        budget=Budget(ceiling_usd_micros=usd(CEILING_S)), cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE,
    )  # fmt: skip
    one = Launches(World(node))
    one.launch()
    one.attach("own", OWNER)
    one.seconds(20)
    one.exit("own")
    one.attach("box", BOX)
    one.seconds(40)
    one.exit("box")
    one.attach("own", OWNER)
    one.seconds(1)
    assert one.world.node.runs["own"].rules.findings["half"].reading is Reading.FIRING
    one.seconds(40)
    assert one.halted == ["own"]
    one.end()
    said = refusal(one.world.node, "job", OWNER, BootNs(one.world.boot), one.now)
    assert said is not None
    assert "run:own has spent $9" in said


def test_a_halt_that_passes_the_ceiling_of_the_name_says_so() -> None:
    one = a_name()
    one.launch()
    one.attach("job", GOSU)
    one.attach("box", BOX)
    one.seconds(70)
    node = one.world.node
    one.play(OperatorHalt(one.now, "box", "enough", 0))
    incident = node.runs["box"].incident
    assert incident is not None
    for _ in range(60):
        one.world.boot = one.world.mono = one.world.boot + NS_PER_S
        one.world.tick()
    one.play(ProcessesSeen(one.now, incident.incident_id, ()))
    one.play(ProcessesSeen(one.now, incident.incident_id, ()))
    [over] = [row["detail"] for row in incident.timeline if row["what"] == "ceiling_exceeded"]
    assert (over["scope"], over["over_usd_micros"] > 0) == ("run:job", True)


@pytest.mark.parametrize("name", ["job", "exp"])
def test_more_hours_than_a_hand_over_moves_count_in_the_next_launch(name: str) -> None:
    hours = 2 * UNALLOCATED_MAX
    one = a_name()
    node = one.world.node
    node.policies = PolicySet((replace(node.policies.policies[0], budget=Budget(UsdMicros(10**13))),), "d")
    one.launch()
    for hour in range(1, hours + 1):
        one.world.at(hour * 3_600)
    if name == "exp":
        one.attach(name, OWNER)
        one.exit(name)
    one.end()
    one.launch()
    assert counted(one.world.node, name) == pytest.approx(hours * usd(3_600), abs=usd(1))
