"""lightning.pytorch.Trainer: a callback sees its batches, a checkpoint is the Trainer's own, in our directory.

No module or optimizer exists before fit(), so the callback hooks what fit() built. The forward pass is the user's
training_step(): nothing calls the module itself. Lightning's checkpoints hold no generators: the callback adds them.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, List, Optional
from weakref import ref

from trainer_shim.engines import base, deepspeed_engine, hooks, plain, replicas, torch_calls
from trainer_shim.engines.background import ANNOUNCEMENTS_MAX, Announcement, Write, absolute
from trainer_shim.engines.waits import model_times
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.launch import is_required
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint, patience, rng
from trainer_shim.saving.newest_good import NewestGood
from trainer_shim.scalars import EngineFacts
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

from .lightning_checkpoints import (
    CHECKPOINT_FILE,
    STATE_KEY,
    LightningSaver,
    OwedValidation,
    callback_class,
    fit_state,
    give_positions,
    prepare_inner,
    say_lacking,
    state_of,
    tell_outside,
    tell_plateau,
    trained_in,
)


class LightningKind:
    """A Trainer of Lightning, before fit()."""

    def __init__(self, trainer: Any, options: base.Options) -> None:
        if trainer.world_size > 1 and not {"RANK", "SLURM_PROCID"} & os.environ.keys():
            raise TypeError("ranks that Lightning starts itself do not know their rank at attach(): use torchrun")
        if options.save_fn is not None:
            raise TypeError("attach(trainer) saves by trainer.save_checkpoint(): leave save_fn= out")
        self._trainer = trainer
        self._saver: Optional[LightningSaver] = None

    def checkpoint_dir(self) -> Optional[str]:
        return os.path.join(str(self._trainer.default_root_dir), "costgov")

    def saver(self, meter: StepMeter, directory: Optional[str]) -> LightningSaver:
        self._saver = LightningSaver(meter, directory, self._trainer)
        return self._saver

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        return None

    def hello_fields(self) -> Dict[str, Any]:
        return {"framework": "lightning"}

    def replicas(self, batch: Any) -> Replicas:
        """As Lightning deals samples out."""
        world = int(self._trainer.world_size)
        if world == 1:
            return replicas.ALONE
        dealt = getattr(self._trainer.strategy, "distributed_sampler_kwargs", None)
        if not dealt or "num_replicas" not in dealt:
            return replicas.unknown(world)
        return Replicas(int(dealt["num_replicas"]), "the strategy's sampler", dealt.get("rank"))

    def step(self) -> int:
        return int(self._trainer.global_step)

    def keeper(self) -> Any:
        return self._trainer

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        trainer = self._trainer
        callback = make_callback(trainer, meter)
        trainer.callbacks.insert(0, callback)  # A ModelCheckpoint stays the last, where Lightning has put it.
        loaders = hooks.Undo()
        if hasattr(getattr(trainer, "_data_connector", None), "_prepare_dataloader"):
            hooks.replace(loaders, trainer._data_connector, "_prepare_dataloader", hooks.around(prepare_inner, trainer))

        known, known_callback, saver = ref(trainer), ref(callback), self._saver

        def undo() -> None:
            hooked, added = known(), known_callback()
            if hooked is None or added is None:
                return
            if added in hooked.callbacks:
                hooked.callbacks.remove(added)
            added.unhook()
            loaders()
            if saver is not None:
                saver.forget_resume()

        return undo


def make_callback(trainer: Any, meter: StepMeter) -> Any:
    """Return the callback; its class is made here because its base is Lightning's own, of either package."""
    base_class: Any = callback_class(trainer)

    class CostgovCallback(base_class):  # type: ignore[misc]
        def __init__(self) -> None:
            self._fit = fit = LightningFit(trainer, meter)
            self.unhook = fit.unhook

        @property
        def state_key(self) -> str:
            return STATE_KEY

        def state_dict(self) -> Dict[str, Any]:
            return fit_state(meter)

        def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
            self._fit.loaded = dict(state_dict)

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

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._fit.end_fit()

    return CostgovCallback()


