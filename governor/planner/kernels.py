"""What `--attention` takes: the words that trainers use for their attention, and what they mean to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from governor.planner.keys import PlanUnreadableError
from governor.planner.model.setup import Attention, Kernel

# `sdpa` is torch's scaled_dot_product_attention, which takes FlashAttention 2 where nobody tells it otherwise;
# `eager` is Hugging Face's attn_implementation of that name, which keeps the scores.
NAMES: Final[Mapping[str, tuple[Attention, Kernel]]] = {
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
    """Blank is `flash`. Raises PlanUnreadableError, one line, for a word that is none of `NAMES`."""
    word = text.strip().lower() or "flash"
    if word not in NAMES:
        raise PlanUnreadableError(f"attention {text!r}: there are {', '.join(NAMES)}")
    return NAMES[word]
