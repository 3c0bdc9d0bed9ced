"""A loop of one's own around an Accelerator: plain, or over its DeepSpeed plugin. It saves by save_state().

What the script saves by itself counts, too: beside each of its checkpoints every rank notes its step, generators and
data position, which Accelerate does not know or does not keep.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from trainer_shim.engines import base, hooks, plain, replicas, save_fn, trained
from trainer_shim.engines.base import Options
from trainer_shim.engines.deepspeed_engine import DeepSpeedKind
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.interfaces import Saver
from trainer_shim.lifetime import keeping
from trainer_shim.loader import WrappedLoader, position_of, prepare
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint, loader_position, rng
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

from .hf import through_backward

_GENERATORS = "random_states_%d.pkl"  # What save_state() writes for each rank.
_UNDEALT = (
    "accelerator.prepare() has not seen a wrapped loader. Each of the %d ranks that iterates it reads all of it. "
    "Write: loader = shim.wrap_loader(accelerator.prepare(loader))"
)
_NUMBERED = re.compile(r"^checkpoint_(\d+)$")


class AccelerateSaver(base.PositionSaver):
    """Saves through the user's function, else accelerator.save_state()."""

    _accelerator, _save_fn, _load_fn = (keeping.Of() for _ in range(3))

    def __init__(self, meter: StepMeter, directory: Optional[str], accelerator: Any, options: Options) -> None:
        super().__init__(meter)
        keeping.keep_at(accelerator, self)
        self.directory = _beside_automatic(accelerator, directory)
        self._accelerator = accelerator
        self._save_fn = save_fn.of(options.save_fn)
        self._load_fn = options.load_fn
        self._numbered = _numbered(accelerator)
        self._sparing = base.Sparing()

    def contents(self) -> Dict[str, Any]:
        parameters = [parameter for model in self._accelerator._models for parameter in model.parameters()]
        return base.counted(parameters, self._accelerator._optimizers, has_state=self._save_fn is None)

    def trained(self) -> Iterable[Tuple[str, Any]]:
        named = [one for model in self._accelerator._models for one in model.named_parameters()]
        return base.watched(named, self._accelerator._optimizers)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        """save_state() keeps no client_state: rank 0's manifest has what matters of it."""
        self.begin_save()
        if self._save_fn is not None:
            self._save_fn(directory, tag, client_state)
            return
        # With its automatic naming on, save_state() takes no directory, and deletes an older checkpoint for a new one.
        naming = getattr(self._accelerator, "project_configuration", None)
        before = dict(vars(naming)) if naming is not None else {}
        try:
            if naming is not None:
                naming.automatic_checkpoint_naming = False
            with self._meter.unannounced():
                self._accelerator.save_state(os.path.join(directory, tag))
        finally:
            for name in ("automatic_checkpoint_naming", "iteration"):
                if name in before:
                    setattr(naming, name, before[name])

    def pending(self) -> bool:
        return self._save_fn is not None and self._save_fn.pending()

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        if self._load_fn is not None:
            return dict(self._load_fn(directory, tag) or {})
        with self._meter.unannounced():
            self._accelerator.load_state(os.path.join(directory, tag))
        naming = getattr(self._accelerator, "project_configuration", None)
        if self._numbered is not None and naming is not None and naming.iteration == 0:
            # Accelerate counts from 0 in each process, and refuses a number that is taken.
            naming.iteration = max(_numbers(self._numbered), default=-1) + 1
        return {}

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return those that the script saved by itself and of which this rank noted its part."""
        return list(self._own(directory))

    def _own(self, directory: str) -> Iterator[Dict[str, Any]]:
        rank = int(self._accelerator.process_index)
        for path in (path for folder in {directory, self._numbered or directory} for path in _below(folder)):
            if os.path.lexists(os.path.join(path, checkpoint.MANIFEST)):
                continue
            step = _noted_step(path, rank)
            if step is not None:
                yield base.own_manifest(step, path, os.path.join(path, checkpoint.rank_file(rank)))
            elif rank == 0 and os.path.isfile(os.path.join(path, _GENERATORS % rank)):
                print_line("passing over %s: it was saved without costgov, or after a loss that was not finite" % path)

    def resume_places(self) -> List[str]:
        """Return the folder that Accelerate numbers, where it does."""
        return [] if self._numbered is None else [self._numbered]

    def homes(self) -> List[str]:
        return [*super().homes(), *self.resume_places()]

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return one that the script saved by itself and of which this rank noted its part."""
        rank = int(self._accelerator.process_index)
        step = _noted_step(path, rank)
        if step is not None:
            return base.own_manifest(step, path, os.path.join(path, checkpoint.rank_file(rank)))
        if os.path.isfile(os.path.join(path, _GENERATORS % rank)):
            raise ValueError("was saved without costgov, and its step is not known: accelerator.load_state() loads it")
        return None

    def hook_saves(self, undo: hooks.Undo) -> None:
        """See what the script saves."""
        hooks.replace(undo, self._accelerator, "save_state", hooks.around(self._save_state))

    def hook_loads(self, undo: hooks.Undo) -> None:
        """See what the script loads. An engine below sees that itself."""
        hooks.replace(undo, self._accelerator, "load_state", hooks.around(self._load_state))

    def _load_state(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._meter.announces_saves:
            self._go_on(args[0] if args else kwargs.get("input_dir"))
        return result

    @guarded()
    def _go_on(self, directory: Any) -> None:
        """The script goes on from what it saved by itself: there stands its step, and what went before."""
        if directory is None and self._numbered is not None:  # Accelerate takes its newest.
            directory = os.path.join(self._numbered, "checkpoint_%d" % max(_numbers(self._numbered)))
        path, rank = os.path.abspath(str(directory)), int(self._accelerator.process_index)
        step = _noted_step(path, rank)
        if step is not None:
            base.go_on_from(self._meter, step, path, rank)

    def _save_state(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        meter = self._meter
        if not meter.announces_saves:
            return original(*args, **kwargs)
        naming: Any = getattr(self._accelerator, "project_configuration", None)
        part = meter.enter_phase("checkpoint")
        weights.look(meter.progress, self.trained)
        try:
            with self._sparing.around_save(meter.progress.is_good, naming, "total_limit"):
                self._forget_part(args[0] if args else kwargs.get("output_dir"))
                with meter.unannounced():
                    path = original(*args, **kwargs)
        finally:
            meter.exit_phase(part, False)
        if meter.progress.is_good:
            self._note_part(path)
        else:
            base.report_last_good(meter, meter.progress.step, os.path.abspath(str(path)))
        return path

    @guarded()
    def _forget_part(self, directory: Any) -> None:
        """Until the directory is written again, its files and what was noted beside them may not belong together."""
        if directory:
            path = os.path.join(str(directory), checkpoint.rank_file(int(self._accelerator.process_index)))
            if os.path.lexists(path):
                os.unlink(path)

    @guarded()
    def _note_part(self, directory: Any) -> None:
        path = os.path.abspath(str(directory))
        state = {"v": 1, "rng": rng.capture(), "position": self.position()}
        checkpoint.write_rank_file(path, int(self._accelerator.process_index), state)
        base.report_last_good(self._meter, self._meter.progress.step, path)


def watch_loaders(accelerator: Any, undo: hooks.Undo) -> None:
    """Let prepare() take wrapped loaders. One that it has not dealt out to the ranks is told of."""
    hooks.replace(undo, accelerator, "prepare", hooks.around(_prepare_inner))
    known = keeping.known(accelerator)
    undo.add(loader_position.look_at_each(lambda loader: _tell_undealt(known(), loader)))


def _prepare_inner(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Accelerate knows a DataLoader by its class: so it gets the ones inside of ours, and ours stay what they are."""
    if not any(isinstance(one, WrappedLoader) for one in args):
        return original(*args, **kwargs)
    result = original(*(position_of(one).loader if isinstance(one, WrappedLoader) else one for one in args), **kwargs)
    made = list(result) if len(args) > 1 else [result]
    for index, one in enumerate(args):
        if isinstance(one, WrappedLoader):
            made[index] = _exchanged(one, made[index])
    return tuple(made) if len(args) > 1 else made[0]


def _exchanged(wrapped: WrappedLoader[Any], inner: Any) -> WrappedLoader[Any]:
    prepare(wrapped, lambda _: inner)
    return wrapped


def _tell_undealt(accelerator: Any, loader: Any) -> None:
    """A DataLoader that is neither Accelerate's nor has a sampler that deals out gives each rank all."""
    if accelerator is None or int(accelerator.num_processes) == 1 or int(accelerator.process_index):
        return
    loading = sys.modules.get("torch.utils.data")
    if loading is None or not isinstance(loader, loading.DataLoader):
        return
    is_prepared = any(one.__module__.split(".")[0] == "accelerate" for one in type(loader).__mro__)
    samplers = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
    if not is_prepared and not any(hasattr(one, "num_replicas") for one in samplers):
        print_line(_UNDEALT % int(accelerator.num_processes))


class _OverAccelerator:
    """What an Accelerate loop has, whatever trains in it: Accelerate saves, and its saves are seen."""

    _accelerator: Any
    _options: Options
    _saver: Optional[AccelerateSaver] = None

    def checkpoint_dir(self) -> Optional[str]:
        return _project_dir(self._accelerator)

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        self._saver = AccelerateSaver(meter, directory, self._accelerator, self._options)
        return self._saver

    def hook_accelerator(self, undo: hooks.Undo) -> None:
        watch_loaders(self._accelerator, undo)
        if self._saver is not None:
            self._saver.hook_saves(undo)


class AcceleratePlainKind(_OverAccelerator, plain.PlainKind):
    """An Accelerate loop without DeepSpeed: its first model and its optimizers."""

    def __init__(self, accelerator: Any, options: Options) -> None:
        super().__init__(accelerator._models[0], options)
        self._accelerator = accelerator

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None if directory else "no directory is known; pass checkpoint_dir=, or project_dir= to the Accelerator"

    def replicas(self, batch: Any) -> Replicas:
        """By the mesh of its parallelism configuration, else by what prepare() wrapped the model in."""
        parallel = getattr(self._accelerator, "parallelism_config", None)
        mesh = getattr(self._accelerator, "torch_device_mesh", None) if parallel is not None else None
        if mesh is None:
            return super().replicas(batch)
        return replicas.of_mesh(mesh, batch, int(self._accelerator.num_processes))

    @guarded()
    def _tell_outside(self, is_first: bool) -> None:
        """save_state() has the prepared models, what is registered, and what the script's own hooks save."""
        accelerator = self._accelerator
        sharded = any(plain.is_sharded(model) for model in accelerator._models)
        kind = getattr(getattr(accelerator, "distributed_type", None), "value", "")
        if sharded or kind == "MEGATRON_LM" or getattr(accelerator, "_save_model_state_pre_hook", None):
            return
        registered = list(getattr(accelerator, "_custom_objects", ()))
        states = [attempt(item.state_dict)[0] for item in registered]
        kept = [*trained.parameters_of([*accelerator._models, *registered]), *trained.tensors_in(states)]
        lost = trained.outside(trained.trained_by(self._optimizers), kept)
        remedy = "prepare() its module too, or accelerator.register_for_checkpointing(module), before attach()"
        trained.warn_lost(lost, "the prepared models", remedy, is_first)

    def _tell_schedule(self) -> None:
        accelerator = self._accelerator
        kept = [*accelerator._schedulers, *getattr(accelerator, "_custom_objects", ())]
        asks = self._options.save_fn is None and accelerator.is_main_process
        if asks and trained.lacks_schedule(self._optimizers, kept):
            print_line(trained.SCHEDULE_LOST % "prepare() it, or accelerator.register_for_checkpointing(scheduler)")

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        if self._options.save_fn is None:
            self._tell_outside(bool(self._accelerator.is_main_process))
        meter.defer_boundary()
        undo = plain.instrument(
            self._model,
            self._optimizers,
            meter,
            at_first_step=self._tell_schedule,
            listed="the optimizers of prepare()",
        )
        hooks.replace(undo, self._accelerator, "backward", hooks.around(through_backward, meter, False))
        meter.expect_backward()
        self.hook_accelerator(undo)
        if self._saver is not None:
            self._saver.hook_loads(undo)
        return undo


class AccelerateDeepSpeedKind(_OverAccelerator, DeepSpeedKind):
    """An Accelerate loop over its DeepSpeed plugin: the engine inside."""

    def __init__(self, accelerator: Any, engine: Any, options: Options) -> None:
        super().__init__(engine)
        self._accelerator = accelerator
        self._options = options

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        """engine.step() runs inside accelerator.backward(), before the scheduler's step."""
        meter.defer_boundary()
        undo = hooks.Undo()
        undo.add(super().instrument(meter))
        self.hook_accelerator(undo)
        return undo


def _project_dir(accelerator: Any) -> Optional[str]:
    directory = getattr(accelerator, "project_dir", None)
    return str(directory) if directory else None


def _numbered(accelerator: Any) -> Optional[str]:
    """Return the folder in which Accelerate numbers, deletes and finds checkpoints itself. None: it does not."""
    project = _project_dir(accelerator)
    naming = getattr(accelerator, "project_configuration", None)
    if project is None or not getattr(naming, "automatic_checkpoint_naming", False):
        return None
    return os.path.abspath(os.path.join(project, "checkpoints"))


def _beside_automatic(accelerator: Any, directory: Optional[str]) -> Optional[str]:
    """Return where to save instead of the folder that is Accelerate's own."""
    taken = _numbered(accelerator)
    if directory is None or taken is None or os.path.realpath(directory) != os.path.realpath(taken):
        return directory
    return os.path.dirname(taken)


def _noted_step(path: str, rank: int) -> Optional[int]:
    """Return the step that this rank has noted beside a checkpoint of the script's own."""
    step = ((checkpoint.read_rank_file(path, rank) or {}).get("position") or {}).get("step")
    return step if isinstance(step, int) else None


def _numbers(folder: str) -> List[int]:
    names = (os.path.basename(path) for path in _below(folder))
    return [int(found[1]) for found in map(_NUMBERED.match, names) if found is not None]


def _below(folder: str) -> List[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return []
