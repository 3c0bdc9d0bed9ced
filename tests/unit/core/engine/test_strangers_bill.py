"""Beside the command of `costgov run`: what another user says is billed to nobody, and no ceiling is held for it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from governor.cli.status_table import render_status
from governor.core.base.identity import ConnectionId
from governor.core.base.units import BootNs, MonoNs, usd
from governor.core.engine.command.ceilings import payer_before
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import node_snapshot, run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.effects import Alarm, Effect, Kill, Page, PersistRuns, Term
from governor.core.events.inputs import (
    Ack,
    CommandLaunched,
    Disconnected,
    Hello,
    LaunchersSeen,
    ProcessesSeen,
    TrainerExited,
)
from governor.core.events.operators import OperatorHalt
from governor.core.halt.table import HaltState
from governor.core.money.budgets import by_scope
from governor.core.money.lines import Lines
from governor.core.views.status import run_status
from governor.reports.terminal import live_line
from governor.text.incident_money import spent_amount, spent_text
from governor.text.screen import FILE
from tests.unit.billed import LAUNCH, UPLOAD
from tests.unit.core.engine.test_budgeting import budget
from tests.unit.core.engine.test_launched_command import COMMAND, PRICE, STREAMED, launched, pass_time, stream, terms
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

STRANGER = 12345
NAN = float("nan")
LINK = ConnectionId(50)
TEN_TB = SavedCheckpoint(path="/nowhere", manifest="m", kind="good", bytes=10**13)


def said_hello() -> Node:
    """A command of $1 a second, and beside it a run of another user. Checkpoints and launches have a price here."""
    node = launched(ceiling=None)
    node.facts = replace(node.facts, lines=Lines((), (LAUNCH,), (UPLOAD,)))
    node.budgets.configured = by_scope([budget("node", 500), budget("label:team=a", 400)])
    play(node, hello(0, 1, run="x", world_size=1, connection=LINK, peer=peer(900, STRANGER), labels={"team": "a"}))
    return node


def saved(when: float, incident_id: str = "none") -> Ack:
    return Ack(at(when), LINK, "x", 0, 2, incident_id, "saved", step=3, checkpoint=TEN_TB)


def test_a_strangers_launch_and_its_checkpoints_are_charged_to_nobody_and_end_nobody() -> None:
    node = said_hello()
    assert (node.ledger.spend("x"), node.ledger.groups.node_usd_micros) == (0, 0), "a hello is no launch of the command"
    play(node, saved(2))
    pass_time(node, 10)
    assert (node.ledger.spend("x"), node.ledger.groups.node_usd_micros) == (0, usd(10))
    assert [managed.incident for managed in node.runs.values()] == [None, None]


def test_nor_is_what_it_saves_in_its_own_halt() -> None:
    node = said_hello()
    play(node, tick(1), OperatorHalt(at(2), "x", "enough", 0))
    incident = node.runs["x"].incident
    assert incident is not None
    play(node, saved(2, incident.incident_id))
    pass_time(node, 5, 3)
    assert (node.ledger.spend("x"), node.ledger.groups.node_usd_micros) == (0, usd(5))


def test_no_budget_reserves_for_a_strangers_halt_what_it_has_paid_in_a_service() -> None:
    node = said_hello()
    kept = run_snapshot(node, node.runs["x"], at(1))
    node.runs.pop("x")
    restore_runs(node, [{**kept, "checkpoint_bytes_max": 10**13}], BootNs(at(1)), at(1))
    alarms = [effect.name for effect in pass_time(node, 10, 2) if isinstance(effect, Alarm)]
    caps = {cap.scope: cap.reserve_usd_micros for cap in node.budgets.caps}
    assert (node.runs["x"].is_strangers, caps["label:team=a"], caps["node"] < usd(100)) == (True, 0, True)
    assert not any(name.startswith("budget_") for name in alarms)
    assert node.runs["job"].incident is None


@pytest.mark.parametrize("has_attached", [False, True])
def test_every_view_tells_that_a_stranger_pays_nothing_and_who_does(has_attached: bool) -> None:
    node = said_hello()
    stream(node, "beside", 1, STREAMED)  # It pays for itself.
    if has_attached:
        play(node, hello(0, 1, run="own", world_size=1))
    payer = "own" if has_attached else "job"
    play(node, a_step(1, run="x", connection=LINK, when=1.5), tick(2), a_step(2, run="x", connection=LINK, when=2))
    told = run_status(node.runs["x"], at(2))
    assert {told[f"usd_per_mtok{of}"] for of in ("", "_all_in", "_useful")} == {None}
    assert (told["paid_by"], told["spend_rate_usd_per_hour"], told["spend_usd"]) == (payer, None, 0)
    shown = render_status({"governor": {"node": "n"}, "runs": [told]}, FILE)
    assert f"x: {payer} pays for the command, beside which this run is watched" in shown
    assert "$0.00" not in shown
    assert f"$ - (paid by {payer})" in live_line(told)
    play(node, OperatorHalt(at(3), "x", "enough", 0))
    incident = node.runs["x"].incident
    assert incident is not None
    snapshot = incident_snapshot(node, incident)
    assert spent_text(snapshot) == f"nothing of its own: {payer} pays for the command"
    assert (spent_amount(snapshot), snapshot["strangers"]) == ("-", True)


def test_of_what_a_killed_governor_had_metered_a_stranger_pays_nothing() -> None:
    world = World(launched(ceiling=None))
    world.play(hello(0, 1, run="x", world_size=1, connection=LINK, peer=peer(900, STRANGER)))
    for second in range(1, 16):
        world.at(second)
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (COMMAND,)))
    world.at(16)
    assert (world.node.ledger.spend("x"), world.charged("x")) == (0, 0)
    assert world.node.ledger.total() == usd(16)


def test_a_log_of_the_name_of_a_strangers_run_makes_it_not_the_commands() -> None:
    node = said_hello()
    stream(node, "x", 2, STREAMED)
    pass_time(node, 10, 2)
    assert node.runs["x"].is_strangers
    assert (node.ledger.spend("x"), node.runs["job"].is_unattached) == (0, True)


def test_a_halt_of_the_commands_run_ends_its_ranks_as_ranks_and_the_stand_ins_process_as_their_launcher() -> None:
    node = launched(ceiling=None)
    play(node, hello(0, 1, run="job", world_size=1), LaunchersSeen(at(1), "job", (COMMAND,)), tick(2))
    play(node, OperatorHalt(at(3), "job", "enough", 0))
    incident = node.runs["job"].incident
    assert incident is not None
    assert (incident.rank_processes, incident.launchers) == ((peer(100).process,), (COMMAND,))


def test_what_a_stranger_is_halted_with_calls_nobody_and_a_price_that_is_known_is_not_called_unknown() -> None:
    """Without root, another user's process cannot be signalled."""
    node = said_hello()
    effects = play(
        node, a_step(1, run="x", when=1, connection=LINK), a_step(2, run="x", when=1, connection=LINK, loss=NAN)
    )
    incident = node.runs["x"].incident
    assert incident is not None
    assert (incident.spend_rate_usd_micros_per_hour, incident.uid) == (None, STRANGER)
    for second in range(2, 200):
        effects += play(node, tick(second))
        if any(isinstance(effect, Term | Kill) for effect in effects):
            incident.mark_unsent("kill", "not permitted")
    assert incident.halt.stage is HaltState.NEEDS_HUMAN
    effects += play(node, ProcessesSeen(at(300), incident.incident_id, ()))
    assert incident.is_closed
    alarms = [effect.name for effect in effects if isinstance(effect, Alarm)]
    assert [effect for effect in effects if isinstance(effect, Page)] == []
    assert alarms.count("stranger_not_ended") == 1
    assert "still_billed" not in alarms


