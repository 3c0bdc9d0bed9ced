"""Every key of a config means something to the installed DeepSpeed.

Its sections of models refuse what they do not know. The rest it reads key by key, and passes over a misspelt one in
silence: there every key has to be one that it asks for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, KeysView
from typing import Any

import pytest

from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.setup import Checkpointing, Framework, Offload, Precision, Setup
from governor.planner.stage_plans import stage_plans
from tests.drills.components import needs

needs("deepspeed")

LATER = {"optimizer", "scheduler", "pipeline"}  # Kept as they are until an engine reads them.


class Asked(dict[str, Any]):
    """A section that remembers which of its keys somebody asked for."""

    def __init__(self, section: dict[str, Any]) -> None:
        super().__init__({key: Asked(value) if isinstance(value, dict) else value for key, value in section.items()})
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        """Unpacked into a model, which refuses what it does not know, also in the sections within."""
        for key, value in super().items():
            self.asked.add(key)
            if isinstance(value, Asked):
                list(value)
        return super().__iter__()

    def keys(self) -> Any:
        return KeysView(self)  # `key in section.keys()` asks for one, `**section` for all.

    def ignored(self, path: str = "") -> Iterator[str]:
        for key, value in super().items():
            if key not in self.asked:
                yield path + key
            elif isinstance(value, Asked) and path + key not in LATER:
                yield from value.ignored(f"{path}{key}.")


def setups() -> Iterator[tuple[str, Setup]]:
    for plan in stage_plans():
        yield f"{plan.stage.name}-primary", plan.primary.setup
        yield f"{plan.stage.name}-fallback", plan.fallback.setup
    base = next(plan.primary.setup for plan in stage_plans() if plan.stage.name == "stage3").but(zero_stage=3)
    for offload in Offload:
        yield f"offload-{offload}", base.but(offload=offload)
    yield "fp16", base.but(precision=Precision.FP16)
    yield "hpz", base.but(shard_ranks=8)
    yield "zero-1", base.but(zero_stage=1, checkpointing=Checkpointing.NONE)
    yield "states in bf16", base.but(zero_stage=2, bf16_states=True)
    yield "zero-0", base.but(zero_stage=0)
    pipeline = base.but(zero_stage=1, framework=Framework.MEGATRON_DEEPSPEED, dp=base.dp // 8, tp=4, pp=2)
    yield "pipeline", pipeline


@pytest.mark.parametrize("setup", [pytest.param(setup, id=name) for name, setup in setups()])
def test_deepspeed_knows_every_key(setup: Setup) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig  # Here: every process that only collects would import it.
    from deepspeed.runtime.lr_schedules import WarmupCosineLR
    from torch.optim import AdamW

    emitted = dict(config_of(setup, 1e11).config)
    emitted["train_batch_size"] //= setup.dp  # Parsed by one process alone: its world is one rank.
    asked = Asked(emitted)
    parsed = DeepSpeedConfig(asked)
    assert list(parsed._param_dict.ignored()) == []
    assert parsed.zero_optimization_stage == setup.zero_stage
    assert set(emitted.get("pipeline", {})) <= set(DeepSpeedConfig({"train_batch_size": 1}).pipeline)
    # What is built from these sections takes their parameters.
    for section, made in (("optimizer", AdamW), ("scheduler", WarmupCosineLR)):
        assert emitted[section]["type"] == made.__name__
        assert set(emitted[section]["params"]) <= set(inspect.signature(made).parameters)
