"""What a script saves by itself: torch.save(), torch.distributed.checkpoint, safetensors.

Their functions are wrapped while somebody is attached. The training thread's time in them is the checkpoint's. What an
engine's or our own save calls is inside of that save already, and so is what one of these calls of another.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import Any, Callable, Tuple

from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter

# Modules and the functions that are called by that place. The file's: what `from safetensors.torch import save_file`
# made a name of before attach() calls serialize_file there.
_PLACES: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("torch", ("save",)),
    ("torch.serialization", ("save",)),
    ("torch.distributed.checkpoint", ("save", "async_save", "save_state_dict")),
    ("torch.distributed.checkpoint.state_dict_saver", ("save", "async_save", "save_state_dict")),
    ("safetensors.torch", ("save_file", "save_model", "serialize_file")),
)


@guarded()
def watch(meter: StepMeter, undo: hooks.Undo) -> None:
    """Time them until `undo`, as far as they are loaded: who saves by them has imported them."""
    for name, functions in _PLACES:
        module = sys.modules.get(name)
        for function in functions:
            if callable(getattr(module, function, None)):
                hooks.replace(undo, module, function, _timed(meter, name in ("torch", "torch.serialization")))


def _timed(meter: StepMeter, may_be_memory: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    thread, get_ident = meter.progress.main_thread_id, threading.get_ident

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread:  # The script writes on a thread of its own: the training goes on.
                return original(*args, **kwargs)
            # A message to another rank, say, is no pause that anybody has to be told of.
            is_announced = not (may_be_memory and isinstance(_file(args, kwargs), io.BytesIO))
            part = meter.enter_own_save(is_announced)
            try:
                return original(*args, **kwargs)
            finally:
                meter.exit_own_save(part, is_announced)

        return save

    return make


def _file(args: Tuple[Any, ...], kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("f")
