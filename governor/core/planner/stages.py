"""The four stages that costgov was made for: what is trained, on how many tokens, in sequences of what length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.core.planner.shape import Experts, Shape


@dataclass(frozen=True, slots=True)
class Stage:
    name: str  # as in the policies' `match = { stage = "stage1" }`
    title: str
    shape: Shape
    tokens: float
    seq_len: int


STAGES: Final = (
    Stage("stage1", "1B dense", Shape("1B dense", 16, 2048, 32, 8, 64, 8192, 128256, tied=True), 20e9, 4096),
    Stage(
        "stage2",
        "3B MoE-small",  # 3.1B, 0.7B of them active
        Shape("3B MoE-small", 24, 1536, 12, 4, 128, 6144, 128256, tied=True, experts=Experts(32, 4, 768)),
        40e9,
        4096,
    ),
    Stage("stage3", "8B dense-deep", Shape("8B dense-deep", 32, 4096, 32, 8, 128, 14336, 128256), 100e9, 8192),
    Stage(
        "stage4",
        "70B MoE-large",  # 70B, 12B of them active: experts wide enough for full matmuls
        Shape("70B MoE-large", 48, 4096, 64, 8, 128, 16384, 128256, experts=Experts(16, 2, 6912)),
        240e9,
        8192,
    ),
)


def stage_named(name: str) -> Stage | None:
    return next((stage for stage in STAGES if name in (stage.name, stage.title)), None)
