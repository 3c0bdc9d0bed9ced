"""What must hold between two plans that differ in one thing, whatever the constants are: over drawn set-ups."""

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from governor.planner.catalog import catalogue_gpus, gpu_named, model_named
from governor.planner.estimate import step_parts
from governor.planner.model.compute import FP8_GAIN_MAX, Constants
from governor.planner.model.memory import memory_of
from governor.planner.model.predict import predict
from governor.planner.model.setup import (
    Checkpointing,
    Framework,
    Gpu,
    ImpossibleSetupError,
    Offload,
    Precision,
    Setup,
)
from governor.planner.model.step_time import step_time_of

SEED = 15
COUNT = 400
NAMES = ("Llama3-8B", "Llama3-70B", "Llama3.1-405B", "GPT3-175B", "Mixtral-8x7B", "Qwen3-30B-A3B", "DeepSeek-V3")
MODELS = [model_named(name) for name in NAMES]
GPUS = [gpu for gpu in catalogue_gpus().values() if gpu.arch != "Volta"]
ALIKE = 1 + 1e-9  # rounding

Change = Callable[[Setup], Setup | None]


def _drawn(dice: random.Random) -> Setup | None:
    framework = dice.choice(list(Framework))
    is_split = framework in (Framework.MEGATRON, Framework.MEGATRON_DEEPSPEED)
    tp, pp = (dice.choice([1, 2, 4, 8]), dice.choice([1, 1, 2, 4])) if is_split else (1, 1)
    dp, cp = dice.choice([1, 2, 8, 32, 128]), dice.choice([1, 1, 1, 2])
    shape = dice.choice(MODELS)
    ep = dice.choice([ep for ep in (1, 2, 8) if ep <= dp * cp * tp]) if shape.is_moe else 1
    zero = {Framework.DDP: 0, Framework.MEGATRON: 1}.get(framework, dice.choice([1, 3]))
    try:
        return Setup(
            shape=shape, gpu=dice.choice(GPUS), gpus=dp * tp * pp * cp, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
            seq_len=dice.choice([512, 2048, 8192, 32768]), micro_batch=dice.choice([1, 2, 8]),
            grad_accum=dice.choice([1, 4, 32]), zero_stage=zero, framework=framework,
            shard_ranks=dice.choice([None, None, 8]), checkpointing=dice.choice(list(Checkpointing)),
            vintage=dice.choice([2022.8, 2023.9, 2024.5, 2025.5, 2026.5]),
            node_gbps=dice.choice([None, 6.0, 50.0, 400.0]), uniform_routing=dice.choice([True, False]),
        )  # fmt: skip
    except ImpossibleSetupError:
        return None


@pytest.fixture(scope="module")
def setups() -> list[Setup]:
    dice = random.Random(SEED)
    found: list[Setup] = []
    while len(found) < COUNT:
        if (made := _drawn(dice)) is not None:
            found.append(made)
    return found


def speed(setup: Setup) -> float:
    return step_time_of(setup).tokens_per_gpu_s


def speed_but_for_the_optimizer(setup: Setup) -> float:
    """Of which each GPU has less where more GPUs share it."""
    step = step_time_of(setup)
    return setup.tokens_per_step / setup.gpus / (step.total - step.optimizer)


def reserved(setup: Setup) -> float:
    return memory_of(setup).reserved


def _worse(
    setups: list[Setup], measure: Callable[[Setup], float], more: Change, less: Change = lambda one: one
) -> list[str]:  # fmt: skip
    """The set-ups in which `more` has not at least as much as `less`. Fails where no set-up speaks about it."""
    pairs = [(more(one), less(one)) for one in setups]
    told = [(one, other) for one, other in pairs if one is not None and other is not None]
    assert len(told) >= COUNT // 20
    return [str(one) for one, other in told if measure(one) * ALIKE < measure(other)]


def _but(**changes: object) -> Change:
    return lambda setup: setup.but(**changes)


FULL, SELECTIVE, NONE = (
    _but(checkpointing=one) for one in (Checkpointing.FULL, Checkpointing.SELECTIVE, Checkpointing.NONE)
)


def _better_gpu(**factors: float) -> Change:
    def changed(setup: Setup) -> Setup:
        gpu = setup.gpu
        better = {name: factor * (getattr(gpu, name) or 0) or None for name, factor in factors.items()}
        return setup.but(gpu=replace(gpu, **better))  # type: ignore[arg-type]

    return changed


def _on(gpu: str) -> Change:
    return lambda setup: setup.but(gpu=gpu_named(gpu), node_gbps=setup.node_gbps or 50.0)


def _twice_the_gpus(setup: Setup) -> Setup:
    return setup.but(gpus=2 * setup.gpus, dp=2 * setup.dp)


