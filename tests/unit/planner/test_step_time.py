"""Step time by part, each against a figure worked out by hand or a law that no constant can bend."""

import math
from dataclasses import fields, replace

import pytest

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.compute import Constants, work_of
from governor.planner.model.predict import predict
from governor.planner.model.setup import Attention, Checkpointing, Framework, Offload, Setup
from governor.planner.model.sparse_advice import advise
from governor.planner.model.step_time import model_flops_per_token, step_time_of, traffic_of

USUAL = Constants()
NOTHING = (
    "operand_traffic", "weight_traffic", "passes_hidden", "passes_ffn", "passes_logits", "launch_us", "tensor_exposed",
    "contention", "optimizer_traffic", "bookkeeping_traffic", "step_overhead_s", "jitter", "hop_us",
)  # fmt: skip
ALL = ("matmul_share", "memory_share", "link_share", "node_share", "bubble", "ragged")
IDEAL = replace(USUAL, **dict.fromkeys(NOTHING, 0.0), **dict.fromkeys(ALL, 1.0))


def llama(**changes: object) -> Setup:
    """Llama-3-8B on one node of H100."""
    setup = Setup(
        shape=model_named("Llama3-8B"), gpu=gpu_named("h100"), gpus=8, seq_len=8192, micro_batch=1, grad_accum=4,
        dp=8, zero_stage=3, framework=Framework.FSDP2,
    )  # fmt: skip
    return setup.but(**changes)


def test_without_any_loss_the_matmuls_take_their_flops_over_the_rate_of_the_gpu() -> None:
    # 6 FLOPs x 7.5e9 parameters that multiply x 8,192 tokens, at the best that a matmul reaches on an H100.
    setup = llama()
    expected = 6 * setup.shape.matmul_params * 8192 / (setup.gpu.reached_bf16 * 1e12)
    assert work_of(setup, IDEAL).matmul == pytest.approx(expected)
    assert setup.shape.matmul_params == pytest.approx(7.5e9, rel=0.01)


def test_the_parts_sum_to_the_step_and_the_step_gives_the_tokens() -> None:
    step = step_time_of(llama())
    parts = (
        step.matmul, step.attention, step.passes, step.recompute, step.host, step.communication,
        step.bubble, step.optimizer, step.overhead,
    )  # fmt: skip
    assert min(parts) >= 0
    assert step.total == pytest.approx(sum(parts))
    assert step.tokens_per_gpu_s == pytest.approx(4 * 8192 / step.total)


def test_mfu_counts_causal_model_flops_over_the_dense_peak() -> None:
    # Llama-3-8B at 8,192 tokens: 6 x 7.505e9 + 6 x 32 layers x 4,096 x 2 x 4,096 keys on average = 51.5 GFLOPs a token.
    setup = llama()
    step = step_time_of(setup)
    assert model_flops_per_token(setup.shape, 8192) == pytest.approx(51.5e9, rel=0.005)
    assert step.mfu == pytest.approx(step.tokens_per_gpu_s * 51.5e9 / 989e12, rel=0.005)


def test_the_bubble_of_four_stages_and_eight_micro_batches_is_three_eighths() -> None:
    pipe = llama(framework=Framework.MEGATRON, zero_stage=1, gpus=8, dp=2, pp=4, grad_accum=8)
    step, interleaved = step_time_of(pipe, IDEAL), step_time_of(pipe.but(virtual_stages=2), IDEAL)
    busy = step.matmul + step.attention + step.passes + step.host
    assert step.bubble == pytest.approx(3 / 8 * (busy + step_communication(pipe)), rel=1e-6)
    # Megatron-LM, arXiv 2104.04473 eq. 2: v chunks a stage divide the bubble by v.
    assert interleaved.bubble == pytest.approx(step.bubble / 2, rel=0.02)


def step_communication(setup: Setup) -> float:
    return setup.grad_accum * IDEAL.stages_exposed * traffic_of(setup, IDEAL).stages


def test_tensor_parallelism_gathers_and_scatters_four_times_a_layer_each_way() -> None:
    # Korthikanti 2022: 4 all-gathers and 4 reduce-scatters a layer of s x b x h, each moving (t-1)/t of it.
    setup = llama(framework=Framework.MEGATRON, tp=8, dp=1, zero_stage=1)
    size = 2 * 8192 * 4096
    assert traffic_of(setup, IDEAL).tensor == pytest.approx(32 * 8 * 7 / 8 * size / (setup.gpu.link_gbps * 1e9))


def test_zero_3_moves_the_parameters_thrice_a_micro_batch() -> None:
    # Rajbhandari 2020, section 7.2.2: gathered forward and backward, gradients scattered once.
    setup = llama(framework=Framework.DEEPSPEED)
    shape = setup.shape
    size = 2 * (shape.dense_params + shape.embedding_params)
    assert traffic_of(setup, IDEAL).gather == pytest.approx(3 * size / (setup.gpu.link_gbps * 1e9))
    assert traffic_of(setup.but(zero_stage=2), IDEAL).gather == 0
    assert traffic_of(setup.but(gpus=1, dp=1), IDEAL).gather == 0


def test_ranks_of_a_node_share_the_port_that_leaves_it() -> None:
    across = llama(framework=Framework.DEEPSPEED, gpus=64, dp=64)
    slow, fast = across.but(node_gbps=50.0), across.but(node_gbps=400.0)
    assert traffic_of(slow, IDEAL).gather == pytest.approx(8 * traffic_of(fast, IDEAL).gather)
    assert traffic_of(fast, IDEAL).gather > traffic_of(llama(framework=Framework.DEEPSPEED), IDEAL).gather


