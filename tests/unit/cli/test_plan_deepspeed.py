"""`costgov plan deepspeed` and `costgov plan stages`, as people and programs read them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from governor.cli.main import cli
from governor.planner.model.deepspeed_config import config_of
from governor.planner.stage_plans import stage_plans
from tests.paths import ROOT


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def test_the_config_alone_goes_to_stdout_and_what_it_cannot_say_to_stderr() -> None:
    made = plan("deepspeed", "llama3-8b", "--tokens", "100B", "--gpus", "64", "--zero", "3", "--checkpointing", "full")
    assert made.exit_code == 0
    config = json.loads(made.stdout)
    assert config["zero_optimization"]["stage"] == 3
    assert config["scheduler"]["params"]["total_num_steps"] > 10_000
    assert "# assumed: seq-len 4096" in made.stderr
    assert "the model recomputes every layer" in made.stderr


def test_a_stages_primary_stated_as_a_plan_gives_the_config_that_is_shipped() -> None:
    setup = stage_plans()[0].primary.setup
    made = plan(
        "deepspeed", "stage1", "--gpus", str(setup.gpus), "--zero", str(setup.zero_stage),
        "--micro-batch", str(setup.micro_batch), "--checkpointing", setup.checkpointing.value,
    )  # fmt: skip
    assert made.stdout == (ROOT / "configs" / "stage1" / "primary.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("llama3-8b",), "tokens: how many are to be trained?"),
        (("llama3-8b", "--tokens", "1T", "--framework", "fsdp2"), "fsdp2 takes no DeepSpeed config"),
        (("llama3-70b", "--tokens", "1T", "--gpus", "8"), "it fits with"),
    ],
)
def test_what_has_no_config_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    made = plan("deepspeed", *arguments)
    assert made.exit_code == 1
    assert made.stdout == ""
    assert says in made.stderr
    assert made.stderr.count("\n") == 1


def test_a_path_for_nvme_is_the_users() -> None:
    made = plan(
        "deepspeed", "llama3-8b", "--tokens", "1B", "--zero", "3", "--offload", "optimizer_nvme",
        "--nvme-path", "/scratch",
    )  # fmt: skip
    assert json.loads(made.stdout)["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/scratch"


def test_the_stages_have_three_lines_each_and_programs_read_the_same_figures() -> None:
    lines = plan("stages").stdout.splitlines()
    found = json.loads(plan("stages", "--json").stdout)
    assert [(one["stage"], one["which"]) for one in found] == [
        (stage.stage.name, which) for stage in stage_plans() for which, _ in stage.each
    ]
    for line, one in zip(lines[1:], found, strict=False):
        assert line.startswith(one["stage"])
        assert f"{one['tokens_per_s']['mid']:,.0f}" in line
    primary = stage_plans()[0].primary
    assert found[0]["steady_usd"]["mid"] == pytest.approx(
        primary.setup.gpus * found[0]["gpu_hour_usd"] * found[0]["steady_hours"]["mid"]
    )
    assert config_of(primary.setup, 1e9).config["train_micro_batch_size_per_gpu"] == found[0]["micro_batch"]
