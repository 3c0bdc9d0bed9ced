"""What a million tokens cost, as `costgov cost stages` reads it from a journal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from governor.core.base.units import MTOK, NS_PER_HOUR, DurationNs, usd
from governor.core.money.expected import ExpectedCost
from tests.golden.cost.conftest import Call
from tests.unit.cost.stages_file import spent, windows, write_stages


def test_the_start_of_an_attempt_and_the_all_in_plan_of_a_window_are_read_from_the_journal(
    state_dir: Path, costgov: Call
) -> None:
    """A million in two hours for $2, of which an hour and a tenth of the tokens were its start; planned at $1, $4."""
    plan = ExpectedCost(1_000_000, usd_micros_per_mtok_all_in=4_000_000)
    [(run, at, row)] = windows("r", "s", 1, MTOK, "2.00", 2, plan)
    began = {"start_ns": DurationNs(NS_PER_HOUR), "start_tokens": MTOK // 10, "start_usd_micros": usd(1)}
    told = [(run, at, replace(row, window=replace(row.window, **began)))]
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 2), told)
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["usd_per_mtok_steady_stage"], row["drift_stage_frac"]) == ("1.111111", "0.111111"), (
        "$1 for 900,000 tokens"
    )
    assert (row["usd_per_mtok_all_in"], row["drift_all_in_frac"]) == ("2.000000", "-0.500000")
