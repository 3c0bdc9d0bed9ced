"""Rows of a fleet's costs: they add up to the ledgers that they are of, fit, and are believed in nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.units import NS_PER_DAY, parse_utc
from governor.core.events.fleet_store import Kept
from governor.core.fleet.cost_rows import (
    COST_ROWS,
    LABELS,
    NODES,
    OTHER_RUNS,
    PARTS_MAX,
    ROWS_OF_DAY_MAX,
    SOURCES,
    STAGES,
    CostRow,
    FleetTally,
    Found,
    LedgerDay,
    cost_key,
    found_in,
    names_in_key,
    rows_from,
    text_of,
)
from governor.core.fleet.scopes import ROW_CHARS_MAX, Holder
from governor.core.money.charges import UNALLOCATED, Charge, Payer, Place
from governor.core.money.reports.cost import Group, Sum, tally, tally_again
from tests.unit.cost.ledger_file import BEN, DISK, ON_DEMAND, SPOT, charge

DAY = parse_utc("2026-11-02") // NS_PER_DAY
HOLDER = Holder("gpu/17~a", "boot", "ledger")
SAID = CostRow("llama", as_of_wall_ns=7, began_wall_ns=3)


def sums(charges: Iterable[Charge]) -> tuple[Sum, ...]:
    return tuple(Sum(one, 1) for one in charges)


def kept(row: CostRow, day: int = DAY, holder: Holder = HOLDER) -> Kept:
    return Kept(cost_key(day, holder, row.run), text_of(row), 1)


def through_the_store(rows: Iterable[CostRow], day: int = DAY, holder: Holder = HOLDER) -> list[Found]:
    found = [found_in(kept(row, day, holder)) for row in rows]
    assert None not in found
    return [one for one in found if one is not None]


def tallied(found: Iterable[Found], by: str) -> list[Group]:
    return tally_again(FleetTally(DAY).tallied(found), by)


def three_ledgers() -> dict[str, list[Charge]]:
    """A run on two nodes with one stage and then another, a disk, a correction, thirds, and nobody's time."""
    later = Payer("anna", "1", "stage2", (("team", "nlp"), ("who", "anna")))
    of_node = {name: Place(name, "aws", f"i-{name}", "eu-west-1") for name in "abc"}
    charges = {
        "a": [charge("2026-11-02T10:00:00Z"), charge("2026-11-02T11:00:00Z", 1 / 3, later, SPOT), charge(
            "2026-11-02T12:00:00Z", 1.0, line=DISK)],
        "b": [charge("2026-11-02T10:00:00Z", 1 / 7), charge("2026-11-02T10:00:00Z", 0.5, BEN, reconstructed=True)],
        "c": [charge("2026-11-02T10:00:00Z", 1 / 3, Payer()), charge(
            "2026-11-02T11:00:00Z", 0.5, BEN, replace(ON_DEMAND, price_usd_micros=0))],
    }  # fmt: skip
    return {name: [replace(one, place=of_node[name]) for one in own] for name, own in charges.items()}


@pytest.mark.parametrize("by", ["run", "stage", "day", "node", "label:team", "label:who"])
def test_rows_of_three_ledgers_are_tallied_as_one_ledger_of_them_all_is(by: str) -> None:
    ledgers = three_ledgers()
    found = [
        one
        for name, own in ledgers.items()
        for one in through_the_store(rows_from(LedgerDay(sums(own))), holder=Holder(name, "boot", f"ledger-{name}"))
    ]
    expected = [
        replace(group, quantity=0) for group in tally([one for own in ledgers.values() for one in own], by)
    ]  # fmt: skip
    assert tallied(found, by) == expected


def test_lines_are_not_told_as_one() -> None:
    with pytest.raises(ValueError, match="no lines"):
        tally_again([], "line")


def test_a_row_comes_back_as_it_was_written() -> None:
    [row] = rows_from(
        LedgerDay(sums([charge("2026-11-02T10:00:00Z")]), {"anna": 5}, {"anna": 1000}, unread=2)
    )  # fmt: skip
    row = replace(row, as_of_wall_ns=9, began_wall_ns=4, has_ended=True)
    [found] = through_the_store([row])
    assert (found.day, found.holder, found.row) == (DAY, HOLDER, row)
    assert (found.row.uid, found.row.unpriced_ns, found.row.unread) == (1000, 5, 2)
    assert (found.row.as_of_wall_ns, found.row.began_wall_ns, found.row.has_ended) == (9, 4, True)


def test_nobodys_time_and_a_run_without_a_price_have_rows() -> None:
    rows = rows_from(LedgerDay(sums([charge("2026-11-02T10:00:00Z", 1.0, Payer())]), {"free": 60}))
    assert {row.run: len(row.shares) for row in rows} == {UNALLOCATED: 1, "free": 0}
    assert {names[2] for row in rows if (names := names_in_key(kept(row).key)) is not None} == {UNALLOCATED, "free"}


