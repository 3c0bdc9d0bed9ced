"""A plain PyTorch loop: public hooks of the module and of the optimizers, and what torch_calls.py sees.

A forward pass opens a step, the optimizer's step() ends it, and the backward pass lies between. Where the loop calls
`shim.loss(loss)`, backward begins exactly there and that is the loss. Else the loss is the scalar that the module
returned, or the one that it calls backward() on.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.interfaces import Saver
from trainer_shim.launch import is_required
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint
from trainer_shim.scalars import EngineFacts
from trainer_shim.tokens import Replicas

from . import base, compiling, hooks, replicas, save_fn, state_file, torch_calls, trained
from .base import Options
from .waits import model_times

STATE_FILE = "state.pt"
TRAINED = "trained"  # Values of what the optimizers train and no state has, by place.
BLIND_STEPS_MAX = 20  # As the governor's LOSS_DUE_STEPS: what can be seen at all, the first step shows.
OUTSIDE = "outside"  # In a rank's position: a sample of what TRAINED has of rank 0's.
_HALF_STEP = (
    "checkpoint(): saved inside optimizer.step(): what the loop does behind it in a step (a scheduler) is not in it: "
    "attach the module that the loop calls, or use shim.wrap_loader(loader)"
)
_SHARDED = "resume(): the model is sharded (FSDP) and there is no save_fn=: nothing was saved, so nothing is resumed"
_SHARDING = ("FullyShardedDataParallel", "FSDPModule")


class PlainKind:
    """A torch module and its optimizers."""

    def __init__(self, model: Any, options: Options) -> None:
        if options.optimizer is None:
            raise TypeError("attach(module) needs optimizer=: without it nobody can see where a step ends")
        self._model = model
        self._options = options
        given = options.optimizer
        self._optimizers: List[Any] = list(given) if isinstance(given, (list, tuple)) else [given]

    def checkpoint_dir(self) -> Optional[str]:
        return None

    def saver(self, meter: StepMeter, directory: Optional[str]) -> Saver:
        return PlainSaver(meter, directory, self._model, self._optimizers, self._options)

    def cannot_save(self, directory: Optional[str]) -> Optional[str]:
        if is_sharded(self._model) and self._options.save_fn is None:
            missing = "save_fn=" if directory else "save_fn= and checkpoint_dir="
            return "the model is sharded (FSDP); pass %s (and load_fn= to resume)" % missing
        return None if directory else "no directory is known; pass checkpoint_dir="

    def hello_fields(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"framework": "torch"}
        if not is_sharded(self._model):
            fields["parameters"] = sum(p.numel() for p in self._model.parameters())
        return fields

    def replicas(self, batch: Any) -> Replicas:
        return replicas.of_module(self._model, batch)

    def step(self) -> int:
        return 0

    def keeper(self) -> Any:
        return self._optimizers[-1]

    def instrument(self, meter: StepMeter) -> Callable[[], None]:
        import torch

        is_first = trained.is_first_rank(torch)
        if self._options.save_fn is None and not is_sharded(self._model):
            self._tell_outside(is_first)
        meter.defer_boundary()
        return instrument(self._model, self._optimizers, meter, at_first_step=self._tell_schedule if is_first else None)

    @guarded()
    def _tell_outside(self, is_first: bool) -> None:
        """Say at once what of the optimizers is of no module. Its values are saved, with what belongs to them not."""
        modules = trained.parameters_of((self._model, *self._options.stateful.values()))
        outside = trained.outside(trained.trained_by(self._optimizers), modules)
        shared_out = {place: one for place, one in outside.items() if not trained.is_whole(one)}
        trained.warn_lost(shared_out, "the attached module", "pass save_fn= and load_fn=", is_first)
        kept = {place: one for place, one in outside.items() if place not in shared_out}
        if kept and is_first:
            print_line(
                "the optimizer trains %s outside of the attached module: their values are saved, as rank 0 has them. "
                'A module is saved whole, its buffers too, by stateful={"name": module}' % trained.worded(kept)
            )
        own = {place: kept[place] for place in trained.unlike_on_ranks(kept) if place in kept}
        trained.warn_lost(own, "the attached module, and other ones on each rank", "pass save_fn= and load_fn=", True)

    def _tell_schedule(self) -> None:
        """At the first step: one line where a scheduler would begin anew in a resumed run."""
        if self._options.save_fn is None and trained.lacks_schedule(self._optimizers, self._options.stateful.values()):
            print_line(trained.SCHEDULE_LOST % 'pass stateful={"scheduler": scheduler}')


class PlainSaver(base.PositionSaver):
    """Rank 0 writes model and optimizers, which are the same on every rank unless they are sharded."""

    _stateful, _model, _optimizers, _save_fn, _load_fn = (keeping.Of() for _ in range(5))

    def __init__(
        self, meter: StepMeter, directory: Optional[str], model: Any, optimizers: List[Any], options: Options
    ) -> None:
        super().__init__(meter)
        keeping.keep_at(optimizers[-1], self)
        self.directory = directory
        if is_sharded(model) and options.save_fn is None:
            self.directory, self.cannot_load = None, _SHARDED
        self._stateful = {"model": without_replicas(model)}
        self._stateful.update(("optimizer_%d" % index, item) for index, item in enumerate(optimizers))
        self._given: List[str] = []  # By the user, perhaps only since the checkpoint was saved.
        for name, item in options.stateful.items():
            if name in self._stateful and not trained.covers(item, self._stateful[name]):
                name = "stateful_" + name  # Nothing of the user's takes the place of what is attached.
            if name not in self._stateful:
                self._given.append(name)
            self._stateful[name] = item
        self._told: List[str] = []  # What need not be said again: of whose state, and of half a step.
        self._save_fn = save_fn.of(options.save_fn)
        self._load_fn = options.load_fn
        self._model, self._optimizers = model, optimizers

    def position(self) -> Dict[str, Any]:
        sample = self._sample() if self._save_fn is None else {}
        return {**super().position(), OUTSIDE: sample} if sample else super().position()

    @guarded(fallback={})
    def _sample(self) -> Dict[str, Any]:
        """Return a sample of what is of no module, where there is more than one rank: it may be each rank's own."""
        import torch

        if trained.rank_of(torch)[1] < 2 or is_sharded(self._model):
            return {}
        held = trained.trained_by(self._optimizers)
        found = trained.outside(held, trained.parameters_of(self._stateful.values()))
        return trained.sampled({place: tensor for place, tensor in found.items() if trained.is_whole(tensor)})

    def contents(self) -> Dict[str, Any]:
        if self._save_fn is not None:
            return base.counted(self._model.parameters(), self._optimizers, has_state=False)
        return base.counted(trained.trained_by(self._optimizers).values(), self._optimizers)

    def trained(self) -> Iterable[Tuple[str, Any]]:
        return _with_held(base.watched(self._model.named_parameters(), self._optimizers), self._optimizers)

    def save(self, directory: str, tag: str, client_state: Dict[str, Any]) -> None:
        self.begin_save()
        if self._save_fn is not None:
            self._save_fn(directory, tag, client_state)
            return
        import torch

        path = os.path.join(directory, tag)
        os.makedirs(path, exist_ok=True)
        trained.gather_shards(self._stateful.values())
        if trained.is_first_rank(torch):
            state = {name: item.state_dict() for name, item in self._stateful.items()}
            self._tell_half_step()
            self._tell_unloadable(path, {**state, "client_state": client_state})
            saved = {"state": state, "client_state": client_state, TRAINED: self._outside(state)}
            state_file.write(saved, os.path.join(path, STATE_FILE))

    @guarded(fallback={})
    def _outside(self, states: Dict[str, Any]) -> Dict[str, Any]:
        """Return the values of what the optimizers train and no state has."""
        found = trained.outside(trained.moved_by(self._optimizers), trained.kept_in(states, self._stateful))
        return {place: tensor.detach() for place, tensor in found.items() if trained.is_whole(tensor)}

    @guarded()
    def _tell_unloadable(self, path: str, states: Dict[str, Any]) -> None:
        for name, why in state_file.unloadable(states).items():
            if name not in self._told:
                self._told.append(name)
                print_line("the state of %r in %s holds %s" % (name, path, why))

    @guarded()
    def _tell_half_step(self) -> None:
        """Neither the next forward pass nor the next batch is seen, so the step ends where the optimizer's does."""
        is_alone = len(self._stateful) <= 2  # A model and its optimizer: nothing of theirs comes behind that.
        if self._meter.can_defer or is_alone or _HALF_STEP in self._told:
            return
        self._told.append(_HALF_STEP)
        print_line(_HALF_STEP)

    def pending(self) -> bool:
        return self._save_fn is not None and self._save_fn.pending()

    def load(self, directory: str, tag: str) -> Dict[str, Any]:
        if self._load_fn is not None:
            return dict(self._load_fn(directory, tag) or {})
        import torch

        path = os.path.join(directory, tag, STATE_FILE)
        saved = state_file.read(path)
        for name, item in self._stateful.items():
            if name in saved["state"] or name not in self._given:
                item.load_state_dict(saved["state"][name])
            elif trained.is_first_rank(torch):
                print_line("%s has no state of %r, which begins anew" % (path, name))
        self._load_outside(torch, path, saved.get(TRAINED))
        return dict(saved["client_state"])

    def _load_outside(self, torch: Any, path: str, values: Optional[Dict[str, Any]]) -> None:
        """Give what is of no module its values back, in place: the loop holds these tensors themselves."""
        held = trained.trained_by(self._optimizers)
        if values is None:  # As older versions saved.
            lost = trained.outside(held, trained.parameters_of(self._stateful.values()))
            if lost and trained.is_first_rank(torch):
                print_line("%s lacks %s that the optimizer trains: they begin anew" % (path, trained.worded(lost)))
            return
        own = _own_places(torch, path, values)
        with torch.no_grad():
            for place, value in values.items():
                if place in own:
                    continue
                if place not in held or held[place].shape != value.shape:
                    raise ValueError("%s has a trained tensor at %s that the optimizers do not have" % (path, place))
                held[place].copy_(value)


