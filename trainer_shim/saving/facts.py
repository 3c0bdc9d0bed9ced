"""What a checkpoint's manifest says beside its files: the step, the tokens, who saved it, whether all is finite."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional

from trainer_shim.launch import Place
from trainer_shim.wire import REASONS_OF_VALUES

from .manifest import is_count, is_run_name, origin_of
from .open_requests import CheckpointRequest
from .step_gate import Order

Posts = List[Optional[Dict[str, Any]]]


def kind_of(order: Order, request: CheckpointRequest, ready: Posts) -> str:
    """Return what a save is when it is whole: a halt may have come while it was written, for minutes.

    A loss that is not finite says nothing of what was saved before, where all ranks have seen each trained parameter
    finite there. Any other doubt (a loss that has climbed) reaches back.
    """
    if "suspect" not in (order.kind, request.checkpoint):
        return "good"
    is_of_before = order.kind == "good" and request.reason in REASONS_OF_VALUES and _all_finite(ready)
    return "good" if is_of_before else "suspect"


def facts_of(
    order: Order,
    kind: str,
    place: Place,
    arrived: Dict[str, Any],
    ready: Posts,
) -> Dict[str, Any]:
    """Return the facts as of the step that is saved: training goes on meanwhile.

    `arrived` is what rank 0 read at that step, `ready` each rank's post of the phase READY.
    """
    facts: Dict[str, Any] = {
        "step": order.step,
        "tokens_total": _tokens_total(arrived, ready),
        "created_unix_s": int(time.time()),
        "kind": kind,
        "world_size": place.world_size,
        "run": place.run,
        "attempt": place.attempt,
        "incident": order.incident,
    }
    origin = position_of(arrived).get("origin")
    if origin is not None:
        facts["origin"] = origin
    if _all_finite(ready):
        facts["trained_finite"] = True
    facts.update(arrived.get("contents") or {})
    return facts


def told_in(*saved: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return what checkpoints' facts say of whose they are, the last word first. What makes no sense is left out."""
    found: Dict[str, Any] = {}
    for facts in saved:
        known = facts or {}
        for name in ("step", "tokens_total"):
            if is_count(known.get(name)):
                found[name] = known[name]
        if is_run_name(known.get("run")):
            found["run"] = known["run"]
        if origin_of(known.get("origin")) is not None:
            found["origin"] = origin_of(known["origin"])
    return found


def position_of(arrived: Dict[str, Any]) -> Dict[str, Any]:
    """Return this rank's position in its data, and the tokens that it has counted."""
    return (arrived.get("rank_state") or {}).get("position") or {}


def _all_finite(ready: Posts) -> bool:
    return all((post or {}).get("trained_finite") for post in ready)


def _tokens_total(arrived: Dict[str, Any], ready: Posts) -> Optional[int]:
    posts = [(post or {}).get("tokens") for post in ready]
    position = position_of(arrived)
    total = all_tokens(position.get("tokens_total"), position.get("tokens_own"), posts)
    return arrived.get("tokens_total") if total is None else total


def all_tokens(
    total: Optional[int], own: Optional[Dict[str, int]], posts: List[Optional[Dict[str, int]]]
) -> Optional[int]:
    """Return the run's tokens by what each rank has counted itself; None where one that sees others does not tell.

    `total` and `own` are this rank's: its total is what went before, and its own count times the number of such ranks.
    """
    if total is None or own is None:
        return None
    counts = {post["place"]: post["total"] for post in posts if post is not None and post["size"] == own["size"]}
    if len(counts) != own["size"]:
        return None
    return total - own["total"] * own["size"] + sum(counts.values())
