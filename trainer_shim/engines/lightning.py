"""lightning.pytorch.Trainer: a callback sees its batches, a checkpoint is the Trainer's own, in our directory.

No module, optimizer or strategy exists before fit(), so the callback hooks what fit() built. The forward pass is the
user's training_step(): nothing calls the module itself.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, List, Optional

from trainer_shim import timing
from trainer_shim.guard import guarded
from trainer_shim.launch import is_required
from trainer_shim.meter import EngineFacts, StepMeter

from . import base, deepspeed_engine, hooks, plain, torch_calls
from .base import Options

CHECKPOINT_FILE = "trainer.ckpt"


class LightningKind:
    """A Trainer of Lightning, before fit()."""

    def __init__(self, trainer: Any, options: Options) -> None:
        if trainer.world_size > 1 and not {"RANK", "SLURM_PROCID"} & os.environ.keys():
            raise TypeError("ranks that Lightning starts itself do not know their rank at attach(): use torchrun")
        if options.save_fn is not None:
            raise TypeError("attach(trainer) saves by trainer.save_checkpoint(): leave save_fn= out")
        self._trainer = trainer

    def checkpoint_dir(self) -> Optional[str]:
        return os.path.join(str(self._trainer.default_root_dir), "costgov")

    def saver(self, meter: StepMeter, directory: Optional[str]) -> LightningSaver:
        return LightningSaver(meter, directory, self._trainer)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None

    def hello_fields(self) -> Dict[str, Any]:
        return {"framework": "lightning"}

    def token_replicas(self) -> int:
        return int(self._trainer.world_size)

    def step(self) -> int:
        return int(self._trainer.global_step)

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        trainer = self._trainer
        callback = make_callback(trainer, meter)
        trainer.callbacks.insert(0, callback)  # A ModelCheckpoint stays the last, where Lightning has put it.

        def undo() -> None:
            if callback in trainer.callbacks:
                trainer.callbacks.remove(callback)
            callback.unhook()

        return undo


class LightningSaver(base.PositionSaver):
    """The Trainer writes one file, or a directory where its strategy shards; every rank calls it."""

    def __init__(self, meter: StepMeter, directory: Optional[str], trainer: Any) -> None:
        super().__init__(meter)
        self.directory = directory
        self._trainer = trainer

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        self.begin_save()
        path = os.path.join(directory, tag)
        os.makedirs(path, exist_ok=True)
        self._trainer.save_checkpoint(os.path.join(path, CHECKPOINT_FILE))

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        path = os.path.join(directory, tag, CHECKPOINT_FILE)
        raise NotImplementedError("resume with trainer.fit(model, ckpt_path=%r)" % path)


def make_callback(trainer: Any, meter: StepMeter) -> Any:
    """Return the callback; its class is made here because its base is Lightning's own, of either package."""
    package = type(trainer).__module__.split(".")[0]
    for one in type(trainer).__mro__:
        if one.__module__.split(".")[0] in ("lightning", "pytorch_lightning"):
            package = one.__module__.split(".")[0]
    home = "lightning.pytorch" if package == "lightning" else package
    callback_class: Any = importlib.import_module(home).Callback

    class CostgovCallback(callback_class):  # type: ignore[misc]
        def __init__(self) -> None:
            self._fit = fit = LightningFit(trainer, meter)
            self.unhook = fit.unhook

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._fit.begin(pl_module)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self._fit.begin_batch(batch)

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            meter.exit_forward(None)  # The loss is what backward() starts from: here it may be scaled already.

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self._fit.before_step(optimizer)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self._fit.end_batch()

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self._fit.begin_eval()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self._fit.end_eval()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._fit.end()

    return CostgovCallback()


class LightningFit:
    """One call of trainer.fit()."""

    def __init__(self, trainer: Any, meter: StepMeter) -> None:
        self._trainer = trainer
        self._meter = meter
        self._undo = hooks.Undo()
        self._step = 0
        self._eval_parts: List[Optional[int]] = []

    @guarded()
    def begin(self, module: Any) -> None:
        """fit() has built the strategy and the optimizers, and has loaded a checkpoint if it was given one."""
        self.unhook()
        trainer, meter = self._trainer, self._meter
        optimizers = [getattr(one, "optimizer", one) for one in trainer.optimizers]
        gradients = torch_calls.instrument(meter, optimizers, self._undo, plain.ignore_skip)
        blind = plain.BLIND_STEPS_MAX if is_required(os.environ) else 0
        # Lightning divides the loss by the micro-steps before backward(), unless the module steps by itself.
        meter.watch_gradients(gradients, blind, bool(module.automatic_optimization))
        meter.time_device(plain.device_timer_of(module))
        self._step = int(trainer.global_step)
        if self._step:
            place = os.path.dirname(str(trainer.ckpt_path or ""))
            meter.resumed(self._step, base.tokens_before(place, int(trainer.global_rank)))
        parameters = deepspeed_engine.count_parameters(module)
        if parameters:
            meter.watch.hello_field("parameters", parameters)
        if trainer.max_steps and trainer.max_steps > 0:
            meter.watch.hello_field("total_steps", int(trainer.max_steps))

    @guarded()
    def begin_batch(self, batch: Any) -> None:
        """A micro-batch is here."""
        if isinstance(batch, dict):
            self._meter.enter_forward(True, (), batch)
        else:
            self._meter.enter_forward(True, tuple(batch) if isinstance(batch, (tuple, list)) else (batch,), {})

    @guarded()
    def before_step(self, optimizer: Any) -> None:
        """The gradient is complete, and not yet clipped."""
        self._meter.enter_optimizer()
        if self._meter.gradients is not None:
            self._meter.gradients.before_step(optimizer)

    def end_batch(self) -> None:
        """An optimizer step may have been made in it."""
        self._meter.exit_optimizer()
        if self._end_step():
            self._meter.boundary()

    @guarded(fallback=False)
    def _end_step(self) -> bool:
        trainer = self._trainer
        if trainer.global_step == self._step:
            return False
        self._step = int(trainer.global_step)  # Of several optimizers each step counts, as Lightning counts them.
        groups = trainer.optimizers[0].param_groups
        lr = groups[0].get("lr") if groups else None
        known = float(lr) if isinstance(lr, (int, float)) else None
        self._meter.end_step(EngineFacts(self._step, applied=True, lr=known))
        return True

    def begin_eval(self) -> None:
        """Validation begins: the one before training, too."""
        self._eval_parts.append(self._meter.enter_phase("eval"))

    def end_eval(self) -> None:
        """Validation is over."""
        if self._eval_parts:
            part = self._eval_parts.pop()
            self._meter.exit_phase(timing.GAP if part is None else part, True)

    @guarded()
    def end(self) -> None:
        """fit() has come to its end: it was not broken off."""
        self._meter.watch.finish("train_end", True)
        self.unhook()

    def unhook(self) -> None:
        """Take the hooks of this fit() off."""
        self._undo()
