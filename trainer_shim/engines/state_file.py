"""The file of a plain loop's checkpoint: tensors and plain values, since a checkpoint must not be able to run code.

torch writes any object and loads plain ones alone. numpy's numbers and arrays are plain to us: a schedule of the
loop's own makes them. What else is in there is told when it is saved, not when it is missed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Tuple

from trainer_shim.guard import attempt

_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "str", "bytes", "datetime64", "timedelta64",
)  # fmt: skip
_DEPTH_MAX = 8
_GLOBAL = re.compile(r"(?:GLOBAL|allowed global|class) ([\w.]+\.[\w.]+)")


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
        torch.save(_without_values(state, torch.empty(0)), stream)
        stream.seek(0)
        _, error = _load(torch, stream)
        if error is not None and _is_refusal(error):
            found[name] = _refused(error)
    return found


def _load(torch: Any, source: Any) -> Tuple[Any, Optional[Exception]]:
    with _numbers_allowed(torch):
        return attempt(torch.load, source, map_location="cpu", weights_only=True)


def _is_refusal(error: Exception) -> bool:
    return type(error).__name__ == "UnpicklingError"


def _refused(error: Exception) -> str:
    text = " ".join(str(error).split())
    named = _GLOBAL.search(text)
    what = "what is no plain value (%.120s)" % text.partition("error: ")[2] if named is None else named[1]
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


def _numbers_allowed(torch: Any) -> ContextManager[Any]:
    allow = getattr(torch.serialization, "safe_globals", None)  # From torch 2.5 on.
    made = None if allow is None else _numpy_globals()
    return contextlib.nullcontext() if not made else allow(made)  # type: ignore[misc]


def _numpy_globals() -> Optional[List[Any]]:
    try:
        import numpy

        core: Any = getattr(numpy, "_core", None) or numpy.core
        kinds = {type(numpy.dtype(name)) for name in _NUMBERS}
        return [core.multiarray.scalar, core.multiarray._reconstruct, numpy.ndarray, numpy.dtype, *kinds]
    except (ImportError, AttributeError):
        return None
