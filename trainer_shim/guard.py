"""The one place where the shim catches every exception: nothing of ours may raise into a training loop."""

from __future__ import annotations

import functools
import select
import sys
from typing import Any, Callable, Dict, List, Optional, TextIO, Tuple, TypeVar, cast

_Hook = TypeVar("_Hook", bound=Callable[..., Any])

_READY_MS = 500  # For a reader that is slow.
# Faults per hook since import; the first of each hook is printed, all are counted.
faults: Dict[str, int] = {}


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tuple[Any, Optional[Exception]]:
    """Call and return (result, None) or (None, the exception).

    SystemExit and KeyboardInterrupt pass, and whatever else is no Exception but torch's: its CheckpointException.
    """
    caught: List[Exception] = []
    result = _safe(function, caught.append)(*args, **kwargs)
    return (None, caught[0]) if caught else (result, None)


def guarded(fallback: Any = None) -> Callable[[_Hook], _Hook]:
    """Make a hook return `fallback` instead of raising. The first fault of each hook goes to stderr, once."""

    def wrap(hook: _Hook) -> _Hook:
        def report(error: Exception) -> Any:
            note(hook.__qualname__, error)
            return fallback

        return cast(_Hook, functools.wraps(hook)(_safe(hook, report)))

    return wrap


def _safe(function: Callable[..., Any], on_error: Callable[[Exception], Any]) -> Callable[..., Any]:
    # One layer only: ten hooks per step pass here, nearly all without keywords, which cost as much as the layer.
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs) if kwargs else function(*args)
        except BaseException as error:  # A bug of ours or of an engine must not cost a training step.
            if not (isinstance(error, Exception) or type(error).__module__.startswith("torch.")):
                raise  # A handler of the script's may end the training by it.
            return on_error(cast(Exception, error))

    return safe


def note(where: str, error: BaseException) -> None:
    """Count a fault of ours; the first at each place is printed as one line."""
    seen = faults.get(where, 0)
    faults[where] = seen + 1
    if not seen:
        print_line("fault in %s, training goes on: %s: %.200s" % (where, type(error).__name__, error))


def print_line(line: str) -> None:
    """Print one line of ours to stderr; a closed stderr is not worth an exception.

    Nor is a stopped terminal (Ctrl-S), or a pipe whose reader hangs, worth a thread that answers a halt: the line is
    lost there. What the script itself prints waits as ever.
    """
    ready, error = attempt(_takes_more, sys.stderr)
    if error is None and not ready:
        return
    try:
        sys.stderr.write("costgov: %s\n" % line)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # Closed, full, or None under pythonw-like hosts.
        pass


def flush_stdout() -> None:
    """Before an end without Python's own. It waits for nobody either, and nothing that fails keeps us from the end."""
    ready, error = attempt(_takes_more, sys.stdout)
    if ready or error is not None:
        attempt(print, end="", flush=True)


def _takes_more(stream: TextIO) -> bool:
    """Whether its reader takes something now or soon. Raises where it has no descriptor, as in a notebook."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return bool(poll.poll(_READY_MS))
