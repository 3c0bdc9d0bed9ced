"""composer.Trainer of MosaicML: a callback sees its events, a checkpoint is the Trainer's own, in our directory.

Composer reads its data up to the batch that a checkpoint stands at, and keeps each rank's generators in it.
"""

from __future__ import annotations

import glob
import importlib
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple
from weakref import ref

from trainer_shim import timing
from trainer_shim.engines import base, deepspeed_engine, hooks, plain, replicas, torch_calls
from trainer_shim.engines.waits import model_times
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.launch import is_required
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint
from trainer_shim.saving.pickled_values import Budget, values_of
from trainer_shim.scalars import EngineFacts
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

CHECKPOINT_FILE = "composer.pt"
_OWN_MAX = 16  # The newest files of Composer that are looked into.
_EVENTS = (
    "fit_start",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "after_train_batch",
    "batch_end",
    "batch_checkpoint",
    "eval_start",
    "eval_end",
    "fit_end",
)


class ComposerKind:
    """A Trainer of Composer, which has its model and optimizers from the start."""

    def __init__(self, trainer: Any, options: base.Options) -> None:
        if options.save_fn is not None:
            raise TypeError("attach(trainer) saves by trainer.save_checkpoint(): leave save_fn= out")
        self._trainer = trainer

    def checkpoint_dir(self) -> Optional[str]:
        folder = _folder(self._trainer)
        return None if folder is None or _is_sharded(self._trainer) else os.path.join(folder, "costgov")

    def saver(self, meter: StepMeter, directory: Optional[str]) -> ComposerSaver:
        return ComposerSaver(meter, directory, self._trainer)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        if _is_sharded(self._trainer):
            return "Composer saves sharded checkpoints here, and attach() asks for none: its own are not looked at"
        return None if directory else "no directory is known; pass checkpoint_dir="

    def hello_fields(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"framework": "composer"}
        parameters = deepspeed_engine.count_parameters(self._trainer.state.model)
        return {**fields, "parameters": parameters} if parameters else fields

    def replicas(self, batch: Any) -> Replicas:
        return replicas.of_module(self._trainer.state.model, batch)

    def step(self) -> int:
        return _batch_of(self._trainer.state)

    def keeper(self) -> Any:
        return self._trainer

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        trainer = self._trainer
        fit = ComposerFit(trainer, meter)
        callback = make_callback(trainer, fit)
        trainer.state.callbacks.insert(0, callback)
        own = getattr(trainer, "_checkpoint_saver", None)
        saves = hooks.Undo()
        if callable(getattr(own, "_save_checkpoint", None)):
            hooks.replace(saves, own, "_save_checkpoint", hooks.around(fit.save, own))
        known, known_callback = ref(trainer), ref(callback)

        def undo() -> None:
            hooked, added = known(), known_callback()
            if hooked is None or added is None:
                return
            if added in hooked.state.callbacks:
                hooked.state.callbacks.remove(added)
            saves()
            fit.unhook()

        return undo


def make_callback(trainer: Any, fit: ComposerFit) -> Any:
    """Return the callback, of Composer's own base, with a method for each event that `fit` wants to be told of."""

    def told(name: str) -> Callable[..., None]:
        tell = getattr(fit, name)
        return lambda _self, state, _logger: tell(state)

    package = next(one.__module__ for one in type(trainer).__mro__ if one.__name__ == "Trainer").split(".")[0]
    base_class: Any = importlib.import_module(package + ".core").Callback
    return type("CostgovCallback", (base_class,), {name: told(name) for name in _EVENTS})()


