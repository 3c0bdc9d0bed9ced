"""How the shim gets between a training loop and its engine: undoable, and never in copies."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, List, Tuple

from trainer_shim.lifetime import keeping


class Undo:
    """Collects what takes the hooks off again."""

    def __init__(self) -> None:
        self._steps: List[Callable[[], Any]] = []

    def add(self, step: Callable[[], Any]) -> None:
        """Note one more thing to undo."""
        self._steps.append(step)

    def __call__(self) -> None:
        """Take everything off, last hook first."""
        while self._steps:
            self._steps.pop()()


class ModelHook:
    """A module hook that stays behind when the module is copied or pickled.

    torch.save(model) pickles hooks, and an averaged copy of a model would report its forward passes as training.
    A copy gets a stand-in that does nothing and needs nothing but the standard library to be loaded.
    """

    __slots__ = ()

    def __reduce__(self) -> Tuple[Any, ...]:
        # nullcontext().__exit__ takes any positional arguments and returns None.
        return getattr, (contextlib.nullcontext(), "__exit__")


def replace(undo: Undo, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `make(original)` in place of the method `name` of this one object; it takes and returns what that does."""
    original = getattr(owner, name)
    wrapped = functools.wraps(original)(make(original))
    wrapped.costgov_before = vars(owner).get(name)  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    known, known_wrapped = keeping.known(owner), keeping.known(wrapped)  # Undo keeps nothing alive.

    def put_back() -> None:
        owned, ours = known(), known_wrapped()
        # Somebody may have wrapped ours since: theirs calls it, so it stays.
        if owned is None or ours is None or vars(owned).get(name) is not ours:
            return
        before = ours.costgov_before
        if before is None:
            delattr(owned, name)
        else:
            setattr(owned, name, before)

    undo.add(put_back)


def give_once(undo: Undo, owner: Any, name: str, index: int, keyword: str, value: Any) -> None:
    """Let the next call of the method `name` have `value` for an argument that its caller leaves out, or None."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            undo()
            if len(args) > index:
                args = (*args[:index], value, *args[index + 1 :]) if args[index] is None else args
            elif kwargs.get(keyword) is None:
                kwargs[keyword] = value
            return original(*args, **kwargs)

        return call

    replace(undo, owner, name, make)


def around(function: Callable[..., Any], *bound: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what replace() makes of `function(*bound, original, *args, **kwargs)`: one call more, not two."""
    return lambda original: functools.partial(function, *bound, original)
