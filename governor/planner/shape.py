"""Reads a model's config.json, as Hugging Face writes it, as the planner's Shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from governor.core.base.units import is_whole
from governor.planner.catalog import UnknownNameError, shape_named
from governor.planner.keys import PlanUnreadableError
from governor.planner.model.shape import SIZE_MAX, Experts, Latent, Shape, divisors_near
from governor.text.table import plain
from governor.wire.named_file import read_whole

BYTES_MAX: Final = 1_000_000  # A config has a few kilobytes. We do not read a file of weights.
CONFIG_SIZE_MAX: Final = 10**8
RATIO_MAX: Final = 64  # MLP width over hidden size. Usual are 4 and 8/3.
# Architectures with two matrices per MLP. Newer ones have three.
PLAIN_MLP: Final = frozenset(
    {
        *("gpt2", "gpt_neox", "gpt_neo", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2"),
        "nemotron",
    }
)
# Architectures that tie the LM head to the embedding by default.
TIED: Final = frozenset(
    (
        *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2"),
        *("gemma", "gemma2", "gemma3_text", "cohere"),
    )
)
LEARNED_POSITIONS: Final = frozenset(("gpt2", "gpt_neo", "gpt_bigcode", "opt"))
# The names of each size. The first one in the file counts.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "topk": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "moe_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
}


class UnreadableConfigError(ValueError):
    """The file is not a config of a known decoder. One line."""


def shape_of_file(path: Path) -> Shape:
    """The shape of a config file.

    Raises UnreadableConfigError, or ImpossibleShapeError for sizes that do not fit together.
    """
    try:
        text = read_whole(str(path), BYTES_MAX)
    except OSError as error:
        raise UnreadableConfigError(f"{path}: {error.strerror}") from error
    if len(text) > BYTES_MAX:
        raise UnreadableConfigError(f"{path}: is too large for a config.json")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableConfigError(f"{path}: is no JSON") from error
    if not isinstance(config, dict):
        raise UnreadableConfigError(f"{path}: must be a JSON object with hidden_size, num_hidden_layers, …")
    try:
        return shape_of(config, path.parent.name or path.stem)
    except UnreadableConfigError as error:
        raise UnreadableConfigError(f"{path}: {error}") from error


def shape_of(config: Mapping[str, Any], name: str) -> Shape:
    inner = config.get("text_config")
    if isinstance(inner, dict):  # A multimodal model. The plan is for its language model.
        config = inner
    kind = str(config.get("model_type", ""))
    if config.get("is_encoder_decoder"):
        raise UnreadableConfigError(f"{kind or 'this'} is an encoder-decoder; the planner knows decoders")
    if any(key in config for key in ("mamba_d_state", "ssm_state_size", "hybrid_override_pattern", "state_size")):
        raise UnreadableConfigError(f"{kind or 'this'} has state-space layers: take it by name from the catalogue")
    hidden, heads = _needed(config, "hidden"), _needed(config, "heads")
    experts, latent = _experts(config), _latent(config)
    return Shape(
        name=str(config.get("_name_or_path") or name),
        layers=_needed(config, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_size(config, "head_dim") or _head_dim(hidden, heads, latent),
        # Llama 4's dense layers are wider than its experts.
        ffn=_integer(config, "intermediate_size_mlp") or _ffn(config, kind, hidden),
        vocab=_needed(config, "vocab"),
        gated=kind not in PLAIN_MLP,
        tied=bool(config.get("tie_word_embeddings", kind in TIED)),
        learned_positions=_size(config, "positions") if kind in LEARNED_POSITIONS else 0,
        experts=experts,
        latent=latent,
    )


def _head_dim(hidden: int, heads: int, latent: Latent | None) -> int:
    if hidden % heads and latent is None:
        near = divisors_near(hidden, heads)
        raise UnreadableConfigError(f"{heads} heads do not divide hidden_size {hidden}: {near} do; or state head_dim")
    return max(hidden // heads, 1)


def _ffn(config: Mapping[str, Any], kind: str, hidden: int) -> int:
    """The MLP width. Architectures with two matrices default to four times the hidden size."""
    if ffn := _size(config, "ffn"):
        return ffn
    if kind not in PLAIN_MLP and not _size(config, "moe_ffn"):
        raise UnreadableConfigError(f"states none of {', '.join(NAMES['ffn'])}")
    ratio = config.get("expansion_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= RATIO_MAX:
        raise UnreadableConfigError(f"expansion_ratio must be a number to {RATIO_MAX}, not {str(ratio)[:40]}")
    return round(ratio * hidden)


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") is True and "num_kv_heads" not in config:
        return 1
    return _size(config, "kv_heads") or heads


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = _size(config, "experts")
    if count < 2:
        return None
    ffn = _size(config, "moe_ffn") or _needed(config, "ffn")
    # Llama 4 does not name the one expert that serves every token. It is as wide as the others.
    unnamed = "intermediate_size_mlp" in config
    shared = unnamed * ffn or _size(config, "shared_ffn") or _integer(config, "n_shared_experts") * ffn
    layers = _needed(config, "layers")
    every = _integer(config, "decoder_sparse_step") or _integer(config, "interleave_moe_layer_step") or 1
    dense = _integer(config, "first_k_dense_replace") + _length(config, "mlp_only_layers")
    return Experts(
        count=count,
        topk=_size(config, "topk") or 1,
        ffn=ffn,
        shared_ffn=shared,
        first_dense=min(dense + layers - layers // every, layers),
    )


def _latent(config: Mapping[str, Any]) -> Latent | None:
    if not _integer(config, "kv_lora_rank"):
        return None
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    sizes = Latent(*(_integer(config, name) for name in names))
    if not (sizes.value_dim and sizes.rope_dim + sizes.nope_dim):
        raise UnreadableConfigError(f"has a kv_lora_rank, and not all of {', '.join(names[2:])}")
    return sizes


def _needed(config: Mapping[str, Any], key: str) -> int:
    if not (value := _size(config, key)):
        raise UnreadableConfigError(f"states none of {', '.join(NAMES[key])}")
    return value


def _size(config: Mapping[str, Any], key: str) -> int:
    """0: not stated."""
    return next((value for name in NAMES[key] if (value := _integer(config, name))), 0)


def _length(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name) or ()
    if not isinstance(value, (list, tuple)):
        raise UnreadableConfigError(f"{name} must be a list of layers, not {str(value)[:40]}")
    return len(value)


def _integer(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= CONFIG_SIZE_MAX:
        raise UnreadableConfigError(f"{name} must be a size, not {str(value)[:40]}")
    return value


# The architecture of a plan: by name, from a config.json, from sizes, or from one of the former with other sizes.


NAME_CHARS_MAX: Final = 60
SIZE_NAMES: Final = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied", "gated"),
    *("experts", "topk", "moe_ffn", "shared_ffn", "first_dense"),
)
NEVER_ZERO: Final = frozenset({*SIZE_NAMES[:7], "topk", "moe_ffn"})


def stated_shape(values: Mapping[str, str]) -> Shape:
    """The shape of the values model, config and shape. PlanUnreadableError when they name none."""
    sizes = _sizes(values)
    if config := values.get("config"):
        shape = shape_of_file(Path(config))
        # The name may come from a foreign file.
        return _resized(replace(shape, name=plain(shape.name)[:NAME_CHARS_MAX]), sizes)
    if model := values.get("model"):
        try:
            return _resized(shape_named(model), sizes)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}; else give its config.json, or its shape") from error
    for key in ("layers", "hidden", "heads", "vocab"):
        if not sizes.get(key):
            raise PlanUnreadableError(
                f"no model: name one (llama3-8b), or give a config.json, or shape with {key} in it"
            )
    hidden, heads = sizes["hidden"], sizes["heads"]
    blank = Shape("custom", sizes["layers"], hidden, heads, heads, 1, 4 * hidden, sizes["vocab"])
    return _resized(blank, sizes)


def _resized(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    if not sizes:
        return shape
    if shape.hybrid is not None and "layers" in sizes:
        raise PlanUnreadableError(f"shape: {shape.name} has layers of several kinds: layers cannot say which")
    plain = {key: sizes[key] for key in SIZE_NAMES[:7] if key in sizes}
    if ("hidden" in sizes or "heads" in sizes) and "head_dim" not in sizes:
        plain["head_dim"] = _stated_head_dim(sizes.get("hidden", shape.hidden), sizes.get("heads", shape.heads))
    if "heads" in sizes and "kv_heads" not in sizes and shape.kv_heads == shape.heads:
        plain["kv_heads"] = sizes["heads"]
    experts = shape.experts
    if sizes.get("experts"):
        ffn = sizes.get("moe_ffn") or sizes.get("ffn") or (experts.ffn if experts else shape.ffn)
        experts = Experts(sizes["experts"], sizes.get("topk") or (experts.topk if experts else 2), ffn)
    if experts is not None:
        named = {"topk": "topk", "moe_ffn": "ffn", "shared_ffn": "shared_ffn", "first_dense": "first_dense"}
        experts = replace(experts, **{field: sizes[key] for key, field in named.items() if key in sizes})
    flags = {key: bool(sizes[key]) for key in ("tied", "gated") if key in sizes}
    changes: dict[str, Any] = {**plain, **flags}
    return replace(shape, **changes, experts=experts, stated_params=None, stated_active=None)


def _stated_head_dim(hidden: int, heads: int) -> int:
    if hidden % heads == 0:
        return hidden // heads
    near = divisors_near(hidden, heads)
    raise PlanUnreadableError(f"shape: {heads} heads do not divide hidden {hidden}: {near} do; or state head_dim")


def _sizes(values: Mapping[str, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in values.get("shape", "").split(","))):
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in SIZE_NAMES or not equals or not is_whole(value.strip()) or len(value) > 9:
            raise PlanUnreadableError(
                f"shape: {pair!r}: write for example layers=24; there are {', '.join(SIZE_NAMES)}"
            )
        sizes[name] = int(value)
        if sizes[name] > SIZE_MAX:
            raise PlanUnreadableError(f"shape: {name} {value}: at most {SIZE_MAX:,}")
        if not sizes[name] and name in NEVER_ZERO:
            raise PlanUnreadableError(f"shape: {name} must be at least 1")
    return sizes
