"""A loop around megatron-core: a module, or its DistributedDataParallel, and a MegatronOptimizer.

A step is a call of the MegatronOptimizer's step(), which tells whether the update was made and how large the gradient
was. The loss is what the loop's own loss function returns to the schedule: before it is divided and scaled.

Nothing waits for the next forward pass or batch here, as plain loops do: a stage gets its first activations, and a
tensor-parallel rank its batch, from a rank that may stand still for a checkpoint. So a step's boundary is the next
zero_grad(), which every rank reaches by itself, else the end of step().
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any, Callable, Dict, List, Optional

from trainer_shim import timing
from trainer_shim.engines import compiling, hooks, plain, torch_calls
from trainer_shim.engines.base import Options, PositionSaver
from trainer_shim.engines.waits import model_times
from trainer_shim.guard import attempt, guarded
from trainer_shim.interfaces import Saver
from trainer_shim.launch import is_required
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter
from trainer_shim.scalars import EngineFacts
from trainer_shim.sight.losses import is_scalar

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_TRANSFERS = "megatron.core.pipeline_parallel.p2p_communication"
_NO_SAVE = "each rank of Megatron's has a part of model and optimizer: pass save_fn= (and load_fn= to resume)"
_NO_LOAD = "resume(): each rank of Megatron's has a part of model and optimizer, and there is no load_fn="


class MegatronKind(plain.PlainKind):
    """A module of megatron-core's and its MegatronOptimizer."""

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(model, options)
        if isinstance(model, (list, tuple)):  # As get_model() of Megatron-LM returns it, also where it is one.
            remedy = "write attach(model[0], ...)" if len(model) == 1 else "a virtual pipeline is not watched"
            raise TypeError("attach() takes one module, not a list of %d model chunks: %s" % (len(model), remedy))
        if len(self._optimizers) > 1:
            raise TypeError("attach() takes one MegatronOptimizer: several are a ChainedOptimizer of megatron-core's")
        if _size_of("virtual_pipeline_model_parallel") > 1:
            raise TypeError("attach() takes no virtual pipeline of megatron-core's: its model is several modules")

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return MegatronSaver(meter, directory, self._model, self._optimizers[0], self._options)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        if self._options.save_fn is None:
            return _NO_SAVE if directory else _NO_SAVE + " and checkpoint_dir="
        return None if directory else "no directory is known; pass checkpoint_dir="

    def hello_fields(self) -> Dict[str, Any]:
        # Of stages the governor knows that their times differ, and that one alone may tell a loss.
        is_staged = _size_of("pipeline_model_parallel") > 1
        fields: Dict[str, Any] = {"framework": "pipeline" if is_staged else "megatron"}
        splits = ("tensor_model_parallel", "pipeline_model_parallel", "expert_model_parallel")
        if _is_told() and all(_size_of(name) == 1 for name in splits):
            fields["parameters"] = sum(p.numel() for p in self._model.parameters())
        return fields

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        import torch

        undo = hooks.Undo()
        megatrons = self._optimizers[0]
        inner = torch_optimizers(megatrons)
        compiling.watch_model(torch, self._model, meter, undo)
        gradients = torch_calls.instrument(meter, inner, undo, plain.ignore_skip)
        meter.watch_gradients(gradients, plain.BLIND_STEPS_MAX if is_required(os.environ) else 0)
        steps = _Steps(megatrons, meter)
        hooks.replace(undo, megatrons, "step", hooks.around(steps.step))
        hooks.replace(undo, megatrons, "zero_grad", hooks.around(steps.zero_grad))
        if inner and not steps.tells_norm:  # In there the gradient is unscaled, and where torch has it.
            undo.add(inner[-1].register_step_pre_hook(_sampling(meter)).remove)
        attempt(_watch_schedules, meter, undo)
        model_times.watch(self._model, meter, undo)
        return undo


class _Steps:
    """The calls of one MegatronOptimizer."""

    def __init__(self, optimizer: Any, meter: StepMeter) -> None:
        self._known = keeping.known(optimizer)
        self._meter = meter
        self._skipped = 0
        self._is_zeroed = False  # zero_grad() was called since the last step.
        self._due = False
        config = getattr(optimizer, "config", None)
        # One that clips nothing computes no norm, and may say 0.0, unless it is a chain.
        is_chain = hasattr(optimizer, "chained_optimizers")
        self.tells_norm = is_chain or bool(getattr(config, "clip_grad", 0.0) > 0.0)

    def step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._pass_boundary()  # As a step without a zero_grad() before it.
        self._meter.enter_optimizer()
        result = original(*args, **kwargs)
        self._end(result)
        return result

    def zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Also called by a loop that has gone on from a step to its scheduler, and on to the next step."""
        self._is_zeroed = True
        self._pass_boundary()
        return original(*args, **kwargs)

    @guarded()
    def _end(self, result: Any) -> None:
        meter = self._meter
        applied, norm = result[:2] if isinstance(result, tuple) and len(result) > 1 else (None, None)
        self._skipped += applied is not None and not applied
        meter.end_step(
            EngineFacts(
                meter.progress.step + 1,
                None if applied is None else bool(applied),
                norm if self.tells_norm else None,
                self._lr(),
                skipped_steps=self._skipped or None,
            )
        )
        self._due, self._is_zeroed = self._is_zeroed, False
        if self._due:
            meter.watch.step_over(meter.progress.step)
        else:
            meter.boundary()

    @guarded()
    def _pass_boundary(self) -> None:
        if self._due:
            self._due = False
            self._meter.boundary()

    def _lr(self) -> Optional[float]:
        groups = getattr(self._known(), "param_groups", None) or [{}]
        lr = groups[0].get("lr")
        return float(lr) if isinstance(lr, (int, float)) else None


class MegatronSaver(plain.PlainSaver):
    """Saves by the user's functions: the parts of model and optimizer lie on many ranks."""

    def __init__(
        self, meter: StepMeter, directory: Optional[str], model: Any, optimizer: Any, options: Options
    ) -> None:
        super().__init__(meter, directory, model, [optimizer], options)
        self._optimizers = torch_optimizers(optimizer)
        if options.save_fn is None:
            self.directory = None
        if options.load_fn is None:
            self.cannot_load = _NO_LOAD

    def learn_directory(self, directory: str, is_loaded: bool = False) -> None:
        """Nothing is saved where no function of the user's does."""
        if is_loaded or self._save_fn is not None:
            PositionSaver.learn_directory(self, directory, is_loaded)

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        if self._load_fn is None:
            raise ValueError(_NO_LOAD)
        return super().load(directory, tag)


