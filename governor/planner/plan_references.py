"""Reference set-ups of three sizes of model, under every way of sharding: where each fits, and DeepSpeed's configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from governor.planner.model.setup import Framework
from governor.planner.plan_estimate import Estimate, estimate
from governor.planner.plan_request import asked
from governor.planner.plan_ways import by_way

GPU: Final = "H100-SXM-80GB"
MEGATRON: Final = "Megatron"
DEEPSPEED_WAYS: Final = ("ZeRO-1", "ZeRO-2", "ZeRO-3")
# Model, how many GPUs, sequence length, tokens a step (Llama 2's 4M; Llama 3's 8M to 16M), tokens of the whole run.
REFERENCES: Final = (
    ("Llama2-7B", (8,), 4096, 2**22, 2e12),
    ("Llama3-70B", (64, 128, 256), 8192, 2**23, 15e12),
    ("Llama3.1-405B", (512, 1024, 2048), 8192, 2**24, 15e12),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """`by_way`: each with what it leaves open chosen for it; None: nobody runs it so."""

    model: str
    gpus: int
    tokens: float
    by_way: Mapping[str, Estimate | None]

    @property
    def name(self) -> str:
        return f"{self.model.lower()}-{self.gpus}"

    @property
    def deepspeed(self) -> Estimate:
        """The fastest of DeepSpeed's ways that fits."""
        fitting = [one for way in DEEPSPEED_WAYS if (one := self.by_way[way]) and one.prediction.memory.fits]
        assert fitting, f"{self.name}: no ZeRO stage fits"
        return max(fitting, key=lambda one: one.tokens_per_s.mid)


@cache
def references() -> tuple[Reference, ...]:
    return tuple(
        _reference(model, gpus, seq_len, step_tokens, tokens)
        for model, counts, seq_len, step_tokens, tokens in REFERENCES
        for gpus in counts
    )


def _reference(model: str, gpus: int, seq_len: int, step_tokens: int, tokens: float) -> Reference:
    values = {
        "model": model, "gpu": GPU, "gpus": str(gpus), "seq-len": str(seq_len), "batch-tokens": str(step_tokens),
        "tokens": f"{tokens:.0f}",
    }  # fmt: skip
    megatron = estimate({**values, "framework": Framework.MEGATRON.value})
    return Reference(model, gpus, tokens, {**by_way(asked(values)), MEGATRON: megatron})
