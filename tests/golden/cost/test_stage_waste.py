"""The waste of `costgov cost stages`: the causes are those of the sum that stands beside them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from governor.core.base.units import MTOK, NS_PER_HOUR
from governor.core.money.expected import ExpectedCost
from governor.core.money.token_windows import TokenMeter
from governor.core.money.waste import SpendSplit, SpentOn
from tests.golden.cost.conftest import Call
from tests.unit.cost.stages_file import spent, windows, write_stages


def test_waste_is_what_the_run_says_of_itself(state_dir: Path, costgov: Call) -> None:
    """Two dollars: 50,000 tokens and 30,000 of them again; and a run that ended before its first step, one dollar."""
    meter = TokenMeter(progress_tokens=50_000, last_total=30_000, wasted_tokens=30_000, spent_ns=NS_PER_HOUR)
    split = SpendSplit(
        by_stage={"s": {SpentOn.START_UP: 250_000, SpentOn.TRAINING: 1_000_000, SpentOn.TRAINED_TWICE: 750_000}}
    )
    told = {"run": "r", "stage": "s", "tokens": meter.snapshot(), "spend_split": split.snapshot()}
    never = SpendSplit(by_stage={"early": {SpentOn.START_UP: 600_000, SpentOn.AFTER_LAST_STEP: 400_000}})
    young = {"run": "q", "stage": "early", "tokens": None, "spend_split": never.snapshot()}
    charges = [*spent("r", "s", "1.00", 2), *spent("q", "early", "1.00", 1)]
    write_stages(state_dir / "costgov.db", charges, [], {"r": told, "q": young})
    document = json.loads(costgov("stages", "--json").out)
    [early, row], total = document["stages"], document["total"]
    assert (row["tokens_wasted"], row["wasted_usd"]) == (30_000, "1.000000")
    assert caused(row) == ("0.250000", "0.000000", "0.000000", "0.750000")
    assert (early["tokens_wasted"], early["wasted_usd"]) == (0, "1.000000")
    assert caused(early) == ("0.600000", "0.400000", "0.000000", "0.000000")
    assert (total["wasted_usd"], caused(total)[0]) == ("2.000000", "0.850000")
    [heads, *rows] = csv.reader(io.StringIO(costgov("stages", "--csv").out))
    assert [dict(zip(heads, one, strict=True))["wasted_usd_by_cause.start_up"] for one in rows] == [
        "0.600000", "0.250000",
    ]  # fmt: skip
    since = json.loads(costgov("stages", "--since", "2026-11-01", "--json").out)
    assert since["total"]["wasted_usd_by_cause"] is None, "causes are of all the run's time"


def caused(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row["wasted_usd_by_cause"].values())


def test_the_causes_are_those_of_the_sum_beside_them(state_dir: Path, costgov: Call) -> None:
    """In stage s: $2 by a run that knows its causes, $1 by a command for which nobody reported, and $2 of windows."""
    split = SpendSplit(by_stage={"s": {SpentOn.START_UP: 250_000, SpentOn.TRAINED_TWICE: 750_000}})
    told = {"run": "r", "stage": "s", "tokens": None, "spend_split": split.snapshot()}
    charges = [charge for run in ("r", "older") for charge in spent(run, "s", "1.00", 2)]
    charges += [*spent("true", "s", "1.00", 1), *spent("true", None, "1.00", 1), *spent("older", "t", "1.00", 1)]
    older = windows("older", "s", 2, MTOK, "1.00", 1, ExpectedCost(), wasted=[MTOK, 0])
    older += windows("older", "t", 1, MTOK, "1.00", 1, ExpectedCost(), wasted=[MTOK])
    write_stages(state_dir / "costgov.db", charges, older, {"r": told})
    document = json.loads(costgov("stages", "--json").out)
    [stage, of_windows, nobodys] = document["stages"]
    assert stage["wasted_usd"] == "1.500000"
    assert stage["wasted_usd_by_cause"] == {
        "start_up": "0.250000", "after_last_step": "0.000000", "halt": "0.000000", "trained_twice": "1.250000",
    }  # fmt: skip
    assert (of_windows["wasted_usd"], of_windows["wasted_usd_by_cause"]) == ("0.500000", None)
    assert (nobodys["wasted_usd"], nobodys["wasted_usd_by_cause"]) == (None, None)
    total = document["total"]
    assert total["wasted_usd"] == "2.000000"
    assert sum(map(Decimal, total["wasted_usd_by_cause"].values())) == Decimal(2)
