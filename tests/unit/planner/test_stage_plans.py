"""The four stages: their sizes, and two set-ups of each. tests/tidy/test_generated_docs.py holds their configs."""

from __future__ import annotations

import pytest

from governor.planner.model.candidates import MARGIN, NEAR, RELIEF
from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.predict import predict
from governor.planner.model.training_stages import STAGES
from governor.planner.stage_plans import OTHER_GPU, StagePlan, setups_of, stage_plans

PLANS = {plan.stage.name: plan for plan in stage_plans()}
EACH = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


@pytest.mark.parametrize(
    ("name", "params", "active"),
    [
        ("stage1", 1.05e9, 1.05e9),
        ("stage2", 3.02e9, 0.57e9),
        ("stage3", 7.89e9, 7.43e9),  # without the input embedding
        ("stage4", 70.8e9, 11.99e9),
    ],
)
def test_the_matrices_sum_to_what_the_stage_is_called(name: str, params: float, active: float) -> None:
    shape = next(stage.shape for stage in STAGES if stage.name == name)
    assert shape.stated_params is None, "summed, not stated"
    assert shape.params == pytest.approx(params, rel=5e-3)
    assert shape.matmul_params == pytest.approx(active, rel=5e-3)


@EACH
def test_both_setups_train_the_stages_own_steps(plan: StagePlan) -> None:
    for one in (plan.primary, plan.fallback):
        assert one.setup.tokens_per_step == plan.stage.step_tokens
        assert one.setup.gpus in plan.stage.gpus
        assert config_of(one.setup, plan.stage.tokens).config["train_batch_size"] * plan.stage.seq_len == (
            plan.stage.step_tokens
        )


@EACH
def test_the_primary_leaves_room_and_the_fallback_clearly_more(plan: StagePlan) -> None:
    primary, fallback = (one.prediction.memory.reserved for one in (plan.primary, plan.fallback))
    assert primary <= MARGIN * plan.primary.prediction.memory.capacity
    assert fallback <= RELIEF * primary


@EACH
def test_the_fallback_runs_on_the_other_gpu_too(plan: StagePlan) -> None:
    elsewhere = plan.elsewhere
    assert elsewhere.setup.gpu.name == OTHER_GPU
    assert elsewhere.prediction.memory.fits
    assert elsewhere.setup.but(gpu=plan.fallback.setup.gpu) == plan.fallback.setup, "under the same config"


@EACH
def test_no_setup_of_the_space_that_leaves_room_trains_much_faster(plan: StagePlan) -> None:
    """At one price a GPU-hour, tokens a GPU and second are what a dollar buys."""
    among = list(setups_of(plan.stage, plan.primary.setup.gpu))
    assert len(among) == plan.tried
    roomy = [one for one in map(predict, among) if one.memory.reserved <= MARGIN * one.memory.capacity]
    best = max(one.tokens_per_gpu_s.mid for one in roomy)
    assert plan.primary.prediction.tokens_per_gpu_s.mid >= best / NEAR
