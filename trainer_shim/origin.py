"""Where what a run trains began: with nothing, with a checkpoint of another run, or nobody knows.

Its totals tell all that went before, also what another run has trained. Each checkpoint says whose it is, and where
what that run trained began: a run that goes on from its own goes on with that, too.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional

from .guard import attempt
from .interfaces import Watch
from .progress import Progress
from .saving import checkpoint
from .saving.facts import told_in

# {}: with nothing. {"run", "step", "tokens_total"}: with that checkpoint, whose total may be missing. None: unknown.
Origin = Optional[Dict[str, Any]]


def told_by(progress: Progress) -> Dict[str, Any]:
    """Return what is saved beside a step, so that who goes on from it knows whose it is."""
    told = {"run": progress.run or None, "origin": progress.origin}
    return {name: value for name, value in told.items() if value is not None}


def told_beside(path: str, rank: int) -> Dict[str, Any]:
    """Return told_in() of checkpoint directory `path`: by its manifest, else by this rank's own file, or rank 0's."""
    return told_in(checkpoint.position_in(path, rank), checkpoint.read_manifest(path))


def after(told: Mapping[str, Any], run: str, step: int, is_at_home: bool = False) -> Origin:
    """Return where the training began that goes on as `run` from a checkpoint, of which told_in() is known.

    `step` is where it stands then, if the checkpoint itself does not tell. `is_at_home`: see is_at_home().
    """
    saved_by, step, total = told.get("run"), told.get("step", step), told.get("tokens_total")
    is_begin = step == 0 and not total
    if saved_by is None or saved_by == run or is_at_home:
        known: Origin = told.get("origin") if saved_by is not None else None
        return {} if known is None and is_begin else known
    if is_begin:
        return {}
    if not saved_by.isprintable():  # No governor takes a run of such a name.
        return None
    origin = {"run": saved_by, "step": step}
    return origin if total is None else {**origin, "tokens_total": total}


def is_at_home(progress: Progress, path: Optional[str]) -> bool:
    """Whether the checkpoint at `path` is our own by its place alone: each launch of a run without a name has another.

    Where nobody knows yet where this training saves, that is where it loads from.
    """
    if progress.homes is None or path is None:
        return False
    homes, error = attempt(progress.homes)
    place, real = os.path.realpath(path), [os.path.realpath(home) for home in homes or ()]
    return error is None and (not real or place in real or os.path.dirname(place) in real)


def go_on(progress: Progress, watch: Watch, told: Mapping[str, Any], step: int, path: Optional[str] = None) -> None:
    """The checkpoint of step `step` at `path` was loaded, of which told_in() is known. Call it before the step is told.

    A `path` of None: it is not known.
    """
    progress.origin = after(told, progress.run, step, is_at_home(progress, path))
    # The frames of steps of before may come behind this hello.
    watch.hello_fields({"origin": progress.origin, "loaded_at": progress.attempt_step})
