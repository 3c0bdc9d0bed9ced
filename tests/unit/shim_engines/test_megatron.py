"""A loop around megatron-core: what attach() refuses, and where a step ends. The real package is played in a drill."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines.base import Options
from trainer_shim.engines.frameworks.megatron import MegatronKind, _Steps, torch_optimizers
from trainer_shim.engines.select import kind_of
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.tokens import TokenCount


class Module:
    """Known by name only, as torch's class is."""

    __module__ = "torch.nn.modules.module"


class MegatronOptimizer:
    __module__ = "megatron.core.optimizer.optimizer"

    def __init__(self, clip_grad: float = 1.0, optimizer: object | None = None) -> None:
        self.config = SimpleNamespace(clip_grad=clip_grad)
        self.optimizer = optimizer
        self.param_groups = [{"lr": 0.1}]


class ChainedOptimizer(MegatronOptimizer):
    def __init__(self, *chained: MegatronOptimizer) -> None:
        self.chained_optimizers = list(chained)
        self.param_groups = []


class Watch(NoWatch):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def step_frame(self, fields: dict[str, Any]) -> None:
        self.seen.append({name: fields.get(name) for name in ("step", "applied", "grad_norm", "skipped_steps")})

    def at_boundary(self, step: int) -> None:
        self.seen.append(step)


def steps_of(optimizer: MegatronOptimizer) -> tuple[_Steps, list[Any]]:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = watch = Watch()
    return _Steps(optimizer, meter), watch.seen


def frame(step: int, applied: bool, norm: float | None, skipped: int | None = None) -> dict[str, Any]:
    return {"step": step, "applied": applied, "grad_norm": norm, "skipped_steps": skipped}


@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        ([Module()], MegatronOptimizer(), r"write attach\(model\[0\], ...\)"),
        ([Module(), Module()], MegatronOptimizer(), "a virtual pipeline is not watched"),
        (Module(), [MegatronOptimizer(), MegatronOptimizer()], "ChainedOptimizer"),
        ([Module()], object(), r"attach\(\) takes a DeepSpeedEngine"),
    ],
)
def test_what_it_cannot_watch_is_refused_in_one_line(model: Any, optimizer: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        kind_of(model, Options(optimizer=optimizer))


@pytest.mark.parametrize("optimizer", [MegatronOptimizer(), [ChainedOptimizer()]], ids=["alone", "in a list"])
def test_a_module_with_megatrons_optimizer_is_known_by_its_class(optimizer: Any) -> None:
    assert isinstance(kind_of(Module(), Options(optimizer=optimizer)), MegatronKind)


def test_a_save_function_is_needed() -> None:
    kind = MegatronKind(Module(), Options(optimizer=MegatronOptimizer()))
    assert "save_fn=" in str(kind.cannot_save("/c"))
    assert "checkpoint_dir=" in str(kind.cannot_save(None))
    saving = MegatronKind(Module(), Options(optimizer=MegatronOptimizer(), save_fn=print))
    assert saving.cannot_save("/c") is None


def test_optimizers_inside_of_a_chain_come_in_the_order_of_their_steps() -> None:
    first, second = object(), object()
    chain = ChainedOptimizer(MegatronOptimizer(optimizer=first), ChainedOptimizer(MegatronOptimizer(optimizer=second)))
    assert torch_optimizers(chain) == [first, second]
    assert torch_optimizers(MegatronOptimizer()) == [], "a rank without a trained parameter"


def test_a_step_that_is_skipped_counts_and_is_not_applied() -> None:
    steps, seen = steps_of(MegatronOptimizer())
    for result in ((True, 0.5, 0), (False, None, None), (True, 0.25, 0)):
        assert steps.step(lambda result=result: result) == result
    assert [one for one in seen if isinstance(one, dict)] == [
        frame(1, True, 0.5),
        frame(2, False, None, 1),
        frame(3, True, 0.25, 1),
    ]


@pytest.mark.parametrize(
    ("optimizer", "norm"),
    [(MegatronOptimizer(0.0), None), (MegatronOptimizer(1.0), 0.0), (ChainedOptimizer(MegatronOptimizer(0.0)), 0.0)],
    ids=["computes none", "clips", "a chain computes one"],
)
def test_a_norm_of_zero_is_one_only_where_it_was_computed(optimizer: MegatronOptimizer, norm: float | None) -> None:
    steps, seen = steps_of(optimizer)
    steps.step(lambda: (True, 0.0, 0))
    assert seen[0] == frame(1, True, norm)


def test_a_step_is_over_with_the_next_zero_grad_or_at_once_where_none_comes() -> None:
    steps, seen = steps_of(MegatronOptimizer())
    order: list[Any] = []
    for call in ("zero_grad", "step", "scheduler", "zero_grad", "step", "step", "step"):
        method = getattr(steps, call, None)
        if method is not None:
            method(lambda: (True, 1.0, 0))
        order.append((call, [one for one in seen if isinstance(one, int)]))
    assert order == [
        ("zero_grad", []),
        ("step", []),
        ("scheduler", []),
        ("zero_grad", [1]),
        ("step", [1]),
        ("step", [1, 2, 3]),  # Nothing was zeroed before it, so nothing has to be after it.
        ("step", [1, 2, 3, 4]),
    ]
