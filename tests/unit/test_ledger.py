"""The meter forgets names in the end, and no money."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.ledger import FORGOTTEN_MAX, Ledger, share_on
from governor.core.node import RUNS_MAX, run_snapshot
from governor.core.resume import restore_runs
from governor.core.units import NS_PER_HOUR, NS_PER_S, BootNs, UsdMicros
from tests.unit.test_engine import PRICE, at, hello, make_node, peer, play, tick

HOUR = NS_PER_HOUR


def used_by(names: int) -> Ledger:
    """Each run holds the node for an hour and is forgotten."""
    ledger = Ledger(UsdMicros(1_000_003), BootNs(0))
    for number in range(names):
        ledger.charge(BootNs((number + 1) * HOUR), {f"r{number}": 1})
        ledger.forget(f"r{number}")
    return ledger


def test_the_oldest_names_go_into_one_sum_and_every_micro_dollar_stays() -> None:
    ledger = used_by(FORGOTTEN_MAX + 500)
    assert len(ledger.spent) == len(ledger.forgotten) == FORGOTTEN_MAX
    assert ledger.folded_usd_micros == 500 * 1_000_003
    assert ledger.total() == (FORGOTTEN_MAX + 500) * 1_000_003


def test_a_run_that_comes_back_goes_on_with_its_budget_and_is_not_folded() -> None:
    ledger = used_by(FORGOTTEN_MAX)
    ledger.recall("r0")
    for number in range(FORGOTTEN_MAX):
        ledger.forget(f"other{number}")
    assert ledger.spend("r0") == 1_000_003
    ledger.forget("r0")
    assert ledger.spend("r0") == 1_000_003, "the newest of the forgotten"


def test_a_run_forgotten_by_the_node_comes_back_to_what_it_spent() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, run="mine", world_size=1), tick(3600))
    node.runs["mine"].run.ended_at = at(3600)
    spent = node.ledger.spend("mine")
    for number in range(RUNS_MAX):
        name = f"r{number}"
        play(node, hello(0, 3601 + number, run=name, world_size=1, peer=peer(500 + number, uid=2000 + number % 9)))
        node.runs[name].run.ended_at = at(3601 + number)
    assert "mine" not in node.runs
    assert list(node.ledger.forgotten) == ["mine"]
    play(node, hello(0, 4000, run="mine", world_size=1, attempt="a2"))
    assert node.ledger.spend("mine") == spent == PRICE * 3600 * NS_PER_S // NS_PER_HOUR
    assert "mine" not in node.ledger.forgotten


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
    """Eight runs on a node of $2.49/h, four ticks a second, an hour: 31.125 cents each."""
    ledger = Ledger(UsdMicros(2_490_000), BootNs(0))
    holders = {f"run{number}": 1 for number in range(8)}
    for quarter in range(1, 4 * 3600 + 1):
        ledger.charge(BootNs(quarter * NS_PER_S // 4), holders)
    assert {ledger.spend(run) for run in holders} == {311_250}


@settings(max_examples=300)
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