@guarded(fallback=[])
def _own_places(torch: Any, path: str, values: Dict[str, Any]) -> List[str]:
    """Return where this rank had other tensors than rank 0, whose values these are. They begin anew."""
    rank, directory = trained.rank_of(torch)[0], os.path.dirname(path)
    if rank == 0 or not values:
        return []
    state = checkpoint.read_rank_file(directory, rank) or checkpoint.read_rank_file(directory, 1) or {}
    sample = (state.get("position") or {}).get(OUTSIDE) or {}
    own = trained.unlike(sample, trained.sampled({place: values[place] for place in values if place in sample}))
    if own:
        told = (path, trained.worded({place: values[place] for place in own}), rank)
        print_line("NOT SAVED: %s has rank 0's values of %s, and those of rank %d were others: they begin anew" % told)
    return own


def _with_held(named: Iterable[Tuple[str, Any]], optimizers: Iterable[Any]) -> List[Tuple[str, Any]]:
    """Add what optimizers train that has no name, as copies of weights in full precision."""
    found = list(named)
    known = {id(parameter) for _, parameter in found}
    for place, one in trained.trained_by(optimizers).items():
        if id(one) not in known:
            optimizer, group, index = place.split(".")
            found.append(("%s in group %s of optimizer %s" % (index, group, optimizer), one))
    return found