def test_gpus_of_one_node_without_nvlink_meet_over_the_host_and_not_over_the_network() -> None:
    # L40S: 25 GB/s over PCIe, 100 Gb/s for the whole node. A ring over two nodes passes each port once, at 12.5 GB/s.
    one = llama(framework=Framework.DEEPSPEED, gpu=gpu_named("l40s"), node_gbps=12.5)
    size = 2 * (one.shape.dense_params + one.shape.embedding_params)
    assert traffic_of(one, IDEAL).gather == pytest.approx(3 * size / 25e9)
    assert traffic_of(one.but(gpus=16, dp=16), IDEAL).gather == pytest.approx(3 * size / 12.5e9)
    pair = one.but(gpu=gpu_named("h100-pcie"), gpus=2, dp=2)  # NVLink joins two of them.
    assert traffic_of(pair, IDEAL).gather == pytest.approx(3 * size / 300e9)
    assert traffic_of(pair.but(gpus=8, dp=8), IDEAL).gather == pytest.approx(3 * size / 55e9)


def test_sparse_attention_takes_what_its_own_page_says_and_earns_no_mfu_for_what_it_leaves_out() -> None:
    def long(seq_len: int, attention: Attention) -> Setup:
        return llama(seq_len=seq_len, attention=attention, framework=Framework.MEGATRON, zero_stage=1)

    def speedup(seq_len: int) -> float:
        sparse, dense = (long(seq_len, one) for one in (Attention.SPARSE, Attention.FLASH))
        return step_time_of(sparse).tokens_per_gpu_s / step_time_of(dense).tokens_per_gpu_s

    assert speedup(2048) == 1.0  # within k: the dense kernel
    assert speedup(4096) < 1.0  # indexer and gathers take more than the pairs that they spare
    said = advise(model_named("Llama3-8B"), 65536, gpu_named("h100"))
    assert said.speedup_low < speedup(65536) < 1.1 * said.speedup_high
    sparse, dense = (step_time_of(long(131072, one)) for one in (Attention.SPARSE, Attention.FLASH))
    assert dense.mfu * sparse.tokens_per_gpu_s / dense.tokens_per_gpu_s > 1  # were the pairs left out counted
    assert sparse.mfu < 1.2 * dense.mfu


def test_where_no_kernel_skips_what_dsa_leaves_out_it_is_no_faster_and_that_is_said() -> None:
    ampere = llama(gpu=gpu_named("a100"), seq_len=32768)
    sparse = predict(ampere.but(attention=Attention.SPARSE))
    assert sparse.step == step_time_of(ampere)
    assert "no kernel for Ampere skips what dsa leaves out: dense cost at least" in sparse.notes
    assert step_time_of(ampere.but(attention=Attention.NATIVE_SPARSE)).total < sparse.step.total  # Triton's


def test_full_checkpointing_repeats_the_forward_pass() -> None:
    work = work_of(llama(checkpointing=Checkpointing.FULL), IDEAL)
    assert work.recompute == pytest.approx(work.matmul / 3 + work.attention / 3.5)
    assert work_of(llama(), IDEAL).recompute == 0


def test_frozen_weights_need_no_gradients_of_their_own() -> None:
    # LoRA, arXiv 2106.09685: the forward pass and the gradients of inputs; no reduction, no optimizer to speak of.
    whole, adapters = llama(), llama(adapters=True)
    assert work_of(adapters, IDEAL).matmul == pytest.approx(2 / 3 * work_of(whole, IDEAL).matmul)
    assert traffic_of(adapters, IDEAL).gather == pytest.approx(3 / 4 * traffic_of(whole, IDEAL).gather)
    assert step_time_of(adapters).optimizer == 0


def test_adam_on_the_cpu_takes_what_deepspeed_published() -> None:
    # 70B on 16 GPUs: 17 s a step (DeepSpeed's measurements); here the 8B of one node.
    setup = llama(framework=Framework.DEEPSPEED, offload=Offload.OPTIMIZER_CPU)
    on_gpu = step_time_of(setup.but(offload=Offload.NONE))
    assert step_time_of(setup).optimizer - on_gpu.optimizer == pytest.approx(1e9 / 0.26e9, rel=0.2)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"node_gbps": 400.0}, {"node_gbps": 25.0}),
        ({"vintage": 2025.5}, {"vintage": 2022.7}),
        ({"checkpointing": Checkpointing.NONE}, {"checkpointing": Checkpointing.SELECTIVE}),
        ({"checkpointing": Checkpointing.SELECTIVE}, {"checkpointing": Checkpointing.FULL}),
        ({"framework": Framework.FSDP2}, {"framework": Framework.FSDP}),
        ({"grad_accum": 16}, {"grad_accum": 1}),
        ({"offload": Offload.NONE}, {"offload": Offload.OPTIMIZER_CPU}),
        ({"offload": Offload.OPTIMIZER_CPU}, {"offload": Offload.OPTIMIZER_NVME}),
        ({"offload": Offload.OPTIMIZER_NVME}, {"offload": Offload.PARAM_OPTIMIZER_NVME}),
        ({"gpus": 16, "dp": 16}, {"gpus": 512, "dp": 512}),
    ],
)
def test_what_must_be_faster_is_faster(better: dict[str, object], worse: dict[str, object]) -> None:
    base = llama(gpus=64, dp=64)
    speeds = [step_time_of(base.but(**changes)).tokens_per_gpu_s for changes in (better, worse)]
    assert speeds[0] > speeds[1]


def test_every_constant_has_a_unit_a_meaning_and_a_source() -> None:
    for constant in fields(Constants):
        assert all(constant.metadata[key] for key in ("unit", "meaning", "source")), constant.name
        assert math.isfinite(getattr(USUAL, constant.name))
        assert getattr(USUAL, constant.name) > 0
