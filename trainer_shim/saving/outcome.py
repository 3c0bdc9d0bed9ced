"""What becomes of a checkpoint whose parts are written: each rank's vote, and the manifest that rank 0 writes."""

from __future__ import annotations

import os
from typing import Any, Dict

from trainer_shim.governor_socket import clip
from trainer_shim.guard import print_line
from trainer_shim.launch import Place

from . import checkpoint
from .agreement import Phase, Round
from .facts import facts_of, kind_of
from .open_requests import CheckpointRequest
from .save_at_step import SaveAtStep
from .step_gate import Order

_NOTHING = "save_fn has to write before it returns, or return the future of what writes: nothing is in"


def vote_of(place: Place, order: Order, path: str) -> Dict[str, Any]:
    """Make this rank's share durable; return what it can vouch for, or why it cannot."""
    try:
        parts = checkpoint.secure(
            path, place.rank, place.world_size, place.local_rank, place.local_world_size, order.deadline_ns
        )
    except OSError as failure:
        return {"error": clip("%s: %s" % (failure.filename or path, failure.strerror or failure))}
    return {"parts": [list(part) for part in parts]}


def commit(
    round_: Round,
    order: Order,
    path: str,
    place: Place,
    request: CheckpointRequest,
    arrived: Dict[str, Any],
    saving: SaveAtStep,
) -> Dict[str, Any]:
    """On rank 0, with all votes: write the manifest, unless somebody has given the round up. Return the verdict.

    One with a record is not settled yet, and is true whatever the store says from here on. `arrived` is what this rank
    read at the step.
    """
    votes, why = round_.votes()
    parts = [checkpoint.Part(*part) for part in votes]
    if why is None and not checkpoint.holds_any(parts):
        why = "rank 0: %s %s" % (_NOTHING, path)
    if why is not None:
        return round_.settle(Phase.OUTCOME, {"abort": clip(why)})
    request, ready = round_.hardened(request), round_.posted(Phase.READY)
    kind = kind_of(order, request, ready)
    facts = facts_of(order, kind, place, arrived, ready)
    # A framework that saved by its own means has its own way to find its newest checkpoint.
    ours = saving.directory() is not None
    given_up = round_.claim()  # The store is asked nothing from here to the manifest: it cannot be lost between.
    if given_up is not None:
        return given_up
    try:
        record = checkpoint.commit(path, parts, facts, move_latest=ours and kind == "good")
    except OSError as failure:
        return round_.settle(Phase.OUTCOME, {"abort": "rank 0: manifest: %s" % (failure.strerror or failure)})
    try:
        final = saving.publish(path, order.step, kind)
    except OSError as failure:  # Nobody looks for it there; who is told finds it, and nobody removes it.
        told = "rank 0: whole, but it has to stay in %s: %s" % (path, failure.strerror or failure)
        return round_.settle(Phase.OUTCOME, {"abort": clip(told)})
    record.update(path=final, manifest=os.path.join(final, checkpoint.MANIFEST))
    exit_code = str(request.exit_code) if request.exit_after else None
    return {"record": record, "step": order.step, "exit": exit_code}


class Unsaved:
    """Why nothing is saved that the script asked for: the first rank says it where the script runs, and once."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._said = ""

    def say(self, reason: str, is_silent: bool) -> None:
        """`reason`: empty where a governor asked, who reports it."""
        kind = "".join(one for one in reason if not one.isdigit())  # The step is another each time.
        if kind not in ("", self._said) and not is_silent and self._rank == 0:
            print_line("checkpoint(): %s: nothing is saved" % reason)
        self._said = kind

    def forget(self) -> None:
        """Something was saved."""
        self._said = ""
