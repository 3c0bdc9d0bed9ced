"""Where one rank's step went, in whole nanoseconds that add up to the step, and the sums of such steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_S
from governor.core.events.inputs import Step

# Indices of a list: this is added up at every step of every rank.
DATA, LOOP, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, BUBBLE, BETWEEN, OTHER, WHOLE = range(11)
# BETWEEN: collectives between the passes, which frames have in the loop's part.
# WHOLE: a step that tells no parts, as a log's line does.
PARTS: Final = 11


def parts_of(step: Step, step_ns: int) -> list[int]:
    """The step's parts; they add up to `step_ns`. OTHER is what no part names.

    Parts by a device's events and by the host's clock may exceed the step together: then all shrink alike.
    """
    told = (
        step.data_s, step.loop_s, step.forward_s, step.backward_s, step.optimizer_s,
        (step.checkpoint_s or 0.0) + (step.hold_s or 0.0), step.eval_s, step.bubble_s,
    )  # fmt: skip
    parts = [0] * PARTS
    if step.forward_s is None and step.backward_s is None and step.data_s is None:
        parts[WHOLE] = step_ns
    for index, seconds in enumerate(told):
        parts[index] = whole_ns(seconds)
    known = sum(parts[:OTHER])
    if parts[WHOLE]:
        parts[WHOLE] = max(0, step_ns - known)
    if known > step_ns:
        parts[:OTHER] = [part * step_ns // known for part in parts[:OTHER]]
    parts[OTHER] = step_ns - sum(parts)
    if step.comm_between_s is not None:
        left = whole_ns(step.comm_between_s)
        for index in (LOOP, OTHER, DATA):  # Where fetches are not seen the loop is in DATA.
            taken = min(left, parts[index])
            parts[index] -= taken
            parts[BETWEEN] += taken
            left -= taken
    return parts


def whole_ns(seconds: float | None) -> int:
    """Nanoseconds of a figure that a trainer told: 0 of none, of one below zero, and of one that is no number."""
    return int(seconds * NS_PER_S) if seconds is not None and 0 < seconds < 1e9 else 0


@dataclass(slots=True)
class RankSums:
    """One rank's steps of a window."""

    parts: list[int] = field(default_factory=lambda: [0] * PARTS)
    told_communication_ns: int = 0  # Of the steps that tell it, 0 among it: inside their passes.
    told_of_ns: int = 0  # The passes of those steps: in short ones it is read now and then.
    recompute_ns: int = 0  # Of which: inside BACKWARD.
    steps: int = 0
    offload_ns: int = 0  # Of which: inside OPTIMIZER.
    bound_ns: int = 0  # Of DATA: an upper bound, with the loop's own code in it.

    def add(self, parts: list[int], step: Step) -> None:
        mine = self.parts
        for index, part in enumerate(parts):
            mine[index] += part
        self.steps += 1
        if step.data_bound:
            self.bound_ns += parts[DATA]
        if step.comm_s is not None:
            passes_ns = _passes_ns(parts)
            within_ns = max(0, whole_ns(step.comm_s) - whole_ns(step.comm_between_s))
            self.told_communication_ns += min(within_ns, passes_ns)
            self.told_of_ns += passes_ns
        if step.recompute_s is not None:
            self.recompute_ns += whole_ns(step.recompute_s)
        if step.offload_s is not None:
            self.offload_ns += whole_ns(step.offload_s)

    @property
    def total_ns(self) -> int:
        return sum(self.parts)

    @property
    def tells_communication(self) -> bool:
        return self.told_of_ns > 0

    @property
    def communication_ns(self) -> int:
        """Of all steps: those that do not tell theirs have communicated for the same share of their passes."""
        if not self.told_of_ns:
            return self.parts[BETWEEN]
        return self.parts[BETWEEN] + self.told_communication_ns * _passes_ns(self.parts) // self.told_of_ns

    @property
    def working_ns(self) -> int:
        """The passes, and all communication."""
        return _passes_ns(self.parts) + self.parts[BETWEEN]


def _passes_ns(parts: list[int]) -> int:
    return parts[FORWARD] + parts[BACKWARD] + parts[OPTIMIZER] + parts[WHOLE]
