"""The keys of a plan: as options, in a TOML file, and in `compare "8xh100 zero=3"`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from governor.core.base.printable import printable
from governor.planner.model.setup import Attention, Kernel
from governor.wire.named_file import read_whole
from governor.wire.toml_file import NotTomlError, parse

BYTES_MAX: Final = 100_000  # A plan has about twenty lines.
_NODES = re.compile(r"([0-9]+)[x×]([\w.-]+)", re.IGNORECASE)
# Words of `compare` that need no key.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    **{name: {"framework": name} for name in ("ddp", "fsdp", "fsdp2", "megatron", "deepspeed", "deepspeed-compiled")},
    **{f"zero-{stage}": {"zero": str(stage)} for stage in range(4)},
    **{name: {"precision": name} for name in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")},
    **{name: {"attention": name} for name in ("fa2", "fa3", "fa4", "cudnn", "flex", "sdpa", "eager")},
    "compiled": {"framework": "deepspeed-compiled"},
    "tuned": {"framework": "deepspeed-compiled"},
}

# Key -> (form of its value, meaning). The order is that of --help.
KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("NAME", "Architecture of the catalogue (llama3-8b), stage (stage1), or file: PLAN.toml, config.json."),
    "config": ("FILE", "config.json of a Hugging Face model, instead of a name."),
    "shape": ("SIZES", "Sizes, alone or over the model's: layers=24,hidden=2048,heads=16,kv_heads=8,ffn=5632,"
              "vocab=32000; also head_dim, tied=1, gated=0, experts, topk, moe_ffn, shared_ffn, first_dense."),
    "tokens": ("COUNT", "Tokens to train, such as 100B. Without: only what follows from the speed."),
    "seq-len": ("TOKENS", "Tokens of one sequence. Default: 4096, or as many positions as the model has."),
    "batch-tokens": ("COUNT", "Tokens of one optimizer step, such as 4M. Default: as usual for the model's size."),
    "micro-batch": ("N", "Sequences that a rank takes at once. Default: what is fastest and fits."),
    "grad-accum": ("N", "Micro-batches of one step. Default: what makes batch-tokens."),
    "gpu": ("NAME", "GPU by its name in the catalogue: h100, a100-sxm-40gb, b200. Default: h100."),
    "gpus": ("N", "How many. Default: one node's."),
    "tp": ("N", "Tensor-parallel ranks. Default: 1; Megatron: what is fastest."),
    "pp": ("N", "Pipeline stages. Default: 1; Megatron: what is fastest."),
    "vp": ("N", "Model chunks of a pipeline stage (interleaving). Default: 1; Megatron: what is fastest."),
    "cp": ("N", "Context-parallel ranks. Default: 1."),
    "ep": ("N", "Expert-parallel ranks. Default: 1; with experts Megatron's are one node's, DeepSpeed's up to 8."),
    "zero": ("0..3", "ZeRO stage. Default: DeepSpeed: what is fastest and fits; FSDP 3, Megatron 1, DDP 0."),
    "shard-ranks": ("N", "Ranks among which states are sharded (hpZ, HSDP). Default: all data-parallel ones."),
    "offload": ("WHERE", "none, optimizer_cpu, param+optimizer_cpu, optimizer_nvme, param+optimizer_nvme."),
    "checkpointing": ("KIND", "Activation checkpointing: none, selective, full. Default: what is fastest and fits."),
    "precision": ("KIND", "bf16, fp16, fp8, mxfp8, nvfp4. Default: bf16."),
    "attention": ("KIND", "flash, fa2, fa3, fa4, cudnn, flex, sdpa, eager, dsa, nsa. Default: flash."),
    "framework": ("NAME", "deepspeed, deepspeed-compiled, fsdp, fsdp2, megatron, xla, ddp. Default: deepspeed."),
    "etp": ("N", "Ranks over which one expert is cut. Default: 1."),
    "lora": ("0|1", "Adapters are trained and the weights are not. Default: 0."),
    "bf16-states": ("0|1", "Master weights, gradients and Adam's moments in bf16 too. Default: 0."),
    "fused-loss": ("0|1", "Chunked or fused cross-entropy: logits are never whole. Default: 0."),
    "overlap-experts": ("0|1", "All-to-all beside another micro-batch's computation (DualPipe, Megatron). Default: 0."),
    "network": ("GB/S", "Network of one node, GB/s one way (8 x 400 Gb/s are 400). Default: usual for the GPU."),
    "vintage": ("YEAR", "Year of the software, such as 2024.5: it gets faster."),
    "price": ("USD", "Price of ONE GPU an hour."),
    "node-price": ("USD", "Price of a whole machine an hour, of as many GPUs as the catalogue has in one, instead."),
    "provider": ("NAME", "Take the price from the built-in table (`costgov prices --table`); cheapest: whoever is."),
    "price-kind": ("KIND", "on-demand, spot, reserved-short. Default: on-demand."),
    "tokens-per-s": ("COUNT", "Measured speed of the whole run: replaces the prediction."),
    "steps-per-hour": ("N", "The same, in optimizer steps."),
    "save-s": ("SECONDS", "How long a save keeps the GPUs from training. Default: as long as its bytes take to write."),
    "save-every": ("DURATION", "Time between two saves, such as 30m. Default: what loses least."),
    "data-wait": ("SHARE", "Measured share of the time in which GPUs wait for data, such as 0.2."),
}  # fmt: skip

Values = Mapping[str, str]


class PlanUnreadableError(ValueError):
    """A plan that is not stated in the right form. One line: the place, the error, and the remedy."""


# What `--attention` takes, and what it means to the model.


# `sdpa` is torch's scaled_dot_product_attention, which takes FlashAttention 2 where nobody tells it otherwise;
# `eager` is Hugging Face's attn_implementation of that name, which keeps the scores.
ATTENTION: Final[Mapping[str, tuple[Attention, Kernel]]] = {
    "flash": (Attention.FLASH, Kernel.USUAL),
    "fa2": (Attention.FLASH, Kernel.FLASH_2),
    "fa3": (Attention.FLASH, Kernel.FLASH_3),
    "fa4": (Attention.FLASH, Kernel.FLASH_4),
    "cudnn": (Attention.FLASH, Kernel.CUDNN),
    "flex": (Attention.FLASH, Kernel.FLEX),
    "sdpa": (Attention.FLASH, Kernel.FLASH_2),
    "eager": (Attention.UNFUSED, Kernel.USUAL),
    "unfused": (Attention.UNFUSED, Kernel.USUAL),
    "dsa": (Attention.SPARSE, Kernel.USUAL),
    "nsa": (Attention.NATIVE_SPARSE, Kernel.USUAL),
}


def attention_named(text: str) -> tuple[Attention, Kernel]:
    """Blank is `flash`. Raises PlanUnreadableError, one line, for a word that is none of `ATTENTION`."""
    word = text.strip().lower() or "flash"
    if word not in ATTENTION:
        raise PlanUnreadableError(f"attention {text!r}: there are {', '.join(ATTENTION)}")
    return ATTENTION[word]


def checked(values: Mapping[str, object], where: str) -> dict[str, str]:
    """Known keys with their values as text. Underscores equal hyphens. `name` is the plan's own name."""
    plain: dict[str, str] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name not in KEYS and name != "name":
            near = difflib.get_close_matches(name, KEYS, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(KEYS)}"
            raise PlanUnreadableError(f"{where}: no such key: {printable(key)}{hint}")
        if name == "shape" and isinstance(value, dict):
            value = ",".join(f"{size}={_text(number)}" for size, number in value.items())
        if isinstance(value, (dict, list)):
            raise PlanUnreadableError(f"{where}: {key} must be one value")
        plain[name] = _text(value)
    return plain


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def from_toml(path: Path) -> dict[str, str]:
    """The plan of a TOML file: its top level, or its table [plan]. Relative paths are relative to the file."""
    try:
        text = read_whole(str(path), BYTES_MAX)
        if len(text) > BYTES_MAX:
            raise PlanUnreadableError(f"{path}: is too large for a plan")
        document = parse(text.decode("utf-8"))
    except OSError as error:
        raise PlanUnreadableError(f"{path}: {error.strerror}") from error
    except NotTomlError as error:
        raise PlanUnreadableError(f"{path}:{error.line}: {error}") from error
    except UnicodeDecodeError as error:
        raise PlanUnreadableError(f"{path}: {error}") from error
    inner = document.get("plan")
    values = checked(inner if isinstance(inner, dict) else document, str(path))
    for key in ("config", "model"):
        if _is_file(values.get(key, "")):
            values[key] = str(path.parent / values[key])
    return {"name": path.stem, **values}


def from_words(text: str) -> dict[str, str]:
    """One plan of `compare`: a TOML file, or words such as "8xh100 zero=3 llama3-8b"."""
    if text.endswith(".toml"):
        return from_toml(Path(text))
    values: dict[str, object] = {"name": text}
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            values[key] = value
        elif known := _WORDS.get(word.lower()):
            values |= known
        elif nodes := _NODES.fullmatch(word):
            values |= {"gpus": nodes[1], "gpu": nodes[2]}
        elif word.endswith(".toml"):
            values |= from_toml(Path(word))
        else:
            values["model"] = word
    return checked(values, f'"{text}"')


def resolved(values: Mapping[str, str]) -> dict[str, str]:
    """Replace a model that is a file by the file's values. Stated values take precedence."""
    model = values.get("model", "")
    if model.endswith(".toml"):
        return resolved({**from_toml(Path(model)), **{key: value for key, value in values.items() if key != "model"}})
    if model.endswith(".json"):
        return {**{key: value for key, value in values.items() if key != "model"}, "config": model}
    return dict(values)


def _is_file(text: str) -> bool:
    return text.endswith((".json", ".toml"))
