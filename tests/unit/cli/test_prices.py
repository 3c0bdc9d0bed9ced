"""`costgov prices`: the table as it is, with its age; what this machine costs comes from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.prices import prices
from governor.wire.price_table import built_in


def run(*arguments: str) -> str:
    result = CliRunner().invoke(prices, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def document(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(run(*arguments, "--json")))


def test_every_row_is_listed_with_its_source_and_age() -> None:
    told = document("--table")
    assert told["this_machine"] is None
    rows = told["table"]["rows"]
    assert len(rows) == len(built_in().rows)
    assert all(row["url"].startswith("https://") for row in rows)
    assert all(row["source"] and row["age_days"] >= 0 and row["usd_micros_per_hour"] > 0 for row in rows)
    assert {row["stale"] for row in rows if row["date"] == "2025-2026"} == {True}
    assert told["table"]["stale"] == sum(row["stale"] for row in rows) > 0
    assert all(row["stale"] is (row["age_days"] > told["table"]["stale_after_days"]) for row in rows)
    assert {row["kind"] for row in rows if not row["used"]} == {"index", "range", "serverless"}


def test_rows_are_chosen_by_provider_and_type() -> None:
    text = run("--table", "--provider", "aws", "--instance", "p5.48")
    assert f"2 of {len(built_in().rows)} rows" in text
    assert "$55.04" in text
    assert "$25.75" in text
    assert "2026-11-09" in text
    nothing = run("--table", "--provider", "aws", "--instance", "nosuch")
    assert f"0 of {len(built_in().rows)} rows" in nothing
    assert 'no row of aws has "nosuch" in its instance type or GPU' in nothing


@pytest.mark.parametrize(("name", "near"), [("azur", "did you mean Azure? "), ("nobody", "; the providers: AWS, ")])
@pytest.mark.parametrize("form", ["--table", "--json"])
def test_a_provider_that_no_row_has_is_refused_with_those_that_are_near(form: str, name: str, near: str) -> None:
    result = CliRunner().invoke(prices, (form, "--provider", name))
    assert result.exit_code == ExitCode.USAGE
    assert f'the table has no provider "{name}"' in result.output
    assert near in result.output


def test_what_is_stale_is_counted_and_marked_and_where_it_was_read_is_told() -> None:
    text = run("--table", "--provider", "verda", "--instance", "1L40S.20V")
    _, stale, _, row, address = text.splitlines()
    assert stale == "1 stale (!): older than 180 days"
    assert "  ! " in row
    assert row.rstrip().endswith("[1]")
    assert address.startswith("[1] https://")
    assert address.endswith("/catalogs/v8/verda/vms.csv")


def test_this_machines_price_and_who_disagrees(tmp_path: Path) -> None:
    config = tmp_path / "costgov.toml"
    config.write_text('[node]\nprice_usd_per_hour = 11.06\n[price]\nprovider = "gcp"\ninstance = "a3-highgpu-8g"\n')
    config.chmod(0o600)
    text = run("--config", str(config), "--instance", "a3-high")
    assert text.startswith("this machine: $11.06/h on-demand (costgov.toml")
    assert "$88.49/h" in text.split("built-in table, compiled")[0]
    assert "is the former the price of one of 8 GPUs?" in text
    told = document("--config", str(config))
    assert told["this_machine"]["price"]["usd_micros_per_hour"] == 11_060_000
    assert [remark["name"] for remark in told["this_machine"]["remarks"]] == ["price_listed"]
