"""What a step's time is told as, in one place: wire, account, report and export have their parts from here.

A new part is a field of `Step`, a name in PARTS and a place in `told_parts`, in the same order. Whoever wants some of
them draws them from here, and keeps no list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from governor.core.base.units import NS_PER_S

if TYPE_CHECKING:  # Tables of costs have the formats, and load nothing of the engine.
    from governor.core.events.inputs import Step

# A part -> the fields of a step that it is the sum of. All parts and a rest add up to `step_s`.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("data_s",),
    "loop": ("loop_s",),
    "forward": ("forward_s",),
    "backward": ("backward_s",),
    "optimizer": ("optimizer_s",),
    "checkpoint": ("checkpoint_s", "hold_s"),
    "evaluation": ("eval_s",),
    "bubble": ("bubble_s",),
}
PART_FIELDS: Final = tuple(name for fields in PARTS.values() for name in fields)
# Their parts come now and then: a log's line of many steps tells them once, and an ordinary step has none.
# By the phase that a trainer tells meanwhile.
PAUSES: Final[Mapping[str, str]] = {"checkpoint": "checkpoint", "eval": "evaluation"}
assert {*PAUSES.values()} <= PARTS.keys(), "PAUSES: a phase whose part is none of PARTS"
NOW_AND_THEN: Final = tuple(PAUSES.values())
EACH_STEP_FIELDS: Final = tuple(name for part, fields in PARTS.items() if part not in NOW_AND_THEN for name in fields)
# They lie within the parts.
OF_WHICH_FIELDS: Final = ("comm_s", "comm_between_s", "recompute_s", "offload_s")
TIME_FIELDS: Final = ("step_s", *PART_FIELDS, *OF_WHICH_FIELDS)
# Thirty years. No clock has measured what is told as so long, or as below zero.
SECONDS_MAX: Final = 1e9
FIGURES: Final = ("loss", "grad_norm", "loss_scale")
FIGURE_MAX: Final = 2.0**128  # No float of 32 bits holds it, and none of these is more.


def told_parts(step: Step) -> tuple[float | None, ...]:
    """Seconds of each of PARTS; None is untold. By hand, since it is asked for at every step of every rank."""
    checkpoint = step.checkpoint_s
    if step.hold_s is not None:
        checkpoint = (checkpoint or 0.0) + step.hold_s
    return (
        step.data_s, step.loop_s, step.forward_s, step.backward_s, step.optimizer_s, checkpoint, step.eval_s,
        step.bubble_s,
    )  # fmt: skip


def rest_s(whole_s: float, parts_s: Iterable[float], steps: int = 1) -> float:
    """What parts leave of so many steps. Less than a nanosecond of each is what sums of floats leave: it is none."""
    rest = whole_s - sum(parts_s)
    return rest if abs(rest) >= steps / NS_PER_S else 0.0
