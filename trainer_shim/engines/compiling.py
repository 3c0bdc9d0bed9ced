"""torch.compile: what a compiler traces must not be us, and what then runs without our hooks is seen from outside.

A hook of ours reads clocks, which no graph can hold: traced, it breaks the graph, and under fullgraph=True that raises
in the loop. So hooks are mute under a compiler. Where the loop compiles what they sit on (the model, its call, its
optimizer's step()), the calls of the compiled one are reported in their place.
"""

from __future__ import annotations

from typing import Any, Callable, List

from trainer_shim.guard import attempt

from . import hooks


class Calls:
    """One thing that is called, a model or an optimizer's step(): each call is reported once, by what is outermost."""

    def __init__(self, torch: Any, before: Callable[[Any, Any], None], after: Callable[[Any], None]) -> None:
        self.is_compiling: Callable[[], bool] = is_compiling_of(torch)
        self.before = before
        self.after = after
        self.outside = False  # The call of a compiled one is being reported.
        self._open = True

    def close(self) -> None:
        """Report nothing any more: what is compiled keeps our wrapper."""
        self._open = False

    def is_mute(self) -> bool:
        """For a hook inside: somebody outside reports this call, or we would break a graph that must be whole."""
        return self.outside or (self.is_compiling() and may_not_break())

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

    def hook(self, module: Any, is_outside: bool) -> List[Any]:
        """Report the calls of `module` by hooks; return their handles. `is_outside`: it is a compiled one."""
        is_compiling = self.is_compiling

        def before(_module: Any, args: Any, kwargs: Any) -> None:
            if is_compiling() or (self.outside and not is_outside):
                return
            self.outside = is_outside
            self.before(args, kwargs)

        def after(_module: Any, _args: Any, output: Any) -> None:
            if is_compiling() or (self.outside and not is_outside):
                return
            self.outside = False
            self.after(output)

        # Before FSDP2's own hook, which gathers the weights: a save at this boundary would shard them again.
        return [
            module.register_forward_pre_hook(hooks.ModelHook(before), prepend=True, with_kwargs=True),
            module.register_forward_hook(hooks.ModelHook(after)),
        ]


def watch_model(torch: Any, model: Any, calls: Calls, undo: hooks.Undo) -> None:
    """Report the forward passes of `model`, compiled before or from now on, until `undo`."""
    handles = calls.hook(model, False)
    undo.add(lambda: [handle.remove() for handle in handles])
    undo.add(calls.close)
    if getattr(model, "_compiled_call_impl", None) is not None:
        hooks.replace(undo, model, "_compiled_call_impl", calls.wrap)

    def seen(given: Any, made: Any) -> Any:
        if given is model and made is not model and hasattr(made, "register_forward_pre_hook"):
            handles.extend(calls.hook(made, True))
        elif getattr(given, "__self__", None) is model and getattr(given, "__name__", "") == "_call_impl":
            return calls.wrap(made)  # model.compile(): the module calls what it gets here.
        return made

    _watch_compile(torch, seen, undo)


def watch_step(torch: Any, optimizer: Any, calls: Calls, undo: hooks.Undo) -> None:
    """Report the calls of what `optimizer.step` is compiled to from now on, until `undo`."""

    def seen(given: Any, made: Any) -> Any:
        is_step = getattr(given, "__self__", None) is optimizer and getattr(given, "__name__", "") == "step"
        return calls.wrap(made) if is_step else made

    undo.add(calls.close)
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
