"""Which kind of engine an object is, by its class's name and module: importing frameworks to ask would load them.

A new kind is one class with the methods of base.Kind, in a file of its own (of a trainer: in frameworks/), and its
lines in kind_of(). README.md gets its column, tests/drills/shim_engines a loop that is trained with and without the
shim.
"""

from __future__ import annotations

from typing import Any, Iterable, Set, Tuple

from .base import Kind, Options, innermost


def kind_of(engine: Any, options: Options) -> Kind:
    """Return the kind of `engine`. TypeError with one clear line for anything else."""
    names = _names_of([engine])
    if ("deepspeed", "PipelineEngine") in names:
        from .pipeline_engine import PipelineKind

        return PipelineKind(engine)
    if ("deepspeed", "DeepSpeedEngine") in names:
        from .deepspeed_engine import DeepSpeedKind

        return DeepSpeedKind(engine)
    if ("transformers", "Trainer") in names:
        from .frameworks.hf import TrainerKind

        return TrainerKind(engine)
    if ("accelerate", "Accelerator") in names:
        return _accelerator_kind(engine, options)
    if names & {("lightning", "Trainer"), ("pytorch_lightning", "Trainer")}:
        from .frameworks.lightning import LightningKind

        return LightningKind(engine, options)
    if ("composer", "Trainer") in names:
        from .frameworks.composer import ComposerKind

        return ComposerKind(engine, options)
    is_module = ("torch", "Module") in names or isinstance(engine, (list, tuple))
    given = options.optimizer if isinstance(options.optimizer, (list, tuple)) else [options.optimizer]
    if is_module and ("megatron", "MegatronOptimizer") in _names_of(given):
        from .frameworks.megatron import MegatronKind

        return MegatronKind(engine, options)
    if ("torch", "Module") in names:
        from .plain import PlainKind

        return PlainKind(engine, options)
    raise TypeError(
        "attach() takes a DeepSpeedEngine, PipelineEngine, transformers.Trainer, lightning.pytorch.Trainer, "
        "composer.Trainer, accelerate.Accelerator or torch module (with optimizer=, of torch's or megatron-core's), "
        "not %s.%s" % (type(engine).__module__, type(engine).__qualname__)
    )


def _names_of(items: Iterable[Any]) -> Set[Tuple[str, str]]:
    """Return package and name of each class of these."""
    return {(base.__module__.split(".")[0], base.__name__) for item in items for base in type(item).__mro__}


def _accelerator_kind(accelerator: Any, options: Options) -> Kind:
    """Return the kind for a loop of the user's own around `accelerator`. TypeError before prepare()."""
    from .frameworks.accelerate_loops import AccelerateDeepSpeedKind, AcceleratePlainKind

    wrapped = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if wrapped is not None:
        return AccelerateDeepSpeedKind(accelerator, wrapped.engine, options)
    if not accelerator._models or not (options.optimizer or accelerator._optimizers):
        raise TypeError("attach(accelerator) comes after accelerator.prepare(model, optimizer, ...)")
    optimizers = options.optimizer or [innermost(item) for item in accelerator._optimizers]
    return AcceleratePlainKind(accelerator, options._replace(optimizer=optimizers))
