"""transformers.Trainer and plain Accelerate loops.

No engine exists before train(), so a callback hooks what train() built. The Trainer saves by its own means (delegate
mode): at the agreed step the callback has it save on every rank, before it logs or evaluates. Losses are taken at
accelerator.backward or engine.backward: `logging_nan_inf_filter` hides non-finite ones from on_log.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional

from trainer_shim import timing
from trainer_shim.guard import attempt, guarded
from trainer_shim.interfaces import Saver
from trainer_shim.meter import StepMeter

from . import base, deepspeed_engine, hooks, plain
from .base import Options
from .deepspeed_engine import DeepSpeedKind
from .hf_checkpoints import TrainerSaver


class TrainerKind:
    """transformers.Trainer: a callback hooks what train() builds."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._saver: Optional[TrainerSaver] = None

    def checkpoint_dir(self) -> Optional[str]:
        return str(self._trainer.args.output_dir)

    def saver(self, meter: StepMeter, directory: Optional[str]) -> TrainerSaver:
        self._saver = TrainerSaver(meter, self._trainer)
        return self._saver

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None

    def hello_fields(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = {
            "framework": "hf",
            "checkpoint_dir": os.path.abspath(self._trainer.args.output_dir),
            "parameters": deepspeed_engine.count_parameters(self._trainer.model),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def token_replicas(self) -> int:
        return int(self._trainer.args.world_size)

    def step(self) -> int:
        return int(self._trainer.state.global_step)

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        saver = self._saver or self.saver(meter, None)
        callback = make_callback(self._trainer, meter, saver)
        self._trainer.add_callback(callback)

        def undo() -> None:
            self._trainer.remove_callback(callback)
            callback.unhook()
            saver.forget_resume()

        return undo


def make_callback(trainer: Any, meter: StepMeter, saver: TrainerSaver) -> Any:
    """Return the callback; its class is made here because its base is transformers' own."""
    from transformers import TrainerCallback

    class CostgovCallback(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self._train = TrainerRun(trainer, meter, saver)
            self.unhook = self._train.unhook

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.begin(state)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self._train.end_step(state):
                control.should_save = False  # It is saved. Once more, older ones would be rotated away for it.

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.saved(state)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.end(state)

    return CostgovCallback()


class TrainerRun:
    """One call of trainer.train()."""

    def __init__(self, trainer: Any, meter: StepMeter, saver: TrainerSaver) -> None:
        self._trainer = trainer
        self._meter = meter
        self._saver = saver
        self._undo = hooks.Undo()
        self._is_deepspeed = False

    @guarded()
    def begin(self, state: Any) -> None:
        """train() has built model, optimizer and, perhaps, an engine."""
        self.unhook()  # train() begins again when it searches for a batch size that fits.
        trainer, meter = self._trainer, self._meter
        wrapped = trainer.model_wrapped
        self._is_deepspeed = bool(getattr(trainer, "is_deepspeed_enabled", False)) and hasattr(wrapped, "global_steps")
        if self._is_deepspeed:
            self._undo = deepspeed_engine.instrument(wrapped, meter, _nothing)
            meter.count.count_for(deepspeed_engine.token_replicas(wrapped))
            for name, value in deepspeed_engine.hello_fields(wrapped).items():
                if name != "framework":
                    meter.watch.hello_field(name, value)
        else:
            self._undo = plain.instrument(wrapped, [innermost(trainer.optimizer)], meter, ends_step=False)
            around = hooks.around(_backward, meter, True)
            hooks.replace(self._undo, trainer.accelerator, "backward", around)
        hooks.replace(self._undo, trainer, "evaluate", hooks.around(_in_phase, meter, "eval"))
        hooks.replace(self._undo, trainer, "_save_checkpoint", hooks.around(_in_phase, meter, "checkpoint"))
        if state.global_step:
            place = self._saver.path_of(int(state.global_step))
            meter.resumed(int(state.global_step), base.tokens_before(place, trainer.args.process_index))
        if state.max_steps and state.max_steps > 0:
            meter.watch.hello_field("total_steps", int(state.max_steps))

    @guarded(fallback=False)
    def end_step(self, state: Any) -> bool:
        """Report the step, where no engine does. Save if every rank shall now; return whether that was done."""
        meter, step = self._meter, int(state.global_step)
        if not self._is_deepspeed:
            plain.end_step(meter, innermost(self._trainer.optimizer), step)
        meter.clock.switch(timing.HOLD)
        if not meter.watch.wants_save(step):
            meter.clock.switch(timing.GAP)
            return False
        meter.clock.switch(timing.CHECKPOINT)
        path, error = attempt(self._saver.save_aside, step)
        meter.watch.delegate_saved(path, None if error is None else "%s: %s" % (type(error).__name__, error))
        meter.clock.switch(timing.GAP)
        return error is None

    @guarded()
    def saved(self, state: Any) -> None:
        """The Trainer finished a checkpoint of its own."""
        step = int(state.global_step)
        base.report_last_good(self._meter, step, self._saver.path_of(step))

    @guarded()
    def end(self, state: Any) -> None:
        """train() is over."""
        completed = state.max_steps > 0 and state.global_step >= state.max_steps
        self._meter.watch.finish("train_end", bool(completed))
        self.unhook()

    def unhook(self) -> None:
        """Take the hooks of this train() off."""
        self._undo()


class AccelerateSaver(base.PositionSaver):
    """Saves through the user's function, else accelerator.save_state()."""

    def __init__(self, meter: StepMeter, directory: Optional[str], accelerator: Any, options: Options) -> None:
        super().__init__(meter)
        self.directory = _beside_automatic(accelerator, directory)
        self._accelerator = accelerator
        self._save_fn = options.save_fn
        self._load_fn = options.load_fn

    def contents(self) -> Dict[str, Any]:
        parameters = [parameter for model in self._accelerator._models for parameter in model.parameters()]
        return base.counted(parameters, self._accelerator._optimizers if self._save_fn is None else ())

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

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        if self._load_fn is not None:
            return dict(self._load_fn(directory, tag) or {})
        self._accelerator.load_state(os.path.join(directory, tag))
        return {}


class AcceleratePlainKind(plain.PlainKind):
    """An Accelerate loop without DeepSpeed: its first model and its optimizers."""

    def __init__(self, accelerator: Any, options: Options) -> None:
        super().__init__(accelerator._models[0], options)
        self._accelerator = accelerator

    def checkpoint_dir(self) -> Optional[str]:
        return _project_dir(self._accelerator)

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return AccelerateSaver(meter, directory, self._accelerator, self._options)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None if directory else "no directory is known; pass checkpoint_dir=, or project_dir= to the Accelerator"

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        meter.defer_boundary()
        undo = plain.instrument(self._model, self._optimizers, meter)
        hooks.replace(undo, self._accelerator, "backward", hooks.around(_backward, meter, False))
        return undo


class AccelerateDeepSpeedKind(DeepSpeedKind):
    """An Accelerate loop over its DeepSpeed plugin: the engine inside."""

    def __init__(self, accelerator: Any, engine: Any, options: Options) -> None:
        super().__init__(engine)
        self._accelerator = accelerator
        self._options = options

    def checkpoint_dir(self) -> Optional[str]:
        return _project_dir(self._accelerator)

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return AccelerateSaver(meter, directory, self._accelerator, self._options)

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        """engine.step() runs inside accelerator.backward(), before the scheduler's step."""
        meter.defer_boundary()
        return super().instrument(meter)


def _backward(meter: StepMeter, is_share: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    meter.enter_backward(args[0] if args else kwargs.get("loss"), is_share)
    try:
        return original(*args, **kwargs)
    finally:
        meter.exit_backward()


def _in_phase(meter: StepMeter, phase: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    part = meter.enter_phase(phase)
    try:
        return original(*args, **kwargs)
    finally:
        meter.exit_phase(part, phase == "eval")


def innermost(optimizer: Any) -> Any:
    """Return the optimizer itself: AcceleratedOptimizer steps it only when gradients are synchronised."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _project_dir(accelerator: Any) -> Optional[str]:
    directory = getattr(accelerator, "project_dir", None)
    return str(directory) if directory else None


def _beside_automatic(accelerator: Any, directory: Optional[str]) -> Optional[str]:
    """Return where to save instead of the folder in which Accelerate numbers, deletes and finds checkpoints itself."""
    project = _project_dir(accelerator)
    naming = getattr(accelerator, "project_configuration", None)
    if directory is None or project is None or not getattr(naming, "automatic_checkpoint_naming", False):
        return directory
    taken = os.path.realpath(os.path.join(project, "checkpoints"))
    return os.path.abspath(project) if os.path.realpath(directory) == taken else directory


def _nothing() -> None:
    return None