class LightningFit:
    """One call of trainer.fit()."""

    def __init__(self, trainer: Any, meter: StepMeter) -> None:
        self._trainer = trainer
        self._meter = meter
        self._undo = hooks.Undo()
        self._step = 0
        self._eval_parts: List[Optional[int]] = []
        self._boundary_due = False  # Once the step's validation is over.
        self._owed: Optional[OwedValidation] = None
        self.loaded: Dict[str, Any] = {}  # The callback's state in the checkpoint that fit() began with.
        self._good = NewestGood()  # Of what the script or Lightning has saved.
        self._announcements: List[Announcement] = []  # What Lightning has saved and is perhaps not there yet.
        self._generators: Optional[Dict[str, Any]] = None  # As they were when it was saved: for the first epoch.

    @guarded()
    def begin(self, module: Any) -> None:
        """fit() has built the strategy and the optimizers, and has loaded a checkpoint if it was given one."""
        self.unhook()
        trainer, meter = self._trainer, self._meter
        optimizers = [getattr(one, "optimizer", one) for one in trainer.optimizers]
        tell_outside(trainer, module, optimizers)
        weights.look_at_start(meter.progress, lambda: trained_in(trainer))
        gradients = torch_calls.instrument(meter, optimizers, self._undo, plain.ignore_skip)
        blind = plain.BLIND_STEPS_MAX if is_required(os.environ) else 0
        # Lightning divides the loss by the micro-steps before backward(), unless the module steps by itself.
        meter.watch_gradients(gradients, blind, bool(module.automatic_optimization))
        model_times.watch(module, meter, self._undo)
        self._step = int(trainer.global_step)
        hooks.replace(self._undo, trainer, "save_checkpoint", hooks.around(self._save))
        hooks.replace(self._undo, trainer.strategy, "remove_checkpoint", hooks.around(self._remove))
        self._boundary_due, self._owed = False, None
        meter.progress.forget_longest("eval")  # Lightning's check before training: two batches.
        hooks.replace(self._undo, trainer.fit_loop.epoch_loop.val_loop, "run", hooks.around(self._validate))
        if self._step:
            self._take_state(str(trainer.ckpt_path or ""))
            give_positions(trainer)
            tell_plateau(trainer)
            self._give_generators()
            if self.loaded.get(patience.DUE):
                self._owed, _ = attempt(OwedValidation, trainer, self._step)
            # What was gone on from may be written over before anything else is good.
            path = absolute(str(trainer.ckpt_path))
            self._good.note({"step": self._step, "path": path, "mono_ns": time.monotonic_ns()})
        parameters = deepspeed_engine.count_parameters(module)
        if parameters:
            meter.watch.hello_field("parameters", parameters)
        if trainer.max_steps and trainer.max_steps > 0:
            meter.watch.hello_field("total_steps", int(trainer.max_steps))

    def _take_state(self, path: str) -> None:
        """Continue counting, and keep the generators' states, from what stands beside the checkpoint or in it."""
        rank, loaded = int(self._trainer.global_rank), self.loaded
        place = os.path.dirname(path) if os.path.basename(path) == CHECKPOINT_FILE else ""
        beside = checkpoint.read_rank_file(place, rank) if place else None
        if beside is not None:
            base.go_on_from(self._meter, self._step, place, rank)
            self._generators = beside.get("rng")
            return
        if path or loaded:
            base.go_on(self._meter, self._step, loaded, loaded.get("tokens_total"), place or path or None)
        else:  # A second fit(): nothing was loaded, and what went before goes on.
            self._meter.resumed(self._step, None)
        # Rank 0 alone writes the file. Ranks that were seeded alike draw alike: its state is theirs, too.
        if rank == 0 or loaded.get("seed") == state_of(None)["seed"]:
            self._generators = loaded.get("rng")
        elif loaded:
            print_line("rank %d: its generators start anew; the checkpoint has rank 0's, which has another seed" % rank)

    def _give_generators(self) -> None:
        """Put them back before an epoch's order is drawn, or the validation begins that the saved step still lacked.

        At once, and again behind what the script's own hooks draw at the start of training.
        """
        if self._generators is None:
            return
        rng.restore(self._generators)
        loop = self._trainer.fit_loop
        if hasattr(loop, "on_advance_start"):
            hooks.replace(self._undo, loop, "on_advance_start", hooks.around(self._begin_epoch))

    def _begin_epoch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generators, self._generators = self._generators, None
        if generators is not None:
            attempt(rng.restore, generators)
        return original(*args, **kwargs)

    def _save(self, original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """The script saves, or Lightning's ModelCheckpoint does; or we do, which is announced elsewhere."""
        meter = self._meter
        if not meter.announces_saves:
            return original(filepath, *args, **kwargs)
        part = meter.enter_phase("checkpoint")
        weights.look(meter.progress, lambda: trained_in(self._trainer))
        if not meter.progress.is_good:
            self._make_way(absolute(str(filepath)))
        write, _ = attempt(Write, self._trainer, str(filepath))
        try:
            result = original(filepath, *args, **kwargs)
        finally:
            meter.exit_phase(part, False)
        if write is not None and not (args[0] if args else kwargs.get("weights_only")):
            self._saved(write)
        return result

    def _remove(self, original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """A ModelCheckpoint makes room. After a NaN what was saved last before it stays."""
        path = absolute(str(filepath))
        if not self._meter.progress.is_good and (self._good.spares(path) or self._is_awaited(path)):
            return None
        return original(filepath, *args, **kwargs)

    def _is_awaited(self, path: str) -> bool:
        return any(one.record["path"] == path for one in self._announcements)

    @guarded()
    def _make_way(self, path: str) -> None:
        """What is saved now is not good, and must not replace the newest that is."""
        for one in self._announcements:
            if one.record["path"] == path:
                one.write.wait()  # Else it would be written after it was moved.
        self._announce()
        self._good.note_harmed(int(self._trainer.global_step))
        record = self._good.make_way(path, bool(self._trainer.is_global_zero))
        if record is not None:
            self._meter.watch.hello_field("last_good", record)

    @guarded()
    def _saved(self, write: Write) -> None:
        record = base.good_record(self._meter, int(self._trainer.global_step), write.path)
        write.returned()
        if record is not None:
            self._announcements = [*self._announcements[-ANNOUNCEMENTS_MAX:], Announcement(write, record)]
            if not write.when_over(self._announce):
                self._announce()

    @guarded()
    def _announce(self) -> None:
        """Announce what is there by now, and forget what failed. On the thread that writes, too."""
        for one in list(self._announcements):
            is_over, error = attempt(one.write.is_over)
            if not is_over and error is None:
                continue
            with contextlib.suppress(ValueError):  # The other thread has done it.
                self._announcements.remove(one)
                if error is None:
                    self._good.note(one.record)
                    self._meter.watch.hello_field("last_good", one.record)

    @guarded()
    def begin_batch(self, batch: Any) -> None:
        """A micro-batch is here."""
        self._end_boundary()  # There was no validation.
        self._miss_owed()
        if isinstance(batch, dict):
            self._meter.enter_forward(True, (), batch)
        else:
            self._meter.enter_forward(True, tuple(batch) if isinstance(batch, (tuple, list)) else (batch,), {})

    def _miss_owed(self) -> None:
        if self._owed is not None:
            self._owed.miss()
            self._owed = None

    def before_step(self, optimizer: Any) -> None:
        """The gradient is complete, and not yet clipped."""
        self._meter.enter_optimizer(optimizer)

    def end_batch(self) -> None:
        """An optimizer step may have been made in it."""
        self._meter.exit_optimizer()
        if self._announcements:
            self._announce()
        if self._end_step():
            loop, meter = self._trainer.fit_loop, self._meter
            follows, _ = attempt(loop.epoch_loop._should_check_val_fx, loop._data_fetcher)
            meter.expect_evaluation(bool(follows))
            self._boundary_due = bool(follows)  # Alike on all ranks, whatever one has seen: what was agreed decides.
            if follows:
                meter.before_evaluation()
            else:
                meter.boundary()

    def _validate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """All callbacks have seen its end behind this, and know what it told."""
        if self._owed is not None:
            self._owed.begin()
        self._meter.expect_evaluation(False)  # Lightning's own saves in it are of its middle or its end.
        result = original(*args, **kwargs)
        self._end_boundary()
        return result

    def _end_boundary(self) -> None:
        is_due, self._boundary_due = self._boundary_due, False
        self._meter.expect_evaluation(False)
        if is_due:
            self._meter.boundary()

    @guarded(fallback=False)
    def _end_step(self) -> bool:
        trainer = self._trainer
        if trainer.global_step == self._step:
            return False
        self._step = int(trainer.global_step)  # Of several optimizers each step counts, as Lightning counts them.
        groups = trainer.optimizers[0].param_groups
        lr = groups[0].get("lr") if groups else None
        self._meter.end_step(EngineFacts(self._step, True, lr=float(lr) if isinstance(lr, (int, float)) else None))
        return True

    def begin_eval(self) -> None:
        """Validation begins: the one before training, too."""
        self._eval_parts.append(self._meter.enter_phase("eval"))

    def end_eval(self) -> None:
        """Validation is over."""
        if self._eval_parts:
            self._meter.exit_phase(self._eval_parts.pop())

    @guarded()
    def end(self) -> None:
        """fit() has come to its end: it was not broken off."""
        self._end_boundary()
        self._miss_owed()
        self.loaded = {}
        for one in self._announcements:
            one.write.wait()  # As Lightning does, next.
        self._announce()
        self._meter.finish("train_end", True)
        self.unhook()
        last = hooks.around(base.in_phase, self._meter, "checkpoint")  # A ModelCheckpoint's, which comes after ours.
        hooks.replace(self._undo, self._trainer, "save_checkpoint", last)

    @guarded()
    def end_fit(self) -> None:
        """fit() has returned: with nothing left to train, it has not begun."""
        self.unhook()
        if self.loaded.get(patience.DUE):
            say_lacking(self._trainer, int(self._trainer.global_step))
        self.loaded = {}

    def unhook(self) -> None:
        """Take the hooks of this fit() off."""
        self._undo()
