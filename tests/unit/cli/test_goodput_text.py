"""`costgov goodput` as people read it: what it is not sure of stands there too, as in its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.main import cli

PARTS = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5}
LOGS: dict[str, tuple[dict[str, Any], bool]] = {  # And whether one of its causes is a bound.
    "one rank's time in collectives": ({**PARTS, "comm_s": 0.2}, True),
    "what is timed": (PARTS, False),
    "unknown alone": ({"forward_s": 0.1, "backward_s": 0.1, "step_s": 1.0}, False),
}


def goodput(*words: str) -> str:
    result = CliRunner().invoke(cli, ("goodput", *words))
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", LOGS)
def test_a_cause_of_low_confidence_is_told_so(tmp_path: Path, name: str) -> None:
    parts, is_bound = LOGS[name]
    path, beside = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps({"t": 1.0 * n, "step": n, "loss": 2.0, **parts}) + "\n" for n in range(20)))
    beside.write_text("".join(json.dumps({"t": 1.0 * n, "step": n, "loss": 2.0}) + "\n" for n in range(20)))
    (log,) = json.loads(goodput(str(path), "--json"))["logs"]
    low = [one for one in log["causes"] if one["confidence"] == "low" and one["s"] > 0 and one["cause"] != "unknown"]
    assert bool(low) is is_bound
    for shown in (goodput(str(path)), goodput(str(path), str(beside))):
        assert shown.count("low confidence") == len(low)
        assert all(one["evidence"] in shown for one in low)


def test_an_evaluation_whose_seconds_are_worked_out_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    took = [*[100] * 10, 8_100, *[100] * 10]
    lines = [f"iter {step}: loss 3.1, time {ms}.00ms, mfu 3.10%" for step, ms in enumerate(took)]
    lines.insert(10, "step 10: train loss 4.1000, val loss 4.2000")
    path.write_text("\n".join(lines) + "\n")
    (log,) = json.loads(goodput(str(path), "--json"))["logs"]
    (told,) = [one for one in log["causes"] if one["cause"] == "evaluation"]
    assert told["confidence"] == "medium"
    assert told["evidence"] in goodput(str(path))


@pytest.mark.parametrize(("price", "has_dollars"), [((), False), (("--price", "36"), True)])
def test_without_a_price_dollars_are_null_for_programs(
    tmp_path: Path, price: tuple[str, ...], has_dollars: bool
) -> None:
    """And for people there is no column of them."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text("".join(json.dumps({"t": 1.0 * n, "step": n, "loss": 2.0, **PARTS}) + "\n" for n in range(20)))
    words = (*map(str, paths), *price)
    document = json.loads(goodput(*words, "--json"))
    told = [*document["logs"], document["all"]]
    figures = [time[name] for time in told for name in ("usd", "productive_usd")]
    figures += [one[name] for time in told for one in time["causes"] for name in ("usd", "usd_per_hour")]
    assert {figure is not None for figure in figures} == {has_dollars}
    assert ("$" in goodput(*words)) is has_dollars
