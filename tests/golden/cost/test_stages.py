"""`costgov cost stages`: every figure of the table recomputed by hand, from worked examples."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from governor.cli.cost.charges import Scope, Unread, journals_in, sums_of, windows_of
from governor.cli.cost.stages import table_text
from governor.core.base.units import MTOK, NS_PER_HOUR, parse_utc, usd
from governor.core.money.charges import Payer
from governor.core.money.expected import ExpectedCost
from governor.core.money.reports.cost import STAGE_OF_RUN
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.token_windows import TokenMeter
from governor.text.screen import Screen, without_colour
from tests.golden.cost.conftest import AsAgreed, Call
from tests.unit.cost.ledger_file import charge
from tests.unit.cost.stages_file import spent, windows, write_stages

DOCS = Path(__file__).parents[3] / "docs" / "howto"
# Worked examples, as docs/howto/cost.md has them.
STAGE1 = ExpectedCost(10_490, 65_900.0, usd(260), 20_000 * MTOK)
STAGE2 = ExpectedCost(13_987, 49_400.0, usd(700), 40_000 * MTOK)
WHOLE = ExpectedCost(5_500, 350_000.0, usd(400), 51_600 * MTOK)


@pytest.fixture
def stages(state_dir: Path) -> Path:
    """Three stages, a run that belongs to none, and two hours that were nobody's.

    stage1  1xH100 at $2.50/h for 38 h = $95.00. 19 windows of 500M tokens in 2 h and $5 each: 9.5B tokens at $0.010000
            per 1M, $0.01049 expected: $99.655 for as many; drift 0.010000/0.01049 - 1 = -4.67 %. 500M/7,200 s = 69,444
            tokens/s. Of $260 are 95/260 = 36.5 % used; the ceiling has 260/20,000 = $0.013 for each million: burn rate
            0.010/0.013 = 0.77; 10.5B tokens are left at $0.01: lands at 95 + 105 = $200.
    stage2  4xA100-40 ZeRO-3 for 20 h at $4.80 = $96, 2xH100 FSDP for 20 h at $5.00 = $100, 1xH100 tuned for 22 h at
            $2.50 = $55: $251.00. 2.0B + 2.0B + 2.2B tokens in windows of 100M an hour: $251/6,200 = $0.040484 per 1M;
            expected 0.013987 x 6,200 = $86.72; drift +189.4 %. 62 h of windows: 6.25e9/223,200 = 28,002 tokens/s. In
            two windows of the tuned run 25M tokens were trained again: a fifth of $2.50 each, $1.00. That run has no
            ceiling; of the others' $1,400, 196 are 14.0 %; their 4B tokens cost $0.049, a ceiling has 0.0175: burn rate
            2.80. 38B are left of each of them: at $0.048 and $0.05 that is $1,824 and $1,900; 37.8B at $0.025 are $945:
            lands at 251 + 4,669 = $4,920.
    whole   an 8xH100 node at $7.92/h for 40 h = $316.80, all of its 51.6B tokens: $0.006139 per 1M, expected $283.80,
            drift 0.0061395/0.0055 - 1 = +11.6 %; 358,333 tokens/s; 79.2 % of $400, burn rate 0.79, landed at $316.80.
    """
    charges = [
        *spent("one", "stage1", "2.50", 38),
        *spent("zero3", "stage2", "4.80", 20),
        *spent("fsdp", "stage2", "5.00", 20),
        *spent("tuned", "stage2", "2.50", 22),
        *spent("node", "whole", "7.92", 40),
        *spent("scratch", None, "1.25", 3),
        *spent("", None, "2.50", 2),
    ]
    no_ceiling = ExpectedCost(13_987, 49_400.0, None, 40_000 * MTOK)
    told = [
        *windows("one", "stage1", 19, 500 * MTOK, "5.00", 2, STAGE1),
        *windows("zero3", "stage2", 20, 100 * MTOK, "4.80", 1, STAGE2),
        *windows("fsdp", "stage2", 20, 100 * MTOK, "5.00", 1, STAGE2),
        *windows("tuned", "stage2", 22, 100 * MTOK, "2.50", 1, no_ceiling, wasted=[25 * MTOK, 25 * MTOK]),
        *windows("node", "whole", 40, 1_290 * MTOK, "7.92", 1, WHOLE),
    ]
    beside = ("tuned",)
    write_stages(
        state_dir / "costgov.db",
        [one for one in charges if one.payer.run not in beside],
        [one for one in told if one[0] not in beside],
    )
    write_stages(
        state_dir / "runs/tuned/costgov.db",
        [one for one in charges if one.payer.run in beside],
        [one for one in told if one[0] in beside],
    )
    return state_dir


# Of journals that say nothing of causes.
UNTOLD = {"wasted_usd_by_cause": None}
# Of policies that expect no all-in price.
NO_ALL_IN = dict.fromkeys(("expected_usd_per_mtok_all_in", "drift_all_in_frac"))


def test_the_figures_are_those_worked_out_by_hand(stages: Path, costgov: Call) -> None:
    document = json.loads(costgov("stages", "--json").out)
    by_name = {row["stage"]: row for row in document["stages"]}
    assert [*by_name] == ["stage1", "stage2", "whole", "(no stage)", "(unallocated)"]
    assert by_name["stage1"] == {
        "stage": "stage1", "runs": 1, "hours": "38.000000", "tokens": 9_500_000_000,
        "expected_usd": "99.655000", "expected_usd_kind": "steady", "expected_usd_per_mtok": "0.010490",
        "actual_usd": "95.000000", "usd_per_mtok_useful": "0.010000", "drift_stage_frac": "-0.046711",
        "expected_tokens_per_s": "65900.0", "tokens_per_s": "69444.4", "tokens_wasted": 0, "wasted_usd": "0.000000",
        "ceiling_usd": "260.000000", "used_percent": "36.5385", "burn_rate": "0.769231", "lands_at_usd": "200.00",
        "untold_tokens": 0, "unpriced_tokens": 0, "unpriced_s": "0.000000", "unplanned_tokens": 0, "unlimited_runs": 0,
        "reconstructed_usd": "0.000000", "usd_per_mtok_steady_stage": "0.010000", "usd_per_mtok_all_in": "0.010000",
        **UNTOLD, **NO_ALL_IN,
    }  # fmt: skip
    assert by_name["stage2"] == {
        "stage": "stage2", "runs": 3, "hours": "62.000000", "tokens": 6_200_000_000,
        "expected_usd": "86.719400", "expected_usd_kind": "steady", "expected_usd_per_mtok": "0.013987",
        "actual_usd": "251.000000", "usd_per_mtok_useful": "0.040483", "drift_stage_frac": "1.894393",
        "expected_tokens_per_s": "49400.0", "tokens_per_s": "28001.8", "tokens_wasted": 50_000_000,
        "wasted_usd": "1.000000", "ceiling_usd": "1400.000000", "used_percent": "14.0000", "burn_rate": "2.800000",
        "lands_at_usd": "4920.00", "untold_tokens": 0, "unpriced_tokens": 0, "unplanned_tokens": 0, "unlimited_runs": 1,
        "unpriced_s": "0.000000", "reconstructed_usd": "0.000000", "usd_per_mtok_steady_stage": "0.040483",
        "usd_per_mtok_all_in": "0.040160", **UNTOLD, **NO_ALL_IN,
    }  # fmt: skip
    whole = by_name["whole"]
    assert (whole["actual_usd"], whole["tokens"], whole["usd_per_mtok_useful"]) == (
        "316.800000", 51_600_000_000, "0.006139",
    )  # fmt: skip
    assert (whole["expected_usd"], whole["drift_stage_frac"], whole["tokens_per_s"]) == (
        "283.800000",
        "0.116279",
        "358333.3",
    )
    assert (whole["used_percent"], whole["burn_rate"], whole["lands_at_usd"]) == ("79.2000", "0.792000", "316.80")
    assert (
        document["total"]["actual_usd"] == str(Decimal("95") + 251 + Decimal("316.80") + Decimal("3.75") + 5) + "0000"
    )
    assert document["total"]["expected_usd"] == "470.174400"  # 99.655 + 86.7194 + 283.80.
    assert document["total"]["lands_at_usd"] == "5445.55"  # 200 + 4,920 + 316.80, and 8.75 that trained nothing.


@pytest.mark.parametrize(("option", "name"), [((), "stages.txt"), (("--csv",), "stages.csv"), (("--md",), "stages.md")])
def test_the_table_reads_as_agreed(
    option: tuple[str, ...], name: str, stages: Path, costgov: Call, as_agreed: AsAgreed
) -> None:
    done = costgov("stages", *option)
    assert (done.code, done.err) == (0, "")
    as_agreed(name, done.out)


def test_a_narrow_terminal_shows_stages_beside_one_another(stages: Path, as_agreed: AsAgreed) -> None:
    tally = StageTally()
    scope = Scope(None, None, ())
    for path in reversed(journals_in(stages)):
        for run, row in windows_of(path, scope, Unread(scope)):
            tally.enter_window(run, row, path)
        for one in sums_of(path, scope, STAGE_OF_RUN, Unread(scope)):
            tally.enter_charges(one, path)
    text = without_colour(table_text(tally.rows(), Screen(80, True)))
    assert max(map(len, text.splitlines())) <= 80
    as_agreed("stages_narrow.txt", text)
    assert f"```text\n{text.split(chr(10) * 2)[0]}\n```" in (DOCS / "cost.md").read_text(), "the example is this output"


def test_it_comes_to_what_cost_says_and_to_the_cent(stages: Path, costgov: Call) -> None:
    spends = json.loads(costgov("--by", "stage", "--json").out)["total"]["usd"]
    assert json.loads(costgov("stages", "--json").out)["total"]["actual_usd"] == spends
    rows = list(csv.DictReader(io.StringIO(costgov("stages", "--csv").out)))
    assert sum(Decimal(row["actual_usd"]) for row in rows) == Decimal(spends)


def test_a_time_takes_its_windows_and_its_charges(stages: Path, costgov: Call) -> None:
    """Ten hours of stage1: five windows and $25, and no word on a ceiling that counts from the first dollar."""
    words = ("--run", "one", "--since", "2026-11-02T10:00:00", "--until", "2026-11-02T20:00:01")
    [row] = json.loads(costgov("stages", *words, "--json").out)["stages"]
    assert (row["tokens"], row["hours"]) == (6 * 500_000_000, "10.000278")  # That of 10:00 closed in it, too.
    [row] = json.loads(costgov("stages", *words[:-1], "2026-11-02T19:59:59", "--json").out)["stages"]
    assert row["tokens"] == 5 * 500_000_000
    assert (row["used_percent"], row["lands_at_usd"]) == (None, None)
    assert row["ceiling_usd"] == "260.000000"


def test_until_is_the_table_as_it_stood_then(stages: Path, costgov: Call) -> None:
    """After 20 h and ten windows: $50 for 5B; 15B more at $0.01 land at the same $200."""
    words = ("stages", "--run", "one", "--until", "2026-11-02T20:00:01", "--json")
    [row] = json.loads(costgov(*words).out)["stages"]
    assert (row["tokens"], row["actual_usd"]) == (5_000_000_000, "50.000694")
    assert (row["used_percent"], row["lands_at_usd"]) == ("19.2310", "200.00")


def test_a_run_that_has_gone_on_in_another_stage_lands_there_alone(state_dir: Path, costgov: Call) -> None:
    """$1 a million: after 2M of 10M tokens in `first`, which stays at $2, the run trains in `second`: 7M more, $8."""
    first = ExpectedCost(None, None, usd(20), 10 * MTOK)
    second = replace(first, began_tokens=2 * MTOK)
    told = [*windows("r", "first", 2, MTOK, "1.00", 1, first), *windows("r", "second", 1, MTOK, "1.00", 1, second)]
    write_stages(state_dir / "costgov.db", [*spent("r", "first", "1.00", 2), *spent("r", "second", "1.00", 1)], told)
    document = json.loads(costgov("stages", "--json").out)
    assert [row["lands_at_usd"] for row in document["stages"]] == ["2.00", "8.00"]
    assert document["total"]["lands_at_usd"] == "10.00"
    # Of $20 it had used $2 when it left `first`; by now it has used $3, of which `second` saw $1.
    assert [row["used_percent"] for row in document["stages"]] == ["10.0000", "15.0000"]


def half_open(from_tokens: int) -> dict[str, Any]:
    """What a governor keeps of a run that has trained half a million in 30 minutes since then."""
    meter = TokenMeter(
        progress_tokens=from_tokens + MTOK // 2, last_total=from_tokens + MTOK // 2, from_tokens=from_tokens,
        spent_ns=NS_PER_HOUR // 2, wasted_tokens=9,
    )  # fmt: skip
    return {"run": "r", "stage": "s", "tokens": json.loads(json.dumps(meter.snapshot()))}


def test_the_window_that_is_open_counts_too(state_dir: Path, costgov: Call) -> None:
    """$1 an hour: two millions in two windows, then half of one. $2.50 for 2.5M; 7.5M more at $1 land at $10."""
    plan = ExpectedCost(1_000_000, 300.0, usd(20), 10 * MTOK)
    charges = [
        *spent("r", "s", "1.00", 2),
        charge("2026-11-02T02:00:00Z", 0.5, Payer("r", "a1", "s"), usd_micros=500_000),
    ]
    told = windows("r", "s", 2, MTOK, "1.00", 1, plan)
    write_stages(state_dir / "costgov.db", charges, told, {"r": half_open(2 * MTOK), "": {"run": ""}})
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["tokens"], row["actual_usd"], row["usd_per_mtok_useful"]) == (2_500_000, "2.500000", "1.000000")
    assert (row["expected_usd"], row["lands_at_usd"], row["tokens_per_s"]) == ("2.500000", "10.00", "277.8")
    assert (row["burn_rate"], row["tokens_wasted"]) == ("0.500000", 9)
    [row] = json.loads(costgov("stages", "--until", "2026-11-03", "--json").out)["stages"]
    assert row["tokens"] == 2_000_000, "how far it was then, nobody knows"
    assert json.loads(costgov("stages", "--run", "q", "--json").out)["stages"] == []


def test_what_was_left_open_before_the_asked_time_is_no_part_of_it(state_dir: Path, costgov: Call) -> None:
    """A run that ended in the middle of a window a day ago trains nothing today."""
    ended = half_open(0) | {"wall_ns": parse_utc("2026-11-02T00:30:00")}
    write_stages(state_dir / "costgov.db", spent("r", "s", "0.50", 1), [], {"r": ended})
    assert json.loads(costgov("stages", "--since", "2026-11-03", "--json").out)["stages"] == []
    [row] = json.loads(costgov("stages", "--since", "2026-11-02", "--json").out)["stages"]
    assert row["tokens"] == 500_000


@pytest.mark.parametrize("lost", [slice(0, 2), slice(1, 2)])
def test_where_windows_are_lost_nobody_says_what_a_million_cost(lost: slice, state_dir: Path, costgov: Call) -> None:
    """Four millions for $4, and the charges know it; the windows of some are gone, by age or by a damaged page."""
    told = windows("r", "s", 4, MTOK, "1.00", 1, ExpectedCost(1_000_000, None, usd(20), 10 * MTOK))
    untold = len(told[lost])
    del told[lost]
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 4), told)
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["actual_usd"], row["tokens"], row["untold_tokens"]) == ("4.000000", (4 - untold) * MTOK, untold * MTOK)
    assert (row["usd_per_mtok_useful"], row["drift_stage_frac"], row["burn_rate"]) == (None, None, None)
    assert (row["used_percent"], row["lands_at_usd"]) == ("20.0000", "10.00")
    assert (
        f"s: {untold},000,000 tokens more were trained in windows that are not kept any more; " in costgov("stages").out
    )


def test_the_beginning_of_a_window_is_no_price_of_all_that_were_lost(state_dir: Path, costgov: Call) -> None:
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 4), [], {"r": half_open(4 * MTOK)})
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["tokens"], row["untold_tokens"], row["usd_per_mtok_useful"]) == (500_000, 4 * MTOK, None)


def test_without_a_price_nothing_is_cheap(state_dir: Path, costgov: Call) -> None:
    """Two millions in two hours before anybody knew a price, then as many for $2: not 4M for $2, half of the plan."""
    plan = ExpectedCost(1_000_000, None, usd(20), 10 * MTOK)
    found = windows("r", "s", 2, MTOK, "0", 1, plan)
    told = [(run, at, replace(row, window=replace(row.window, is_unpriced=True))) for run, at, row in found]
    told += windows("r", "s", 2, MTOK, "1.00", 1, replace(plan, began_tokens=2 * MTOK))
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 2), told)
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["actual_usd"], row["tokens"], row["unpriced_tokens"]) == ("2.000000", 4 * MTOK, 2 * MTOK)
    names = ("usd_per_mtok_all_in", "usd_per_mtok_useful", "burn_rate", "used_percent", "lands_at_usd")
    assert [row[name] for name in names] == [None] * 5
    assert (row["usd_per_mtok_steady_stage"], row["drift_stage_frac"]) == ("1.000000", "0.000000"), (
        "of those with a price"
    )
    assert "s: 2,000,000 of its tokens were trained while no price was known; " in costgov("stages").out


def test_what_a_stage_without_a_price_has_cost_is_unknown(state_dir: Path, costgov: Call) -> None:
    found = windows("r", "s", 2, MTOK, "0", 1, ExpectedCost())
    told = [(run, at, replace(row, window=replace(row.window, is_unpriced=True))) for run, at, row in found]
    write_stages(state_dir / "costgov.db", [], told)
    document = json.loads(costgov("stages", "--json").out)
    for row in (*document["stages"], document["total"]):
        assert (row["actual_usd"], row["wasted_usd"], row["unpriced_tokens"]) == (None, None, 2 * MTOK)
    assert "$0.00" not in costgov("stages").out


def test_what_closes_while_it_is_read_counts_once() -> None:
    """The meter was read at 2.5 M; then its window closed, and was read too."""
    tally = StageTally()
    for run, _, row in windows("r", "s", 3, MTOK, "1.00", 1, ExpectedCost()):
        tally.enter_window(run, row)
    tally.enter_open("r", "s", TokenMeter(progress_tokens=5 * MTOK // 2, from_tokens=2 * MTOK))
    [row] = tally.rows()
    assert (row.tokens, row.untold_tokens) == (3 * MTOK, 0)


def test_a_run_younger_than_a_window_has_a_price_already(state_dir: Path, costgov: Call) -> None:
    write_stages(state_dir / "costgov.db", spent("r", "s", "0.50", 1), [], {"r": half_open(0)})
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["tokens"], row["usd_per_mtok_useful"], row["expected_usd"]) == (500_000, "1.000000", None)


def test_a_broken_meter_costs_its_window_alone(state_dir: Path, costgov: Call) -> None:
    broken = half_open(0) | {"tokens": {"progress_tokens": "many"}}
    write_stages(state_dir / "costgov.db", spent("r", "s", "0.50", 1), [], {"r": broken})
    done = costgov("stages", "--json")
    [row] = json.loads(done.out)["stages"]
    assert (done.code, row["actual_usd"], row["tokens"]) == (ExitCode.FAILED, "0.500000", 0)
    assert done.err.startswith(f"{state_dir / 'costgov.db'}: the state of its tokens of run r: cannot be read (")


def test_a_stage_of_charges_alone_knows_what_was_spent(state_dir: Path, costgov: Call) -> None:
    write_stages(state_dir / "costgov.db", spent("young", "s", "2.50", 2), [])
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {
        "stage": "s", "runs": 1, "hours": "2.000000", "tokens": 0, "actual_usd": "5.000000", "tokens_wasted": 0,
        "untold_tokens": 0, "unpriced_tokens": 0, "unplanned_tokens": 0, "unlimited_runs": 0,
        "unpriced_s": "0.000000", "reconstructed_usd": "0.000000",
    }  # fmt: skip


@pytest.mark.parametrize("newer", ["costgov.db", "runs/both/costgov.db"])
def test_a_run_of_two_journals_is_held_to_what_the_newer_one_says(newer: str, state_dir: Path, costgov: Call) -> None:
    """First under one governor, then under the other: 10M tokens for $1, then 10M of 40M, now with $8 of ceiling."""
    for name in ("costgov.db", "runs/both/costgov.db"):
        is_newer = name == newer
        plan = ExpectedCost(None, None, usd(8 if is_newer else 5), 40 * MTOK, 10 * MTOK if is_newer else 0)
        told = windows("both", "s", 10, MTOK, "0.10", 1, plan)
        write_stages(state_dir / name, spent("both", "s", "0.10", 10) if is_newer else [], told)
        os.utime(state_dir / name, (1_000_000 + is_newer, 1_000_000 + is_newer))
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["ceiling_usd"], row["lands_at_usd"], row["runs"]) == ("8.000000", "3.00", 1)


def test_an_empty_ledger_says_what_to_do(state_dir: Path, costgov: Call) -> None:
    assert costgov("stages").out.startswith(f"nothing charged yet in {state_dir}: start a governor")
    assert json.loads(costgov("stages", "--json").out)["total"]["actual_usd"] == "0.000000"


def test_a_stages_name_steers_no_terminal_and_breaks_no_table(state_dir: Path, costgov: Call) -> None:
    write_stages(state_dir / "costgov.db", spent("r", "evil\x1b[2J|\nstage", "2.50", 1), [])
    assert "evil [2J| stage" in costgov("stages").out
    assert "| evil \\[2J\\| stage | 1 |" in costgov("stages", "--md").out


@pytest.mark.parametrize(
    "data", ["[]", "{", b"{\xff", '{"stage":null}', '{"stage":null,"from_tokens":5,"to_tokens":5}']
)
def test_a_broken_window_costs_itself_alone(data: str | bytes, stages: Path, costgov: Call) -> None:
    """What a million has cost is unknown then; what was spent is not, nor is anything of the other stages."""
    before = {row["stage"]: row for row in json.loads(costgov("stages", "--json").out)["stages"]}
    with closing(sqlite3.connect(stages / "costgov.db")) as connection, connection:
        [(seq, run, own)] = connection.execute(
            "SELECT seq, run, data FROM journal WHERE kind = 'window' AND run = 'node' ORDER BY seq LIMIT 1"
        )
        connection.execute("UPDATE journal SET data = CAST(? AS TEXT) WHERE seq = ?", (data, seq))
    done = costgov("stages", "--json")
    after = {row["stage"]: row for row in json.loads(done.out)["stages"]}
    torn = after.pop(json.loads(own)["stage"])
    assert {name: before[name] for name in after} == after
    known = before[torn["stage"]]
    assert (torn["actual_usd"], torn["usd_per_mtok_useful"]) == (known["actual_usd"], None)
    assert torn["tokens"] + torn["untold_tokens"] == known["tokens"]
    assert (done.code, json.loads(done.out)["unreadable"]) == (ExitCode.FAILED, 1)
    assert done.err.startswith(f"{stages / 'costgov.db'}: a window of tokens of run {run}, ")


@pytest.mark.parametrize("words", [("--json", "--csv"), ("--csv", "--md"), ("--json", "--md")])
def test_one_form_at_a_time(words: tuple[str, ...], stages: Path, costgov: Call) -> None:
    done = costgov("stages", *words)
    assert (done.code, done.err) == (ExitCode.USAGE, "--json, --csv and --md exclude one another\n")
