"""The file of a plain loop's checkpoint: tensors and plain values, since a checkpoint must not be able to run code.

torch writes any object and loads plain ones alone. Plain to us are numpy's numbers and arrays too, which a schedule of
the loop's own makes, and Python's dates, paths and containers. What else is in there is told when it is saved, not when
it is missed.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import io
import pathlib
import re
import types
import uuid
from pickle import Pickler
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Tuple

from trainer_shim.guard import attempt

_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "str", "bytes", "datetime64", "timedelta64",
)  # fmt: skip
_PLAIN = (
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
    fractions.Fraction, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath, range, slice, frozenset,
    collections.deque, collections.defaultdict, int, float, bool, str, list, dict, set, tuple,
)  # fmt: skip
_DEPTH_MAX = 8
_GLOBAL = re.compile(r"(?:GLOBAL|allowed global|class) ([\w.]+\.[\w.]+|\w+ was not an allowed global)")


class _Pickler(Pickler):
    """Writes as one call what torch would have to fill from outside, which it does with lists and dicts alone."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is collections.deque:
            return collections.deque, (list(value), value.maxlen)
        if type(value) is collections.defaultdict:
            return collections.defaultdict, (value.default_factory, dict(value))
        return NotImplemented


_PICKLING = types.SimpleNamespace(__name__="pickle", Pickler=_Pickler)


def write(value: Any, target: Any) -> None:
    """Save it into a path or a stream."""
    import torch

    torch.save(value, target, pickle_module=_PICKLING)


def read(path: str) -> Dict[str, Any]:
    """Load it. Raises what torch raises, and ValueError with what to write where torch refuses what it holds."""
    import torch

    loaded, error = _load(torch, path)
    if error is None:
        return dict(loaded)
    if _is_refusal(error):
        raise ValueError("%s holds %s" % (path, _refused(error))) from error
    raise error


def unloadable(states: Mapping[str, Any]) -> Dict[str, str]:
    """Return what read() would refuse, by the state's name: tried out without the tensors' values."""
    import torch

    found = {}
    for name, state in states.items():
        stream = io.BytesIO()
        write(_without_values(state, torch.empty(0)), stream)
        stream.seek(0)
        _, error = _load(torch, stream)
        if error is not None and _is_refusal(error):
            found[name] = _refused(error)
    return found


def _load(torch: Any, source: Any) -> Tuple[Any, Optional[Exception]]:
    with _plain_allowed(torch):
        return attempt(torch.load, source, map_location="cpu", weights_only=True)


def _is_refusal(error: Exception) -> bool:
    return type(error).__name__ == "UnpicklingError"


def _refused(error: Exception) -> str:
    text = " ".join(str(error).split())
    named = _GLOBAL.search(text)
    what = "what is no plain value (%.120s)" % text.partition("error: ")[2] if named is None else named[1].split()[0]
    hint = "keep numbers and tensors there, or name its class to torch.serialization.add_safe_globals() before resume()"
    return "%s, which resume() does not load: %s" % (what, hint)


def _without_values(value: Any, empty: Any, depth: int = 0) -> Any:
    """Return a copy with next to nothing for tensors and arrays. A container of a class of its own stays what it is."""
    if hasattr(value, "data_ptr"):
        return empty
    if _is_plain_array(value):
        return value[(slice(1),) * value.ndim]  # Torch refuses the bytes of an empty one.
    if isinstance(value, (bytes, bytearray)):
        return value[:1]
    if depth >= _DEPTH_MAX:
        return value
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, one in value.items():
            made[key] = _without_values(one, empty, depth + 1)
        return made
    if type(value) in (list, tuple):
        return type(value)(_without_values(one, empty, depth + 1) for one in value)
    return value


def _is_plain_array(value: Any) -> bool:
    """Whether it is numpy's, of numbers: objects may be refused one by one."""
    return hasattr(value, "__array_interface__") and bool(getattr(value, "ndim", 0)) and not value.dtype.hasobject


def _plain_allowed(torch: Any) -> ContextManager[Any]:
    allow = getattr(torch.serialization, "safe_globals", None)  # From torch 2.5 on.
    return contextlib.nullcontext() if allow is None else allow([*_PLAIN, *_numpy_globals()])


def _numpy_globals() -> List[Any]:
    try:
        import numpy

        core: Any = getattr(numpy, "_core", None) or numpy.core
        kinds = {type(numpy.dtype(name)) for name in _NUMBERS}
        return [core.multiarray.scalar, core.multiarray._reconstruct, numpy.ndarray, numpy.dtype, *kinds]
    except (ImportError, AttributeError):
        return []