def _half_the_length(setup: Setup) -> Setup:
    """At the same tokens."""
    return setup.but(seq_len=setup.seq_len // 2, micro_batch=2 * setup.micro_batch)


def _sharded(stage: int) -> Change:
    """A few GPUs have little to shard, and ZeRO-3's buckets all the same."""
    return lambda setup: setup.but(zero_stage=stage) if setup.shards >= 8 and setup.tp == setup.pp == 1 else None


def _with_experts(**changes: object) -> Change:
    return lambda setup: setup.but(**changes) if setup.shape.is_moe else None


def _under(framework: Framework) -> Change:
    return lambda setup: setup.but(framework=framework) if setup.tp == setup.pp == 1 else None


FASTER: dict[str, tuple[Change, Change]] = {
    "no checkpointing over selective": (NONE, SELECTIVE),
    "selective checkpointing over full": (SELECTIVE, FULL),
    "no checkpointing over full": (NONE, FULL),
    "more accumulation": (lambda setup: setup.but(grad_accum=2 * setup.grad_accum), lambda setup: setup),
    "newer software": (lambda setup: setup.but(vintage=setup.vintage + 0.5), lambda setup: setup),
    "a shorter sequence of the same tokens": (_half_the_length, lambda setup: setup),
    "no offload over the optimizer's": (_but(offload=Offload.NONE), _but(offload=Offload.OPTIMIZER_CPU)),
    "the host over its drives": (_but(offload=Offload.OPTIMIZER_CPU), _but(offload=Offload.OPTIMIZER_NVME)),
    "the fused loss": (_but(fused_loss=True), _but(fused_loss=False)),
    "adapters": (_but(adapters=True), _but(adapters=False)),
    "a faster network": (_but(node_gbps=100.0), _but(node_gbps=25.0)),
    "even routing": (_with_experts(uniform_routing=True), _with_experts(uniform_routing=False)),
    "overlapped experts": (_with_experts(overlapped_experts=True), _with_experts(overlapped_experts=False)),
    "compiled over eager": (_under(Framework.DEEPSPEED_COMPILED), _under(Framework.DEEPSPEED)),
    "faster matmuls": (_better_gpu(peak_bf16=1.2, reached_bf16=1.2), lambda setup: setup),
    "faster memory": (_better_gpu(hbm_gbps=1.2), lambda setup: setup),
    "faster links": (_better_gpu(link_gbps=1.2, pcie_gbps=1.2), lambda setup: setup),
    "an H100 over an A100": (_on("h100"), _on("a100")),
    "an H200 over an H20": (_on("h200"), _on("H20-96GB")),
    "an H200 over an H100": (_on("h200"), _on("h100")),
    "a B200 over an H100": (_on("b200"), _on("h100")),
    "an L40S over an L4": (_on("l40s"), _on("l4")),
}  # fmt: skip
HEAVIER: dict[str, tuple[Change, Change]] = {
    "a bigger micro-batch": (lambda setup: setup.but(micro_batch=2 * setup.micro_batch), lambda setup: setup),
    "a longer sequence": (lambda setup: setup.but(seq_len=2 * setup.seq_len), lambda setup: setup),
    "no checkpointing over selective": (NONE, SELECTIVE),
    "selective checkpointing over full": (SELECTIVE, FULL),
    "states on the GPU": (_but(offload=Offload.NONE), _but(offload=Offload.OPTIMIZER_CPU)),
    "weights on the GPU": (_but(offload=Offload.OPTIMIZER_CPU), _but(offload=Offload.PARAM_OPTIMIZER_CPU)),
    "whole logits": (_but(fused_loss=False), _but(fused_loss=True)),
    "all weights over adapters": (_but(adapters=False), _but(adapters=True)),
    "half the GPUs": (lambda setup: setup if setup.dp > 1 else None, _twice_the_gpus),
    "ZeRO-2 over ZeRO-3": (_sharded(2), _sharded(3)),
}  # fmt: skip


@pytest.mark.parametrize(("more", "less"), FASTER.values(), ids=FASTER.keys())
def test_it_is_never_slower(setups: list[Setup], more: Change, less: Change) -> None:
    assert _worse(setups, speed, more, less) == []


def test_a_gpu_is_never_faster_among_twice_as_many(setups: list[Setup]) -> None:
    assert _worse(setups, speed_but_for_the_optimizer, lambda setup: setup, _twice_the_gpus) == []


@pytest.mark.parametrize(("more", "less"), HEAVIER.values(), ids=HEAVIER.keys())
def test_it_never_takes_less_memory(setups: list[Setup], more: Change, less: Change) -> None:
    assert _worse(setups, reserved, more, less) == []


def test_every_figure_is_finite_and_the_parts_are_the_whole(setups: list[Setup]) -> None:
    for setup in setups:
        made = predict(setup)
        parts = step_parts(made.step).values()
        assert all(math.isfinite(one) and one >= 0 for one in (*parts, made.memory.reserved))
        assert 0 < made.memory.allocated <= made.memory.reserved
        assert 0 < made.tokens_per_gpu_s.low < made.tokens_per_gpu_s.mid < made.tokens_per_gpu_s.high
        assert made.step.total == pytest.approx(sum(parts))


def test_no_step_is_faster_than_the_matmuls_that_were_measured(setups: list[Setup]) -> None:
    assert [one for one in setups if step_time_of(one).mfu > one.gpu.reached_bf16 / one.gpu.peak_bf16] == []


def test_fp8_gains_no_more_than_was_ever_published(setups: list[Setup]) -> None:
    def gain(setup: Setup) -> float:
        return speed(setup.but(precision=Precision.FP8)) / speed(setup)

    wide = [setup for setup in setups if setup.gpu.supports(Precision.FP8)]
    assert len(wide) > COUNT // 4
    assert [(setup.gpu.name, gain(setup)) for setup in wide if gain(setup) > FP8_GAIN_MAX * ALIKE] == []


def test_a_share_is_at_most_all_of_it_and_what_takes_longer_is_no_shorter() -> None:
    for constant in fields(Constants):
        value, told = getattr(Constants(), constant.name), constant.metadata
        assert told["least"] <= value <= told["most"], constant.name
        if told["unit"] == "1" and told["meaning"].startswith("of "):
            assert value <= 1, constant.name


def _gpu_is_known(gpu: Gpu) -> bool:
    return gpu.reached_bf16 <= gpu.peak_bf16 and (gpu.reached_fp8 or 0) <= 2 * gpu.reached_bf16 * ALIKE


def test_no_gpu_reaches_more_in_fp8_than_twice_its_bf16() -> None:
    assert [gpu.name for gpu in catalogue_gpus().values() if not _gpu_is_known(gpu)] == []
