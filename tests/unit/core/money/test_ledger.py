"""The meter forgets names in the end, and no money."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.node import RUNS_MAX, Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import PersistIncident
from governor.core.events.inputs import ProcessesSeen
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.money.charges import Payer, Place
from governor.core.money.group_totals import PAST_MAX
from governor.core.money.ledger import Ledger, new_ledger
from governor.core.money.lines import compute_line, share_on
from governor.core.runs.life import LifeFact
from tests.sweeps import share_of
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, tick

HOUR = NS_PER_HOUR


def used_by(names: int) -> Ledger:
    """Each run holds the node for an hour and is past."""
    ledger = new_ledger(compute_line(UsdMicros(1_000_003), "test", ""), BootNs(0), Place("node"), WallNs(0))
    for number in range(names):
        run = f"r{number}"
        ledger.charge(BootNs((number + 1) * HOUR), WallNs(0), {run: 1}, {run: Payer(run)})
        ledger.make_past(run)
    return ledger


def test_the_oldest_names_go_into_one_sum_and_every_micro_dollar_stays() -> None:
    ledger = used_by(PAST_MAX + 500)
    runs = ledger.book.runs
    assert len(runs.names()) == len(runs.past) == PAST_MAX
    assert runs.folded_usd_micros == 500 * 1_000_003
    assert ledger.total() == (PAST_MAX + 500) * 1_000_003
    assert sum(charge.usd_micros for charge in ledger.take_charges()) == ledger.total()


def test_a_run_that_comes_back_goes_on_with_its_budget_and_is_not_folded() -> None:
    ledger = used_by(PAST_MAX)
    ledger.recall("r0")
    for number in range(PAST_MAX):
        ledger.make_past(f"other{number}")
    assert ledger.spend("r0") == 1_000_003
    ledger.make_past("r0")
    assert ledger.spend("r0") == 1_000_003, "the newest of the past ones"


def test_a_past_run_comes_back_to_what_it_spent() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, run="mine", world_size=1), tick(3600))
    node.runs["mine"].run.move(LifeFact.GONE, at(3600))
    spent = node.ledger.spend("mine")
    for number in range(RUNS_MAX):
        name = f"r{number}"
        play(node, hello(0, 3601 + number, run=name, world_size=1, peer=peer(500 + number, uid=2000 + number % 9)))
        node.runs[name].run.move(LifeFact.GONE, at(3601 + number))
    assert "mine" not in node.runs
    assert list(node.ledger.book.runs.past) == ["mine"]
    play(node, hello(0, 4000, run="mine", world_size=1, attempt="a2"))
    assert node.ledger.spend("mine") == spent == PRICE * 3600 * NS_PER_S // NS_PER_HOUR
    assert "mine" not in node.ledger.book.runs.past


def made_past_by(node: Node, when: float) -> None:
    for number in range(RUNS_MAX):
        name, who = f"r{number}", peer(500 + number, uid=2000 + number % 9)
        play(node, hello(0, when, run=name, world_size=1, peer=who, connection=ConnectionId(100 + number)))
        node.runs[name].run.move(LifeFact.GONE, at(when))
    assert "mine" not in node.runs


def kept_by(node: Node, when: float) -> list[dict[str, Any]]:
    """As the journal has them: the run's from before it was past, the others after it."""
    others = [run_snapshot(node, managed, at(when)) for managed in node.runs.values()]
    return [json.loads(json.dumps(row)) for row in others]


@pytest.mark.parametrize("governor_restarted", [False, True])
def test_a_past_run_that_returns_is_the_run_that_it_was(governor_restarted: bool) -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, run="mine", world_size=1, capabilities=frozenset()))
    for number in range(1, 7):
        play(node, tick(number), a_step(number, run="mine", tokens=250_000, tokens_total=number * 250_000))
    nobody = ProcessesSeen(at(8), "mine.node-a.1", ())
    play(node, OperatorHalt(at(7), "mine", "enough", 0), nobody, nobody, tick(8))
    play(node, OperatorHold(at(8), "mine", DurationNs(7200 * NS_PER_S), "looking", 0))
    mine = json.loads(json.dumps(run_snapshot(node, node.runs["mine"], at(8))))
    made_past_by(node, 10)
    if governor_restarted:
        rows = [mine, *kept_by(node, 20)]
        node = make_node(cloud="none", boot=20)
        restore_runs(node, rows, BootNs(at(20)), at(20))
        assert "mine" not in node.runs
    thief = hello(0, 21, run="mine", world_size=1, peer=peer(900, uid=1001), connection=ConnectionId(900))
    play(node, tick(21), thief)
    assert node.connections[ConnectionId(900)] == ("mine@1001", 0)
    assert "mine" in node.past
    node.runs["mine@1001"].run.move(LifeFact.GONE, at(21))
    play(node, hello(0, 22, run="mine", attempt="a2", world_size=1, peer=peer(901), connection=ConnectionId(901)))
    managed = node.runs["mine"]
    assert "mine" not in node.past, "what was remembered of it is no second truth"
    assert (managed.history.hold_reason, len(managed.history.halts_wall)) == ("looking", 1)
    # Its next window goes on where the last one ended, and no dollar is in two.
    for number in range(7, 11):
        told = {"tokens": 250_000, "tokens_total": number * 250_000, "connection": ConnectionId(901)}
        play(node, tick(20 + number), a_step(number, run="mine", when=20 + number, attempt_step=number - 6, **told))
    [*_, row] = [record.data for record in node.windows_uncommitted if record.run == "mine"]
    assert (row["from_tokens"], row["to_tokens"]) == (MTOK, 2 * MTOK)
    assert row["usd_micros"] < node.ledger.spend("mine")
    effects = play(node, OperatorHalt(at(31), "mine", "again", 0))
    [kept] = [effect for effect in effects if isinstance(effect, PersistIncident)]
    assert kept.incident_id == "mine.node-a.2"


