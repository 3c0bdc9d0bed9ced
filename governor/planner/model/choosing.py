"""The two set-ups to keep from a search: the one to run, and the one to run when that fails; with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from governor.planner.model.searching import Found, Limits, is_within
from governor.planner.model.setup import Checkpointing

# A prediction of memory that is this far off still fits: half of the published measurements lie within 12 %.
MARGIN: Final = 0.90
NEAR: Final = 1.05  # Without a deadline, the fastest of those that cost so much more than the cheapest, at most.
RELIEF: Final = 0.80  # A fallback takes so much of the primary's memory at most, or it would fail for the same reason.


@dataclass(frozen=True, slots=True)
class Choice:
    """`primary` None: nothing keeps to the limits, and `reasons` says what comes nearest."""

    primary: Found | None
    fallback: Found | None
    reasons: tuple[str, ...]


def choose(found: Sequence[Found], limits: Limits, resorts: Sequence[Found] = ()) -> Choice:
    """The cheapest within the limits, and what to fall back to. Memory that may not suffice is avoided. `resorts`:
    what nobody would run by choice, only fall back to where nothing else takes less memory."""
    if not found:
        return Choice(None, None, ("no candidate fits into its GPUs' memory",))
    within = [one for one in found if is_within(one, limits)]
    if not within:
        return Choice(None, None, (_nearest(found, limits),))
    safe = [one for one in within if one.memory_frac <= MARGIN]
    primary = _primary(safe or within, limits)
    reasons = [f"primary: {_why_primary(primary, len(within), len(safe), limits)}"]
    fallback = _fallback(primary, within) or _fallback(primary, found) or _fallback(primary, resorts)
    if fallback is None:
        reasons.append("fallback: none: no candidate needs clearly less memory, and none runs on another GPU")
    else:
        reasons.append(f"fallback: {_why_fallback(primary, fallback, limits)}")
    return Choice(primary, fallback, tuple(reasons))


def _primary(among: Sequence[Found], limits: Limits) -> Found:
    cheapest = min(among, key=lambda one: (one.usd, one.hours))
    if limits.deadline_h is not None:
        return cheapest
    # Nobody waits three years to save the last percent.
    near = [one for one in among if one.usd <= NEAR * cheapest.usd and is_within(one, limits)]
    return min(near, key=lambda one: (one.hours, one.usd))


def _fallback(primary: Found, among: Sequence[Found]) -> Found | None:
    """On the same machines if it can be: then it starts at once. Else on another GPU, if those are not to be had."""
    relieved = [one for one in among if one.memory_frac <= RELIEF * primary.memory_frac]
    same = [one for one in relieved if _machines(one) == _machines(primary)]
    other = [one for one in among if one.setup.gpu != primary.setup.gpu and one.memory_frac <= MARGIN]
    for group in (same, relieved, other):
        if group:
            return min(group, key=lambda one: (one.usd, one.hours))
    return None


def _machines(one: Found) -> tuple[str, int]:
    return one.setup.gpu.name, one.setup.gpus


def _nearest(found: Sequence[Found], limits: Limits) -> str:
    cheapest = min(found, key=lambda one: one.usd)
    fastest = min(found, key=lambda one: one.hours)
    wishes = []
    if limits.budget_usd is not None:
        wishes.append(
            f"${limits.budget_usd:,.0f} (the cheapest costs ${cheapest.usd:,.0f} and takes {cheapest.hours:,.0f} h)"
        )
    if limits.deadline_h is not None:
        wishes.append(
            f"{limits.deadline_h:,.0f} h (the fastest takes {fastest.hours:,.0f} h and costs ${fastest.usd:,.0f})"
        )
    return f"nothing keeps to {' and '.join(wishes)}"


def _why_primary(primary: Found, within: int, safe: int, limits: Limits) -> str:
    held = []
    if limits.budget_usd is not None:
        held.append(f"${limits.budget_usd - primary.usd:,.0f} below the budget")
    if limits.deadline_h is not None:
        held.append(f"{limits.deadline_h - primary.hours:,.0f} h before the deadline")
    room = f"takes {primary.memory_frac:.0%} of the memory"
    if not safe:
        room += f", which is more than the {MARGIN:.0%} that leave room for an error of the prediction"
    which = "the cheapest" if limits.deadline_h is not None else f"the fastest within {NEAR - 1:.0%} of the cheapest"
    return f"{which} of {within:,} that fit; " + ", ".join([*held, room])


def _why_fallback(primary: Found, fallback: Found, limits: Limits) -> str:
    dearer = fallback.usd / primary.usd - 1
    price = f"costs {abs(dearer):.0%} {'more' if dearer >= 0 else 'less'}"
    beyond = "" if is_within(fallback, limits) else ", and does not keep to the limits"
    if fallback.memory_frac <= RELIEF * primary.memory_frac:
        what = (
            f"when memory does not suffice: takes {fallback.memory_frac:.0%} of it by {_difference(primary, fallback)}"
        )
    else:
        what = (
            f"when {primary.setup.gpu.name} is not to be had: runs on {fallback.setup.gpus} x {fallback.setup.gpu.name}"
        )
    return f"{what}; {price}{beyond}"


def _difference(primary: Found, fallback: Found) -> str:
    """What the fallback does otherwise, in words."""
    was, now = primary.setup, fallback.setup
    words = []
    if (now.gpu, now.gpus) != (was.gpu, was.gpus):
        words.append(f"{now.gpus} x {now.gpu.name}")
    if now.framework is not was.framework:
        words.append(now.framework.value)
    if now.zero_stage != was.zero_stage:
        words.append(f"ZeRO-{now.zero_stage}")
    if now.checkpointing is not was.checkpointing:
        words.append(
            "no checkpointing" if now.checkpointing is Checkpointing.NONE else f"{now.checkpointing} checkpointing"
        )
    if now.micro_batch != was.micro_batch:
        words.append(f"micro-batch {now.micro_batch}")
    words += [
        f"{name} {getattr(now, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(now, name) != getattr(was, name)
    ]
    return ", ".join(words)
