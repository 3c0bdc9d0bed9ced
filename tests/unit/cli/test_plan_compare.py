"""`costgov plan compare` and its page: plans beside one another, and each under every way of sharding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from governor.cli.main import cli

SHARED = (
    "--model",
    "llama3-8b",
    "--tokens",
    "20B",
    "--seq-len",
    "4096",
    "--batch-tokens",
    "2M",
    "--provider",
    "cheapest",
)
PLANS = ("1xh100 tuned", "4xa100 zero-3", "2xh100 fsdp2")


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", "compare", *arguments])


def document(*arguments: str) -> list[dict[str, Any]]:
    plans: list[dict[str, Any]] = json.loads(compare(*arguments, "--json").stdout)["plans"]
    return plans


def test_plans_stand_beside_one_another_with_their_sharding_and_the_ways_below() -> None:
    lines = compare(*PLANS, *SHARED).stdout.splitlines()
    assert lines[0].split()[:3] == ["PLAN", "SHARDING", "GPUS"]
    assert [line.split("  ")[0] for line in lines[1:4]] == [*PLANS]
    ways = next(line for line in lines if line.startswith("THE SAME UNDER"))
    assert ways.split()[3:] == ["DDP", "FSDP", "FSDP2", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert any(line.startswith("1xh100 tuned needs ") for line in lines)


def test_what_does_not_fit_has_no_price_and_is_no_base() -> None:
    lines = compare(*PLANS, *SHARED).stdout.splitlines()
    assert "$" not in lines[1]
    assert "x time" not in lines[1]
    assert " NO " in lines[1]
    assert lines[2].endswith("1.00 x $")
    assert lines[4] == "against 4xa100 zero-3, the first that fits"
    beyond, fitting, _ = document(*PLANS, *SHARED)
    assert (beyond["run"], beyond["usd_per_mtok_steady"], beyond["ways"]["DDP"]["steady_usd"]) == (None, None, None)
    assert fitting["run"]["steady_usd"]["mid"] > 0
    alone = CliRunner().invoke(cli, ["plan", "llama3-8b", "--gpus", "1", *SHARED[2:]])
    assert alone.exit_code == 1
    assert "$" not in alone.stdout


def test_on_one_gpu_nothing_is_sharded_whatever_the_stage() -> None:
    made = document("1xb200 zero-3", "2xb200 zero-3", *SHARED)
    assert [one["sharding"] for one in made] == ["none", "ZeRO-3"]
    assert "deepspeed (one rank: ZeRO-3 shards nothing), micro-batch" in compare("1xb200 zero-3", *SHARED).stdout


def test_the_cheapest_is_one_that_can_be_so_many() -> None:
    few, many = document("2xh100", "64xh100", *SHARED)
    assert few["price"]["source"].startswith("Hyperbolic, the cheapest listed with machines of 1, 2 and 3")
    assert many["price"]["gpu_hour_usd"] > few["price"]["gpu_hour_usd"]
    assert "Hyperbolic" not in many["price"]["source"]
    assert "nobody is listed with 8 x MI325X: DigitalOcean machines of 1" in compare("8xmi325x", *SHARED).stderr


def test_a_plan_under_its_own_way_is_itself() -> None:
    made = document("8xh100 zero-3", "8xh100 fsdp2", "8xh100 ddp", *SHARED)
    assert [one["sharding"] for one in made] == ["ZeRO-3", "FSDP2", "DDP"]
    for one in made:
        own = one["ways"][one["sharding"]]
        assert own["steady_usd"] == (one["run"] and pytest.approx(one["run"]["steady_usd"]["mid"]))
        assert own["fits"] == one["memory"]["fits"]
    # 8B replicas of 16 bytes and more a parameter: beyond 80 GB.
    assert not made[0]["ways"]["DDP"]["fits"]


def test_ways_that_nobody_runs_have_no_figures() -> None:
    (one,) = document("16xh100 megatron tp=8 pp=2", *SHARED)
    assert one["ways"]["DDP"] is None
    assert (
        "-" in compare("16xh100 megatron tp=8 pp=2", *SHARED).stdout.split("THE SAME UNDER")[1].splitlines()[1].split()
    )


def test_parallelism_that_megatron_chose_is_not_that_of_the_other_ways() -> None:
    (one,) = document("64xh100 megatron", "--model", "llama3-70b", *SHARED[2:])
    assert max(one["setup"]["tp"], one["setup"]["pp"]) > 1
    assert not any("tp" in way["setup"] or "pp" in way["setup"] for way in one["ways"].values())


def test_a_stated_speed_is_of_the_stated_way_alone() -> None:
    (one,) = document("8xh100 zero-3 tokens-per-s=800", *SHARED)
    assert one["tokens_per_gpu_s"]["mid"] == 100
    assert all(way is None or way["tokens_per_gpu_s"] > 1000 for way in one["ways"].values())


def test_what_a_plan_says_itself_counts_before_what_holds_for_all() -> None:
    dear, cheap = document("8xh100 price=4", "8xh100 price=2", *SHARED[:-2], "--price", "3")
    assert dear["run"]["steady_usd"]["mid"] == pytest.approx(2 * cheap["run"]["steady_usd"]["mid"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("8xh1000",), '"8xh1000": no GPU named'),
        (("8xh100 zero",), '"8xh100 zero": '),
        (("8xh100 zeroo=3",), "no such key: zeroo; did you mean zero?"),
        (("8xh100",) * 21, "at most 20"),
        (("missing.toml",), "missing.toml: No such file"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line_that_names_it(arguments: tuple[str, ...], words: str) -> None:
    result = compare(*arguments, "--model", "llama3-8b")
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_page_holds_everything_and_fetches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert compare(*PLANS, *SHARED, "--html", str(path)).exit_code == 0
    text = path.read_text(encoding="utf-8")
    for title in ("Memory of a GPU", "Step time", "Cost curves", "The same under each way of sharding"):
        assert f"<h2>{title}</h2>" in text
    assert text.count("<svg") == 3
    assert not re.search(r"(src|href|url)\s*[=(]|<script|https?://", text)
    assert text.count('class="curve"') == len(PLANS)


def test_a_name_in_a_page_is_text(tmp_path: Path) -> None:
    (tmp_path / "a&<b>.toml").write_text("gpus = 8\n")
    path = tmp_path / "page.html"
    assert compare(str(tmp_path / "a&<b>.toml"), *SHARED, "--html", str(path)).exit_code == 0
    assert "a&amp;&lt;b&gt;" in path.read_text(encoding="utf-8")
    assert "<b>" not in path.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    result = compare("8xh100", *SHARED, "--html", str(tmp_path / "none" / "page.html"))
    assert result.exit_code == 1
    assert "name a file that can be written" in result.stderr
