"""Whose a command's time is: each cell of the table, and what becomes of the account in it."""

from __future__ import annotations

from itertools import product

import pytest

from governor.core.base.units import BootNs
from governor.core.money.command_account import TABLE, Act, CommandAccount, Fact, Owner

SINCE, NOW, KEPT = BootNs(5), BootNs(7), BootNs(3)


def account(owner: Owner, run: str | None = None) -> CommandAccount:
    return CommandAccount(SINCE, owner, run)


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(product(Owner, Fact))


@pytest.mark.parametrize("before", [None, "first"])
def test_who_speaks_first_takes_what_waits_and_who_speaks_next_does_not(before: str | None) -> None:
    one = account(Owner.UNALLOCATED, before)
    assert one.run_reports("llama")
    assert (one.owner, one.run, one.since) == (Owner.RUN, "llama", SINCE)
    assert not one.run_reports("other")
    assert (one.owner, one.run) == (Owner.RUN, "llama")


def test_a_run_of_the_journal_that_goes_on_holding_the_node_is_named_when_it_speaks_and_takes_nothing() -> None:
    one = account(Owner.UNALLOCATED)
    one.node_held()
    assert (one.is_held, one.run) == (True, None)
    assert not one.run_reports("llama")
    assert one.run == "llama"
    one.node_held()
    assert (one.is_held, one.run) == (True, "llama")


def test_what_waits_begins_anew_when_the_run_has_ended_and_its_command_goes_on() -> None:
    one = account(Owner.RUN, "llama")
    assert one.run_stands_in(NOW)
    assert (one.owner, one.run, one.since) == (Owner.UNALLOCATED, "llama", NOW)
    assert one.run_reports("second"), "the next one takes it"
    assert one.run == "second"


@pytest.mark.parametrize(("owner", "takes"), [(Owner.UNALLOCATED, True), (Owner.RUN, False)])
def test_a_run_that_begins_when_the_one_before_has_ended_has_the_account_whether_or_not_anything_waits(
    owner: Owner, takes: bool
) -> None:
    one = account(owner, "pretrain")
    assert one.run_reports("sft", follows=True) is takes
    assert (one.owner, one.run) == (Owner.RUN, "sft")


@pytest.mark.parametrize("owner", Owner)
def test_a_run_of_the_launch_before_is_the_account_of_a_command_that_has_none_and_takes_nothing(owner: Owner) -> None:
    one = account(owner)
    one.inherit("before")
    one.inherit("another")
    assert (one.owner, one.run, one.since) == (owner, "before", SINCE)


def test_before_anybody_has_spoken_what_waits_goes_on_from_the_launch() -> None:
    one = account(Owner.UNALLOCATED)
    assert not one.run_stands_in(NOW)
    assert (one.owner, one.run, one.since) == (Owner.UNALLOCATED, None, SINCE)


@pytest.mark.parametrize("owner", Owner)
def test_a_command_that_outlived_its_governor_stands_as_the_journal_says(owner: Owner) -> None:
    one = account(owner)
    one.restore("llama", KEPT)
    assert (one.owner, one.run, one.since, one.goes_on) == (owner, "llama", KEPT, True)


def test_every_act_is_in_the_table() -> None:
    assert {act for _, act in TABLE.values()} == set(Act)
