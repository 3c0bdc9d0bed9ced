"""States of the random number generators as JSON: unlike a pickle, reading one runs no code."""

from __future__ import annotations

import base64
import random
import sys
from typing import Any, Dict


def capture() -> Dict[str, Any]:
    """Return the states of python, numpy's global, torch and CUDA generators, whichever are loaded.

    Call on the training thread: CUDA is asked only where the trainer has initialised it.
    """
    version, internal, gauss = random.getstate()
    states: Dict[str, Any] = {"python": [version, list(internal), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        states["numpy"] = [name, _text(keys.astype("<u4").tobytes()), int(position), int(has_gauss), float(cached)]
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = _of_tensor(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = [_of_tensor(state) for state in torch.cuda.get_rng_state_all()]
    return states


def restore(states: Dict[str, Any]) -> None:
    """Put back what capture() returned. A generator that is not loaded now is left alone."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        name, keys, position, has_gauss, cached = states["numpy"]
        array = numpy.frombuffer(base64.b64decode(keys), dtype="<u4")
        numpy.random.set_state((name, array, position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        torch.set_rng_state(_to_tensor(torch, states["torch"]))
        cuda = states.get("cuda")
        # With another number of devices nobody knows which state belongs to which, so none is set.
        if cuda and torch.cuda.is_available() and torch.cuda.device_count() == len(cuda):
            torch.cuda.set_rng_state_all([_to_tensor(torch, state) for state in cuda])


def _of_tensor(state: Any) -> str:
    return _text(bytes(state.cpu().numpy().tobytes()))


def _to_tensor(torch: Any, text: str) -> Any:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
