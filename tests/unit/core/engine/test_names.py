"""A name is its first user's and harms nobody else. What memory has no room for, the journal remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import RUN_NAME, ConnectionId
from governor.core.base.run_names import names_of, own_name
from governor.core.base.shares import UidRange
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine import names
from governor.core.engine.names import know_incidents
from governor.core.engine.node import NUMBERS_MAX, RUNS_MAX, Node, manage, new_node, owner_of
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, Confirm, Effect, PersistIncident, PersistRuns, RecallRun, Refuse
from governor.core.events.inputs import CommandLaunched, Disconnected, ProcessesSeen
from governor.core.events.machine import RunRecalled, UidRangesSeen
from governor.core.events.operators import OperatorForget, OperatorHalt, OperatorHold
from governor.core.events.streams import StreamOpened
from governor.core.halt.left_launch import process_row
from governor.core.money.budgets import Scope, ScopedBudget, ScopeKind
from governor.core.money.charges import UNALLOCATED
from governor.core.money.group_totals import PAST_MAX
from governor.core.runs.life import LifeFact
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

STRANGER = 12345
NAN = float("nan")


def says_hello(node: Node, run: str, uid: int, when: float, attempt: str = "a1") -> list[Effect]:
    pid = 10_000 + len(node.past) + len(node.runs) + round(when * 4) % 1_000
    link = ConnectionId(abs(hash((run, uid, attempt))) % 10**9)
    return play(node, hello(0, when, run=run, world_size=1, attempt=attempt, peer=peer(pid, uid=uid), connection=link))


def churn(node: Node, count: int, when: float, journal: dict[str, Any]) -> None:
    """So many new names of a stranger. Each run ends at once; each persisted run goes to the journal."""
    for number in range(count):
        for effect in says_hello(node, f"churn{number}", STRANGER, when):
            if isinstance(effect, RecallRun):
                play(node, RunRecalled(at(when), effect.run, journal.get(effect.run)))
                says_hello(node, f"churn{number}", STRANGER, when)
        node.runs[f"churn{number}"].run.move(LifeFact.GONE, at(when))


def halted(node: Node, run: str, when: float) -> PersistIncident:
    kept = [e for e in play(node, OperatorHalt(at(when), run, "enough", 0)) if isinstance(e, PersistIncident)]
    nobody = ProcessesSeen(at(when), kept[-1].incident_id, ())
    play(node, nobody, nobody, nobody)
    return kept[-1]


def test_a_strangers_names_take_neither_money_nor_history_nor_an_id_from_another_user() -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    says_hello(node, "prod", 1000, 0)
    play(node, tick(3600))
    spent = node.ledger.spend("prod")
    first = halted(node, "prod", 3600)
    play(node, OperatorHold(at(3601), "prod", DurationNs(7200 * NS_PER_S), "looking", 0))
    churn(node, PAST_MAX + 5 * RUNS_MAX, 3602, {})
    assert node.ledger.book.runs.folded_total > 0
    says_hello(node, "prod", 1000, 3603, attempt="a2")
    managed = node.runs["prod"]
    assert node.ledger.spend("prod") >= spent > 0
    assert (managed.history.hold_reason, len(managed.history.halts_wall)) == ("looking", 1)
    again = halted(node, "prod", 3604)
    assert (first.incident_id, again.incident_id) == ("prod.node-a.1", "prod.node-a.2")


def test_a_run_that_memory_has_dropped_is_asked_of_the_journal_and_goes_on() -> None:
    """The stranger's own names are too many: what was its oldest comes back from the journal."""
    node = make_node(cloud="none")
    play(node, tick(0))
    says_hello(node, "mine", STRANGER, 0)
    play(node, tick(3600), a_step(5, run="mine", connection=next(iter(node.connections)), when=3600))
    halted(node, "mine", 3600)
    row = json.loads(json.dumps(run_snapshot(node, node.runs["mine"], at(3601))))
    spent, total = node.ledger.spend("mine"), node.ledger.total()
    node.runs.pop("mine")
    node.ledger.book.runs.folded_usd_micros += node.ledger.book.runs.by_run.pop("mine")
    node.ledger.book.runs.folded_total += 1

    effects = says_hello(node, "mine", STRANGER, 3602, attempt="a2")
    assert effects == [RecallRun("mine")], "not even confirmed: it comes again"
    assert "mine" not in node.runs
    play(node, RunRecalled(at(3602), "mine", row))
    assert node.ledger.total() == total
    effects = says_hello(node, "mine", STRANGER, 3602, attempt="a2")
    assert any(isinstance(effect, Confirm) for effect in effects)
    assert node.ledger.spend("mine") == spent
    assert node.runs["mine"].history.incidents_total == 1
    assert halted(node, "mine", 3603).incident_id == "mine.node-a.2"


