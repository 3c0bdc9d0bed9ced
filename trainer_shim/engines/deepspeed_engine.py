"""DeepSpeedEngine: ZeRO 0-3, any precision, any gradient accumulation, under its own loop, HF or Accelerate.

Hooks (names stable from 0.14 on): instance attributes over `forward`, `backward`, `step`, `train`, `eval`,
`save_checkpoint` and `load_checkpoint`. The monitor carries no loss, wall_clock_breakdown crashes the pipeline, the
comms logger synchronises: none of them is used.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from trainer_shim import device_timing
from trainer_shim.guard import guarded, print_line
from trainer_shim.interfaces import Saver
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint
from trainer_shim.saving.pickled_values import Budget, values_of
from trainer_shim.scalars import EngineFacts
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

from . import base, hooks, replicas
from .deepspeed_checkpoints import hold_write_errors, load_beside_frozen, noted_at, states_in, step_in
from .deepspeed_comm import wrap_backend
from .waits import offload, recompute


class DeepSpeedKind:
    """A DeepSpeedEngine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def checkpoint_dir(self) -> Optional[str]:
        """DeepSpeed's configuration names none: the script passes it to save_checkpoint."""
        return None

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return DeepSpeedSaver(self._engine, meter, directory)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None  # Without a directory it learns the script's own, at the first save_checkpoint.

    def hello_fields(self) -> Dict[str, Any]:
        return hello_fields(self._engine)

    def replicas(self, batch: Any) -> Replicas:
        return replicas_of(self._engine)

    def step(self) -> int:
        return int(self._engine.global_steps)

    def keeper(self) -> Any:
        return self._engine

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        return instrument(self._engine, meter, meter.boundary)


class DeepSpeedSaver(base.PositionSaver):
    """Saves and loads through the engine's own collective calls."""

    _engine, _save = (keeping.Of() for _ in range(2))

    def __init__(self, engine: Any, meter: StepMeter, directory: Optional[str]) -> None:
        super().__init__(meter)
        keeping.keep_at(engine, self)
        self.directory = directory
        self._engine = engine
        self._save = engine.save_checkpoint

    def contents(self) -> Dict[str, Any]:
        return base.counted(self._engine.module.parameters(), [getattr(self._engine, "optimizer", None)])

    def trained(self) -> Iterable[Tuple[str, Any]]:
        return _trained(self._engine)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        """`latest` stays where it is: DeepSpeed moves it before the other ranks have written."""
        self.begin_save()
        undo = hooks.Undo()
        errors = hold_write_errors(self._engine, undo)
        try:
            saved = self._save(directory, tag=tag, client_state=client_state, save_latest=False)
        finally:
            undo()
        if errors:
            raise errors[0]
        if not saved:
            raise OSError("save_checkpoint(%r) did not succeed" % tag)

    def pending(self) -> bool:
        engine = getattr(self._engine, "checkpoint_engine", None)
        decoupled = getattr(engine, "is_decoupled", None)  # Absent before 0.17.
        if decoupled is None or not decoupled():
            return False
        return engine is not None and engine.get_commit_info() is not None

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return one that the script saved by itself. Its step is known once it is loaded."""
        states = states_in(path)
        return base.own_manifest(step_in(states, values_of), path, states[0]) if states else None

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return those that the script saved by itself below `directory`, by whatever tag."""
        return list(self._own(directory))

    def _own(self, directory: str) -> Iterator[Dict[str, Any]]:
        names = os.listdir(directory) if os.path.isdir(directory) else []
        found = {path: states_in(path) for path in sorted(os.path.join(directory, name) for name in names)}
        there = {path: states for path, states in found.items() if states}
        budget = Budget()
        for path in sorted(there, key=lambda path: os.path.getmtime(there[path][0]), reverse=True):
            states = there[path]
            if os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
                continue
            step = step_in(states, budget.values_of)
            if step is not None:
                yield base.own_manifest(step, path, states[0])
            elif int(self._engine.global_rank) == 0:
                print_line("passing over %s: no global_steps can be read in its model states" % path)

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        undo, engine = hooks.Undo(), self._engine
        hooks.replace(undo, engine.module, "load_state_dict", hooks.around(load_beside_frozen, engine))
        try:
            # The hooked method: it reports the phase and takes the counters over.
            path, client_state = engine.load_checkpoint(directory, tag=tag)
        finally:
            undo()
        if path is None:
            raise FileNotFoundError("no checkpoint %r in %s" % (tag, directory))
        return dict(client_state or {})


