"""Scopes as people write them, and the counters of groups: each is the sum of its members' charges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_S, MonoNs
from governor.core.events.inputs import TrainerExited
from governor.core.money.budgets import Scope, ScopeKind, checked_ceiling, checked_fractions, parse_scope, scopes_of
from governor.core.money.charges import Charge
from governor.core.money.group_totals import DAYS_MAX, KEYS_MAX, GroupSpend
from governor.core.money.reports.cost import tally
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import WALL, World
from tests.unit.core.engine.test_step import hello, make_node, peer


@pytest.mark.parametrize("text", ["run:llama", "stage:stage1", "label:team=nlp", "label:a=b=c", "day", "node"])
def test_a_scope_reads_back_as_it_is_written(text: str) -> None:
    assert parse_scope(text).text == text


@pytest.mark.parametrize(
    "text",
    ["", "run:", "stage:", "stage: ", "label:team", "label:=nlp", "month", "run:@node", "run:a b", "team:nlp",
     "day:2026-11-21", "stage:\x1b[2J", "stage:" + "x" * 200],
)  # fmt: skip
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        parse_scope(text)


def test_a_bare_word_is_a_run_on_the_command_line_alone() -> None:
    assert parse_scope("llama", bare_run=True) == Scope(ScopeKind.RUN, "llama")
    assert parse_scope("day", bare_run=True).kind is ScopeKind.DAY
    for text in ("@node", "stage:", "llama "):
        with pytest.raises(ValueError, match="scope"):
            parse_scope(text, bare_run=True)
    with pytest.raises(ValueError, match="scope"):
        parse_scope("llama")


def test_whom_a_scope_covers() -> None:
    run = ("llama", "stage1", {"team": "nlp", "x": ""})
    covering = ["run:llama", "stage:stage1", "label:team=nlp", "label:x=", "day", "node"]
    assert all(parse_scope(text).covers(*run) for text in covering)
    assert scopes_of(*run) == set(covering)
    others = ["run:llama2", "stage:stage", "label:team=nl", "label:tea=mnlp"]
    assert not any(parse_scope(text).covers(*run) for text in others)


@pytest.mark.parametrize("usd_micros", [0, -1, 10**15, 10**30])
def test_what_is_no_ceiling_is_refused(usd_micros: int) -> None:
    with pytest.raises(ValueError, match="ceiling"):
        checked_ceiling(usd_micros)
    assert checked_ceiling(10**15 - 1) == 10**15 - 1


@pytest.mark.parametrize("frac", [pytest.param(10**400, id="huge"), 0.0, 1.0, -0.5, float("nan"), float("inf")])
def test_what_is_no_part_of_a_ceiling_is_refused(frac: float) -> None:
    with pytest.raises(ValueError, match="fractions"):
        checked_fractions([0.5, frac])


def test_a_stretch_over_midnight_is_cut_there() -> None:
    groups = GroupSpend()
    groups.enter(NS_PER_DAY - NS_PER_HOUR, 4 * NS_PER_HOUR, "s", (), 4_000_001)
    assert (groups.of_day(NS_PER_DAY - 1), groups.of_day(NS_PER_DAY)) == (1_000_000, 3_000_001)
    assert (groups.node_usd_micros, groups.of_key("stage:s")) == (4_000_001, 4_000_001)


def test_what_has_no_length_counts_on_its_day() -> None:
    """A checkpoint's bytes, a fee for each launch."""
    groups = GroupSpend()
    groups.enter(NS_PER_DAY, 0, None, (("team", "nlp"),), 7)
    assert (groups.of_day(NS_PER_DAY), groups.of_key("label:team=nlp")) == (7, 7)


def test_counters_are_bounded_and_a_budgets_own_is_never_dropped() -> None:
    groups = GroupSpend()
    groups.pinned = {"stage:first"}
    groups.enter(0, 1, "first", (), 5)
    for number in range(2 * KEYS_MAX):
        groups.enter(0, 1, "busy", (("launch", str(number)),), 1)
    assert len(groups.keys()) == KEYS_MAX
    assert groups.dropped_total == KEYS_MAX + 2
    assert (groups.of_key("stage:first"), groups.of_key("stage:busy")) == (5, 2 * KEYS_MAX)
    assert groups.of_key("label:launch=0") == 0


