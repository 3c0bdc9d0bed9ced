"""Reads rows of published tables of training runs as set-ups of the planner. A blank means unknown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from governor.core.base.units import read_float
from governor.planner.catalog import UnknownNameError, gpu_named, model_named
from governor.planner.model.memory import memory_of
from governor.planner.model.setup import Checkpointing, Framework, Gpu, Setup
from governor.planner.model.shape import Experts, Shape
from governor.planner.recognised import (
    USUAL_LATENT,
    expert_tp,
    has_bf16_gradients,
    has_bf16_states,
    has_dropout,
    has_low_precision_params,
    has_sequence_parallel,
    is_latent,
    is_megatron_test,
    is_mixture,
    is_tied,
    is_unfused_optimizer,
    is_uniform_routing,
    kin_of,
    params_in_name,
    shape_of_sizes,
    trains_adapters,
    virtual_stages,
)
from governor.planner.row_software import (
    assume,
    attention_of,
    framework_of,
    has_fused_loss,
    kernel_of,
    network_of,
    offload_of,
    precision_of,
    vintage_of,
)

Row = Mapping[str, str]
T = TypeVar("T")


class UnreadableRowError(ValueError):
    """No set-up follows from the row. The text names the column and what it needs."""


@dataclass(frozen=True, slots=True)
class Read:
    """The set-up of a row, and the assumptions for its blanks in words."""

    setup: Setup
    assumed: tuple[str, ...]
    shows_last_rank: bool = False  # The memory is of the last rank, which writes Megatron's log.


# The model size of most published runs on one node, for rows without any size.
USUAL_BILLIONS = 7.0


def read(row: Row) -> Read:
    """Raises UnreadableRowError, ImpossibleShapeError or ImpossibleSetupError, each with a line for the user."""
    assumed: list[str] = []
    _refuse_none(row)
    framework = framework_of(row, _number(row, "tp") or 1, assumed)
    gpu = _gpu(row, assumed)
    shape = _shape(row, assumed)
    tp, pp, cp = (_number(row, k) or 1 for k in ("tp", "pp", "cp"))
    gpus = _number(row, "gpus") or _needed_gpus(row, tp * pp * cp, assumed)
    dp = max(gpus // (tp * pp * cp), 1)
    gpus = dp * tp * pp * cp
    seq_len = _number(row, "seq_len") or assume(assumed, "seq_len", 2048)
    micro, accum = _batches(row, dp, seq_len, assumed)
    checkpointing = _checkpointing(row, framework, assumed)
    setup = Setup(
        shape=shape,
        gpu=gpu,
        gpus=gpus,
        seq_len=seq_len,
        micro_batch=micro,
        grad_accum=accum,
        dp=dp,
        tp=tp,
        pp=pp,
        virtual_stages=virtual_stages(row, shape.layers, pp, _number(row, "vp") or 0),
        cp=cp,
        ep=(_number(row, "ep") or 1) if shape.experts else 1,
        expert_tp=expert_tp(row, tp, _number(row, "n_experts") or 0),
        sequence_parallel=tp > 1 and has_sequence_parallel(row),
        zero_stage=_zero(row, framework, assumed),
        shard_ranks=_shard_ranks(row),
        checkpointing=checkpointing,
        precision=precision_of(row, gpu, assumed),
        attention=attention_of(row),
        kernel=kernel_of(row, gpu),
        fused_loss=has_fused_loss(row, framework),
        framework=framework,
        offload=offload_of(row),
        node_gbps=network_of(row),
        vintage=vintage_of(row),
        bf16_states=has_bf16_states(row),
        bf16_gradients=has_bf16_gradients(row),
        fp8_params=has_low_precision_params(row),
        dropout=has_dropout(row),
        adapters=trains_adapters(row),
        unfused_optimizer=is_unfused_optimizer(row),
        uniform_routing=is_uniform_routing(row),
    )
    if shape.is_moe and not row.get("ep", "").strip() and (ep := _spread(setup)) != setup.ep:
        setup = setup.but(ep=assume(assumed, "ep", ep))
    return Read(setup, tuple(assumed), is_megatron_test(row))


def _refuse_none(row: Row) -> None:
    """A blank is unknown. A 0 is a mistake: no run has no GPU."""
    for key in ("gpus", "seq_len", "micro_bs", "grad_accum", "hidden", "layers", "heads", "vocab"):
        if _number(row, key) == 0:
            raise UnreadableRowError(f"{key} = {row[key].strip()!r}: at least 1, or blank if it is unknown")


def _spread(setup: Setup) -> int:
    """The fewest ranks over which the experts fit, since a published run did fit. The stated ep if none suffices."""
    most = min(setup.shape.experts.count if setup.shape.experts else 1, setup.dp * setup.cp * setup.tp)
    spreads = [ep for ep in (1 << power for power in range(most.bit_length())) if setup.shape.can_spread(ep)]
    # Recomputation is usually unknown as well.
    light = setup.but(checkpointing=Checkpointing.FULL)
    return next((ep for ep in spreads if memory_of(light.but(ep=ep)).fits), setup.ep)


def _gpu(row: Row, assumed: list[str]) -> Gpu:
    if not (name := row.get("gpu", "").strip()):
        return gpu_named(assume(assumed, "gpu", "A100-SXM-80GB"))
    gpu = gpu_named(name)
    if "power-limited" in name:
        # The cap is unstated. An H100 at 500 of its 700 W reaches 0.8 of its matmuls (gpus.csv).
        gpu = replace(
            gpu, name=name, reached_bf16=0.8 * gpu.reached_bf16, reached_fp8=0.8 * (gpu.reached_fp8 or 0) or None
        )
    return gpu


def _shape(row: Row, assumed: list[str]) -> Shape:
    """The row's own sizes, else the catalogue's sizes under that name, else sizes derived from the parameters."""
    name = row.get("model", "").strip() or "unnamed"
    try:
        known: Shape | None = model_named(name)
    except UnknownNameError:
        known = None
    hidden = _number(row, "hidden")
    if known is not None and (not hidden or hidden == known.hidden):
        layers = _number(row, "layers") or known.layers
        if layers == known.layers:
            return replace(known, heads=_number(row, "heads") or known.heads) if known.latent is None else known
        return replace(known, layers=layers, stated_params=None, stated_active=None)
    params = _float(row, "params_b") or params_in_name(name)
    if hidden and (alike := _alike(row, hidden)):
        return _with_rows_counts(row, alike)
    if not _number(row, "n_experts") and (is_mixture(name) or (not hidden and (_number(row, "ep") or 1) > 1)):
        raise UnreadableRowError(f"model {name!r}: a mixture beyond the catalogue: state n_experts, topk and moe_ffn")
    if not hidden:
        is_named = name.split("(")[0].strip() not in ("", "unnamed")  # A remark in brackets is no name.
        if params is None and is_named:
            raise UnreadableRowError(f"no model named {name!r} in the catalogue: state hidden and layers, or params_b")
        params = params or assume(assumed, "params_b", USUAL_BILLIONS)
        hidden = assume(assumed, "hidden", _usual_hidden(1e9 * params))
    return _stated_shape(row, name, hidden, params, assumed)


def _alike(row: Row, hidden: int) -> Shape | None:
    heads, ffn = _number(row, "heads") or 0, _number(row, "ffn") or 0
    ffns = (ffn, _number(row, "moe_ffn") or ffn)
    return shape_of_sizes(hidden, heads, _number(row, "kv_heads") or heads, ffns, _number(row, "topk") or 0)


def _with_rows_counts(row: Row, known: Shape) -> Shape:
    """The architecture with the row's own depth and mixture width."""
    experts = known.experts
    if experts is not None:
        experts = replace(experts, count=_number(row, "n_experts") or experts.count)
    layers, vocab = _number(row, "layers") or known.layers, _number(row, "vocab") or known.vocab
    if (layers, experts) == (known.layers, known.experts):
        return replace(known, vocab=vocab)
    hybrid = known.hybrid if layers == known.layers else None
    return replace(
        known, layers=layers, experts=experts, hybrid=hybrid, vocab=vocab, stated_params=None, stated_active=None
    )


