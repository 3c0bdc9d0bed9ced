"""What a framework's checkpoint will not have of what the optimizer trains: told when training begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines.base import Options
from trainer_shim.engines.frameworks.accelerate_loops import AcceleratePlainKind
from trainer_shim.engines.frameworks.hf import TrainerRun
from trainer_shim.engines.frameworks.lightning_checkpoints import tell_outside

from .test_trained import HEAD, MODEL, B, Module, Optimizer, Scheduler, Tensor, W, scheduled

ALL = Optimizer([W, B, HEAD])


class FSDPModule(Module):
    """The base that torch's fully_shard() gives a module."""


def accelerate(**given: Any) -> None:
    facts = {"_models": [MODEL], "_custom_objects": [], "_save_model_state_pre_hook": {}, "is_main_process": True}
    facts["_schedulers"] = []
    accelerator = SimpleNamespace(**{**facts, **given})
    kind = AcceleratePlainKind(accelerator, Options(optimizer=[given.get("optimizer", ALL)]))
    kind._tell_outside(True)
    kind._tell_schedule()


def lightning(module: Any, strategy: object = None) -> None:
    trainer: Any = SimpleNamespace(strategy=strategy, is_global_zero=True)
    tell_outside(trainer, module, [ALL])


class Trainer:
    def __init__(self, model: Module) -> None:
        self.model, self.optimizer = model, Scheduler(ALL)

    def is_world_process_zero(self) -> bool:
        return True


def layerwise() -> None:
    """transformers' LayerWiseDummyOptimizer: it holds one tensor of its own, and one optimizer for each parameter."""
    made = Trainer(MODEL)
    made.optimizer = Optimizer([Tensor(1)])
    made.optimizer.optimizer_dict = {W: Optimizer([W]), B: Optimizer([B])}
    trainer(made)


class Saving(Trainer):
    def _save_checkpoint(self) -> None:
        pass


def trainer(made: Trainer, wrapped: Module = MODEL) -> None:
    TrainerRun(made, SimpleNamespace(), SimpleNamespace())._tell_outside(wrapped)  # type: ignore[arg-type]


class Hooked(Module):
    def on_save_checkpoint(self) -> None:
        pass


class Fitted:
    """A LightningModule: saving is Lightning's."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def parameters(self) -> tuple[Tensor, ...]:
        return self._tensors


class FSDPStrategy:
    pass


LOST: dict[str, Any] = {
    "accelerate": (accelerate, "register_for_checkpointing(module)"),
    "a state that has another tensor": (
        lambda: accelerate(_custom_objects=[Module({"head": Tensor(999)})]),
        "register_for_checkpointing(module)",
    ),
    "lightning": (lambda: lightning(Fitted(W, B)), "on_save_checkpoint()"),
    "trainer": (lambda: trainer(Trainer(MODEL)), "_save_checkpoint()"),
}
KEPT: dict[str, Any] = {
    "registered": lambda: accelerate(_custom_objects=[Module({"head": HEAD})]),
    "registered, with a state of its own": lambda: accelerate(
        _custom_objects=[SimpleNamespace(state_dict=lambda: {"weights": [HEAD]})]
    ),
    "saved by a hook": lambda: accelerate(_save_model_state_pre_hook={1: print}),
    "sharded": lambda: accelerate(_models=[FSDPModule()]),
    "another engine's": lambda: accelerate(distributed_type=SimpleNamespace(value="MEGATRON_LM")),
    "of a part that is the model's": lambda: lightning(Fitted(W, B, HEAD)),
    "saved by the module": lambda: lightning(Hooked()),
    "saved by shards": lambda: lightning(Fitted(W, B), FSDPStrategy()),
    "saved by the trainer's own": lambda: trainer(Saving(MODEL)),
    "a wrapper has it": lambda: trainer(Trainer(MODEL), Module({"module.head": HEAD})),
}


@pytest.mark.parametrize("how", LOST)
def test_what_a_framework_will_not_save_is_named_with_what_to_write(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COSTGOV_REQUIRED", raising=False)
    train, remedy = LOST[how]
    train()
    said = capsys.readouterr().err
    assert "NOT SAVED: the optimizer trains 1 tensor (4: 4 elements)" in said
    assert remedy in said
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    with pytest.raises(SystemExit, match="no checkpoint has"):
        train()


def test_of_layerwise_optimizers_the_state_is_told_and_not_the_tensor_that_stands_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COSTGOV_REQUIRED", raising=False)
    layerwise()
    said = capsys.readouterr().err
    assert "state of the layerwise optimizers" in said
    assert "outside of" not in said
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    with pytest.raises(SystemExit, match="no checkpoint has"):
        layerwise()


@pytest.mark.parametrize("how", KEPT)
def test_what_is_saved_or_perhaps_saved_is_not_told(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    KEPT[how]()
    assert capsys.readouterr().err == ""


def test_a_scheduler_that_save_state_does_not_have_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = scheduled()
    accelerate(optimizer=optimizer)
    assert "accelerator.register_for_checkpointing(scheduler)" in capsys.readouterr().err
    accelerate(optimizer=optimizer, _schedulers=[Scheduler(optimizer)])
    assert capsys.readouterr().err == ""
