"""What a stage of a pipeline waits for, and what an offloaded optimizer takes: without DeepSpeed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim import timing
from trainer_shim.engines import hooks
from trainer_shim.engines.deepspeed_comm import wrap_backend
from trainer_shim.engines.waits import offload
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.tokens import TokenCount


def make_meter() -> StepMeter:
    return StepMeter(Progress(threading.get_ident()), TokenCount(512, None, 1))


class Backend:
    """Notes in which part of the step its collective runs."""

    def __init__(self, meter: StepMeter) -> None:
        self.meter = meter
        self.parts: list[int] = []

    def all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        self.parts.append(self.meter.clock.part)


STAGES, REPLICAS = object(), object()


@pytest.mark.parametrize(
    ("args", "kwargs", "inside"),
    [
        (("tensor", "sum", STAGES), {}, timing.BUBBLE),  # As deepspeed.comm calls it.
        (("tensor",), {"group": STAGES}, timing.BUBBLE),
        (("tensor", "sum", REPLICAS), {}, timing.OPTIMIZER),
        (("tensor",), {}, timing.OPTIMIZER),
    ],
)
def test_a_collective_of_all_stages_is_a_wait_for_them(args: Any, kwargs: Any, inside: int) -> None:
    meter = make_meter()
    backend = Backend(meter)
    unwrap = wrap_backend(backend, meter, [STAGES])
    meter.clock.switch(timing.OPTIMIZER)
    backend.all_reduce(*args, **kwargs)
    assert backend.parts == [inside]
    assert meter.clock.part == timing.OPTIMIZER, "back where it was"
    assert (meter.clock.comm_ns > 0) == (inside == timing.OPTIMIZER), "it has a name already"
    unwrap()
    assert "all_reduce" not in vars(backend)


def test_a_collective_of_all_stages_in_an_evaluation_is_the_evaluations() -> None:
    meter = make_meter()
    backend = Backend(meter)
    wrap_backend(backend, meter, [STAGES])
    meter.clock.switch(timing.EVAL)
    backend.all_reduce("tensor", group=STAGES)
    assert backend.parts == [timing.EVAL] == [meter.clock.part]


class Optimizer:
    """Steps on the CPU, as torch's do: hooks first."""

    def __init__(self) -> None:
        self.before: list[Any] = []

    def register_step_pre_hook(self, hook: Any) -> Any:
        self.before.append(hook)
        return SimpleNamespace(remove=lambda: self.before.remove(hook))

    def step(self) -> None:
        for hook in self.before:
            hook(self, (), {})


class ZeroOptimizer:
    def __init__(self, overflows: bool = False) -> None:
        self.optimizer = Optimizer()
        self._overflows = overflows

    def step(self) -> None:
        if not self._overflows:
            self.optimizer.step()


def an_engine(device: str | None, *, overflows: bool = False) -> Any:
    asked = None if device is None else SimpleNamespace(device=device)
    return SimpleNamespace(optimizer=ZeroOptimizer(overflows), zero_offload_optimizer=lambda: asked)


def told(meter: StepMeter) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    meter.overlapping.put(fields, timing.StepTimes(10**12, [0] * timing.PARTS_TOTAL, 0))
    return fields


def test_an_offloaded_optimizer_tells_its_time_once() -> None:
    meter, engine, undo = make_meter(), an_engine("cpu"), hooks.Undo()
    offload.watch(engine, meter, undo)
    for _ in range(200):  # A microsecond at least.
        engine.optimizer.step()
    assert told(meter)["offload_s"] > 0
    assert told(meter) == {"offload_s": 0.0}
    undo()
    assert engine.optimizer.optimizer.before == []
    assert "step" not in vars(engine.optimizer)
    assert told(meter) == {}


def test_a_step_with_an_overflow_computes_nothing_on_the_cpu() -> None:
    meter, engine = make_meter(), an_engine("cpu", overflows=True)
    offload.watch(engine, meter, hooks.Undo())
    for _ in range(200):
        engine.optimizer.step()
    assert told(meter) == {"offload_s": 0.0}


@pytest.mark.parametrize("device", [None, "none"])
def test_without_offload_in_the_configuration_nothing_is_hooked(device: str | None) -> None:
    meter, engine = make_meter(), an_engine(device)
    offload.watch(engine, meter, hooks.Undo())
    assert engine.optimizer.optimizer.before == []
    assert told(meter) == {}
