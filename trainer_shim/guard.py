"""The one place where the shim catches everything: nothing of ours may raise into somebody's training loop."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar, cast

_Hook = TypeVar("_Hook", bound=Callable[..., Any])

# Faults per hook since import; the first of each hook is printed, all are counted.
faults: Dict[str, int] = {}


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tuple[Any, Optional[Exception]]:
    """Call and return (result, None) or (None, the exception). SystemExit and KeyboardInterrupt pass."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001  (a bug of ours or of an engine must not cost a training step)
        return None, error


def guarded(fallback: Any = None) -> Callable[[_Hook], _Hook]:
    """Make a hook return `fallback` instead of raising. The first fault of each hook goes to stderr, once."""

    def wrap(hook: _Hook) -> _Hook:
        @functools.wraps(hook)
        def safe(*args: Any, **kwargs: Any) -> Any:
            result, error = attempt(hook, *args, **kwargs)
            if error is None:
                return result
            note(hook.__qualname__, error)
            return fallback

        return cast(_Hook, safe)

    return wrap


def note(where: str, error: BaseException) -> None:
    """Count a fault of ours; the first at each place is printed as one line."""
    seen = faults.get(where, 0)
    faults[where] = seen + 1
    if not seen:
        say("fault in %s, training goes on: %s: %.200s" % (where, type(error).__name__, error))


def say(line: str) -> None:
    """Print one line of ours to stderr; a closed stderr is not worth an exception."""
    try:
        sys.stderr.write("costgov: %s\n" % line)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # Closed, full, or None under pythonw-like hosts.
        pass