@pytest.mark.parametrize(("snapshot", "is_answered"), [(None, True), (None, False), ({"torn": 1}, True)])
def test_without_an_answer_the_run_is_watched_all_the_same(snapshot: Any, is_answered: bool) -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    node.names_dropped = True
    assert says_hello(node, "new", 1000, 0) == [RecallRun("new")]
    alarms = [e.name for e in play(node, RunRecalled(at(1), "new", snapshot, is_answered)) if isinstance(e, Alarm)]
    assert alarms == (
        [] if is_answered and snapshot is None else ["run_not_recalled" if not is_answered else "run_unreadable"]
    )
    assert any(isinstance(effect, Confirm) for effect in says_hello(node, "new", 1000, 1))
    assert not node.not_recalled


def test_of_a_run_whose_row_is_gone_the_charges_are_left() -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    node.names_dropped = True
    says_hello(node, "old", 1000, 0)
    play(node, RunRecalled(at(0), "old", {"run": "old", "salvaged": True, "spend_usd_micros": 67_480_000}))
    says_hello(node, "old", 1000, 0)
    assert node.ledger.spend("old") == 67_480_000


def test_no_incident_id_is_given_twice_whatever_was_forgotten() -> None:
    node = make_node(cloud="none")
    know_incidents(node, ["prod.node-a.7", "prod.node-a.3", "prod.elsewhere.9", "odd", "x.node-a.y"])
    assert node.next_incident_id("prod", 0) == ("prod.node-a.8", 8)
    for number in range(NUMBERS_MAX):
        node.next_incident_id(f"churn{number}", 0)
    assert "prod" not in node.numbers
    assert node.next_incident_id("prod", 0) == ("prod.node-a.9", 9)
    kept = [e for e in play(node, tick(0)) if isinstance(e, PersistRuns)]
    rows = json.loads(json.dumps([*kept[-1].runs.values()]))
    reborn = make_node(cloud="none", boot=5)
    restore_runs(reborn, rows, BootNs(at(5)), at(5))
    assert reborn.numbers_floor >= 8
    assert reborn.next_incident_id("prod", 0)[1] > 8


# --- whose a name is ----------------------------------------------------------------------------------------------


def squatted(node: Node, *, steps: int = 0) -> None:
    play(node, tick(0))
    says_hello(node, "llama-70b", STRANGER, 0)
    link = next(iter(node.connections))
    for number in range(1, steps + 1):
        play(node, a_step(number, run="llama-70b", connection=link, when=number))


def test_a_name_whose_run_never_trained_and_is_gone_is_free() -> None:
    node = make_node(cloud="none")
    squatted(node)
    node.runs["llama-70b"].run.move(LifeFact.GONE, at(1))
    effects = says_hello(node, "llama-70b", 0, 2)
    assert not [effect for effect in effects if isinstance(effect, Alarm | Refuse)]
    assert node.runs["llama-70b"].run.uid == 0


@pytest.mark.parametrize("steps", [0, 3])
def test_a_name_that_is_in_use_refuses_nobody_and_both_runs_are_watched(steps: int) -> None:
    node = make_node(cloud="none")
    squatted(node, steps=steps)
    if steps:
        node.runs["llama-70b"].run.move(LifeFact.GONE, at(4))
    effects = says_hello(node, "llama-70b", 0, 5)
    [alarm] = [effect for effect in effects if isinstance(effect, Alarm)]
    assert (alarm.name, alarm.run) == ("name_taken", "llama-70b@0")
    assert node.runs["llama-70b"].run.uid == STRANGER
    link = next(link for link, held in node.connections.items() if held[0] == "llama-70b@0")
    halts = [
        e
        for e in play(node, a_step(9, run="llama-70b", connection=link, when=9, loss=NAN))
        if isinstance(e, PersistIncident)
    ]
    assert halts[-1].incident_id == "llama-70b@0.node-a.1"
    assert not [e for e in says_hello(node, "llama-70b", 0, 10) if isinstance(e, Alarm) and e.name == "name_taken"]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_who_has_trained_under_a_name_of_its_own_keeps_it_until_a_person_releases_the_other(is_forgotten: bool) -> None:
    """A visitor has the name and leaves: the next attempt would begin its ceiling anew."""
    node = make_node(cloud="none")
    squatted(node)
    says_hello(node, "llama-70b", 0, 1)
    link = next(link for link, held in node.connections.items() if held[0] == "llama-70b@0")
    play(node, a_step(1, run="llama-70b", connection=link, when=2), Disconnected(at(3), link))
    for name in ("llama-70b", "llama-70b@0"):
        node.runs[name].run.move(LifeFact.GONE, at(3))
    if is_forgotten:
        play(node, OperatorForget(at(4), "llama-70b", 0))
    says_hello(node, "llama-70b", 0, 5)
    assert node.runs["llama-70b@0"].run.alive is not is_forgotten


