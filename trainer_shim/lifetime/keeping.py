"""What we keep for a training is kept by its own object: who drops that frees model and optimizer, attached or not.

Threads, torch's own functions and the handle of attach() live as long as the process. So none of these may hold what a
script trains: they know it through a Kept, which hangs at the object that the training cannot do without.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Dict, Tuple
from weakref import WeakMethod, ref

_NAME = "_costgov_kept"
LAST_KEPT = 4  # Of one group. What a script attaches at each step, unwatched, must not grow with its steps.
_COUNT = itertools.count()


class Kept(Dict[str, Any]):
    """Values by name. A copy or a pickle of the object that it hangs at has something empty in its place."""

    def __reduce__(self) -> Tuple[Any, ...]:
        return contextlib.nullcontext, ()


def keep(keeper: Any, name: str, value: Any) -> None:
    """Let `value` live as long as `keeper` does, or until let_go(). TypeError where nothing can hang there."""
    kept = vars(keeper).get(_NAME)
    if not isinstance(kept, Kept):
        kept = vars(keeper)[_NAME] = Kept()
    kept[name] = value


def keep_last(keeper: Any, group: str, value: Any) -> str:
    """As keep(), by a name of its own, which is returned; the oldest of that group goes where they are too many."""
    name = "%s %d" % (group, next(_COUNT))
    keep(keeper, name, value)
    kept = vars(keeper)[_NAME]
    for old in [one for one in kept if one.startswith(group + " ")][:-LAST_KEPT]:
        del kept[old]
    return name


def let_go(keeper: Callable[[], Any]) -> None:
    """Keep nothing there any more. `keeper`: a weak reference."""
    owner = keeper()
    if owner is not None:
        getattr(owner, "__dict__", {}).pop(_NAME, None)


def kept_at(keeper: Callable[[], Any], name: str) -> Any:
    """Return what is kept there by that name, or None. `keeper`: a weak reference."""
    return getattr(keeper(), "__dict__", {}).get(_NAME, {}).get(name)


def let_go_of(keeper: Callable[[], Any], name: str) -> None:
    """Keep all there but what has that name."""
    getattr(keeper(), "__dict__", {}).get(_NAME, {}).pop(name, None)


class Of:
    """An attribute whose value `keep_at()` has said where to keep: its holder keeps nothing alive by it.

    It is None when the keeper is gone. A holder that was told no keeper holds the value itself.
    """

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: Any = None) -> Any:
        if holder is None:
            return self
        values = vars(holder).get(_NAME)
        if values is None:
            return vars(holder).get(self._name)
        kept = values()
        return None if kept is None else kept.get(self._name)

    def __set__(self, holder: Any, value: Any) -> None:
        values = vars(holder).get(_NAME)
        if values is None:
            vars(holder)[self._name] = value
        else:
            kept = values()
            if kept is not None:
                kept[self._name] = value


def keep_at(keeper: Any, holder: Any) -> None:
    """Keep the values of `holder`'s attributes that are Of() at `keeper`, where that takes them."""
    kept = Kept()
    try:
        keep(keeper, type(holder).__name__, kept)
    except TypeError:  # An object without a dictionary.
        return
    vars(holder)[_NAME] = ref(kept)


def known(one: Any) -> Callable[[], Any]:
    """Return a reference that keeps nothing alive, but where there is no such one."""
    try:
        return ref(one)
    except TypeError:  # A class with __slots__ alone.
        return lambda: one


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of a bound method that does nothing once its object is gone."""
    known = WeakMethod(method)

    def call(*args: Any) -> Any:
        found = known()
        return None if found is None else found(*args)

    return call