class DeepSpeedFacts:
    """Reads what a DeepSpeed engine knows at a step's end, without believing what is known to be stale."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._skipped_before = int(engine.skipped_steps)
        # It exists from 0.18 on. Asking a module for a missing name costs 2 us, so it is looked up once.
        self._read_loss_scale = getattr(engine, "_get_optimizer_loss_scale", None)

    def rebase(self) -> None:
        """The engine's counters were loaded from a checkpoint: skipped steps count since launch."""
        self._skipped_before = int(self._engine.skipped_steps)

    def read(self) -> EngineFacts:
        """Return the facts of the update that just ended."""
        engine = self._engine
        is_applied = engine.was_step_applied() is not False
        optimizer = engine.optimizer
        # On overflow the norm is the previous step's, or -1, or inf, depending on version and stage.
        norm = None
        if is_applied and getattr(optimizer, "overflow", False) is False:
            norm = engine.get_global_grad_norm()
            norm = None if isinstance(norm, (int, float)) and norm == -1 else norm
        read = self._read_loss_scale
        scale = read() if read is not None else getattr(optimizer, "cur_scale", None)
        return EngineFacts(
            engine.global_steps,
            applied=is_applied,
            grad_norm=norm,
            lr=_first_number(engine.get_lr()),
            loss_scale=float(scale) if isinstance(scale, (int, float)) else None,
            skipped_steps=engine.skipped_steps - self._skipped_before,
        )


def instrument(engine: Any, meter: StepMeter, at_boundary: Callable[[], None]) -> hooks.Undo:
    """Hook `engine`; `at_boundary` is called after each optimizer update, on the training thread."""
    import torch

    undo = hooks.Undo()
    facts = DeepSpeedFacts(engine)
    hooks.replace(undo, engine, "forward", hooks.around(_forward, engine.module, meter, torch.is_grad_enabled))
    hooks.replace(undo, engine, "backward", hooks.around(_backward, meter))
    hooks.replace(undo, engine, "step", hooks.around(_step, engine, meter, facts, at_boundary))
    instrument_modes_and_checkpoints(engine, meter, facts, undo)
    return undo


def instrument_modes_and_checkpoints(
    engine: Any, meter: StepMeter, facts: DeepSpeedFacts, undo: hooks.Undo, stages: Sequence[Any] = ()
) -> None:
    """The hooks that DeepSpeedEngine and PipelineEngine share. `stages`: process groups that span a pipeline's."""
    hooks.replace(undo, engine, "train", hooks.around(_train, meter))
    hooks.replace(undo, engine, "eval", hooks.around(_eval, meter))
    hooks.replace(undo, engine, "save_checkpoint", hooks.around(_save_checkpoint, engine, meter))
    hooks.replace(undo, engine, "load_checkpoint", hooks.around(_load_checkpoint, engine, meter, facts))
    device = device_timing_of(engine)
    meter.time_device(device)
    if device is None:
        recompute.watch(meter, undo)
    import deepspeed.comm.comm as deepspeed_comm

    if deepspeed_comm.cdb is not None:
        undo.add(wrap_backend(deepspeed_comm.cdb, meter, stages))
    offload.watch(engine, meter, undo)


def device_timing_of(engine: Any) -> Optional[device_timing.DeviceTimer]:
    """Return a device timer where the engine's device runs behind the host."""
    import torch

    return device_timing.for_device(torch, torch.device(engine.device).type)


def hello_fields(engine: Any) -> Dict[str, Any]:
    """Return what the engine's own configuration tells about the run."""
    fields: Dict[str, Any] = {
        "framework": "deepspeed",
        "zero_stage": int(engine.zero_optimization_stage()),
        "parameters": count_parameters(engine.module),
    }
    return {name: value for name, value in fields.items() if value is not None}


def replicas_of(engine: Any) -> Replicas:
    """Ranks of its data groups, those of sequence parallelism included: its loaders cut the sequences for these.

    Tensor, pipeline and expert-parallel ranks have no part in that group, or are data-parallel ranks at once.
    """
    import torch.distributed as distributed

    is_automatic = getattr(engine, "compile_autosp", None)
    if is_automatic is not None and is_automatic():
        return replicas.unknown(distributed.get_world_size(), "AutoSP cuts sequences in the graph, or not at all")
    size, parts = engine.dp_world_size, int(getattr(engine, "sequence_parallel_size", 1) or 1)
    if parts == 1 or size is None:  # One with sequence parallelism alone has no data group of its own.
        return replicas.of_group(distributed, engine.seq_data_parallel_group, "DeepSpeed's groups")
    place = int(distributed.get_rank(engine.data_parallel_group)) * parts
    place += int(distributed.get_rank(engine.seq_parallel_group))
    return Replicas(int(size) * parts, "DeepSpeed's groups", place)