def instrument(
    model: Any,
    optimizers: List[Any],
    meter: StepMeter,
    ends_step: bool = True,
    at_first_step: Optional[Callable[[], None]] = None,
    listed: str = "optimizer=",
) -> hooks.Undo:
    """Hook a module and its optimizers; the last optimizer's step() ends the step where nobody knows better."""
    import torch

    undo = hooks.Undo()
    inner = without_replicas(model)
    compiling.watch_model(torch, model, meter, undo, None if inner is model else inner)
    last = optimizers[-1] if ends_step else None
    order = _StepOrder(last, listed, trained.is_first_rank(torch))
    skipped = _SkippedStep(meter, last) if ends_step else ignore_skip
    gradients = torch_calls.instrument(meter, optimizers, undo, skipped)
    meter.watch_gradients(gradients, BLIND_STEPS_MAX if is_required(os.environ) else 0)
    for optimizer in optimizers:
        _hook_step(torch, optimizer, meter, order, undo, [at_first_step] if at_first_step else [])
    model_times.watch(model, meter, undo)
    return undo


def without_replicas(model: Any) -> Any:
    """Return the module inside of a wrapper such as DDP, whose state is all below `module`.

    A module of the script's may call one of its parts so, and have more.
    """
    outer = getattr(model, "_orig_mod", model)
    inner = getattr(outer, "module", None)
    if not hasattr(inner, "state_dict") or trained.is_own(outer, "get_extra_state"):
        return model
    names = [name for listed in (outer.named_parameters(), outer.named_buffers()) for name, _ in listed]
    return inner if all(name.startswith("module.") for name in names) else model


