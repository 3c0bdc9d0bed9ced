"""Every emitted config trains: real DeepSpeed, two gloo ranks, a tiny model of its family, through one overlay."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.planner.compare import references
from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.setup import Checkpointing, Offload, Precision, Setup
from governor.planner.stage_plans import stage_plans
from tests.drills.components import needs

needs("deepspeed")

WARM = ("torch", "deepspeed")

ROOT = Path(__file__).parents[3]
RANKS, STEPS, ACCUMULATION = 2, 5, 2

# All that a test on two CPU ranks changes, by the path of its key: what it becomes, or "absent".
OVERLAY: dict[str, Any] = {
    "train_batch_size": RANKS * ACCUMULATION,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": ACCUMULATION,
    "optimizer.params.torch_adam": True,  # or else an operator is compiled
    "zero_optimization.offload_optimizer.device": "cpu",  # no nvme
    "zero_optimization.offload_optimizer.nvme_path": "absent",
    "zero_optimization.offload_param.device": "cpu",
    "zero_optimization.offload_param.nvme_path": "absent",
    "aio": "absent",
}
ADDED = {"optimizer.params.torch_adam"}


def overlaid(config: dict[str, Any]) -> dict[str, Any]:
    made = json.loads(json.dumps(config))
    for path, value in OVERLAY.items():
        *sections, key = path.split(".")
        inside = made
        for name in sections:
            inside = inside.get(name, {})
        if value == "absent":
            inside.pop(key, None)
        elif key in inside or path in ADDED:
            inside[key] = value
    return made


def flat(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield path + key, value


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    left, right = dict(flat(one)), dict(flat(other))
    return {key for key in left | right if left.get(key, "absent") != right.get(key, "absent")}


def case(setup: Setup, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "emitted": config,
        "config": overlaid(config),
        "is_moe": setup.shape.is_moe,
        "ep": min(setup.ep, RANKS),
        "recompute": setup.checkpointing is Checkpointing.FULL,
    }


def cases() -> dict[str, dict[str, Any]]:
    """What configs/ ships, as it stands there; then what else the planner emits for the dense 8B."""
    made = {}
    for plan in stage_plans():
        for which, one in (("primary", plan.primary), ("fallback", plan.fallback)):
            name = f"{plan.stage.name}/{which}"
            shipped = json.loads((ROOT / "configs" / f"{name}.json").read_text(encoding="utf-8"))
            made[name] = case(one.setup, shipped)
    for reference in references():
        shipped = json.loads((ROOT / "configs" / "reference" / f"{reference.name}.json").read_text(encoding="utf-8"))
        made[reference.name] = case(reference.deepspeed.setup, shipped)
    dense = stage_plans()[2].primary.setup.but(checkpointing=Checkpointing.NONE)
    for name, setup in {
        "zero-1": dense.but(zero_stage=1),
        "zero-2, fp16": dense.but(zero_stage=2, precision=Precision.FP16),
        "zero-2, offload": dense.but(zero_stage=2, offload=Offload.OPTIMIZER_CPU, checkpointing=Checkpointing.FULL),
        "zero-3, offload": dense.but(zero_stage=3, offload=Offload.PARAM_OPTIMIZER_CPU),
        "zero-3, nvme": dense.but(zero_stage=3, offload=Offload.PARAM_OPTIMIZER_NVME),
        "zero-1, states in bf16": dense.but(zero_stage=1, bf16_states=True),
        "zero-3, fp8": dense.but(zero_stage=3, precision=Precision.FP8),
    }.items():
        made[name] = case(setup, dict(config_of(setup, 1e11).config))
    return made


CASES = cases()


@pytest.fixture(scope="module")
def kept() -> dict[str, list[dict[str, Any]]]:
    return {}


@pytest.fixture
def reports(kept, run_ranks, tmp_path: Path) -> list[dict[str, Any]]:
    """Of each rank, by case: all cases train in one process group, once."""
    if "reports" not in kept:
        assert not kept, "the ranks ended badly: the first test of this file says how"
        kept["begun"] = []
        told = {name: {key: value for key, value in one.items() if key != "emitted"} for name, one in CASES.items()}
        (tmp_path / "cases.json").write_text(json.dumps(told), encoding="utf-8")
        kept["reports"] = run_ranks(
            str(Path(__file__).with_name("config_loop.py")), str(tmp_path / "cases.json"), ranks=RANKS
        )
    return kept["reports"]


@pytest.mark.parametrize("name", CASES)
def test_the_config_trains_five_steps_and_nothing_but_the_overlay_was_changed(name: str, reports) -> None:
    emitted, config = CASES[name]["emitted"], CASES[name]["config"]
    assert differing(emitted, config) <= {path for path in OVERLAY if path != "aio"} | {
        f"aio.{key}" for key in emitted.get("aio", {})
    }
    ranks = [rank[name] for rank in reports]
    for report in ranks:
        assert differing(config, report["held"]) == set(), "DeepSpeed holds what it was given"
        assert report["stage"] == emitted["zero_optimization"]["stage"]
        assert report["precision"] == ("fp16" if "fp16" in emitted else "bf16")
        assert report["clipping"] == 1.0
        assert report["buckets"] == emitted["zero_optimization"]["reduce_bucket_size"]
        assert report["overlap"]
        assert report["scheduler"] == "WarmupCosineLR"
        assert report["steps"] == STEPS
        assert len(report["losses"]) == STEPS * ACCUMULATION
        # An untrained model guesses among 1,024 tokens.
        assert all(abs(loss - math.log(1024)) < 1 for loss in report["losses"])
        assert report["passes"] == (2 if CASES[name]["recompute"] else 1), "forward passes of a layer a micro-batch"
    assert len({report["sum"] for report in ranks}) == 1, "the ranks hold the same weights"


@pytest.mark.parametrize("name", CASES)
def test_its_schedule_warms_up_from_nothing_and_moves_the_weights(name: str, reports) -> None:
    config = CASES[name]["emitted"]
    peak, schedule = config["optimizer"]["params"]["lr"], config["scheduler"]["params"]
    for report in (rank[name] for rank in reports):
        taken = STEPS - report["skipped"]
        assert taken > 0
        assert report["lr"] == pytest.approx(peak * (taken - 1) / schedule["warmup_num_steps"])
        # Adam moves a weight by about the learning rate: the rates of the steps before sum to this at most.
        assert 0 < report["moved"] <= 1.1 * peak * sum(range(taken)) / schedule["warmup_num_steps"]
