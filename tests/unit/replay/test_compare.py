"""Policies side by side: what logs with labels say of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.policy.replay import replay

RULE = '[[rule]]\nname = "nan"\ntrigger = "nonfinite"\nfor = "{} steps"\nresponse = "halt"\n'


def log(path: Path, role: str, bad_from: int, **meta: Any) -> Path:
    """100 records, one a minute; from `bad_from` on the loss is no number."""
    records = [
        {"t": 60.0 * n, "step": n, "loss": math.nan if n >= bad_from else 2.0} for n in range(101)
    ]  # fmt: skip
    lines = [{"meta": {"role": role, **meta}}, *records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    tmp_path = tmp_path_factory.mktemp("compared")
    log(tmp_path / "well.jsonl", "healthy", 101)
    log(tmp_path / "hiccup.jsonl", "healthy", 41)  # Labelled healthy, whatever it looks like.
    log(tmp_path / "ill.jsonl", "troubled", 21, onset_t=1200.0)
    log(tmp_path / "early.jsonl", "troubled", 5, onset_t=3000.0)
    log(tmp_path / "unsaid.jsonl", "grey", 5)
    arguments = [str(tmp_path), "--json", "--price", "6", "--run-on", "10m"]
    for name, steps in (("hasty", 1), ("patient", 10)):
        (tmp_path / f"{name}.toml").write_text(f'[policy]\nname = "{name}"\n' + RULE.format(steps))
        arguments += ["--policy", str(tmp_path / f"{name}.toml")]
    result = CliRunner().invoke(replay, arguments)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {row["comparison"]["policy"]: row["comparison"] for row in rows if "comparison" in row}


def test_false_halts_are_told_by_the_hours_of_healthy_training(compared: dict[str, dict[str, Any]]) -> None:
    for policy in compared.values():
        assert (policy["logs"], policy["healthy"], policy["false_halts"]) == (5, 2, 1)
        assert policy["healthy_hours"] == pytest.approx(200 / 60), "what the clock runs on is no training"
        assert policy["false_halts_per_1000_run_hours"] == pytest.approx(1000 * 60 / 200)


def test_a_halt_before_the_trouble_is_no_catch(compared: dict[str, dict[str, Any]]) -> None:
    assert [(p["troubled"], p["caught"], p["early"]) for p in compared.values()] == [(2, 1, 1), (2, 1, 1)]


def test_delay_counts_from_the_onset(compared: dict[str, dict[str, Any]]) -> None:
    assert [p["delay_median_s"] for p in compared.values()] == [60.0, 600.0]


def test_dollars_are_of_the_time_after_the_halt_at_the_price_given(compared: dict[str, dict[str, Any]]) -> None:
    per_minute = 100_000  # Micro-dollars, at $6 an hour.
    assert [p["saved_usd_micros"] for p in compared.values()] == [79 * per_minute, 70 * per_minute]
    assert [p["wrongly_cut_usd_micros"] for p in compared.values()] == [59 * per_minute, 50 * per_minute]


@pytest.mark.parametrize("onset", [pytest.param(10**400, id="huge"), math.nan, "soon", None, [1], True])
def test_an_onset_that_is_no_time_costs_the_delay_and_nothing_else(tmp_path: Path, onset: object) -> None:
    path = log(tmp_path / "ill.jsonl", "troubled", 21, onset_t=onset)
    result = CliRunner().invoke(replay, [str(path)])
    assert (result.exit_code, result.stdout.splitlines()[-1].split()[5:7]) == (0, ["1/1", "-"])


@pytest.mark.parametrize(
    ("role", "meta", "shown"),
    [
        ("healthy", {}, ["-", "-"]),
        ("troubled", {"onset_t": 60.0}, ["-", "$0.00"]),
        ("grey", {}, ["-", "$0.00"]),
    ],
)
def test_what_a_log_without_times_cost_is_unknown(
    tmp_path: Path, role: str, meta: dict[str, Any], shown: list[str]
) -> None:
    path = log(tmp_path / "a.jsonl", role, 21, **meta)
    timeless = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "t"}) + "\n" for line in timeless))
    log(tmp_path / "b.jsonl", "healthy", 101)
    words = [str(tmp_path), "--price", "6"]
    for name in ("one", "other"):
        (tmp_path / f"{name}.toml").write_text(f'[policy]\nname = "{name}"\n' + RULE.format(1))
        words += ["--policy", str(tmp_path / f"{name}.toml")]
    told = CliRunner().invoke(replay, words)
    assert (told.exit_code, told.stdout.splitlines()[-1].split()[-2:]) == (0, shown), told.output
    told = CliRunner().invoke(replay, [*words, "--json"])
    row = json.loads(told.stdout.splitlines()[-1])["comparison"]
    assert [row["saved_usd_micros"], row["wrongly_cut_usd_micros"]] == [None if text == "-" else 0 for text in shown]
