"""Facts of a row beyond its columns: an architecture known by its sizes, and software features named in free text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from governor.planner.catalog import models
from governor.planner.model.shape import Latent, Shape

Row = Mapping[str, str]

# DeepSeek's ranks and head widths. Most models with MLA use them too (arXiv 2405.04434).
USUAL_LATENT = Latent(q_rank=1536, kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128)


def shape_of_sizes(hidden: int, heads: int, kv_heads: int, ffns: tuple[int, ...], topk: int) -> Shape | None:
    """The only architecture of the catalogue with these sizes. Its proxies may have fewer layers and experts."""
    alike = [s for s in models().values() if (s.hidden, s.heads, s.kv_heads) == (hidden, heads, kv_heads)]
    alike = [s for s in alike if s.ffn in ffns and (s.experts.topk if s.experts else 0) == topk]
    # A vendor's table repeats an architecture under several names. It is known if they agree on the other values.
    return alike[0] if alike and len({(s.vocab, s.gated, s.latent, s.hybrid) for s in alike}) == 1 else None


def kin_of(name: str) -> Shape | None:
    """The smallest architecture of the catalogue from the same family and generation ("Llama2-1B": Llama2-7B)."""
    family = _family(name)
    kin = [shape for known, shape in models().items() if family and _family(known) == family]
    return min(kin, key=lambda shape: shape.params, default=None)


def _family(name: str) -> str:
    """The part of a name before the size: letters with a generation, as in "Llama2-7B" or "Qwen3 8B"."""
    found = re.match(r"([a-z]+[0-9.]*)[-_ ][0-9]", name.lower())
    return found[1] if found else ""


def params_in_name(name: str) -> float | None:
    """The billions of parameters in a name such as "Llama2-1B", "MPT-760m" or "GPT 0.1T"."""
    found = re.search(r"([0-9]+(?:\.[0-9]+)?)\s*([mbtMBT])\b", name)
    return float(found[1]) * {"m": 1e-3, "b": 1.0, "t": 1e3}[found[2].lower()] if found else None


def is_mixture(name: str) -> bool:
    """Whether a model is named as one with experts: "8x7B", "30B-A3B" or "MoE"."""
    return re.search(r"[0-9]x[0-9.]+b|[-_ ]a[0-9.]+b\b|moe", name.lower()) is not None


def is_latent(row: Row) -> bool:
    return re.search(r"\bmla\b", row.get("notes", "").lower()) is not None


def is_tied(row: Row) -> bool:
    """BLOOM's prototypes share the embedding with the head, as BLOOM does."""
    return "tied embeddings" in row.get("notes", "") or row.get("model", "").lower().startswith("bloom")


def has_low_precision_params(row: Row) -> bool:
    """Bridge's recipes keep the weights themselves in fp8 (fp8_param_gather). NVFP4's weights stay in bf16."""
    return "bridge" in row.get("framework", "").lower() and "fp8" in row.get("precision", "").lower()


def has_bf16_gradients(row: Row) -> bool:
    """NVIDIA's recipes for speed accumulate gradients in bf16 (NeMo: grad_sync_dtype; Bridge: grad_reduce_in_fp32)."""
    name = row.get("framework", "").lower()
    return any(word in name for word in ("nemo", "bridge")) and not is_megatron_test(row)


def has_bf16_states(row: Row) -> bool:
    """DeepSpeed's bf16_master_weights_and_grads, and trainers on one GPU that cast the whole model."""
    return "pure" in row.get("precision", "").lower() or "bf16_master_weights" in row.get("notes", "").lower()


def trains_adapters(row: Row) -> bool:
    return "lora" in (row.get("task", "") + " " + row.get("notes", "")).lower()


def has_dropout(row: Row) -> bool:
    """Megatron's default is 0.1. Its tests say so when they change it."""
    notes = row.get("notes", "")
    return "dropout 0.1" in notes or ("dropout" not in notes and "deterministic" in notes)


def has_sequence_parallel(row: Row) -> bool:
    """Megatron has had it since 2022 (arXiv 2205.05198) as an option.

    BLOOM's branch and its paper of 2021 did not have it.
    """
    notes = row.get("notes", "")
    if "Megatron-Core CI" in row.get("framework", ""):
        return re.search(r"\bSP\b", notes) is not None and "no SP" not in notes
    text = (row.get("framework", "") + " " + notes).lower()
    return not any(word in text for word in ("bigscience", "2021", "no sp", "megatron-deepspeed"))


def virtual_stages(row: Row, layers: int, pp: int, vp: int) -> int:
    """Model chunks of a rank. Some tables say that they count layers per chunk instead."""
    if vp and "vp=layers" in row.get("notes", ""):
        return max(layers // (pp * vp), 1)
    return max(vp, 1)


def expert_tp(row: Row, tp: int, ep: int) -> int:
    """Megatron splits experts along tp by default. Recipes for real clusters set it to 1."""
    text = row.get("source", "") + " " + row.get("notes", "")
    if found := re.search(r"etp([0-9]+)", text):
        return int(found[1])
    return tp if ep and is_megatron_test(row) else 1


def is_unfused_attention(row: Row) -> bool:
    """Megatron's own layer implementation, the alternative to Transformer Engine ("te" in names), fuses nothing."""
    text = (row.get("attention", "") + " " + row.get("notes", "")).lower()
    name = row.get("source", "")
    is_own = is_megatron_test(row) and "mcore_tp" in name and "_te_" not in name and "fp8" not in name
    return "unfused" in text or row.get("attention", "").strip().lower() == "eager" or is_own


def is_uniform_routing(row: Row) -> bool:
    """Benchmarks force every expert to the same load. Tests of a whole training run do not."""
    return "real routing" not in row.get("notes", "") and not is_megatron_test(row)


def is_megatron_test(row: Row) -> bool:
    """Megatron-LM's functional tests. Their logs have the memory of the last rank."""
    return re.search(r"Megatron-\w+ CI\b", row.get("framework", "")) is not None


def is_unfused_optimizer(row: Row) -> bool:
    """InternEvo's hybrid ZeRO calls torch's Adam on flat fp32 copies."""
    return "internevo" in row.get("framework", "").lower()
