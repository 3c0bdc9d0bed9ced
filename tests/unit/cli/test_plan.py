"""`costgov plan` as people and programs read it. What the figures are worth is tested where they are made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from governor.cli.main import cli

PLAN = ("llama3-8b", "--gpu", "h100", "--gpus", "8", "--seq-len", "4096", "--batch-tokens", "2M")
PRICED = (*PLAN, "--tokens", "100B", "--price", "2.5")


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(plan(*arguments, "--json").stdout)
    return made


def test_a_plan_needs_no_word_but_its_model_and_run_may_be_said() -> None:
    assert plan(*PRICED).output == plan("run", *PRICED).output
    assert plan("stage1").exit_code == 0
    assert plan("--model", *PRICED).output == plan(*PRICED).output
    assert "model: named twice, stage1 and stage2" in plan("stage1", "--model", "stage2").stderr


def test_the_report_names_every_part_with_its_interval_and_what_was_chosen() -> None:
    text = plan(*PRICED).stdout
    parts = ("optimizer", "activations", "logits", "reserved", "80 % interval", "matmul", "saves, failures, restarts")
    figures = ("MFU", "steady state", "calendar, $", "$ per 1M tokens", "LEVER", "chosen, as the fastest")
    for words in (*parts, *figures):
        assert words in text


def test_parts_sum_and_dollars_are_gpus_hours_and_price() -> None:
    made = document(*PRICED)
    assert sum(made["memory"]["parts_gb"].values()) == pytest.approx(made["memory"]["reserved_gb"], rel=1e-3)
    assert sum(made["step"]["parts_s"].values()) == pytest.approx(made["step"]["total_s"])
    run, speed = made["run"], made["tokens_per_s"]["mid"]
    assert speed == pytest.approx(8 * made["tokens_per_gpu_s"]["mid"])
    assert made["setup"]["tokens_per_step"] / made["step"]["total_s"] == pytest.approx(speed)
    assert run["steady_hours"]["mid"] == pytest.approx(100e9 / speed / 3600)
    assert run["steady_usd"]["mid"] == pytest.approx(run["steady_hours"]["mid"] * 8 * 2.5)
    assert made["usd_per_mtok_steady"]["mid"] == pytest.approx(run["steady_usd"]["mid"] / 100e3)
    beyond = sum(part["hours"] for part in run["calendar_parts"])
    assert run["calendar_hours"]["mid"] == pytest.approx(run["steady_hours"]["mid"] + beyond)


def test_the_rows_of_a_step_add_up_and_parameters_are_whole() -> None:
    table = plan(*PRICED).stdout.partition("STEP TIME")[2].partition("\n\n")[0].splitlines()[1:]
    *rows, total = [float(line[30:].split()[0].replace(",", "")) for line in table]
    assert sum(rows) == pytest.approx(total, abs=0.005 * len(rows))
    parts = document(*PRICED)["step"]["parts_s"]
    small = sum(value for value in parts.values() if value < 0.0005 * total)
    assert small > 0, "this plan shows nothing"
    assert rows[-1] == pytest.approx(parts["overhead"] + small, abs=1e-4)
    model = document(*PRICED)["model"]
    assert model["params"] == 8_030_000_000
    assert [type(model[name]) for name in ("params", "matmul_params")] == [int, int]


# A GPT of 1B parameters under ZeRO-3 on eight H100 at $7.92 an hour together; 512 x 2,048 tokens a step.
EXAMPLE = (
    *("mpt-1b", "--tokens", "51.6B", "--batch-tokens", "1048576", "--seq-len", "2048", "--gpus", "8", "--zero", "3"),
    *("--node-price", "7.92", "--steps-per-hour"),
)


@pytest.mark.parametrize(("steps_per_hour", "hours", "usd"), [("350", 140.6, 1113.5), ("2500", 19.68, 155.9)])
def test_the_example_of_516_billion_tokens_at_a_stated_speed(steps_per_hour: str, hours: float, usd: float) -> None:
    made = document(*EXAMPLE, steps_per_hour)
    assert made["is_measured"]
    assert made["run"]["steady_hours"]["mid"] == pytest.approx(hours, rel=1e-3)
    assert made["run"]["steady_usd"]["mid"] == pytest.approx(usd, rel=1e-3)


def test_a_stated_speed_stands_beside_the_predicted_one_and_bounds_what_levers_save() -> None:
    slow, fast = document(*EXAMPLE, "350"), document(*EXAMPLE, "2500")
    bound = next(lever for lever in slow["levers"] if lever["name"] == "waiting for data")
    assert bound["evidence"] == "measured"
    assert 0 < bound["saves"]["mid"] < 1
    assert slow["levers_together"]["high"] <= slow["levers_together"]["possible"]
    assert "below its interval" in plan(*EXAMPLE, "350").stdout
    # 91,000 tokens/s of an H100 would be six tenths of its peak.
    assert fast["mfu"] > 0.55
    assert "are the tokens of a step right?" in plan(*EXAMPLE, "2500").stdout
    assert fast["levers_together"]["possible"] == 0


def test_without_price_or_tokens_they_are_unknown_and_never_zero() -> None:
    made = document(*PLAN)
    assert (made["price"], made["usd_per_mtok_steady"], made["run"]) == (None, None, None)
    text = plan(*PLAN).stdout
    assert "no price: state price (USD per GPU-hour) or provider; listed per GPU-hour: " in text
    assert "no tokens stated" in text
    assert "$0" not in text


def test_what_does_not_fit_says_what_would_and_exits_with_1() -> None:
    result = plan("llama3-70b", "--gpus", "8", "--zero", "1", "--micro-batch", "1", "--batch-tokens", "2M")
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.stdout
    assert "chosen, as what needs the least memory: checkpointing full" in result.stdout
    line = result.stderr.splitlines()[-1]
    assert " GB of a H100-SXM-80GB's " in line
    # What it offers does fit.
    offered = line.partition("; it fits with ")[2].split(", or with ")[0].split(" and ")
    options = {"gpus": "8", "zero": "1", "micro-batch": "1", "batch-tokens": "2M"}
    for change in offered:
        name, value = change.split()
        options |= {"gpus": name} if value == "GPUs" else {name: value}
    stated = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert plan("llama3-70b", *stated).exit_code == 0, stated


def test_hints_name_what_costs_nothing_and_what_only_just_fits() -> None:
    long = plan("llama3-8b", "--gpus", "8", "--seq-len", "131072").stderr
    assert "; it fits with cp 2 and fused-loss 1, or with cp 8, or with " in long
    assert plan("llama3-8b", "--gpus", "8", "--seq-len", "131072", "--fused-loss", "1", "--cp", "2").exit_code == 0
    alone = ("mpt-1b", "--gpus", "1", "--gpu", "rtx4090")
    assert "; it fits with fused-loss 1 and framework ddp, or with 2 GPUs, or with " in plan(*alone).stderr
    assert re.search(r"or only just \(9\d % of the memory\) with framework ddp", plan(*alone).stderr)
    assert plan(*alone, "--fused-loss", "1", "--framework", "ddp").exit_code == 0


def test_a_step_that_grew_with_the_gpus_is_said_to_be_large() -> None:
    many = ("llama3.1-405b", "--gpus", "16384")
    assert "a step of 67.1M tokens is what 16,384 GPUs take at once" in plan(*many).stdout
    assert "at once" not in plan(*many, "--batch-tokens", "67108864").stdout
    assert "at once" not in plan(*PRICED).stdout


def test_levers_that_save_nothing_are_one_line() -> None:
    text = plan(*PRICED).stdout
    assert "(done)" not in text
    assert "counted on as done: local NVMe, loader workers, pre-tokenised data" in text
    assert "(done)" in plan("levers", *PRICED).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "no model named 'nonsense'"),
        (("llama3-8b", "--gpu", "h1000"), "no GPU named 'h1000'"),
        (
            ("llama3-8b", "--tp", "64", "--gpus", "64"),
            "tp 64 does not divide the 32 heads; possible: 1, 2, 4, 8, 16, 32",
        ),
        (
            ("llama3-8b", "--shape", "heads=30"),
            "30 heads do not divide hidden 4096: 8 or 16 or 32 do; or state head_dim",
        ),
        (("llama3-8b", "--provider", "nobody"), "listed per GPU-hour: "),
        ((), "no model: name one (llama3-8b)"),
        (("/nowhere/config.json",), "/nowhere/config.json"),
        (("/nowhere/plan.toml",), "/nowhere/plan.toml: No such file"),
    ],
)
def test_what_cannot_be_planned_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = plan("run", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_config_json_is_the_model_of_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    }))  # fmt: skip
    ours, known = document(str(path), *PRICED[1:]), document(*PRICED)
    assert ours["run"]["steady_usd"]["mid"] == pytest.approx(known["run"]["steady_usd"]["mid"], rel=1e-3)


def test_a_name_in_somebody_elses_config_is_text(tmp_path: Path) -> None:
    path, page = tmp_path / "config.json", tmp_path / "page.html"
    path.write_text(json.dumps({
        "_name_or_path": "\x1b[31m<b>&" + 99 * "x", "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
        "vocab_size": 50257,
    }))  # fmt: skip
    result = plan(str(path), "--html", str(page))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    text = page.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;" in text


def test_names_of_models_complete_in_the_first_place_and_options_everywhere() -> None:
    def completed(arguments: list[str], incomplete: str) -> set[str]:
        made = ShellComplete(cli, {}, "costgov", "_COSTGOV_COMPLETE").get_completions(arguments, incomplete)
        return {item.value for item in made}

    assert {"Llama3-8B", "levers"} <= completed(["plan"], "l") | completed(["plan"], "L")
    assert "Mixtral-8x7B" in completed(["plan", "search"], "mix")
    assert "--gpus" in completed(["plan"], "--gp") & completed(["plan", "compare"], "--gp")
    assert completed(["plan"], "se") == {"search"}
    assert completed(["plan", "search", "--framework"], "fsdp2,dee") == {
        "fsdp2,deepspeed",
        "fsdp2,deepspeed-compiled",
    }
    assert "Lambda" in completed(["plan", "compare", "--provider"], "la")
    assert "H200-SXM-141GB" in completed(["plan", "run", "--gpu"], "h2")


def test_a_stated_wait_for_data_is_time_that_is_paid_for() -> None:
    plain, waiting = document(*PRICED), document(*PRICED, "--data-wait", "0.2")
    assert waiting["run"]["steady_usd"]["mid"] == pytest.approx(plain["run"]["steady_usd"]["mid"] / 0.8)


def test_rarer_saves_and_machines_that_stay_shorten_the_calendar() -> None:
    plain = document(*PRICED)["run"]
    for stated in (("--save-s", "300", "--save-every", "30m"), ("--price-kind", "spot")):
        dear = document(*PRICED, *stated)["run"]
        for figure in ("calendar_hours", "calendar_usd"):
            assert dear[figure]["mid"] > 1.03 * plain[figure]["mid"], (stated, figure)
        assert dear["calendar_p80_hours"] > 1.03 * plain["calendar_p80_hours"]
        assert dear["steady_hours"] == plain["steady_hours"]


def test_what_low_and_high_are_is_said_where_they_are_no_interval() -> None:
    predicted, measured = plan(*PRICED).stdout, plan(*PRICED, "--tokens-per-s", "60000").stdout
    assert "by the spread of 10 finished runs; four of five such runs end within" in predicted
    assert "80 % of cases" not in measured
    assert "the calendar's HIGH is with what finished runs took beyond" in measured


def test_levers_are_each_marked_and_together_no_more_than_possible() -> None:
    made = document("levers", *PRICED, "--data-wait", "0.3", "--save-every", "5m", "--micro-batch", "1")
    levers = {lever["name"]: lever for lever in made["levers"]}
    assert {"micro-batch", "compile", "checkpoint interval", "local NVMe", "loader workers", "pre-tokenised data"} <= {
        *levers
    }
    assert {lever["evidence"] for lever in levers.values()} == {"measured", "modelled", "rule of thumb"}
    assert levers["checkpoint interval"]["saves"]["mid"] > 0
    assert levers["checkpoint interval"]["usd"] > 0
    both = made["levers_together"]
    assert 0.3 <= both["high"] <= both["possible"] + 1e-9
    of_data = sum(levers[name]["saves"]["high"] for name in ("local NVMe", "loader workers", "pre-tokenised data"))
    assert of_data > 0.3 == pytest.approx(levers["waiting for data"]["saves"]["high"])


@pytest.mark.parametrize("name", ["fused-loss", "bf16-states"])
def test_what_saves_memory_saves_it(name: str) -> None:
    fixed = (*PRICED, "--micro-batch", "4", "--zero", "2", "--checkpointing", "full")
    plain, thrifty = document(*fixed), document(*fixed, f"--{name}", "1")
    assert thrifty["memory"]["reserved_gb"] < plain["memory"]["reserved_gb"]