def torch_optimizers(optimizer: Any) -> List[Any]:
    """Return the optimizers of torch's kind inside, in the order of their steps. A rank may train nothing."""
    if hasattr(optimizer, "chained_optimizers"):
        return [inner for one in optimizer.chained_optimizers for inner in torch_optimizers(one)]
    inner = optimizer.optimizer
    return [] if inner is None else [inner]


def _is_told() -> bool:
    state: Any = sys.modules.get("megatron.core.parallel_state")
    return state is not None and bool(state.model_parallel_is_initialized())


def _size_of(name: str) -> int:
    """Return how many ranks, or chunks, `name` has among Megatron's groups: 1 where it has none."""
    ask = getattr(sys.modules.get("megatron.core.parallel_state"), "get_%s_world_size" % name, None)
    return int(ask() or 1) if ask is not None and _is_told() else 1


def _sampling(meter: StepMeter) -> Callable[..., None]:
    def sample(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if meter.gradients is not None:
            attempt(meter.gradients.before_step, optimizer)

    return sample


# -- the schedules, whose functions are called by their names in the module ------------------------------------------


def _watch_schedules(meter: StepMeter, undo: hooks.Undo) -> None:
    """See losses, backward passes and waits for other stages where the schedules of megatron-core train."""
    schedules, _ = attempt(importlib.import_module, _SCHEDULES)
    calc = getattr(schedules, "forward_step_calc_loss", None)
    parameters = list(inspect.signature(calc).parameters) if calc is not None else []
    if "loss_func" in parameters:
        losses = _Losses(meter, parameters.index("loss_func"))
        hooks.replace(undo, schedules, "forward_step_calc_loss", hooks.around(losses.calc))
    if hasattr(schedules, "custom_backward"):  # It calls the engine of autograd below torch.autograd.backward().
        hooks.replace(undo, schedules, "custom_backward", hooks.around(_backward, meter))
    transfers, _ = attempt(importlib.import_module, _TRANSFERS)
    for name in [
        one for one in vars(getattr(transfers, "P2PCommunicator", object)) if one.startswith(("send_", "recv_"))
    ]:
        hooks.replace(undo, transfers.P2PCommunicator, name, _waiting(meter, name))


class _Losses:
    """What the loop's loss functions return: (loss, ...), or (sum of losses, number of tokens, ...)."""

    def __init__(self, meter: StepMeter, place: int) -> None:
        self._meter = meter
        self._place = place  # Of `loss_func` among the arguments.
        self._tells = False

    def calc(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        place = self._place
        if len(args) > place and args[place] is not None:
            args = (*args[:place], self._seen(args[place]), *args[place + 1 :])
        elif kwargs.get("loss_func") is not None:
            kwargs["loss_func"] = self._seen(kwargs["loss_func"])
        return original(*args, **kwargs)

    def _seen(self, loss_func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = loss_func(*args, **kwargs)
            self._note(returned)
            return returned

        return call

    @guarded()
    def _note(self, returned: Any) -> None:
        meter = self._meter
        if meter.evaluating or not isinstance(returned, tuple) or len(returned) not in (2, 3):
            return
        loss = returned[0]
        if not is_scalar(loss) or not loss.requires_grad or (meter.losses.told and not self._tells):
            return  # Nothing trains on it, or the loop tells its loss by shim.loss().
        self._tells = True
        if not meter.losses.told:
            meter.losses.tell()
        # The schedule divides it in place, perhaps before a device has told it.
        value = loss.detach().clone() if len(returned) == 2 else loss.detach() / returned[1].clamp(min=1)
        meter.note_loss(value)
        meter.outputs.told(value)


def _backward(meter: StepMeter, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    is_timed = meter.enter_unreported_backward()
    try:
        return original(*args, **kwargs)
    finally:
        if is_timed:
            meter.exit_unreported_backward()


def _waiting(meter: StepMeter, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what reports a transfer between stages; it has to be a function, since a class binds nothing else."""
    hook = "pipe:" + name

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(*args: Any, **kwargs: Any) -> Any:
            left = meter.enter_instruction(hook, timing.BUBBLE)
            try:
                return original(*args, **kwargs)
            finally:
                meter.exit_instruction(hook, left)

        return transfer

    return make