@pytest.mark.parametrize("name", ["%nobody", "%others", "a/b", "a~b", "a%2Fb"])
def test_no_name_is_taken_for_another(name: str) -> None:
    key = cost_key(DAY, Holder(name, name, name), name)
    assert names_in_key(key) == (DAY, Holder(name, name, name), name)
    assert key.count("/") == COST_ROWS.count("/") + 2


def labelled(count: int, chars: int, payers: int = 1) -> list[Charge]:
    return [
        charge("2026-11-02T10:00:00Z", 1 / 3, Payer("anna", str(number), "stage1", tuple(
            (f"key{key}", f"{number}-{'v' * chars}") for key in range(count))))
        for number in range(payers)
    ]  # fmt: skip


TEXT = "s" * 900
BELLS = "\x07" * 250  # Each is six characters in JSON.
LONG = [
    pytest.param(labelled(5, 2_000), (LABELS,), id="labels"),
    pytest.param(labelled(1, 10, payers=PARTS_MAX + 1), (LABELS,), id="as many parts as label values"),
    pytest.param(
        [charge("2026-11-02T10:00:00Z", line=replace(ON_DEMAND, source=f"{number}-{TEXT}")) for number in range(9)],
        (LABELS, SOURCES),
        id="sources",
    ),
    pytest.param(
        [charge("2026-11-02T10:00:00Z", 0.1, Payer("anna", "", f"{number}-{TEXT}")) for number in range(9)],
        (LABELS, SOURCES, STAGES),
        id="stages",
    ),
    pytest.param(
        [charge("2026-11-02T10:00:00Z", 0.1, place=Place(f"{number}-{BELLS}")) for number in range(60)],
        (LABELS, SOURCES, STAGES, NODES),
        id="nodes",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("charges", "left_out"), LONG)
def test_what_does_not_fit_is_left_out_and_said_and_no_amount_is_lost(
    charges: list[Charge], left_out: tuple[str, ...]
) -> None:
    [row] = rows_from(LedgerDay(sums(charges)))
    stamped = replace(row, as_of_wall_ns=2**63 - 1, began_wall_ns=2**63 - 1, has_ended=True)
    assert len(text_of(stamped)) <= ROW_CHARS_MAX
    [found] = through_the_store([stamped])
    assert found.row.left_out == left_out
    [group] = tallied([found], "run")
    [expected] = tally(charges, "run")
    assert (group.usd_micros, group.node_ns, group.charges) == (
        expected.usd_micros, expected.node_ns, expected.charges,
    )  # fmt: skip


def test_the_longest_labels_go_first() -> None:
    short, long = ("team", "nlp"), ("d", "d" * ROW_CHARS_MAX)
    payer = Payer("anna", "", None, (long, short))
    [row] = rows_from(LedgerDay(sums([charge("2026-11-02T10:00:00Z", payer=payer)])))
    assert [share.labels for share in row.shares] == [(short,)]
    assert row.left_out == (LABELS,)


def test_of_very_many_runs_the_cheapest_are_one_row_and_nobodys_time_keeps_its_own() -> None:
    many = [
        charge("2026-11-02T10:00:00Z", payer=Payer(f"run{number}"), usd_micros=100 + number)
        for number in range(ROWS_OF_DAY_MAX + 10)
    ]
    charges = [*many, charge("2026-11-02T10:00:00Z", payer=Payer(), usd_micros=1)]
    rows = {row.run: row for row in rows_from(LedgerDay(sums(charges)))}
    assert len(rows) == ROWS_OF_DAY_MAX
    assert UNALLOCATED in rows
    assert "run0" not in rows
    [rest] = rows[OTHER_RUNS].shares
    assert rest.figures.usd_micros == sum(100 + number for number in range(12))
    assert sum(group.usd_micros for group in tallied(through_the_store(rows.values()), "run")) == sum(
        one.usd_micros for one in charges
    )


# --- what others wrote --------------------------------------------------------------------------------------

GOOD: dict[str, Any] = json.loads(
    text_of(replace(rows_from(LedgerDay(sums([charge("2026-11-02T10:00:00Z")])))[0], as_of_wall_ns=7))
)
SHARE: dict[str, Any] = GOOD["shares"][0]


def altered(**more: Any) -> str:
    return json.dumps({**GOOD, **more})


def with_share(**more: Any) -> str:
    return altered(shares=[{**SHARE, **more}])


HOSTILE = {
    "no JSON": "{",
    "no object": "[]",
    "a number": "1",
    "nested": "[" * 4_000,
    "too long": json.dumps({**GOOD, "more": "x" * ROW_CHARS_MAX}),
    "another version": altered(v=2),
    "no shares": altered(shares=None),
    "shares of nothing": altered(shares=[None]),
    "too many shares": json.dumps({**GOOD, "shares": [{}] * (PARTS_MAX + 1)}),
    "a negative amount": with_share(usd_micros=-1),
    "an amount of all money": with_share(usd_micros=2**62),
    "a fraction": with_share(usd_micros=1.5),
    "a truth": with_share(usd_micros=True),
    "text as an amount": with_share(usd_micros="1"),
    "not a number": with_share(node_ns=float("nan")),
    "a huge number": with_share(charges=10**400),
    "a node of no text": with_share(node=1),
    "a stage of no text": with_share(stage=["a"]),
    "labels of no text": with_share(labels={"team": 1}),
    "labels of no object": with_share(labels=["team"]),
    "three prices": with_share(prices_usd_micros=[1, 2, 3]),
    "a negative price": with_share(prices_usd_micros=[-1, 2]),
    "a source of one word": with_share(sources=[["a"]]),
    "a time before 1970": altered(as_of_wall_ns=-1),
    "a time of no number": altered(began_wall_ns="now"),
    "a user of no number": altered(uid="root"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_row_that_no_governor_writes_is_unreadable_as_a_whole(name: str) -> None:
    key = cost_key(DAY, HOLDER, "llama")
    assert found_in(Kept(key, json.dumps(GOOD), 1)) is not None
    assert found_in(Kept(key, HOSTILE[name], 1)) is None


@pytest.mark.parametrize(
    "key",
    [
        f"{COST_ROWS}2026-11-02/a~b~c",
        f"{COST_ROWS}2026-11-02/a~b~c/llama/more",
        f"{COST_ROWS}2026-11-02/a~b/llama",
        f"{COST_ROWS}2026-11-02/a~b~c/",
        f"{COST_ROWS}2026-11-31/a~b~c/llama",
        f"{COST_ROWS}2026-11-02T10:00/a~b~c/llama",
        f"{COST_ROWS} 2026-11-02/a~b~c/llama",
        f"{COST_ROWS}today/a~b~c/llama",
        f"{COST_ROWS}2026-11-02/a~b~c/%41",
        f"{COST_ROWS}2026-11-02/a~b~c/\x1b[2J",
        f"{COST_ROWS}2026-11-02/a~b~c/{'x' * 257}",
        "costgov/1/grant/a~b~c/2026-11-02/llama",
    ],
)
def test_a_key_that_no_governor_writes_is_none(key: str) -> None:
    assert names_in_key(key) is None
    assert found_in(Kept(key, json.dumps(GOOD), 1)) is None


# --- one ledger under several boots -------------------------------------------------------------------------


def said(boot: str, usd_micros: int, *, began: int, as_of: int, run: str = "llama", ended: bool = False) -> Found:
    [row] = rows_from(LedgerDay(sums([charge("2026-11-02T10:00:00Z", payer=Payer(run), usd_micros=usd_micros)])))
    stamped = replace(row, began_wall_ns=began, as_of_wall_ns=as_of, has_ended=ended)
    return Found(DAY, Holder("gpu-17", boot, "ledger"), stamped)


def total(*found: Found) -> int:
    return sum(group.usd_micros for group in tallied(found, "run"))


def test_a_machine_that_was_started_anew_counts_once() -> None:
    assert total(said("a", 100, began=1, as_of=50), said("b", 130, began=60, as_of=90)) == 130
    # In the order of their keys the later boot may come first.
    assert total(said("a", 130, began=60, as_of=90), said("b", 100, began=1, as_of=50)) == 130
    assert total(
        said("a", 100, began=1, as_of=50), said("b", 130, began=60, as_of=90), said("c", 150, began=95, as_of=99)
    ) == 150  # fmt: skip


def test_two_machines_with_copies_of_one_ledger_count_both() -> None:
    assert total(said("a", 100, began=1, as_of=95), said("b", 130, began=60, as_of=90)) == 230


def test_of_two_that_each_say_to_be_the_later_one_stays() -> None:
    assert total(said("a", 100, began=9, as_of=5), said("b", 130, began=9, as_of=5)) in (100, 130)


def test_what_only_the_earlier_boot_has_said_counts() -> None:
    assert total(said("a", 100, began=1, as_of=50, run="x"), said("b", 130, began=60, as_of=90, run="y")) == 230


def of_today(*found: Found) -> int | None:
    tally_ = FleetTally(DAY)
    tally_again(tally_.tallied(found, ["llama"]), "run")
    return tally_.as_of()


def test_the_oldest_last_word_is_that_of_the_governor_that_speaks_least() -> None:
    """Of each its newest row counts, also of a run that nobody asked for; one that has ended says no more."""
    other = Holder("gpu-18", "boot", "ledger2")
    old, new = said("a", 1, began=1, as_of=50), said("a", 1, began=1, as_of=90, run="other")
    assert of_today(old, new) == 90
    assert of_today(old, new, replace(said("b", 1, began=1, as_of=70), holder=other)) == 70
    assert of_today(old, new, replace(said("b", 1, began=1, as_of=70, ended=True), holder=other)) == 90
    assert of_today(said("a", 1, began=1, as_of=90, ended=True)) is None
    assert of_today(replace(old, day=DAY - 1)) is None


def test_of_a_run_without_a_price_the_longest_time_that_was_told_counts() -> None:
    tally_ = FleetTally(DAY)
    rows = [replace(SAID, unpriced_ns=ns) for ns in (5, 9, 7)]
    found = [Found(DAY + number, HOLDER, row) for number, row in enumerate(rows)]
    assert tally_again(tally_.tallied(found), "run") == []
    assert (tally_.unpriced_ns, tally_.charged) == ({"llama": 9}, set())
