"""llm-analysis (cli99, 0.2.2) on the same rows: the only public calculator that predicts speed from a set-up alone.

It takes the share of peak FLOP/s that training reaches as an input; 0.5 is what its users have to guess.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from typing import Any

from benchmarks.planner.measured_speeds import Measured
from governor.planner.model.setup import Checkpointing, Precision

HALF_PRECISION = (Precision.BF16, Precision.FP16)
ENOUGH_MEMORY_GB = 10_000  # It refuses rows that ran, for want of memory: so much is never wanting.


def is_here() -> bool:
    try:
        importlib.import_module("llm_analysis.analysis")
    except ImportError:
        return False
    return True


def is_covered(row: Measured) -> bool:
    """Dense, in half precision, no context parallelism: it knows nothing of the others."""
    return row.setup.precision in HALF_PRECISION and not row.setup.shape.is_moe and row.setup.cp == 1


def speed(row: Measured, flops_efficiency: float) -> float | None:
    """Tokens a second and GPU; None where it raises."""
    analysis = importlib.import_module("llm_analysis.analysis")
    config = importlib.import_module("llm_analysis.config")
    logging.disable(logging.CRITICAL)
    setup = row.setup
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            summary = _analysed(analysis, config, row, flops_efficiency)
    except (AssertionError, ValueError, ZeroDivisionError):
        return None
    finally:
        logging.disable(logging.NOTSET)
    micro_s = float(summary["latency_per_micro_batch"])
    return setup.tokens_per_micro_batch / micro_s / (setup.tp * setup.pp * setup.cp)


def _analysed(analysis: Any, config: Any, row: Measured, flops_efficiency: float) -> dict[str, Any]:
    setup, shape, gpu = row.setup, row.setup.shape, row.setup.gpu
    model = config.ModelConfig(
        name=shape.name, num_layers=shape.layers, n_head=shape.heads, hidden_dim=shape.hidden, vocab_size=shape.vocab,
        max_seq_len=setup.seq_len, num_key_value_heads=shape.kv_heads, ffn_embed_dim=shape.ffn,
    )  # fmt: skip
    device = config.GPUConfig(
        name=gpu.name, mem_per_GPU_in_GB=ENOUGH_MEMORY_GB, hbm_bandwidth_in_GB_per_sec=gpu.hbm_gbps,
        intra_node_bandwidth_in_GB_per_sec=gpu.link_gbps, intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=gpu.peak_bf16, inter_node_bandwidth_in_GB_per_sec=setup.node_bandwidth,
    )  # fmt: skip
    ranks = config.ParallelismConfig(tp_size=setup.tp, pp_size=setup.pp, dp_size=setup.dp, sp_size=setup.tp)
    recompute = analysis.ActivationRecomputation
    kind = {
        Checkpointing.NONE: recompute.NONE,
        Checkpointing.SELECTIVE: recompute.SELECTIVE,
        Checkpointing.FULL: recompute.FULL,
    }[setup.checkpointing]
    found = analysis.LLMAnalysis(
        model, device, config.DtypeConfig(), ranks, flops_efficiency=flops_efficiency, hbm_memory_efficiency=1.0
    ).training(
        batch_size_per_gpu=setup.micro_batch, gradient_accumulation_steps=setup.grad_accum, seq_len=setup.seq_len,
        activation_recomputation=kind, ds_zero=analysis.DSZeRO(setup.zero_stage),
        mlp_gated_linear_units=shape.gated,
    )  # fmt: skip
    return dict(found)