def test_nor_is_that_of_the_commands_own_run_before_its_first_tick() -> None:
    node = launched(ceiling=None)
    play(node, hello(0, 0.5, run="job", world_size=1), a_step(1, run="job", when=0.6))
    node.runs["job"].run.set_money(usd(0), None, usd(0))  # As a run that is new to this governor.
    play(node, a_step(2, run="job", when=0.7, loss=NAN))
    incident = node.runs["job"].incident
    assert incident is not None
    assert incident.spend_rate_usd_micros_per_hour == PRICE


def of_sandbox(when: float, **changes: object) -> Hello:
    """Another user's process below the command, as one that runs what the model writes."""
    said = {"run": "box", "world_size": 1, "connection": LINK, "peer": peer(900, STRANGER), "of_command": True}
    return hello(0, when, **(said | changes))


@pytest.mark.parametrize("is_first", [False, True])
def test_another_users_run_below_the_command_pays_nothing_while_the_commands_own_user_trains(is_first: bool) -> None:
    node = launched(ceiling=None)
    node.facts = replace(node.facts, lines=Lines((), (), (UPLOAD,)))
    node.budgets.configured = by_scope([budget("node", 500)])
    own = hello(0, 1, run="own", world_size=1)
    play(node, *((of_sandbox(1), own) if is_first else (own, of_sandbox(1))), tick(1))
    play(node, replace(saved(2), run="box"))
    pass_time(node, 100, 2)
    assert (node.ledger.spend("box"), node.ledger.groups.node_usd_micros) == (0, usd(100))
    assert node.runs["own"].incident is None
    told = run_status(node.runs["box"], at(100))
    assert (told["paid_by"], told["spend_rate_usd_per_hour"]) == ("own", 0)


