"""The software of a row, as tables name it: framework, precision, attention kernel, loss, offload, network, age."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from governor.planner.model.setup import Attention, Framework, Gpu, Kernel, Offload, Precision
from governor.planner.recognised import is_unfused_attention

Row = Mapping[str, str]
T = TypeVar("T")

FLASH_ATTENTION = 2022.6

# Parts of framework names and their class. The first match counts.
FRAMEWORKS = (
    ("deepcompile", Framework.DEEPSPEED_COMPILED),
    ("torch.compile", Framework.DEEPSPEED_COMPILED),
    ("bigscience", Framework.MEGATRON_DEEPSPEED),
    ("megatron-deepspeed", Framework.MEGATRON_DEEPSPEED),
    ("megatron", Framework.MEGATRON),
    ("automodel", Framework.FSDP2),
    ("fsdp2", Framework.FSDP2),
    ("nemo", Framework.MEGATRON),
    ("bridge", Framework.MEGATRON),
    ("internevo", Framework.MEGATRON),
    ("nanotron", Framework.FSDP),
    ("colossal", Framework.MEGATRON),
    ("primus", Framework.MEGATRON),
    ("torchtitan", Framework.FSDP2),
    ("fms", Framework.FSDP2),
    ("maxtext", Framework.XLA),
    ("paxml", Framework.XLA),
    ("jax", Framework.XLA),
    ("foundry", Framework.FSDP),
    ("composer", Framework.FSDP),
    ("fsdp", Framework.FSDP),
    ("deepspeed", Framework.DEEPSPEED),
    ("zero", Framework.DEEPSPEED),
    ("accelerate", Framework.DEEPSPEED),
    ("torchao", Framework.DDP),
    ("llm.c", Framework.DDP),
    ("ddp", Framework.DDP),
)


def assume(assumed: list[str], name: str, value: T) -> T:
    assumed.append(f"{name} {value}")
    return value


def framework_of(row: Row, tp: int, assumed: list[str]) -> Framework:
    name = row.get("framework", "").lower()
    for part, framework in FRAMEWORKS:
        if part in name:
            is_eager = framework is Framework.FSDP2 and re.search(r"\beager\b|no compile", row.get("notes", "").lower())
            return Framework.FSDP if is_eager else framework
    return assume(assumed, "framework", Framework.MEGATRON if tp > 1 else Framework.DEEPSPEED)


def precision_of(row: Row, gpu: Gpu, assumed: list[str]) -> Precision:
    stated = row.get("precision", "").lower()
    for precision in (Precision.NVFP4, Precision.MXFP8, Precision.FP8, Precision.FP16):
        if precision in stated and not gpu.supports(precision):
            # The run exists, so it used the next precision for which the GPU has matmuls.
            instead = Precision.FP8 if gpu.supports(Precision.FP8) else Precision.BF16
            return assume(assumed, "precision", instead)
        if precision in stated:
            return precision
    # The planner has no rate for other formats (fp32, tf32, int8).
    is_bf16 = any(word in stated for word in ("bf16", "bfloat16", "mixed", "amp"))
    return Precision.BF16 if is_bf16 else assume(assumed, "precision", Precision.BF16)


def attention_of(row: Row) -> Attention:
    """FlashAttention (arXiv 2205.14135) did not exist earlier."""
    is_early = (
        vintage_of(row) < FLASH_ATTENTION and "flash" not in (row.get("attention", "") + row.get("notes", "")).lower()
    )
    return Attention.UNFUSED if is_early or is_unfused_attention(row) else Attention.FLASH


_FLASH_2: Final = re.compile(r"\bfa2\b|flash[-_ ]?attention[-_ ]?2|\bflash[-_ ]?2\b")
_KERNELS: Final = (
    (Kernel.FLASH_4, re.compile(r"\bfa4\b|flash[-_ ]?attention[-_ ]?4|\bflash[-_ ]?4\b")),
    (Kernel.FLASH_3, re.compile(r"\bfa3\b|flash[-_ ]?attention[-_ ]?3|\bflash[-_ ]?3\b")),
    (Kernel.CUDNN, re.compile(r"cudnn")),
    (Kernel.FLASH_2, _FLASH_2),
    (Kernel.FLEX, re.compile(r"\bflex[-_ ]?attention\b|\bflex\b")),
)


def kernel_of(row: Row, gpu: Gpu) -> Kernel:
    """The attention kernel that the row names; else, and where the GPU has none such, the framework's usual one."""
    text = (row.get("attention", "") + " " + row.get("notes", "")).lower()
    named = next((kernel for kernel, words in _KERNELS if words.search(text)), Kernel.USUAL)
    return named if gpu.runs(named) else Kernel.USUAL


_FUSED_LOSS: Final = re.compile(
    r"(?P<denied>(?:\bno|without|w/o|not) +)?(?<![a-z])"
    r"(?:(?P<whole>fused[-_ ]+(?:cross[-_ ]?entropy|ce\b|loss))"
    r"|liger|cut[-_ ]?cross[-_ ]?entropy|(?:fused[-_ ]+)?linear[-_ ]+cross[-_ ]?entropy"
    r"|chunked[-_ ]+(?:cross[-_ ]?entropy|ce\b|loss))"
)


def has_fused_loss(row: Row, framework: Framework) -> bool:
    """Liger, cut cross-entropy and the like, which never have whole logits. Megatron's own fusion has them."""
    text = " ".join(row.get(key, "") for key in ("framework", "notes", "attention", "loss")).lower()
    found = [one for one in _FUSED_LOSS.finditer(text) if not one["denied"]]
    return any(not (one["whole"] and framework is Framework.MEGATRON) for one in found)


def offload_of(row: Row) -> Offload:
    text = (row.get("offload") or "none").lower()
    if text == Offload.OPTIMIZER_CPU and "adaptive" in row.get("framework", "").lower():
        return Offload.OPTIMIZER_STREAMED
    for offload in (
        Offload.PARAM_OPTIMIZER_NVME,
        Offload.OPTIMIZER_NVME,
        Offload.PARAM_OPTIMIZER_CPU,
        Offload.OPTIMIZER_CPU,
    ):
        if text == offload:
            return offload
    return Offload.NONE


def network_of(row: Row) -> float | None:
    """GB/s of a node, from a text such as "4x100Gb/s Omni-Path per 8-GPU node" or "1600Gbps/node"."""
    text = row.get("network", "")
    if found := re.search(r"([0-9]+)\s*[x*]\s*([0-9]+)\s*Gb", text):
        return int(found[1]) * int(found[2]) / 8
    if found := re.search(r"([0-9]+)\s*Gb", text):
        return int(found[1]) / 8
    return None


# The year of a framework's release, for rows without a date.
USUAL_VINTAGE = {
    "2021": 2021.3,
    "2022": 2022.4,
    "bigscience": 2022.1,
    "internevo": 2024.0,
    "foundry": 2023.9,
    "0.8": 2024.5,
    "deepspeed + megatron": 2022.5,
}


def vintage_of(row: Row) -> float:
    if found := re.match(r"(20[0-9][0-9])(?:-([0-9][0-9]))?", row.get("date", "")):
        return int(found[1]) + (int(found[2] or 6) - 1) / 12
    name = row.get("framework", "").lower()
    return next((year for part, year in USUAL_VINTAGE.items() if part in name), 2025.0)