def is_sharded(model: Any) -> bool:
    """Return whether state_dict() is a collective call or holds one rank's shard only."""
    return any(base.__name__ in _SHARDING for base in type(model).__mro__)


class _StepOrder:
    """Which optimizer ends a step: the last of the list, which has to be the last that steps."""

    def __init__(self, last: Any, listed: str = "optimizer=", speaks: bool = True) -> None:
        self.last = last
        self._listed, self._speaks = listed, speaks
        self._first: Any = None
        self._is_told = False

    def note(self, optimizer: Any) -> None:
        """One of them has stepped."""
        if self._first is None:
            self._first = optimizer
        if self._speaks and self._first is self.last is not optimizer and not self._is_told:
            self._is_told = True
            print_line(
                "attach(): the last of %s steps before another one, so a step ends, and is saved, between the two: "
                "list them in the order in which they step" % self._listed
            )


def _hook_step(
    torch: Any,
    optimizer: Any,
    meter: StepMeter,
    order: _StepOrder,
    undo: hooks.Undo,
    at_first: List[Callable[[], None]],
) -> None:
    """Report the calls of one optimizer's step(). The end of the last one's is the step's."""

    def end(stepped: Any) -> None:
        order.note(optimizer)
        if optimizer is order.last:
            if at_first:
                attempt(at_first.pop())
            end_step(meter, stepped)
            meter.boundary()
        else:
            meter.exit_optimizer()

    enter, may_not_break = meter.enter_optimizer, compiling.may_not_break
    calls = compiling.Calls(torch, lambda _args, _kwargs: enter(optimizer), lambda _result: end(optimizer))
    tracing, compiler = calls.tracing, calls.compiler

    def hook(report: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
        """Mute where somebody outside reports this call, or where we would break a graph that must be whole."""

        def call(stepped: Any, _args: Any, _kwargs: Any) -> None:
            is_mute = calls.outside or ((tracing() or compiler._is_compiling_flag) and may_not_break())
            if not (is_mute or trained.makes_state(stepped)):
                report(stepped)

        return call

    undo.add(optimizer.register_step_pre_hook(hook(enter)).remove)
    undo.add(optimizer.register_step_post_hook(hook(end)).remove)
    compiling.watch_step(torch, optimizer, calls, undo)


class _SkippedStep:
    """A gradient scaler has found the gradient not finite and has not called step(): a step all the same."""

    def __init__(self, meter: StepMeter, last: Any) -> None:
        self._meter = meter
        self._last = keeping.known(last)
        self._total = 0

    def __call__(self, optimizer: Any) -> None:
        if optimizer is self._last():
            self._report()
            self._meter.boundary()

    @guarded()
    def _report(self) -> None:
        self._total += 1
        meter = self._meter
        meter.end_step(EngineFacts(meter.progress.step + 1, applied=False, skipped_steps=self._total))


def ignore_skip(_optimizer: Any) -> None:
    """Somebody else counts the steps, those that are skipped too."""


@guarded()
def end_step(meter: StepMeter, optimizer: Any, step: Optional[int] = None) -> None:
    """Report an update seen by the optimizer alone."""
    lr = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    known_lr = float(lr) if isinstance(lr, (int, float)) else None
    # Applied: a gradient scaler that skips does not call step(), see _SkippedStep. By position: half the time.
    meter.end_step(EngineFacts(meter.progress.step + 1 if step is None else step, True, None, known_lr))