def test_it_pays_where_nobody_of_the_commands_own_user_trains_or_that_run_is_over() -> None:
    node = launched(ceiling=None)
    play(node, of_sandbox(1), tick(1))
    pass_time(node, 10, 2)
    assert node.ledger.spend("box") == usd(10), "the command may have become that user"
    play(node, hello(0, 10, run="own", world_size=1), tick(11))
    pass_time(node, 20, 12)
    play(node, Disconnected(at(20), ConnectionId(1)), TrainerExited(at(20), "own", None))
    pass_time(node, 30, 21)
    assert (node.ledger.spend("own"), node.ledger.spend("box")) == (usd(10), usd(20))


def halted_at(runs: int, ceiling: int, before: int = 0) -> float:
    """Root's command has become a user that trains, beside so many runs of a sandbox: when that user is halted."""
    node = launched(ceiling=usd(ceiling))
    node.ledger.book.runs.count_to("theirs", "another-command")
    node.ledger.book.runs.enter("theirs", usd(before))
    trains = {"run": "job", "world_size": 1, "peer": peer(100, 1001), "of_command": True}
    play(node, hello(0, 1, **trains), a_step(1, run="job", when=1), tick(1))
    for number in range(runs):
        link = ConnectionId(50 + number)
        play(node, of_sandbox(1, run=f"box{number}", connection=link, peer=peer(900 + number, STRANGER)))
    for second in range(2, 200):
        play(node, a_step(second, run="job", when=second), tick(second))
        if node.runs["job"].incident is not None:
            return second
    return math.inf


@pytest.mark.parametrize("runs", [1, 9])
def test_the_ceiling_of_a_command_that_has_become_others_counts_what_all_of_them_cost(runs: int) -> None:
    """Nine hellos of a sandbox made a ceiling of $20 allow $200: the command's own user had no run that paid."""
    alone = halted_at(0, 100)
    assert halted_at(runs, 100) == pytest.approx(alone, abs=2)
    assert halted_at(runs, 100, before=70) == pytest.approx(alone, abs=2), "of other commands nothing counts"


def owns_speaks(node: Node, when: float) -> list[Effect]:
    """A rank of the command's own user says hello, and is seen to be below the command."""
    return play(node, hello(0, when, run="own", world_size=1), LaunchersSeen(at(when), "own", (COMMAND,)), tick(when))