class ComposerFit:
    """What the Trainer's events say. One batch of Composer's is one step, its micro-batches are micro-steps."""

    def __init__(self, trainer: Any, meter: StepMeter) -> None:
        self._known = keeping.known(trainer)
        self._meter = meter
        self._undo = hooks.Undo()
        self._eval_parts: List[Optional[int]] = []

    @guarded()
    def fit_start(self, state: Any) -> None:
        """Each call of fit() comes by here. The model may have been wrapped since the last one."""
        self.unhook()
        meter, optimizers = self._meter, list(state.optimizers)
        meter.expect_backward()
        gradients = torch_calls.instrument(meter, optimizers, self._undo, plain.ignore_skip)
        meter.watch_gradients(gradients, plain.BLIND_STEPS_MAX if is_required(os.environ) else 0)
        model_times.watch(state.model, meter, self._undo)
        self._undo.add(optimizers[-1].register_step_post_hook(_telling(meter.exit_optimizer)).remove)
        ends = state.max_duration
        if ends is not None and ends.unit.value == "ba":
            meter.watch.hello_field("total_steps", int(ends.value))

    @guarded()
    def before_forward(self, state: Any) -> None:
        """A micro-batch is here."""
        batch = state.batch
        if isinstance(batch, dict):
            self._meter.enter_forward(True, (), batch)
        else:
            self._meter.enter_forward(True, tuple(batch) if isinstance(batch, (tuple, list)) else (batch,), {})

    def after_forward(self, state: Any) -> None:
        """Its loss is computed next, which is the loop's own part of a step."""
        self._meter.exit_forward(None)

    @guarded()
    def before_backward(self, state: Any) -> None:
        """The loss is there, and not yet scaled by the micro-batch's share."""
        self._meter.enter_backward(_total(state.loss))

    def after_backward(self, state: Any) -> None:
        """The micro-batch's gradient is there."""
        self._meter.exit_backward()

    @guarded()
    def after_train_batch(self, state: Any) -> None:
        """The gradient is complete; the optimizers step next, or have called all of this as a closure."""
        for optimizer in state.optimizers:
            self._meter.enter_optimizer(optimizer)

    @guarded()
    def batch_end(self, state: Any) -> None:
        """The step is complete, and counted."""
        groups = state.optimizers[0].param_groups
        lr = groups[0].get("lr") if groups else None
        known = float(lr) if isinstance(lr, (int, float)) else None
        self._meter.end_step(EngineFacts(_batch_of(state), applied=True, lr=known))

    def batch_checkpoint(self, state: Any) -> None:
        """The evaluation of this step, if it has one, is over."""
        self._meter.boundary()

    def eval_start(self, state: Any) -> None:
        """One evaluator begins, inside fit() or in a call of eval()."""
        self._eval_parts.append(self._meter.enter_phase("eval"))

    def eval_end(self, state: Any) -> None:
        """It is over."""
        if self._eval_parts:
            part = self._eval_parts.pop()
            self._meter.exit_phase(timing.GAP if part is None else part)

    @guarded()
    def fit_end(self, state: Any) -> None:
        """All batches are trained; an evaluation may follow."""
        self._meter.finish("train_end", True)
        self.unhook()

    def save(self, own: Any, original: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> Any:
        """Composer saves into its save_folder."""
        meter = self._meter
        part = meter.enter_phase("checkpoint")
        attempt(weights.look, meter.progress, lambda: _trained_in(state))
        try:
            result = original(state, *args, **kwargs)
        finally:
            meter.exit_phase(part, False)
        self._announce(own, state)
        return result

    @guarded()
    def _announce(self, own: Any, state: Any) -> None:
        trainer = self._known()
        if own.weights_only or trainer is None or _is_sharded(trainer) or not own.all_saved_checkpoints_to_timestamp:
            return
        path = os.path.abspath(list(own.all_saved_checkpoints_to_timestamp)[-1])
        if os.path.isfile(path):  # Rank 0 writes it.
            base.report_last_good(self._meter, _batch_of(state), path)

    def unhook(self) -> None:
        """Take the hooks of this fit() off."""
        self._undo()


class ComposerSaver(base.PositionSaver):
    """Composer writes one file, by rank 0; every rank calls it. It has what interfaces.OwnMeans has."""

    _trainer = keeping.Of()

    def __init__(self, meter: StepMeter, directory: Optional[str], trainer: Any) -> None:
        super().__init__(meter)
        keeping.keep_at(trainer, self)
        self._trainer = trainer
        self.directory = None if _is_sharded(trainer) else directory
        if _is_sharded(trainer):
            self.cannot_load = "resume(): Composer's checkpoints are sharded here: pass load_path= to its Trainer"

    def contents(self) -> Dict[str, Any]:
        return base.counted(self._trainer.state.model.parameters(), self._trainer.state.optimizers)

    def trained(self) -> Iterable[Tuple[str, Any]]:
        return _trained_in(self._trainer.state)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        self.begin_save()
        path = os.path.join(directory, tag)
        os.makedirs(path, exist_ok=True)
        name = os.path.join(path, CHECKPOINT_FILE)
        with self._meter.unannounced():
            self._trainer.save_checkpoint(name.replace("{", "{{").replace("}", "}}"))  # It is a format of Composer's.

    def final_path(self, path: str, step: int, kind: str) -> str:
        """It is written where it stays."""
        return path

    def discard(self, step: int) -> None:
        """Nothing is staged."""

    def resume_directory(self) -> str:
        return str(self.directory)

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        """Load it as Trainer(load_path=) does. fit() restores the generators when it has read its data up to there."""
        trainer, path = self._trainer, os.path.normpath(os.path.join(directory, tag))
        is_ours = os.path.lexists(os.path.join(path, checkpoint.MANIFEST))
        file = os.path.join(path, CHECKPOINT_FILE) if is_ours else path
        package = type(trainer.state).__module__.split(".")[0]
        loader: Any = importlib.import_module(package + ".utils.checkpoint")
        trainer._rng_state = loader.load_checkpoint(
            file, trainer.state, trainer.logger, progress_bar=False, algorithm_passes=trainer.engine.algorithm_passes
        )
        step = _batch_of(trainer.state)
        if is_ours:
            base.go_on_from(self._meter, step, path, int(os.environ.get("RANK", "0")))
        else:
            base.go_on(self._meter, step, {}, None, path)
        return {}

    def own_checkpoints(self, directory: str) -> List[Dict[str, Any]]:
        """Return the files that Composer saved into its save_folder."""
        return list(self._own())

    def named_checkpoint(self, path: str) -> Optional[Dict[str, Any]]:
        """Return a file of Composer's own."""
        if not os.path.isfile(path):
            return None
        loaded, error = attempt(values_of, path)
        step = _step_in(loaded)
        if step is None:
            raise ValueError("is no whole checkpoint of Composer (%.200s)" % (error or "it has no step or optimizer"))
        return base.own_manifest(step, path, path)

    def _own(self) -> Iterator[Dict[str, Any]]:
        budget = Budget()
        for path in _files_of(self._trainer)[:_OWN_MAX]:
            loaded, error = attempt(budget.values_of, path)
            step = _step_in(loaded)
            if step is not None:
                yield base.own_manifest(step, path, path)
            elif os.environ.get("RANK", "0") == "0":
                print_line("passing over %s: it is no whole checkpoint (%.200s)" % (path, error or "it lacks a step"))

    def resume_places(self) -> List[str]:
        """Return where Composer saves unasked."""
        folder = _folder(self._trainer)
        return [] if folder is None else [folder]

    def homes(self) -> List[str]:
        return [*super().homes(), *self.resume_places()]


def _telling(tell: Callable[[], None]) -> Callable[..., None]:
    return lambda *_: tell()


def _batch_of(state: Any) -> int:
    return int(state.timestamp.batch)


def _trained_in(state: Any) -> List[Tuple[str, Any]]:
    return base.watched(state.model.named_parameters(), state.optimizers)


def _is_sharded(trainer: Any) -> bool:
    return bool(getattr(trainer.state, "fsdp_sharded_state_dict_enabled", False))


def _total(loss: Any) -> Any:
    """Return the loss as Composer adds it up."""
    if isinstance(loss, dict):
        loss = loss["total"] if "total" in loss else tuple(loss.values())
    if isinstance(loss, (tuple, list)):
        return sum(one.detach().mean() for one in loss)
    return loss


def _folder(trainer: Any) -> Optional[str]:
    """Return where Composer saves, if that is a directory whose name does not change with the training."""
    folder = getattr(getattr(trainer, "_checkpoint_saver", None), "folder", None)
    is_local = isinstance(folder, str) and "{" not in folder and "://" not in folder
    return os.path.abspath(str(folder)) if is_local else None


def _files_of(trainer: Any) -> List[str]:
    """Return Composer's files, the newest first. Its links `latest` name one of them again."""
    folder = _folder(trainer)
    found = glob.glob(os.path.join(glob.escape(folder), "*.pt")) if folder is not None else []
    whole = [path for path in found if os.path.isfile(path) and not os.path.islink(path)]
    return sorted(whole, key=os.path.getmtime, reverse=True)


def _step_in(loaded: Any) -> Optional[int]:
    """Return the batch that a file of Composer's stands at; None where nobody can go on from it."""
    state = loaded.get("state") if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or "optimizers" not in state:
        return None
    stamp = state.get("timestamp")
    stamp = stamp.get("Timestamp", stamp) if isinstance(stamp, dict) else {}
    step = stamp.get("batch") if isinstance(stamp, dict) else None
    return step if isinstance(step, int) else None