def test_the_name_that_another_user_would_need_is_not_to_be_had() -> None:
    node = make_node(cloud="none")
    squatted(node)
    for name in ("llama-70b@0", "llama-70b@0@0", "llama-70b@0@0@0", "x" * 126 + "@0"):
        effects = says_hello(node, name, STRANGER, 1)
        assert [e.name for e in effects if isinstance(e, Alarm) and e.name == "name_taken"], "it is said"
        assert owner_of(node, name) is None
    assert [e for e in says_hello(node, "llama-70b", 0, 2) if isinstance(e, Confirm)]
    assert node.runs["llama-70b@0"].run.uid == 0
    assert names.own_run(node, "llama-70b", 0) == "llama-70b@0"
    assert names.own_run(node, "llama-70b", STRANGER) == "llama-70b"
    assert names.own_run(node, "llama-70b", 7) is None


def test_whoever_had_such_a_name_before_keeps_it_and_the_user_has_another() -> None:
    node = make_node(cloud="none", exclusive=True)
    for name in ("llama-70b", "llama-70b@0"):
        says_hello(node, name, STRANGER, 0)
    node.facts = replace(node.facts, exclusive=False)
    says_hello(node, "llama-70b@0", STRANGER, 1, attempt="a2")
    says_hello(node, "llama-70b", 0, 2)
    assert (node.runs["llama-70b@0"].run.uid, node.runs["llama-70b@0@0"].run.uid) == (STRANGER, 0)
    assert names.own_run(node, "llama-70b", 0) == "llama-70b@0@0"


def test_two_long_names_of_a_user_are_two_runs() -> None:
    node = make_node(cloud="none")
    long = ["y" * 127 + end for end in "ab"]
    for name in long:
        says_hello(node, name, STRANGER, 0)
        says_hello(node, name, 0, 1)
    assert len({names.own_run(node, name, 0) for name in long}) == 2


@pytest.mark.parametrize("name", ["llama-70b", "y" * 128])
@pytest.mark.parametrize("tried", [1, 2])
def test_a_budget_of_a_name_holds_whoever_runs_under_it(name: str, tried: int) -> None:
    """Also where the name is too long to be whole in that of the user's own run, or another has had this one too."""
    scope = Scope(ScopeKind.RUN, name)
    before = make_node(cloud="none")
    budget = ScopedBudget(scope, UsdMicros(5_000_000), "costgov.toml")
    node = new_node(before.facts, before.policies, BootNs(0), WallNs(0), [budget])
    _, *own = names_of(name, 0)
    for taken in (name, *own[: tried - 1]):
        manage(node, taken, STRANGER, None, {}, at(0))
    says_hello(node, name, 0, 2)
    assert node.runs[own[tried - 1]].run.uid == 0
    assert node.runs[own[tried - 1]].policy.budget.ceiling_usd_micros == 5_000_000


def test_the_budget_of_a_users_own_name_goes_before_that_of_the_name_it_is_made_of() -> None:
    before = make_node(cloud="none")
    both = [
        ScopedBudget(Scope(ScopeKind.RUN, name), UsdMicros(ceiling), "costgov.toml")
        for name, ceiling in (("llama-70b", 5_000_000), ("llama-70b@0", 7_000_000))
    ]
    node = new_node(before.facts, before.policies, BootNs(0), WallNs(0), both)
    assert node.policy_for("llama-70b@0", None, {}, 0).budget.ceiling_usd_micros == 7_000_000
    assert node.policy_for("llama-70b@0", None, {}, STRANGER).budget.ceiling_usd_micros == 7_000_000
    assert node.policy_for("llama-70b@1", None, {}, 1).budget.ceiling_usd_micros == 5_000_000
    assert node.policy_for("llama-70b@1", None, {}, STRANGER).budget.ceiling_usd_micros is None


def test_a_long_name_stays_a_name() -> None:
    assert RUN_NAME.fullmatch(own_name("x" * 128, 12345))
    assert own_name("x" * 128, 12345).endswith("x@12345")


# --- room ------------------------------------------------------------------------------------------------------------


def test_two_users_who_hold_every_run_leave_room_for_a_third() -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    for number in range(RUNS_MAX):
        says_hello(node, f"r{number}", 100 + number % 2, number)
    link = next(link for link, held in node.connections.items() if held[0] == "r63")
    effects = says_hello(node, "mine", 1000, 100)
    assert node.runs["mine"].run.alive
    assert [effect.connection for effect in effects if isinstance(effect, Refuse)] == [link]
    [told] = [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "run_displaced"]
    assert (told.run, "uid 101" in told.text) == ("r63", True)
    [*_, refused] = [e for e in says_hello(node, "r64", 100, 101) if isinstance(e, Refuse)]
    assert "runs are alive" in refused.reason or "has 32 runs" in refused.reason


