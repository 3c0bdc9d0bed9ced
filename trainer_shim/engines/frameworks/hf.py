"""transformers.Trainer.

No engine exists before train(), so a callback hooks what train() built. The Trainer saves by its own means (delegate
mode): at the agreed step every rank saves where the Trainer itself would, behind the step's log and its evaluation,
which draws random numbers; before that where it might outlast a halt's grace, and then no train() makes up for it.
What the Trainer saves by itself it saves as ever, with `on_save`: its checkpoint of that step is the one where that is
whole, and else comes first. Losses are taken at
accelerator.backward or engine.backward: `logging_nan_inf_filter` hides non-finite ones from on_log.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple
from weakref import ref

from trainer_shim import timing
from trainer_shim.engines import base, deepspeed_engine, hooks, plain, replicas, trained
from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.meter import StepMeter
from trainer_shim.sight import weights
from trainer_shim.tokens import Replicas

from .hf_checkpoints import TrainerSaver, lacks_evaluation

_SAVE_IT = "save it in the Trainer's _save_checkpoint()"
_LAYERWISE = (
    "the state of the layerwise optimizers, of which transformers saves none: a resumed run begins with a new one; %s"
    % _SAVE_IT
)
_HARMED = (
    "the Trainer has saved %s after something was not finite: resume_from_checkpoint=True would take it as it is, "
    "shim.resume() looks into it first"
)
_NOT_MADE_UP = (
    "the checkpoint lacks the evaluation of step %d, and the Trainer does not make up for it: the next losses differ "
    "where that draws random numbers"
)
_AFTER_STEP = "_maybe_log_save_evaluate"  # Of transformers 5: where the Trainer itself saves.
_LOOKS_MAX = 100  # Steps in which another rank finishes a checkpoint that this one has left.


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
            "origin": {},  # train() sets the step anew.
            "checkpoint_dir": os.path.abspath(self._trainer.args.output_dir),
            "parameters": deepspeed_engine.count_parameters(self._trainer.model),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def replicas(self, batch: Any) -> Replicas:
        trainer = self._trainer
        wrapped = trainer.model_wrapped
        if getattr(trainer, "is_deepspeed_enabled", False) and hasattr(wrapped, "global_steps"):
            return deepspeed_engine.replicas_of(wrapped)
        return replicas.of_trainer(trainer)

    def step(self) -> int:
        return int(self._trainer.state.global_step)

    def keeper(self) -> Any:
        return self._trainer

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        saver = self._saver or self.saver(meter, None)
        callback = make_callback(self._trainer, meter, saver)
        self._trainer.add_callback(callback)
        loads = hooks.Undo()
        saver.see_loads(loads)
        known, known_callback = ref(self._trainer), ref(callback)

        def undo() -> None:
            trainer, added = known(), known_callback()
            if trainer is not None and added is not None:
                trainer.remove_callback(added)
                added.unhook()
                loads()
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

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.begin_step()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.end_step(state)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._train.end_epoch()

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
        self._sparing = base.Sparing()
        self._saved: Optional[Dict[str, Any]] = None  # Not announced yet: the first rank may still write.
        self._looks_left = 0
        self._said_no_state = False
        self._asked: Optional[int] = None  # The step that is to be saved once it is logged and evaluated.
        self._has_place = False  # The Trainer's loop comes to that place after each step, as it has done before.
        self._at_epoch_end = False
        self._is_own_saved = False  # By the Trainer itself, since this step ended.
        self._is_suspect = False  # What was asked for at this step.
        self._is_ours_saved = False  # Where a good one lies, or will, since this step ended.

    @guarded()
    def begin(self, state: Any) -> None:
        """train() has built model, optimizer and, perhaps, an engine."""
        self.unhook()  # train() begins again when it searches for a batch size that fits.
        self._asked, self._has_place = None, False
        trainer, meter = self._trainer, self._meter
        attempt(self._saver.remove_abandoned)
        wrapped = trainer.model_wrapped
        self._is_deepspeed = bool(getattr(trainer, "is_deepspeed_enabled", False)) and hasattr(wrapped, "global_steps")
        if self._is_deepspeed:
            self._undo = deepspeed_engine.instrument(wrapped, meter, _nothing)
            for name, value in deepspeed_engine.hello_fields(wrapped).items():
                if name != "framework":
                    meter.watch.hello_field(name, value)
        else:
            self._undo = plain.instrument(wrapped, [base.innermost(trainer.optimizer)], meter, ends_step=False)
            self._tell_outside(wrapped)
            around = hooks.around(through_backward, meter, True)
            hooks.replace(self._undo, trainer.accelerator, "backward", around)
            meter.expect_backward()
        hooks.replace(self._undo, trainer, "evaluate", hooks.around(self._evaluate))
        hooks.replace(self._undo, trainer, "_save_checkpoint", hooks.around(self._save_checkpoint))
        if hasattr(trainer, _AFTER_STEP):
            hooks.replace(self._undo, trainer, _AFTER_STEP, hooks.around(self._after_step))
        if state.global_step:
            place = self._saver.loaded_place(int(state.global_step))
            base.go_on_from(meter, int(state.global_step), place, trainer.args.process_index)
            if trainer.is_world_process_zero() and lacks_evaluation(place):
                print_line(_NOT_MADE_UP % int(state.global_step))
        if state.max_steps and state.max_steps > 0:
            meter.watch.hello_field("total_steps", int(state.max_steps))

    @guarded()
    def _tell_outside(self, wrapped: Any) -> None:
        """The Trainer saves its model alone, unless the script saves by itself."""
        trainer = self._trainer
        is_own = trained.is_own(trainer, "_save_checkpoint", "_save", "save_model")
        if plain.is_sharded(wrapped) or is_own:
            return
        optimizer, is_first = base.innermost(trainer.optimizer), trainer.is_world_process_zero()
        if hasattr(optimizer, "optimizer_dict"):  # transformers' own, whose one tensor stands for all.
            trained.warn_unsaved(_LAYERWISE, is_first)
            return
        lost = trained.outside(trained.trained_by([optimizer]), trained.parameters_of([trainer.model, wrapped]))
        trained.warn_lost(lost, "the Trainer's model", "make it a part of the model, or %s" % _SAVE_IT, is_first)

    @guarded()
    def begin_step(self) -> None:
        """The next step begins. What was asked for and has come to no place is saved now."""
        if self._asked is not None:
            self._take_aside(self._asked)

    @guarded()
    def end_step(self, state: Any) -> None:
        """Report the step, where no engine does. Save if every rank shall.

        What is good waits until the step is logged, evaluated and saved by the Trainer itself: two saves of one step at
        a time would write to one place. A halt waits for no on_save, see _save_checkpoint(). One for a NaN waits for
        nothing, and its checkpoint has another name.
        """
        meter, step = self._meter, int(state.global_step)
        self._at_epoch_end = self._is_own_saved = self._is_ours_saved = self._is_suspect = False
        self._asked = None
        if self._saved is not None:
            self._announce(self._saved)
        if not self._is_deepspeed:
            plain.end_step(meter, base.innermost(self._trainer.optimizer), step)
        meter.clock.switch(timing.HOLD)
        kind = meter.watch.wants_save(step)
        meter.clock.switch(timing.GAP)
        if kind is None:
            return
        self._is_suspect = kind == "suspect"
        control = self._trainer.control
        if not self._is_suspect and (self._has_place or control.should_save):
            self._asked = step
        else:
            self._save_aside(step, bool(control.should_evaluate))

    def end_epoch(self) -> None:
        """What comes at the end of an epoch follows."""
        self._at_epoch_end = True

    def _save_aside(self, step: int, evaluation_due: bool = False) -> None:
        path, error = self._stage(step)
        self._report(path, error, evaluation_due)

    def _stage(self, step: int) -> Tuple[Optional[str], Optional[Exception]]:
        part = self._meter.clock.switch(timing.CHECKPOINT)
        path, error = attempt(self._saver.save_aside, step)
        if path is not None and self._is_own_saved and not self._is_suspect:
            _, error = attempt(self._saver.add_own_files, step, path)
        self._is_ours_saved = error is None and not self._is_suspect
        if error is not None and self._is_alone():  # Of several ranks others may still write there.
            attempt(self._saver.discard, step)
        self._meter.clock.switch(part)
        return (path if error is None else None), error

    def _is_alone(self) -> bool:
        return int(getattr(self._trainer.args, "world_size", 1)) == 1

    def _report(self, path: Optional[str], error: Optional[Exception], evaluation_due: bool = False) -> None:
        """What was asked for is saved, or is not. For a halt this does not return."""
        meter, self._asked = self._meter, None
        part = meter.clock.switch(timing.CHECKPOINT)
        meter.expect_evaluation(evaluation_due)
        meter.watch.delegate_saved(path, None if error is None else "%s: %s" % (type(error).__name__, error))
        meter.expect_evaluation(False)
        meter.clock.switch(part)

    def _take_aside(self, step: int) -> None:
        self._asked = None
        self._save_aside(step)

    def _evaluate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What was asked for, and might not live to see its end, is saved before it."""
        asked = self._asked
        if asked is not None and not self._meter.watch.waits_for_evaluation():
            self._asked = None
            self._save_aside(asked, bool(self._trainer.control.should_evaluate))
        return base.in_phase(self._meter, "eval", original, *args, **kwargs)

    def _after_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer logs, evaluates and saves: after each step, and once more at the end of an epoch."""
        self._has_place = True
        result = original(*args, **kwargs)
        if self._asked is not None:
            self._save_asked(self._asked)
        return result

    @guarded()
    def _save_asked(self, step: int) -> None:
        if self._is_own_saved and self._saver.saves_whole():
            self._report(self._saver.path_of(step), None)
        elif self._at_epoch_end or not self._has_place or not _epoch_follows(self._trainer):
            self._take_aside(step)

    def _is_halt(self) -> bool:
        """Whether a halt waits for what the Trainer does in this step. Its on_save, an upload say, may outlast it."""
        return self._asked is not None and self._meter.watch.ends_with_save()

    def _evaluates_yet(self) -> bool:
        return not self._at_epoch_end and _epoch_follows(self._trainer, "eval_strategy")

    @guarded()
    def _halt_before_own(self) -> Optional[Exception]:
        """Where the Trainer's own save would be less than ours, a halt saves ours first. Return why that failed."""
        if self._asked is None or not self._is_halt() or self._saver.saves_whole():
            return None
        path, error = self._stage(self._asked)
        # One process alone still has the Trainer save. Of several, others stand still: it would wait for them.
        if error is None or not self._is_alone():
            self._report(path, error, self._evaluates_yet())
            return None
        return error

    @guarded()
    def _halt_after_own(self, failure: Optional[Exception]) -> None:
        """What the Trainer has saved is all that a halt gets, or ours has failed: callbacks come after that."""
        if failure is not None:
            self._report(None, failure)
        elif self._asked is not None and self._is_halt() and self._saver.saves_whole():
            self._report(self._saver.path_of(self._asked), None, self._evaluates_yet())

    def _save_checkpoint(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer saves, or we have it save. After a NaN its own saves delete no older one for a while."""
        meter = self._meter
        if not meter.announces_saves:
            return base.in_phase(meter, "checkpoint", original, *args, **kwargs)
        failure = self._halt_before_own()
        weights.look(meter.progress, self._saver.trained)
        step = int(self._trainer.state.global_step)
        attempt(self._saver.forget, step, self._is_ours_saved)
        is_good = meter.progress.is_good
        spares = self._sparing.around_save(is_good and not self._is_suspect, self._trainer.args, "save_total_limit")
        with spares, self._saver.noting(step):
            result = base.in_phase(meter, "checkpoint", original, *args, **kwargs)
        self._is_own_saved = True
        if self._sparing.is_first and not is_good and self._trainer.is_world_process_zero():
            print_line(_HARMED % os.path.basename(self._saver.path_of(step)))
        self._halt_after_own(failure)
        return result

    @guarded()
    def saved(self, state: Any) -> None:
        """The Trainer finished a checkpoint of its own, or a subclass something that is none (LLaVA's adapters)."""
        step = int(state.global_step)
        self._looks_left = _LOOKS_MAX
        self._saved = base.good_record(self._meter, step, self._saver.path_of(step))
        if self._saved is not None:
            self._announce(self._saved)
        if self._saved is not None and self._trainer.is_world_process_zero():
            if not self._said_no_state:
                print_line("%s has no state of the Trainer: train() cannot go on from it" % self._saved["path"])
            self._saved, self._said_no_state = None, True
        if self._asked is not None and not self._has_place:  # A loop of its own: it has saved, and we follow.
            self._save_asked(self._asked)

    def _announce(self, record: Dict[str, Any]) -> None:
        """Tell of a checkpoint once train() can go on from it. Where it is moved away the governor looks itself."""
        self._looks_left -= 1
        if not os.path.isdir(record["path"]) or self._saver.has_state(record["path"]):
            self._meter.watch.hello_field("last_good", record)
            self._saved = None
        elif self._looks_left <= 0:
            self._saved = None

    @guarded()
    def end(self, state: Any) -> None:
        """train() is over."""
        self.begin_step()
        completed = state.max_steps > 0 and state.global_step >= state.max_steps
        self._meter.finish("train_end", bool(completed))
        self.unhook()
        # What the script saves behind train() is a checkpoint, too.
        last = hooks.around(base.in_phase, self._meter, "checkpoint")
        hooks.replace(self._undo, self._trainer, "save_model", last)

    def unhook(self) -> None:
        """Take the hooks of this train() off."""
        self._undo()


def _epoch_follows(trainer: Any, *names: str) -> bool:
    """Whether this step ends an epoch, at whose end the Trainer evaluates or saves: it does that next."""
    args, control = trainer.args, trainer.control
    told = [getattr(args, name, None) for name in names or ("eval_strategy", "save_strategy")]
    if "epoch" not in [getattr(one, "value", one) for one in told]:
        return False
    ends = control.should_epoch_stop or control.should_training_stop
    return bool(ends) or float(trainer.state.epoch or 0.5).is_integer()


def through_backward(meter: StepMeter, is_share: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    meter.enter_backward(args[0] if args else kwargs.get("loss"), is_share)
    try:
        return original(*args, **kwargs)
    finally:
        meter.exit_backward()


def _nothing() -> None:
    return None
