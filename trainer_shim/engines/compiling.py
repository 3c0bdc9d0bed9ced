"""torch.compile: what a compiler traces must not be us, and what then runs without our hooks is seen from outside.

A hook of ours reads clocks, which no graph can hold: traced, it breaks the graph, and under fullgraph=True that raises
in the loop. So hooks are mute under a compiler. Where the loop compiles what they sit on (the model, its call, its
optimizer's step()), the calls of the compiled one are reported in their place.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, List, Optional, Tuple
from weakref import ref

from trainer_shim import timing
from trainer_shim.guard import attempt
from trainer_shim.lifetime import keeping
from trainer_shim.meter import StepMeter

from . import hooks

# Where a loop may call the module inside of its wrapper by itself. Elsewhere the wrapper does, or a backward pass.
_BESIDE_STEPS = frozenset((timing.GAP, timing.AFTER_BACKWARD, timing.EVAL))


class Calls:
    """One thing that is called, a model or an optimizer's step(): each call is reported once, by what is outermost."""

    def __init__(self, torch: Any, before: Callable[[Any, Any], None], after: Callable[[Any], None]) -> None:
        self.is_compiling = is_compiling_of(torch)
        self.tracing, self.compiler = tracing_of(torch)
        self.before = before
        self.after = after
        self.outside = False  # The call of a compiled one is being reported.
        self._open = True

    def close(self) -> None:
        """Report nothing any more: what is compiled keeps our wrapper."""
        self._open = False

    def wrap(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return `compiled`, reported."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_compiling() or not self._open:
                return compiled(*args, **kwargs)
            self.outside = True
            try:
                self.before(args, kwargs)
                result = compiled(*args, **kwargs)
                self.after(result)
            finally:
                self.outside = False
            return result

        return call


class ModelCalls(Calls):
    """The forward passes of one model; those without gradients, or not in training mode, count as evaluation."""

    def __init__(self, torch: Any, model: Any, meter: StepMeter) -> None:
        super().__init__(torch, self._enter, meter.exit_forward)
        self.model = model
        self.meter = meter
        self.grad_enabled: Callable[[], bool] = torch.is_grad_enabled

    def _enter(self, args: Any, kwargs: Any) -> None:
        self.meter.enter_forward(self.model.training and self.grad_enabled(), args, kwargs)

    def hook(self, module: Any, is_outside: bool) -> List[Any]:
        """Report the calls of `module` by hooks; return their handles. `is_outside`: it is a compiled one."""
        # Before FSDP2's own hook, which gathers the weights: a save at this boundary would shard them again.
        return [
            module.register_forward_pre_hook(_Before(self, is_outside), prepend=True, with_kwargs=True),
            module.register_forward_hook(_After(self, is_outside)),
        ]


class _Before(hooks.ModelHook):
    """ModelCalls._enter() and its like are not called from here: each call more is half a percent of our cost."""

    __slots__ = ("_calls", "_compiler", "_enter_forward", "_grad_enabled", "_is_outside", "_model", "_tracing")

    def __init__(self, calls: ModelCalls, is_outside: bool) -> None:
        self._calls, self._is_outside = calls, is_outside
        self._tracing, self._compiler = calls.tracing, calls.compiler
        self._model, self._grad_enabled = calls.model, calls.grad_enabled
        self._enter_forward = calls.meter.enter_forward

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> None:
        if self._tracing() or self._compiler._is_compiling_flag:
            return
        calls = self._calls
        if calls.outside and not self._is_outside:
            return
        calls.outside = self._is_outside
        self._enter_forward(self._model.training and self._grad_enabled(), args, kwargs)


class _After(hooks.ModelHook):
    __slots__ = ("_calls", "_compiler", "_exit_forward", "_is_outside", "_tracing")

    def __init__(self, calls: ModelCalls, is_outside: bool) -> None:
        self._calls, self._is_outside = calls, is_outside
        self._tracing, self._compiler = calls.tracing, calls.compiler
        self._exit_forward = calls.meter.exit_forward

    def __call__(self, _module: Any, _args: Any, output: Any) -> None:
        if self._tracing() or self._compiler._is_compiling_flag:
            return
        calls = self._calls
        if calls.outside and not self._is_outside:
            return
        calls.outside = False
        self._exit_forward(output)


class _BeforeInner(hooks.ModelHook):
    """The module inside of a wrapper such as DDP is called by itself: without training, that is an evaluation."""

    __slots__ = ("_compiler", "_grad_enabled", "_meter", "_tracing")

    def __init__(self, calls: ModelCalls) -> None:
        self._tracing, self._compiler = calls.tracing, calls.compiler
        self._meter, self._grad_enabled = calls.meter, calls.grad_enabled

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._tracing() or self._compiler._is_compiling_flag or (module.training and self._grad_enabled()):
            return
        if self._meter.clock.part in _BESIDE_STEPS:
            self._meter.enter_forward(False, args, kwargs)


class _AfterInner(hooks.ModelHook):
    __slots__ = ("_compiler", "_meter", "_tracing")

    def __init__(self, calls: ModelCalls) -> None:
        self._tracing, self._compiler, self._meter = calls.tracing, calls.compiler, calls.meter

    def __call__(self, _module: Any, _args: Any, _output: Any) -> None:
        if not self._tracing() and not self._compiler._is_compiling_flag and self._meter.evaluating:
            self._meter.end_pass()


def _watch_inner(inner: Any, calls: ModelCalls) -> List[Any]:
    return [
        inner.register_forward_pre_hook(_BeforeInner(calls), prepend=True, with_kwargs=True),
        inner.register_forward_hook(_AfterInner(calls)),
    ]


def watch_mode(torch: Any, models: Iterable[Any], meter: StepMeter, undo: hooks.Undo) -> None:
    """Report where the loop puts one of `models` to training, until `undo`.

    On the class: what hung at a model itself would be in its copies. One that does not call Module.train() is not seen.
    """
    kind = getattr(getattr(torch, "nn", None), "Module", None)
    if not hasattr(kind, "train"):
        return
    tracing, compiler = tracing_of(torch)
    known = [ref(model) for model in models]
    undo.add(known.clear)  # Somebody may have wrapped our wrapper, and it stays.
    thread, get_ident = meter.progress.main_thread_id, threading.get_ident

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def train(self: Any, mode: bool = True) -> Any:
            # Each module calls it of each one below it, in some trainers at each step: first what costs nothing.
            if compiler._is_compiling_flag or not (mode and meter.evaluating) or tracing():
                return original(self, mode)
            if get_ident() == thread and any(one() is self for one in known):
                meter.set_training(True)
            return original(self, mode)

        return train

    hooks.replace(undo, kind, "train", make)


def watch_model(torch: Any, model: Any, meter: StepMeter, undo: hooks.Undo, inner: Any = None) -> None:
    """Report the forward passes of `model`, compiled before or from now on, until `undo`.

    `inner`: the module inside of it, if it is a wrapper. A loop may evaluate that one.
    """
    calls = ModelCalls(torch, model, meter)
    handles = calls.hook(model, False)
    if inner is not None:
        handles.extend(_watch_inner(inner, calls))
    watch_mode(torch, [model] if inner is None else [model, inner], meter, undo)
    undo.add(lambda: [handle.remove() for handle in handles])
    undo.add(keeping.weakly(calls.close))
    if getattr(model, "_compiled_call_impl", None) is not None:
        hooks.replace(undo, model, "_compiled_call_impl", calls.wrap)

    known, known_calls = ref(model), ref(calls)  # torch.compile lives on: it keeps no model alive.

    def mode() -> Optional[bool]:
        ours = known()
        if ours is None or not ours.training:
            return None if ours is None else False
        return True if torch.is_grad_enabled() else None

    meter.ask_mode(mode)

    def seen(given: Any, made: Any) -> Any:
        ours, reported = known(), known_calls()
        if ours is None or reported is None:
            return made
        if given is ours and made is not ours and hasattr(made, "register_forward_pre_hook"):
            meter.expect_compilation()
            handles.extend(reported.hook(made, True))
        elif getattr(given, "__self__", None) is ours and getattr(given, "__name__", "") == "_call_impl":
            meter.expect_compilation()
            return reported.wrap(made)  # model.compile(): the module calls what it gets here.
        return made

    _watch_compile(torch, seen, undo)


def watch_step(torch: Any, optimizer: Any, calls: Calls, undo: hooks.Undo) -> None:
    """Report the calls of what `optimizer.step` is compiled to from now on, until `undo`."""

    known, known_calls = keeping.known(optimizer), ref(calls)

    def seen(given: Any, made: Any) -> Any:
        ours, reported = known(), known_calls()
        if ours is None or reported is None:
            return made
        is_step = getattr(given, "__self__", None) is ours and getattr(given, "__name__", "") == "step"
        return reported.wrap(made) if is_step else made

    undo.add(keeping.weakly(calls.close))
    _watch_compile(torch, seen, undo)


def _watch_compile(torch: Any, seen: Callable[[Any, Any], Any], undo: hooks.Undo) -> None:
    if not callable(getattr(torch, "compile", None)):
        return
    open_until: List[None] = [None]
    undo.add(open_until.clear)  # Somebody may have wrapped our wrapper, and it stays.

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  It stands for torch.compile.
            made = original(*args, **kwargs)
            given = args[0] if args else kwargs.get("model")
            if given is None or not open_until:
                return made
            found, error = attempt(seen, given, made)
            return made if error is not None else found

        return compile

    hooks.replace(undo, torch, "compile", make)


def is_compiling_of(torch: Any) -> Callable[[], bool]:
    """Return torch's own question whether a graph is traced, which a tracer takes for a constant."""
    known: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", _never)
    return known


class _NoFlag:
    _is_compiling_flag = False


def tracing_of(torch: Any) -> Tuple[Callable[[], bool], Any]:
    """Return what is_compiling() looks at, for who asks at every step: `tracing() or compiler._is_compiling_flag`.

    A tracer takes the former for a constant, too. The latter says that a model is exported.
    """
    compiler = getattr(torch, "compiler", None)
    tracing = getattr(compiler, "is_dynamo_compiling", None)
    if tracing is not None and hasattr(compiler, "_is_compiling_flag"):
        return tracing, compiler
    return is_compiling_of(torch), _NoFlag


def may_not_break() -> bool:
    """Whether the graph that is being traced must be whole. A tracer asks at once, and takes the answer as a constant.

    Where it cannot be known it must: to be mute costs a figure, to break a graph that must be whole costs the run.
    """
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        tracer = InstructionTranslator.current_tx()
        return bool(tracer.one_graph or getattr(tracer, "error_on_graph_break", False))
    except (ImportError, AttributeError):
        return True


may_not_break._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _never() -> bool:
    return False
