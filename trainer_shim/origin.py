"""Where what a run trains began: with nothing, with a checkpoint of another run, or nobody knows.

Its totals tell all that went before, also what another run has trained. Each checkpoint says whose it is, and where
what that run trained began: a run that goes on from its own goes on with that, too.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

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
    """Return told_in() of checkpoint directory `path`: by its manifest, else by this rank's own file."""
    noted = (checkpoint.read_rank_file(path, rank) or {}).get("position")
    return told_in(noted if isinstance(noted, dict) else None, checkpoint.read_manifest(path))


def after(told: Mapping[str, Any], run: str, step: int) -> Origin:
    """Return where the training began that goes on as `run` from a checkpoint, of which told_in() is known.

    `step` is where it stands then, if the checkpoint itself does not tell.
    """
    saved_by, step, total = told.get("run"), told.get("step", step), told.get("tokens_total")
    is_begin = step == 0 and not total
    if saved_by is None or saved_by == run:
        known: Origin = told.get("origin") if saved_by == run else None
        return {} if known is None and is_begin else known
    if is_begin:
        return {}
    if not saved_by.isprintable():  # No governor takes a run of such a name.
        return None
    origin = {"run": saved_by, "step": step}
    return origin if total is None else {**origin, "tokens_total": total}


def go_on(progress: Progress, watch: Watch, told: Mapping[str, Any], step: int) -> None:
    """A checkpoint of step `step` was loaded, of which told_in() is known. Call it before the step is told."""
    before, progress.origin = progress.origin, after(told, progress.run, step)
    fields: Dict[str, Any] = {"origin": progress.origin}
    if progress.origin != before or before is None:  # Two of which nobody knows need not be one.
        fields["loaded_at"] = progress.attempt_step  # The frames of these steps may come behind this hello.
    watch.hello_fields(fields)