def _stated_shape(row: Row, name: str, hidden: int, params: float | None, assumed: list[str]) -> Shape:
    heads = _number(row, "heads") or assume(assumed, "heads", _usual_heads(row, hidden))
    experts, latent = None, assume(assumed, "latent", USUAL_LATENT) if is_latent(row) else None
    if count := _number(row, "n_experts"):
        width = _number(row, "moe_ffn") or _number(row, "ffn") or 4 * hidden
        experts = Experts(count, _number(row, "topk") or 2, width, shared_ffn=width if latent else 0)
    ffn = _number(row, "ffn") or (experts.ffn if experts else 4 * hidden)
    kin = kin_of(name)
    gated = ffn % hidden != 0 or "swiglu" in row.get("notes", "")
    vocab = _number(row, "vocab") or assume(assumed, "vocab", kin.vocab if kin else 51200)
    shape = Shape(
        name=name,
        layers=_number(row, "layers") or 1,
        hidden=hidden,
        heads=heads,
        kv_heads=_number(row, "kv_heads") or heads,
        head_dim=max(hidden // heads, 1),
        ffn=ffn,
        vocab=vocab,
        gated=gated,
        tied=is_tied(row),
        experts=experts,
        latent=latent,
    )
    if _number(row, "layers"):
        return shape
    if params is None:
        raise UnreadableRowError(f"model {name!r}: neither layers nor params_b is stated")
    per_layer = shape.dense_params + shape.routed_params
    return replace(
        shape, layers=assume(assumed, "layers", max(round((1e9 * params - shape.embedding_params) / per_layer), 1))
    )


def _usual_heads(row: Row, hidden: int) -> int:
    """Heads of 128 elements, in a number that tensor parallelism and the key/value heads divide."""
    unit = math.lcm(_number(row, "tp") or 1, _number(row, "kv_heads") or 1)
    return max(round(hidden / 128 / unit), 1) * unit


def _usual_hidden(params: float) -> int:
    """In dense models, layers grow with the width as hidden / 128 (GPT-3 and Llama tables): params = 12 h^3 / 128."""
    return max(128 * round(math.cbrt(params * 128 / 12) / 128), 128)


def _needed_gpus(row: Row, ranks: int, assumed: list[str]) -> int:
    dp = _number(row, "dp") or max(_number(row, "ep") or 1, 8)
    return assume(assumed, "gpus", ranks * dp)


def _batches(row: Row, dp: int, seq_len: int, assumed: list[str]) -> tuple[int, int]:
    micro, accum, tokens = _number(row, "micro_bs"), _number(row, "grad_accum"), _float(row, "global_batch_tokens")
    per_rank = max(round(tokens / (seq_len * dp)), 1) if tokens else None
    if micro is None:
        micro = (
            max(per_rank // accum, 1)
            if per_rank and accum
            else assume(assumed, "micro_bs", min(per_rank or 1, max(1, _usual_tokens(row) // seq_len)))
        )
    if accum is None:
        filling = 8 * pp if (pp := _number(row, "pp") or 1) > 1 else 1
        accum = max(round(per_rank / micro), 1) if per_rank else assume(assumed, "grad_accum", filling)
    return micro, accum


def _usual_tokens(row: Row) -> int:
    """Tokens of a micro-batch of unknown size: small if a pipeline needs many micro-batches."""
    return 4096 if (_number(row, "pp") or 1) > 1 else 16384


def _checkpointing(row: Row, framework: Framework, assumed: list[str]) -> Checkpointing:
    stated = row.get("act_ckpt", "").strip().lower()
    if stated.startswith(("full", "true", "yes")):
        return Checkpointing.FULL
    if stated.startswith("selective"):
        return Checkpointing.SELECTIVE
    if stated:
        return Checkpointing.NONE
    usual = (
        Checkpointing.FULL
        if framework in (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED, Framework.XLA)
        else Checkpointing.NONE
    )
    return assume(assumed, "act_ckpt", usual)


def _zero(row: Row, framework: Framework, assumed: list[str]) -> int:
    stated = _number(row, "zero_stage")
    if framework is Framework.XLA and "fsdp" in row.get("framework", "").lower():
        return 3  # JAX shards as its mesh says; tables show its optimizer's stage
    if stated is not None:
        return stated
    usual = {Framework.MEGATRON: 1, Framework.DDP: 0}.get(framework, 3)
    return assume(assumed, "zero_stage", min(usual, 1) if (_number(row, "pp") or 1) > 1 else usual)


def _shard_ranks(row: Row) -> int | None:
    """The value of the column, or of a text such as "zero1(size=8)"."""
    found = re.search(r"size=([0-9]+)", row.get("sharding", ""))
    return _number(row, "fsdp") or (int(found[1]) if found else None)


def _number(row: Row, key: str) -> int | None:
    value = _float(row, key)
    return None if value is None else int(value)


def _float(row: Row, key: str) -> float | None:
    text = (row.get(key) or "").strip()
    if not text:
        return None
    try:
        value = read_float(text)
    except ValueError:
        raise UnreadableRowError(f"{key} = {text!r} is no number") from None
    if not math.isfinite(value) or value < 0:
        raise UnreadableRowError(f"{key} = {text!r} is no size")
    return value