def test_a_range_of_uids_is_one_user_and_its_runs_leave_room_for_another() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), UidRangesSeen(at(0), (UidRange(100_000, 65_536, 1001),)))
    for number in range(32):
        says_hello(node, f"r{number}", 100_000 + number, number)
    [*_, refused] = [e for e in says_hello(node, "r32", 100_999, 32) if isinstance(e, Refuse)]
    assert "has 32 runs" in refused.reason
    for number in range(32, RUNS_MAX):
        says_hello(node, f"r{number}", 200_000 + number, number)
    assert len(node.runs) == RUNS_MAX
    effects = says_hello(node, "mine", 1000, 100)
    assert node.runs["mine"].run.alive
    [told] = [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "run_displaced"]
    assert told.run == "r31"


def test_a_log_finds_room_where_other_runs_have_ended() -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    for number in range(RUNS_MAX):
        says_hello(node, f"r{number}", 100 + number % 2, number)
        node.runs[f"r{number}"].run.move(LifeFact.GONE, at(number))
    play(node, StreamOpened(at(100), "log", 1000, None, {}, ()))
    assert node.runs["log"].run.alive


def test_a_log_and_a_launched_command_wait_for_what_their_name_has_spent() -> None:
    node = make_node(cloud="none")
    play(node, tick(0))
    node.names_dropped = True
    spent = {"salvaged": True, "spend_usd_micros": 9_000_000}
    assert play(node, StreamOpened(at(1), "log", 1000, None, {}, ())) == [RecallRun("log")]
    assert "log" not in node.runs
    play(node, RunRecalled(at(1), "log", {"run": "log", **spent}))
    assert (node.runs["log"].run.alive, node.ledger.spend("log")) == (True, 9_000_000)

    node = make_node(cloud="none")
    play(node, tick(0))
    node.names_dropped = True
    recall, kept = play(node, CommandLaunched(at(2), "mine", 1000, (peer(7).process,), ()))
    assert recall == RecallRun("mine")
    assert isinstance(kept, PersistRuns)
    assert kept.durable
    assert kept.runs[UNALLOCATED]["launched"]["processes"] == [process_row(peer(7).process)], "it waits for no answer"
    play(node, tick(2.25))
    assert "mine" not in node.runs
    play(node, RunRecalled(at(2.25), "mine", {"run": "mine", **spent}), tick(2.5))
    assert node.runs["mine"].is_unattached
    assert node.ledger.spend("mine") == 9_000_000


def with_stream() -> Node:
    node = make_node(cloud="none")
    node.facts = replace(node.facts, streams=frozenset({"log"}))
    play(node, tick(0))
    return node


def test_a_streams_name_is_no_hellos_before_it_is_opened_and_while_its_log_does_not_exist() -> None:
    for is_opened in (False, True):
        node = with_stream()
        if is_opened:
            play(node, StreamOpened(at(1), "log", 0))
        says_hello(node, "log", STRANGER, 2)
        assert node.runs[f"log@{STRANGER}"].run.ranks
        play(node, StreamOpened(at(3), "log", 1000, processes=(peer(7).process,)))
        assert (node.runs["log"].run.uid, node.runs["log"].run.jsonl_only) == (1000, True)
        assert node.runs["log"].processes() == (peer(7).process,)
        says_hello(node, "log", 1000, 4, attempt="a2")
        assert node.runs["log"].run.ranks, "its own user's ranks report beside the log"
        assert not any(name.startswith("log@1000") for name in node.runs)


def test_a_name_that_a_stranger_had_before_it_was_a_streams_is_the_streams() -> None:
    node = with_stream()
    node.facts = replace(node.facts, streams=frozenset())
    says_hello(node, "log", STRANGER, 1)
    play(node, a_step(3, 2, run="log"))
    rows = [json.loads(json.dumps(run_snapshot(node, node.runs["log"], at(3))))]
    again = with_stream()
    restore_runs(again, rows, BootNs(at(4)), at(4))
    assert again.runs["log"].run.alive
    play(again, StreamOpened(at(5), "log", 0))
    assert (again.runs["log"].run.uid, again.runs["log"].run.jsonl_only) == (0, True)
    says_hello(again, "log", STRANGER, 6)
    assert again.runs[f"log@{STRANGER}"].run.alive


def test_under_costgov_run_a_streams_name_may_be_its_own_users_from_the_start() -> None:
    node = with_stream()
    node.facts = replace(node.facts, exclusive=True)
    says_hello(node, "log", 1000, 1)
    assert node.runs["log"].run.ranks
