"""What other calculators say of the memory of the same rows."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Sequence

from benchmarks.planner.accuracy import Predicted, Row, repository_of
from governor.planner.model.memory_states import GIB
from governor.planner.model.setup import Checkpointing, Setup
from governor.planner.table import Read

Peer = Callable[[Sequence[Row], Callable[[Row], Read], Callable[[Row], float]], tuple[list[Predicted], str]]


def deepspeed_estimators(
    rows: Sequence[Row], read: Callable[[Row], Read], measured: Callable[[Row], float]
) -> tuple[list[Predicted], str]:
    """`estimate_zero2_model_states_mem_needs` and that of ZeRO-3; there is none for ZeRO-0 and 1."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero_3
            from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero_2
    except ImportError as error:
        return [], f"not installed ({error})"

    def estimate(setup: Setup) -> float:
        # They know neither tp nor pp: a rank's share of the model is what they are given.
        params = setup.shape.params / (setup.tp * setup.pp)
        on_node = min(setup.dp, setup.gpu.gpus_per_node)
        machines = {"num_gpus_per_node": on_node, "num_nodes": max(setup.dp // on_node, 1)}
        offload = {"cpu_offload": setup.offload.moves_optimizer}
        if setup.zero_stage == 2:
            return float(zero_2(params, **machines, **offload)[1])
        offload["cpu_offload_params"] = setup.offload.moves_params
        return float(zero_3(params, params / setup.shape.layers, **machines, **offload)[1])

    found = [
        Predicted(row["row_id"], repository_of(row), measured(row) / GIB, estimate(read(row).setup) / GIB)
        for row in rows
        if read(row).setup.zero_stage >= 2
    ]
    return found, "its estimators of model states, on the rows of ZeRO-2 and ZeRO-3 (it has none for the others)"


def llm_analysis(
    rows: Sequence[Row], read: Callable[[Row], Read], measured: Callable[[Row], float]
) -> tuple[list[Predicted], str]:
    """Version 0.2.2. It asks for transformers before 5, so that it lives outside of this environment: `pip install
    --no-deps --target FOLDER llm-analysis fire six termcolor`, and FOLDER in PYTHONPATH."""
    try:
        from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
        from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
    except ImportError as error:
        return [], f"not installed ({error}); benchmarks/planner/memory_peers.py says how"
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    logging.disable(logging.WARNING)
    recomputed = {
        Checkpointing.NONE: ActivationRecomputation.NONE,
        Checkpointing.SELECTIVE: ActivationRecomputation.SELECTIVE,
        Checkpointing.FULL: ActivationRecomputation.FULL,
    }

    def estimate(setup: Setup) -> float:
        shape = setup.shape
        experts = (
            {} if shape.experts is None else {"moe_num_experts": shape.experts.count, "moe_top_k": shape.experts.topk}
        )
        width = shape.experts.ffn if shape.experts else shape.ffn
        model = ModelConfig(
            shape.name, shape.layers, shape.heads, shape.hidden, shape.vocab, max_seq_len=setup.seq_len,
            num_key_value_heads=shape.kv_heads, ffn_embed_dim=width, **experts,
        )  # fmt: skip
        gpu = GPUConfig(
            setup.gpu.name, setup.gpu.hbm_gb, setup.gpu.hbm_gbps, setup.gpu.link_gbps, 1e-5, setup.gpu.peak_bf16
        )
        ranks = ParallelismConfig(
            setup.tp, setup.pp, setup.dp, min(setup.ep, setup.dp), setup.tp if setup.sequence_parallel else 1
        )
        made = LLMAnalysis(model, gpu, parallelism_config=ranks, flops_efficiency=0.5).training(
            batch_size_per_gpu=setup.micro_batch,
            gradient_accumulation_steps=setup.grad_accum,
            seq_len=setup.seq_len,
            activation_recomputation=recomputed[setup.checkpointing],
            ds_zero=DSZeRO(setup.zero_stage),
            mlp_gated_linear_units=shape.gated,
        )
        return float(made["(weight+op_state+grad+act)_memory_per_gpu"])

    found, refused = [], 0
    for row in rows:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                bytes_ = estimate(read(row).setup)
        except (AssertionError, ValueError, ZeroDivisionError, TypeError):
            refused += 1
            continue
        found.append(Predicted(row["row_id"], repository_of(row), measured(row) / GIB, bytes_ / GIB))
    logging.disable(logging.NOTSET)
    return found, f"0.2.2, states and activations; it refuses {refused} of {len(rows)} rows"


PEERS: dict[str, Peer] = {"deepspeed": deepspeed_estimators, "llm-analysis": llm_analysis}
