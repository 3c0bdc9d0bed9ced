"""The four training stages that costgov supports: the model, the token count and the sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.planner.model.shape import Experts, Shape


@dataclass(frozen=True, slots=True)
class TrainingStage:
    name: str  # as in the policies' `match = { stage = "stage1" }`
    title: str
    shape: Shape
    tokens: float
    seq_len: int
    step_tokens: int
    gpus: tuple[int, ...]  # available GPU counts: whole machines of eight


# Vocabularies: GPT-2's, rounded up to a multiple of 128, and Llama 3's. In a mixture every layer is one, and `ffn` is
# the width per token. Tokens per step grow with the model, as in Llama 3 (arXiv 2407.21783, 3.4.1).
STAGES: Final = (
    TrainingStage(
        "stage1",
        "1B dense",  # 1.05B
        Shape("1B dense", 20, 2048, 16, 8, 128, 5632, 50304, tied=True),
        tokens=20e9,
        seq_len=2048,
        step_tokens=2**19,
        gpus=(8,),
    ),
    TrainingStage(
        "stage2",
        "3B MoE-small",  # 3.02B, 0.57B of them active
        Shape("3B MoE-small", 24, 1536, 12, 4, 128, 3072, 50304, experts=Experts(16, 2, 1536)),
        tokens=40e9,
        seq_len=4096,
        step_tokens=2**20,
        gpus=(8,),
    ),
    TrainingStage(
        "stage3",
        "8B dense-deep",  # 7.89B
        Shape("8B dense-deep", 52, 3584, 28, 4, 128, 9728, 128256),
        tokens=100e9,
        seq_len=8192,
        step_tokens=2**22,
        gpus=(32, 64),
    ),
    TrainingStage(
        "stage4",
        "70B MoE-large",  # 70.8B, 12.0B of them active
        Shape("70B MoE-large", 48, 5120, 40, 8, 128, 11264, 128256, experts=Experts(32, 4, 2816)),
        tokens=240e9,
        seq_len=8192,
        step_tokens=2**23,
        gpus=(128, 256),
    ),
)


def stage_named(name: str) -> TrainingStage | None:
    return next((stage for stage in STAGES if name in (stage.name, stage.title)), None)
