"""A DeepSpeed checkpoint's files and values, and how the engine's own writing and loading are made to fit a run."""

from __future__ import annotations

import copy
import glob
import os
import re
from typing import Any, Callable, Dict, List, Optional

from trainer_shim.guard import attempt, print_line
from trainer_shim.saving import checkpoint

from . import hooks

_LAYER = "layer_"
_TAG = re.compile(r"global_step(\d+)\Z")


def load_beside_frozen(engine: Any, original: Callable[..., Any], state: Any, *args: Any, **kwargs: Any) -> Any:
    """Load as strictly as asked, but for frozen parameters that save_checkpoint(exclude_frozen_parameters=True) left.

    These stay as the script has made them: its next launch makes them likewise.
    """
    module, own = engine.module, None
    frozen = {id(parameter) for parameter in module.parameters() if not parameter.requires_grad}
    if frozen and state is not None:
        own, _ = attempt(module.state_dict, keep_vars=True)  # A model may have one that takes no such argument.
    left = {name: tensor for name, tensor in (own or {}).items() if id(tensor) in frozen and name not in state}
    if left:
        state = copy.copy(state)
        state.update(left)
        if int(engine.global_rank) == 0:
            print_line("resume(): the checkpoint leaves out %d frozen parameters: they stay as they are" % len(left))
    return original(state, *args, **kwargs)


def states_in(path: str) -> List[str]:
    """Return the files with the engine's counters. A pipeline's layers end in the same words, and have none."""
    found = glob.glob(os.path.join(glob.escape(path), "*model_states.pt"))
    return sorted(one for one in found if not os.path.basename(one).startswith(_LAYER))


def step_in(states: List[str], values_of: Callable[[str], Dict[str, Any]]) -> Optional[int]:
    """Return the step that the first readable one has, or that DeepSpeed named the directory after."""
    for file in states:
        values, _ = attempt(values_of, file)
        step = (values or {}).get("global_steps")
        if isinstance(step, int):
            return step
    named = _TAG.match(os.path.basename(os.path.dirname(states[0])))
    return None if named is None else int(named[1])


def noted_at(path: str, rank: int) -> str:
    """Return the directory with what we have noted of a tag's: Accelerate and the Trainer put it into their own."""
    names = (checkpoint.MANIFEST, checkpoint.rank_file(rank))
    for place in (path, os.path.dirname(path)):
        if any(os.path.lexists(os.path.join(place, name)) for name in names):
            return place
    return path


def hold_write_errors(engine: Any, undo: hooks.Undo) -> List[Exception]:
    """Keep what the engine's writing raises in the returned list until `undo`, instead of letting it break off a save.

    save_checkpoint() is a collective to its very end. A rank whose disk is full would leave it early, while the others
    sit in its last barrier. So it goes on to that barrier and fails behind it.
    """
    errors: List[Exception] = []

    def hold(original: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any, **kwargs: Any) -> Any:
            result, error = attempt(original, *args, **kwargs)
            if error is not None:
                errors.append(error)
            return result

        return held

    writer = getattr(engine, "checkpoint_engine", None)
    for owner, names in ((writer, ("makedirs", "save", "commit")), (engine, ("_copy_recovery_script",))):
        for name in names:
            if callable(getattr(owner, name, None)):
                hooks.replace(undo, owner, name, hold)
    return errors