def rows(effects: list[Effect]) -> dict[str, int]:
    """What the journal has charged each run: the newest state of each charge."""
    kept = {one.charge_id: one for effect in effects if isinstance(effect, PersistRuns) for one in effect.charges}
    runs = {charge.payer.run for charge in kept.values()}
    return {run: sum(one.usd_micros for one in kept.values() if one.payer.run == run) for run in runs}


def test_what_a_sandbox_paid_before_the_commands_own_user_spoke_is_that_users() -> None:
    node = launched(ceiling=usd(100))
    effects = [*play(node, of_sandbox(5, stage="box", labels={"team": "rl"}), tick(5)), *pass_time(node, 30, 6)]
    assert (node.ledger.spend("box"), node.ledger.groups.of_key("label:team=rl")) == (usd(30), usd(30))
    effects += owns_speaks(node, 30)
    assert (node.ledger.spend("box"), node.ledger.spend("own"), node.ledger.total()) == (0, usd(30), usd(30))
    assert node.ledger.groups.of_key("label:team=rl") == node.ledger.groups.of_key("stage:box") == 0
    kept = [effect.runs for effect in effects if isinstance(effect, PersistRuns)][-1]
    assert {name: kept[name]["spend_usd_micros"] for name in ("box", "own")} == {"box": 0, "own": usd(30)}
    effects += pass_time(node, 80, 31)
    assert rows(effects) == {"own": usd(80)}
    told = node.runs["own"].history.split.by_cause(), node.runs["box"].history.split.by_cause()
    assert [sum(amounts.values()) for amounts in told] == [usd(80), 0]
    assert terms(pass_time(node, 100, 81)) == ["own"], "the ceiling is the command's"


def test_so_is_what_it_paid_in_hours_that_are_over_and_under_a_governor_before() -> None:
    node = launched(ceiling=None)
    effects = [*play(node, of_sandbox(5), tick(5)), *pass_time(node, 9_000, 6)]
    kept = [run_snapshot(node, managed, at(9_000)) for managed in node.runs.values()]
    again = make_node(cloud="none", exclusive=True, boot=9_000, price_usd_micros_per_hour=PRICE)
    restore_runs(again, [*kept, node_snapshot(node)], BootNs(at(9_000)), at(9_000))
    effects += play(again, CommandLaunched(at(9_000), "job", 1000, (COMMAND,)), of_sandbox(9_001), tick(9_001))
    assert again.ledger.spend("box") == usd(9_001)
    effects += owns_speaks(again, 9_010)
    assert (again.ledger.spend("box"), again.ledger.spend("own")) == (0, usd(9_010))
    assert rows(effects) == {"own": usd(9_010)}


def test_what_another_user_pays_after_the_commands_own_has_spoken_stays_its_own() -> None:
    node = launched(ceiling=None)
    play(node, of_sandbox(5), tick(5))
    owns_speaks(node, 10)
    play(node, Disconnected(at(20), ConnectionId(1)), TrainerExited(at(20), "own", None), tick(20))
    pass_time(node, 30, 21)
    owns_speaks(node, 30)
    assert (node.ledger.spend("own"), node.ledger.spend("box")) == (usd(20), usd(10))


def test_of_a_command_that_ran_as_another_user_its_launch_and_its_uploads_stay_with_that_run() -> None:
    node = launched(ceiling=None)
    node.facts = replace(node.facts, lines=Lines((), (LAUNCH,), (UPLOAD,)))
    play(node, of_sandbox(0), tick(0), replace(saved(1), run="box"))
    words = node.ledger.spend("box")
    assert words > 0, "they are the run's own words"
    pass_time(node, 10, 1)
    owns_speaks(node, 10)
    assert node.ledger.spend("box") == words


def test_the_next_launch_goes_on_with_the_budget_of_the_commands_own_user() -> None:
    node = launched(ceiling=None)
    play(node, of_sandbox(5), tick(5))
    owns_speaks(node, 10)
    assert node.account.run == payer_before(node, "job") == "own"