def count_parameters(module: Any) -> Optional[int]:
    """Return the whole model's parameters; under ZeRO-3 a parameter's own shape is empty and `ds_numel` tells."""
    total = sum(int(getattr(p, "ds_numel", None) or p.numel()) for p in module.parameters())
    return total or None


def _forward(
    module: Any,
    meter: StepMeter,
    is_grad_enabled: Callable[[], bool],
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    # engine.eval() does not touch engine.training: the module's flag tells.
    meter.enter_forward(module.training and is_grad_enabled(), args, kwargs)
    output = original(*args, **kwargs)
    meter.exit_forward(output)
    return output


def _backward(meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    loss = args[0] if args else kwargs.get("loss")
    # HF divides by the accumulation itself, and passes this flag.
    meter.enter_backward(loss, kwargs.get("scale_wrt_gas", True) is False)
    try:
        return original(*args, **kwargs)
    finally:
        meter.exit_backward()


def _step(
    engine: Any,
    meter: StepMeter,
    facts: DeepSpeedFacts,
    at_boundary: Callable[[], None],
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    before = engine.global_steps
    meter.enter_optimizer()
    try:
        result = original(*args, **kwargs)
    finally:
        meter.exit_optimizer()
    # step() at a micro-step does nothing; only the counter tells an update.
    if engine.global_steps != before:
        _end_step(meter, facts)
        at_boundary()
    return result


@guarded()
def _end_step(meter: StepMeter, facts: DeepSpeedFacts) -> None:
    meter.end_step(facts.read())


def _train(meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    meter.set_training(bool(args[0] if args else kwargs.get("mode", True)))
    return original(*args, **kwargs)


def _eval(meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    meter.set_training(False)
    return original(*args, **kwargs)


def _trained(engine: Any) -> List[Tuple[str, Any]]:
    return base.watched(engine.module.named_parameters(), [getattr(engine, "optimizer", None)])


def _save_checkpoint(engine: Any, meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    part = meter.enter_phase("checkpoint")
    if meter.announces_saves:
        weights.look(meter.progress, lambda: _trained(engine))
    try:
        saved = original(*args, **kwargs)
    finally:
        meter.exit_phase(part, False)
    if saved:
        directory = args[0] if args else kwargs.get("save_dir")
        tag = args[1] if len(args) > 1 else kwargs.get("tag")
        _report_last_good(engine, meter, directory, tag)
    return saved


@guarded()
def _report_last_good(engine: Any, meter: StepMeter, directory: Any, tag: Any) -> None:
    meter.learn_directory(str(directory))
    decoupled = getattr(getattr(engine, "checkpoint_engine", None), "is_decoupled", None)
    if decoupled is not None and decoupled():
        return  # It becomes whole in a later step, and nothing announces that.
    name = str(tag or "global_step%d" % engine.global_steps)
    base.report_last_good(meter, engine.global_steps, os.path.abspath(os.path.join(directory, name)))


def _load_checkpoint(
    engine: Any, meter: StepMeter, facts: DeepSpeedFacts, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    part = meter.enter_phase("checkpoint")
    try:
        loaded = original(*args, **kwargs)
    finally:
        meter.exit_phase(part, True)
    if loaded[0] is not None:
        _after_load(engine, meter, facts, str(loaded[0]))
    return loaded


@guarded()
def _after_load(engine: Any, meter: StepMeter, facts: DeepSpeedFacts, path: str) -> None:
    facts.rebase()
    # The script may load a checkpoint of ours: its rank file knows how many tokens went before.
    place = path if os.path.isdir(path) else os.path.dirname(path)
    rank = int(engine.global_rank)
    base.go_on_from(meter, int(engine.global_steps), noted_at(place, rank), rank)
    meter.learn_directory(os.path.dirname(place), is_loaded=True)


def _first_number(values: Optional[List[Any]]) -> Optional[float]:
    first = values[0] if values else None
    return float(first) if isinstance(first, (int, float)) else None
