"""What becomes of a silent governor's machine: silence alone stops none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S
from governor.core.events.inputs import BillingAnswer
from governor.core.fleet.presence import NodeRow, RunRow
from governor.core.fleet.scopes import GrantRow
from governor.core.fleet.sweeping import PATIENCE_NS, HeldGrant, Silent, Step, next_step, settles_at

# $10 are granted and $4 were spent, at $6/h: at half of that they are used up after two hours.
GRANT = HeldGrant("key", "fleet", "llama", GrantRow(10_000_000, 0, 4_000_000, 6_000_000, 1))
USED_UP_NS = 2 * NS_PER_HOUR + PATIENCE_NS
RUN = RunRow("llama", 1000, "training", True, rate_usd_micros_per_hour=6_000_000, may_stop=True)
SILENT = Silent("n1~b~l", USED_UP_NS, NodeRow("n1", 1, "aws", "i-1", "eu-1", can_stop=True), [RUN], [GRANT])


def step(billing: BillingAnswer = BillingAnswer.RUNNING, **changes: object) -> Step:
    return next_step(replace(SILENT, **changes), billing)  # type: ignore[arg-type]


def test_what_has_used_up_its_grant_at_half_its_rate_is_stopped() -> None:
    assert step() is Step.STOP
    assert step(for_ns=USED_UP_NS - NS_PER_S) is Step.LEAVE


@pytest.mark.parametrize(
    "changes",
    [
        {"grants": []},
        {"grants": [replace(GRANT, run="other")]},
        {"grants": [replace(GRANT, row=replace(GRANT.row, rate_usd_micros_per_hour=0))]},
        {"runs": []},
        {"runs": [RUN, replace(RUN, run="second")]},
        {"runs": [replace(RUN, is_alive=False, rate_usd_micros_per_hour=0)]},
        {"shares_machine": True},
        {"is_whole": False},
        {"node": replace(SILENT.node, observes=True)},
        {"node": replace(SILENT.node, can_stop=False)},
        {"runs": [replace(RUN, may_stop=False)]},
        {"runs": [replace(RUN, held_s=7_300)]},
        {"grants": [replace(GRANT, scope="label:team=nlp")]},
    ],
)
def test_it_is_left_where_a_governor_would_not_have_halted_all_of_it(changes: dict[str, object]) -> None:
    assert step(**changes) is Step.LEAVE


def test_behind_a_hold_it_is_stopped_as_its_governor_would_have() -> None:
    held = [replace(RUN, held_s=7_300)]
    assert step(runs=held) is Step.LEAVE
    assert step(runs=held, for_ns=7_300 * NS_PER_S + PATIENCE_NS) is Step.STOP


def test_a_provider_that_does_not_say_decides_nothing() -> None:
    assert step(BillingAnswer.UNKNOWN) is Step.LEAVE


def test_what_is_billed_no_more_is_settled_whatever_it_had() -> None:
    assert step(BillingAnswer.ENDED, grants=[], runs=[], for_ns=0) is Step.SETTLE


HOUR = NS_PER_HOUR


@pytest.mark.parametrize(
    ("rate", "wall", "silent_h", "expected"),
    [
        (0, 1 + 2 * HOUR, 2, 4_000_000 + 2 * 6_000_000),  # What it said last, and its rate since.
        (8_000_000, 1 + 2 * HOUR, 2, 4_000_000 + 2 * 8_000_000),  # The machine's whole price is dearer.
        (0, 1, 2, 4_000_000 + 2 * 6_000_000),  # Its clock was ahead of ours: so long was it silent at least.
        (0, 1 + 72 * HOUR, 2, None),  # More than anybody believes.
    ],
)
def test_what_it_may_have_spent_at_most(rate: int, wall: int, silent_h: int, expected: int | None) -> None:
    silent = replace(SILENT, for_ns=silent_h * HOUR, node=replace(SILENT.node, rate_usd_micros_per_hour=rate))
    assert settles_at(GRANT, silent, wall) == expected


def test_silence_behind_a_halt_that_stops_the_machine_is_what_was_to_come() -> None:
    assert not SILENT.is_ending
    assert replace(SILENT, runs=[replace(RUN, is_alive=False, stops_machine=True)]).is_ending
    assert replace(SILENT, runs=[], node=replace(SILENT.node, stops_machine=True)).is_ending
    assert not replace(SILENT, runs=[]).is_ending, "an idle machine is billed too"
