"""Precision and dollars of each rule: what is known is summed, what is not is counted beside it."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.base.halt_marks import HaltMarks, Said
from governor.core.base.units import NS_PER_S, WallNs
from governor.core.money.reports.halt_precision import judged, lost_usd_micros, mark_of, rule_rows
from tests.golden.report_cases import nan_halt

DAY = 86_400 * NS_PER_S


def halt(number: int, **changes: Any) -> dict[str, Any]:
    told = nan_halt() | {"incident_id": f"run7.gpu-17.{number}", "opened_wall_ns": number * DAY, "checkpoint": None}
    return {**told, **changes}


def marked(snapshot: dict[str, Any], said: Said) -> HaltMarks:
    return HaltMarks.of([mark_of(snapshot, said, "", 0, WallNs(1), for_all=True)])


def test_a_false_halt_threw_away_the_work_since_the_checkpoint_and_its_own_cost() -> None:
    opened = nan_halt()["opened_mono_ns"]
    good = {"step": 30, "path": "/x", "mono_ns": opened - 3_600 * NS_PER_S}
    own = 1_234_567 - 1_189_000
    spent = {"spend_usd_micros": 90_000_000 + own, "spend_at_verdict_usd_micros": 90_000_000}
    assert lost_usd_micros(halt(1, last_good=good, **spent)) == 22_000_000 + own
    assert lost_usd_micros(halt(1, last_good=good)) == 1_234_567, "no more than it had spent"
    assert lost_usd_micros(halt(1, last_good=good, checkpoint=nan_halt()["checkpoint"] | {"kind": "good"})) == own


def test_nobody_goes_on_from_a_suspect_checkpoint() -> None:
    """Though it is whole: the run goes on from its last good one, or begins anew."""
    opened, own = nan_halt()["opened_mono_ns"], 1_234_567 - 1_189_000
    spent = {"spend_usd_micros": 90_000_000 + own, "spend_at_verdict_usd_micros": 90_000_000}
    good = {"step": 30, "path": "/x", "mono_ns": opened - 3_600 * NS_PER_S}
    saved = nan_halt()["checkpoint"] | {"verified_by": "governor"}
    for changes in ({"checkpoint": saved | {"kind": "suspect"}}, {"checkpoint": saved | {"kind": "good", "torn": "w"}},
                    {"checkpoint": saved | {"kind": "suspect", "verified_by": "trainer", "nonfinite": "w"}},
                    {"checkpoint": {**saved, "kind": "suspect", "hashed": False}}):  # fmt: skip
        assert lost_usd_micros(halt(1, **spent, last_good=good, **changes)) == 22_000_000 + own, changes
    suspect = {"checkpoint": saved | {"kind": "suspect"}, "kind": "suspect"}
    assert lost_usd_micros(halt(1, **spent, last_good=None, **suspect)) == 90_000_000 + own
    gone = {**good, "gone": "removed"}
    assert lost_usd_micros(halt(1, **spent, last_good=gone, **suspect)) is None, (
        "it goes back further, nobody knows how"
    )


@pytest.mark.parametrize(
    "change",
    [
        {}, {"last_good": None}, {"spend_rate_usd_micros_per_hour": None, "last_good": {"mono_ns": 0}},
        {"last_good": {"mono_ns": 10**30}}, {"last_good": {"mono_ns": 0, "gone": "removed"}},
        {"last_good": {"mono_ns": 0}, "opened_mono_ns": None}, {"last_good": {"mono_ns": 0, "torn": "w.bin"}},
        {"last_good": {"mono_ns": 0, "nonfinite": "w"}},
    ],
)  # fmt: skip
def test_what_is_not_known_is_no_zero(change: dict[str, Any]) -> None:
    assert lost_usd_micros(halt(1, **change)) is None


def test_precision_is_of_the_marked_ones() -> None:
    halts = [halt(number) for number in range(1, 5)]
    marks = [marked(halts[0], Said.FALSE), marked(halts[1], Said.RIGHT), marked(halts[2], Said.CLEARED)]
    (row,) = rule_rows(judged(halts, marks), lambda wall: str(wall // (2 * DAY)))
    whole = row.whole
    assert (whole.halts, whole.right, whole.false, whole.unmarked, whole.precision_frac) == (4, 1, 1, 2, 0.5)
    assert (whole.spent_usd_micros, whole.spent_unknown) == (4 * 1_189_000, 0)
    assert (whole.lost_usd_micros, whole.lost_unknown) == (None, 1)
    assert {period: tally.halts for period, tally in row.by_period.items()} == {"0": 1, "1": 2, "2": 1}
    assert sum(tally.false for tally in row.by_period.values()) == 1


def test_a_rule_of_which_nobody_has_said_anything_has_no_precision() -> None:
    (row,) = rule_rows(judged([halt(1)], []), str)
    assert (row.whole.precision_frac, row.whole.lost_usd_micros, row.whole.lost_unknown) == (None, None, 0)


def test_a_marked_halt_counts_also_when_no_journal_has_it_any_more() -> None:
    gone = halt(1)
    (row,) = rule_rows(judged([halt(2)], [marked(gone, Said.FALSE)]), str)
    assert (row.whole.halts, row.whole.false, row.whole.spent_usd_micros) == (2, 1, 2 * 1_189_000)


def test_rows_are_by_policy_and_rule() -> None:
    rows = rule_rows(judged([halt(1), halt(2, rule="b"), halt(3, policy="a")], []), str)
    assert [(row.policy, row.rule) for row in rows] == [
        ("a", "nan"), ("stage1-1b-dense", "b"), ("stage1-1b-dense", "nan"),
    ]  # fmt: skip
