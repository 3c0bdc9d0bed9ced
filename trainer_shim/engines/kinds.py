"""Which engine an object is, found by its class's name and module: importing frameworks to ask would load them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Protocol

from trainer_shim.interfaces import Saver
from trainer_shim.meter import StepMeter


class Options(NamedTuple):
    """What the user told attach() about saving and stepping."""

    checkpoint_dir: Optional[str] = None
    optimizer: Any = None
    stateful: Mapping[str, Any] = {}
    save_fn: Optional[Callable[..., Any]] = None
    load_fn: Optional[Callable[..., Any]] = None


class Kind(Protocol):
    """One kind of engine."""

    def checkpoint_dir(self) -> Optional[str]:
        """Return the directory that the engine's own configuration names, if any."""

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        """Return how this engine saves into `directory`."""

    def hello_fields(self) -> Dict[str, Any]:
        """Return hello fields: framework, zero_stage, parameters."""

    def token_replicas(self) -> int:
        """Return how many ranks see different tokens."""

    def step(self) -> int:
        """Return the absolute step it stands at."""

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        """Hook it. Returns what takes the hooks off."""


def kind_of(engine: Any, options: Options) -> Kind:
    """Return the kind of `engine`. TypeError with one clear line for anything else."""
    names = {(base.__module__.split(".")[0], base.__name__) for base in type(engine).__mro__}
    if ("deepspeed", "PipelineEngine") in names or ("deepspeed", "DeepSpeedEngine") in names:
        from .deepspeed_kind import DeepSpeedKind

        return DeepSpeedKind(engine, is_pipeline=("deepspeed", "PipelineEngine") in names)
    if ("transformers", "Trainer") in names:
        from .hf import TrainerKind

        return TrainerKind(engine)
    if ("accelerate", "Accelerator") in names:
        from .hf import accelerator_kind

        return accelerator_kind(engine, options)
    if ("torch", "Module") in names:
        from .plain import PlainKind

        return PlainKind(engine, options)
    raise TypeError(
        "attach() takes a DeepSpeedEngine, PipelineEngine, transformers.Trainer, accelerate.Accelerator or torch "
        "module, not %s.%s" % (type(engine).__module__, type(engine).__qualname__)
    )
