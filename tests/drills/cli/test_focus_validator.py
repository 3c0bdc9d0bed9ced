"""What `cost export --focus` writes conforms, as somebody else's validator reads FOCUS 1.4."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.drills.cli.installed import BOUND_S, Costgov
from tests.drills.components import needs
from tests.unit.cost.ledger_file import ANNA, BEN, DISK, ON_DEMAND, SPOT, a_month, charge, write_ledger

needs("focus_data_toolkit")  # The package focus-data-toolkit: in the extra `dev`.

FOCUS_TOOLKIT = (sys.executable, "-m", "focus_data_toolkit")


def validated(file: Path) -> subprocess.CompletedProcess[str]:
    words = [*FOCUS_TOOLKIT, "validate", str(file), "--dataset", "cost-and-usage"]
    return subprocess.run(words, capture_output=True, text=True, timeout=BOUND_S)


def test_a_ledger_of_odd_parts_of_hours_and_shares_conforms(
    costgov: Costgov, environ: dict[str, str], tmp_path: Path
) -> None:
    dear = replace(ON_DEMAND, price_usd_micros=3_600_000_000)
    odd = [charge(f"2026-11-05T{hour:02}:00:00Z", 0.003517924 + hour / 7, ANNA, dear) for hour in range(6)]
    late = charge("2026-10-31T23:30:00Z", 1.7, BEN, SPOT)
    # A share of a node: whole micro-dollars at each tick are up to 1.44 cents of an hour.
    shared = charge("2026-11-06T10:00:00Z", 1 / 3, ANNA, ON_DEMAND, usd_micros=18_359_999, length=3600 * 10**9)
    journal = Path(environ["COSTGOV_PATHS__STATE_DIR"]) / "costgov.db"
    journal.parent.mkdir()
    write_ledger(journal, [*a_month(), *odd, late, shared, charge("2026-11-07", 23.7, ANNA, DISK)])
    file = tmp_path / "focus.csv"
    assert costgov("cost", "export", "--focus", str(file)).returncode == 0
    told = validated(file)
    assert told.returncode == 0, told.stdout + told.stderr
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {row["PricingCategory"] for row in rows if row["x_PriceSource"] == "spot history"} == {"Dynamic"}

    rows[0]["ListCost"] = "12.345678"
    with file.open("w", newline="") as stream:
        out = csv.DictWriter(stream, list(rows[0]))
        out.writeheader()
        out.writerows(rows)
    assert validated(file).returncode != 0, "it sees a cost that is no product"