def test_days_that_a_wrong_clock_invents_do_not_push_out_today() -> None:
    groups = GroupSpend()
    for day in (101, 900, 901, 101, 902, 101, 903, 101):
        groups.enter(day * NS_PER_DAY, 1, None, (), 1)
    assert groups.of_day(101 * NS_PER_DAY) == 4
    assert len(groups.snapshot()["days"]) == DAYS_MAX


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 20 * NS_PER_S)),
    st.tuples(st.just("suspend"), st.integers(1, 30 * NS_PER_HOUR)),
    st.tuples(st.just("set_clock"), st.integers(-20, 20)),  # By whole hours, so that no label overlaps its hour.
    st.tuples(st.just("restart"), st.integers(0, 5 * NS_PER_HOUR)),
    st.tuples(st.just("hello"), st.integers(0, 5)),
    st.tuples(st.just("exit"), st.integers(0, 2)),
)


@settings(max_examples=share_of(150), deadline=None)
@given(st.lists(ACTS, max_size=40), st.booleans())
def test_every_group_has_spent_what_its_members_were_charged(acts: list[tuple[str, int]], exclusive: bool) -> None:
    world = World(make_node(cloud="none", exclusive=exclusive))
    world.tick()
    for act, amount in acts:
        match act:
            case "run" | "suspend":
                world.pass_time(act, amount)
            case "set_clock":
                world.pass_time(act, amount * NS_PER_HOUR)
            case "restart":
                world.pass_time("run", amount)
                world.restart()
            case "hello":
                run, other = amount % 3, amount // 3  # The same run says now this stage and team, now that.
                labels = {"team": f"t{other}", "place": "x"}
                told = {"run": f"run{run}", "stage": f"s{run % 2}", "labels": labels, "attempt": f"a{world.boot}"}
                world.play(
                    hello(0, 0, at=MonoNs(world.mono), peer=peer(100 + world.boot % 10**6), world_size=1, **told)
                )
            case "exit":
                world.play(TrainerExited(MonoNs(world.mono), f"run{amount}", 0))
        world.tick()
    world.boot, world.mono = world.boot + 10 * NS_PER_S, world.mono + 10 * NS_PER_S
    world.tick()
    groups, charges = world.node.ledger.groups, list(world.charges.values())
    for stage in ("s0", "s1"):
        assert groups.of_key(f"stage:{stage}") == total(c for c in charges if c.payer.stage == stage)
    for label in (("team", "t0"), ("team", "t1"), ("place", "x")):
        expected = total(c for c in charges if label in c.payer.labels)
        assert groups.of_key(f"label:{label[0]}={label[1]}") == expected
    assert groups.node_usd_micros == total(charges) == world.node.ledger.total()
    days = tally(charges, "day")
    if len(days) <= DAYS_MAX:
        assert sorted(groups.snapshot()["days"].values()) == sorted(day.usd_micros for day in days)


def total(charges: object) -> int:
    found: list[Charge] = list(charges)  # type: ignore[call-overload]
    return sum(charge.usd_micros for charge in found)


def test_a_day_begins_at_midnight_to_the_micro_dollar() -> None:
    world = World(make_node(cloud="none"))
    world.wall_offset = WALL - WALL % NS_PER_DAY + NS_PER_DAY - NS_PER_HOUR
    world.tick()
    world.hear()
    for second in range(0, 7201, 50):
        world.at(second + 0.1)
    groups = world.node.ledger.groups
    hour = 98_320_000
    # The tick that crosses midnight is cut down to a whole micro-dollar.
    assert hour - 1 <= groups.of_day(world.wall_offset) <= hour
    assert groups.of_day(world.wall_offset + world.boot) == groups.node_usd_micros - groups.of_day(world.wall_offset)
