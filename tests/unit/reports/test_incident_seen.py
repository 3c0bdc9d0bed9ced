"""What a recording has of an incident: which records count, where the verdict is, and that it stays bounded."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S
from governor.reports.incident.drawn import COLUMNS_MAX, sketched
from governor.reports.incident.judged import TITLES, judged_of, own_gpu, own_rank
from governor.reports.incident.page import incident_page
from governor.reports.incident.seen import CLOSE_MAX, Seen
from governor.text.binned import COLUMNS_MAX as WHOLE_MAX
from governor.text.sketch import COLUMNS, LABEL, ROWS, Sketch, sketch_lines
from tests.golden.incident_cases import AHEAD, BEGAN, halted, seen_of, step, with_ceiling, with_hang, with_nan
from tests.golden.report_cases import ceiling_of_a_trainer, nan_halt
from tests.paths import ROOT


def test_every_trigger_has_quantities_that_have_a_title() -> None:
    for path in (ROOT / "governor" / "core" / "rules" / "triggers").glob("[a-z]*.py"):
        judged = judged_of(nan_halt() | {"trigger": path.stem, "evidence": {}})
        assert judged
        assert all(one.name in TITLES for one in judged)


def test_the_verdict_is_where_the_recording_notes_it() -> None:
    _, seen = with_nan()
    assert seen.verdict_s == 599.0  # Since the first record, which is of second 101.
    assert seen.quantities["loss"].records == 599
    assert [column.is_broken for column in seen.quantities["loss"].close][-3:] == [False, True, True]


def test_a_wall_clock_that_was_set_moves_no_noted_verdict() -> None:
    snapshot = nan_halt()
    seen = Seen(snapshot)
    assert seen.read(step(1, 1), AHEAD - 5 * NS_PER_S)
    assert not seen.read(halted(snapshot["incident_id"]), AHEAD - 5 * NS_PER_S)
    assert seen.verdict_s == 599.0


def test_a_later_attempt_is_not_of_it() -> None:
    snapshot = nan_halt()
    seen = seen_of(snapshot, step(1, 1), halted(snapshot["incident_id"]), step(800, 1), step(801, 2))
    assert seen.quantities["loss"].records == 1
    by_wall = seen_of(snapshot, step(1, 1), step(800, 2))
    assert by_wall.quantities["loss"].records == 1


def test_silence_ends_at_the_verdict() -> None:
    _, seen = with_hang()
    last = list(seen.quantities["silence_s"].close)[-1]
    assert (last.at, last.high) == (seen.verdict_s, 74.0)
    assert seen.judged[0].limits[0].value == 60.0


def test_spend_ends_at_the_verdicts_and_leaves_out_an_earlier_run() -> None:
    _, seen = with_ceiling()
    assert [column.high for column in seen.quantities["spend_usd"].close] == pytest.approx([0.0, 1.6, 3.0])
    assert [limit.value for limit in seen.judged[0].limits] == [25.0, 3.0]


@pytest.mark.parametrize(("before", "begins"), [(1, "$0.00"), (2_000_000, "$2.00")])
def test_an_axis_of_dollars_begins_at_none_or_at_a_figure_of_money(before: int, begins: str) -> None:
    snapshot = ceiling_of_a_trainer() | {"spend_at_verdict_usd_micros": before + 1_000_000}
    seen, opened, hour = seen_of(snapshot, step(1, 1)), int(snapshot["opened_wall_ns"]), 3_600 * NS_PER_S
    ends = [(opened - 2 * hour, before), (opened, 1_000_000)]
    seen.spend([(end - hour, end, usd_micros) for end, usd_micros in ends], before + 1_000_000)
    quantity = seen.quantities["spend_usd"]
    quantity.close.popleft()  # As of a run of which only the last charges are drawn.
    assert [line.partition("│")[0].strip() for line in sketched(seen) if "│" in line][-1] == begins
    assert not re.search(r">\$?[\d.]+e-\d+<", incident_page(snapshot, seen))


def test_only_the_rank_of_the_finding_is_drawn() -> None:
    snapshot = nan_halt() | {"evidence": {"rank": 1}}
    seen = seen_of(snapshot, step(1, 1, loss=2.0), step(1, 1, rank=1, loss=7.0))
    assert (seen.rank, [column.high for column in seen.quantities["loss"].close]) == (1, [7.0])


def test_of_triggers_that_fired_together_each_ones() -> None:
    members = [
        {"trigger": "loss_divergence", "limit": 5.0},
        {"trigger": "data_starvation", "share_frac": 0.5, "rank": 2},
    ]
    snapshot = nan_halt() | {"trigger": "all", "evidence": {"all": members}}
    assert [(one.name, [limit.value for limit in one.limits]) for one in judged_of(snapshot)] == [
        ("loss", [5.0]), ("grad_norm", []), ("data_frac", [0.5]), ("step_s", []),
    ]  # fmt: skip
    assert own_rank(snapshot) == 2


@pytest.mark.parametrize(
    "over",
    [
        {"loss": 10**400}, {"loss": "1e5"}, {"loss": [1]}, {"loss": True}, {"rank": "0"}, {"step": None}, {"at_ns": -1},
        {"at_ns": "now"}, {"step_s": 0}, {"step_s": "nan", "tokens": 10**400},
    ],
)  # fmt: skip
def test_what_is_none_of_ours_is_left_out(over: dict[str, Any]) -> None:
    seen = seen_of(nan_halt() | {"trigger": "operator"}, step(1, 1, **over))
    for quantity in seen.quantities.values():
        assert all(math.isfinite(column.high) for column in quantity.close)
    assert "loss" not in seen.quantities or "loss" not in over


@pytest.mark.parametrize("evidence", [None, [], {"all": 3}, {"rank": "x", "gpu": 4, "limit": "high"}])
def test_evidence_of_another_version_costs_the_limits(evidence: Any) -> None:
    for trigger in ("all", "loss_spike", "of_tomorrow"):
        snapshot = nan_halt() | {"trigger": trigger, "evidence": evidence}
        assert judged_of(snapshot)[0].limits == ()
        assert own_gpu(snapshot) is None


def test_a_run_of_a_hundred_thousand_steps_is_a_small_page() -> None:
    snapshot = nan_halt() | {"opened_wall_ns": nan_halt()["opened_wall_ns"] + 200_000 * NS_PER_S}
    seen = seen_of(snapshot, *(step(number, number, loss=math.sin(number)) for number in range(1, 100_001)))
    loss = seen.quantities["loss"]
    assert (loss.records, len(loss.close)) == (100_000, CLOSE_MAX)
    assert len(loss.whole.columns) <= WHOLE_MAX
    assert max(COLUMNS_MAX) < WHOLE_MAX
    assert len(incident_page(snapshot, seen)) < 1_000_000


def test_a_sketch_keeps_its_width_and_its_extremes() -> None:
    drawing = Sketch(
        [(0, 1, 1, 0), (5, 1e300, 1e300, 0), (10, -1e300, -1e300, 1)], [7.5], (0, 10), (-1e300, 1e300), 0.0
    )
    lines = sketch_lines(drawing, ("-10s", "verdict"))
    assert len(lines) == ROWS + 1
    assert all(len(line) <= LABEL + 2 + COLUMNS for line in lines)
    assert lines[0].index("x") - LABEL - 2 == COLUMNS * 3 // 4
    assert "┄" in lines[ROWS // 2 - 1] + lines[ROWS // 2]


def test_nothing_seen_is_no_sketch() -> None:
    snapshot = nan_halt()
    assert sketched(seen_of(snapshot)) == []
    assert sketched(seen_of(snapshot, {"kind": "step", "at_ns": BEGAN})) == []


PASSES = {"step_s": 1.0, "forward_s": 0.2, "backward_s": 0.7, "optimizer_s": 0.05}
SAVE = PASSES | {"step_s": 11.0, "checkpoint_s": 10.0, "comm_s": 0.0}


@pytest.mark.parametrize(
    ("trigger", "told", "judged"),
    [
        ("straggler", PASSES | {"data_s": 0.05}, {"own_s": 0.25}),  # Timed on a device: waits lie in the backward pass.
        ("straggler", PASSES | {"data_s": 0.5, "comm_s": 0.05}, {"own_s": 0.95}),
        ("straggler", SAVE, {"own_s": 1.0}),
        ("data_starvation", SAVE | {"data_s": 0.6}, {"data_frac": 0.6}),
        ("throughput_collapse", SAVE | {"tokens": 500}, {"tokens_per_s": 500.0}),
    ],
)
def test_what_is_drawn_is_what_the_rule_judges(trigger: str, told: dict[str, Any], judged: dict[str, float]) -> None:
    snapshot = nan_halt() | {"trigger": trigger, "evidence": {}}
    seen = seen_of(snapshot, step(1, 1, **told))
    assert {name: seen.quantities[name].close[-1].high for name in judged} == pytest.approx(judged)


def test_a_step_that_the_rule_leaves_out_is_not_drawn() -> None:
    """Of steps that tell their communication now and then, the others are none of the rank's own time."""
    snapshot = nan_halt() | {"trigger": "straggler", "evidence": {}}
    told = [PASSES | ({"comm_s": 0.4} if number % 4 == 1 else {}) for number in range(1, 9)]
    seen = seen_of(snapshot, *(step(number, number, **one) for number, one in enumerate(told, start=1)))
    assert [column.high for column in seen.quantities["own_s"].close] == [0.6, 0.6]


def test_steps_that_were_read_at_one_moment_are_drawn_where_each_was_told() -> None:
    seen = Seen(nan_halt())
    for number in range(1, 11):
        frame = step(1 if number == 1 else 2, number)
        assert seen.read(frame | {"mono_ns": frame["at_ns"] - (10 - number) * NS_PER_S // 10}, AHEAD)
    places = [column.at for column in seen.quantities["loss"].close]
    assert places == sorted(set(places))
    assert places[-1] == 1.0