def test_what_is_remembered_of_past_runs_is_bounded_as_their_names_are() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1))
    snapshot = run_snapshot(node, node.runs["llama"], at(1))
    rows = [{**snapshot, "run": f"r{number}", "alive": False} for number in range(PAST_MAX + RUNS_MAX + 5)]
    reborn = make_node(cloud="none", boot=1)
    restore_runs(reborn, rows, BootNs(at(1)), at(1))
    assert reborn.past.keys() == reborn.ledger.book.runs.past.keys()
    assert len(reborn.past) == PAST_MAX
    assert "r4" not in reborn.past


def test_a_run_whose_name_is_all_that_is_known_pays_no_window_with_what_it_spent_before() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, run="mine", world_size=1), tick(3600))
    node.runs["mine"].run.move(LifeFact.GONE, at(3600))
    made_past_by(node, 3600)
    spent = node.ledger.spend("mine")
    play(node, hello(0, 3600, run="mine", world_size=1, attempt="a2", peer=peer(900), connection=ConnectionId(900)))
    assert node.runs["mine"].history.paid_before == 0, "it had trained nothing: its first window is still to come"
    past = node.runs.pop("mine")
    node.ledger.make_past(past.run.run)
    play(node, hello(0, 3601, run="mine", world_size=1, attempt="a3", peer=peer(901), connection=ConnectionId(901)))
    assert node.runs["mine"].history.paid_before == spent > 0


def test_a_restart_carries_the_spend_of_more_runs_than_it_tracks() -> None:
    node = make_node()
    play(node, tick(0), hello(0, 0, world_size=1), tick(3600))
    snapshot = run_snapshot(node, node.runs["llama"], at(3600))
    ended = [{**snapshot, "run": f"r{number}", "alive": False} for number in range(3 * RUNS_MAX)]
    reborn = make_node(boot=3600)
    restore_runs(reborn, ended, BootNs(at(3600)), at(3600))
    assert len(reborn.runs) == RUNS_MAX
    assert "r0" not in reborn.runs
    assert reborn.ledger.spend("r0") == snapshot["spend_usd_micros"] > 0
    assert reborn.ledger.total() == 3 * RUNS_MAX * snapshot["spend_usd_micros"]


def test_runs_that_share_a_node_are_charged_their_exact_share_however_often_it_is_read() -> None:
    """Eight runs on a node of $2.49/h, a tick a second, an hour: 31.125 cents each."""
    ledger = new_ledger(compute_line(UsdMicros(2_490_000), "test", ""), BootNs(0), Place("node"), WallNs(0))
    holders = {f"run{number}": 1 for number in range(8)}
    payers = {run: Payer(run) for run in holders}
    for second in range(1, 3600 + 1):
        ledger.charge(BootNs(second * NS_PER_S), WallNs(0), holders, payers)
    assert {ledger.spend(run) for run in holders} == {311_250}


@settings(max_examples=share_of(300))
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 9), st.integers(0, 10**7)), st.lists(st.integers(0, 8), min_size=3, max_size=3)
        ),
        max_size=80,
    )
)
def test_a_share_is_never_a_micro_dollar_off_for_long(splits: list[tuple[int, list[int]]]) -> None:
    owed: dict[str, int] = {}
    paid, exact = dict.fromkeys("abc", 0), dict.fromkeys("abc", Fraction(0))
    for amount, held in splits:
        weights = dict(zip("abc", held, strict=True))
        if not any(held):
            continue
        parts = share_on(amount, weights, owed)
        assert sum(parts.values()) == amount
        assert min(parts.values()) >= 0, "a counter never goes back"
        for name, part in parts.items():
            paid[name] += part
            exact[name] += Fraction(amount * weights[name], sum(held))
    assert all(abs(paid[name] - exact[name]) < 2 for name in "abc")


def test_who_leaves_takes_no_part_of_the_amount_along() -> None:
    """Those who stay may have been paid ahead, by more together than one micro-dollar of each takes back."""
    rng = random.Random(1)
    owed: dict[str, int] = {}
    for _ in range(10_000):
        weights = {name: rng.randint(1, 8) for name in rng.sample("abcdefgh", rng.randint(1, 8))}
        amount = rng.choice((7, 683))
        parts = share_on(amount, weights, owed)
        assert sum(parts.values()) == amount
        assert min(parts.values()) >= 0
