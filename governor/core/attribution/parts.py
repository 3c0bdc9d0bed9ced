"""Where one rank's step went, in whole nanoseconds that add up to the step, and the sums of such steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution.by_step import ByStep
from governor.core.base.units import NS_PER_S
from governor.core.events.inputs import Step
from governor.core.events.step_parts import PARTS as NAMED
from governor.core.events.step_parts import SECONDS_MAX, told_parts

# Indices of a list: this is added up at every step of every rank. Before BETWEEN they are in the order of `told_parts`.
DATA, LOOP, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, BUBBLE, BETWEEN, OTHER, WHOLE = range(11)
# BETWEEN: collectives between the passes, which frames have in the loop's part.
# WHOLE: of a step that does not tell its passes, as many a log's line: what no other part names.
PARTS: Final = 11
APART: Final = (DATA, LOOP, CHECKPOINT, EVALUATION)  # Of which single steps may have far more than others.
assert len(NAMED) == BETWEEN, "a part of a step without its index"


def parts_of(step: Step, step_ns: int) -> list[int]:
    """The step's parts; they add up to `step_ns`. OTHER is what no part names."""
    return cut(told_parts(step), step_ns, step.comm_between_s, is_line=step.connection is None)


def cut(
    told: Sequence[float | None], step_ns: int, comm_between_s: float | None, *, is_line: bool = False
) -> list[int]:
    """As parts_of(). `told`: seconds in the order of the indices, up to BUBBLE. `is_line`: of a log.

    Parts by a device's events and by the host's clock may exceed the step together: then all shrink alike.
    """
    named, known = within(told, step_ns)
    parts = [*named, *[0] * (PARTS - len(named))]
    passes = told[FORWARD], told[BACKWARD]
    if passes == (None, None) or (is_line and None in passes):
        parts[WHOLE] = max(0, step_ns - known)
    parts[OTHER] = step_ns - sum(parts)
    if comm_between_s is not None:
        left = whole_ns(comm_between_s)
        for index in (LOOP, OTHER, DATA):  # Where fetches are not seen the loop is in DATA.
            taken = min(left, parts[index])
            parts[index] -= taken
            parts[BETWEEN] += taken
            left -= taken
    return parts


def within(told: Sequence[float | None], step_ns: int) -> tuple[list[int], int]:
    """Those parts as they fit into the step, and how long they are told to be together."""
    named = [whole_ns(seconds) for seconds in told]
    known = sum(named)
    return ([part * step_ns // known for part in named] if known > step_ns else named), known


def whole_ns(seconds: float | None) -> int:
    """Nanoseconds of a figure that a trainer told: 0 of none, of one below zero, and of one that is no number."""
    return int(seconds * NS_PER_S) if seconds is not None and 0 < seconds < SECONDS_MAX else 0


@dataclass(slots=True)
class RankSums:
    """One rank's steps of a window."""

    parts: list[int] = field(default_factory=lambda: [0] * PARTS)
    told_communication_ns: int = 0  # Of the steps that tell it, 0 among it: inside their passes.
    told_of_ns: int = 0  # The passes of those steps: in short ones it is read now and then.
    recompute_ns: int = 0  # Of which: inside BACKWARD.
    steps: int = 0
    offload_ns: int = 0  # As told; `offloaded_ns` is what of it lies inside OPTIMIZER.
    bound_ns: dict[int, int] = field(default_factory=dict)  # By index: of the part, what is an upper bound.
    by_step: ByStep | None = field(default_factory=ByStep)  # APART. None: nobody compares it to other ranks' steps.

    def add(self, parts: list[int], step: Step) -> None:
        self.add_parts(parts, step.comm_s, step.comm_between_s)
        if self.by_step is not None:
            self.by_step.add(step.step, [parts[index] for index in APART])
        if step.data_bound:
            self._bound(DATA, parts[DATA])
        if step.checkpoint_bound:
            self._bound(CHECKPOINT, parts[CHECKPOINT])
        if step.eval_bound:
            self._bound(EVALUATION, parts[EVALUATION])
        if step.recompute_s is not None:
            self.recompute_ns += whole_ns(step.recompute_s)
        if step.offload_s is not None:
            self.offload_ns += whole_ns(step.offload_s)

    def add_parts(self, parts: list[int], comm_s: float | None, comm_between_s: float | None) -> None:
        """Add its parts and its communication alone: `own_ns` wants all of `add`."""
        mine = self.parts
        for index, part in enumerate(parts):
            mine[index] += part
        self.steps += 1
        if comm_s is not None:
            passes_ns = _passes_ns(parts)
            self.told_communication_ns += min(max(0, whole_ns(comm_s) - whole_ns(comm_between_s)), passes_ns)
            self.told_of_ns += passes_ns

    def _bound(self, index: int, ns: int) -> None:
        self.bound_ns[index] = self.bound_ns.get(index, 0) + ns

    def take(self, other: RankSums) -> None:
        """Add what `other` has."""
        self.parts = [mine + more for mine, more in zip(self.parts, other.parts, strict=True)]
        self.told_communication_ns += other.told_communication_ns
        self.told_of_ns += other.told_of_ns
        self.recompute_ns += other.recompute_ns
        self.steps += other.steps
        self.offload_ns += other.offload_ns
        for index, ns in other.bound_ns.items():
            self._bound(index, ns)
        if self.by_step is not None and other.by_step is not None:
            self.by_step.take(other.by_step)

    @property
    def total_ns(self) -> int:
        return sum(self.parts)

    @property
    def tells_communication(self) -> bool:
        return self.told_of_ns > 0

    @property
    def tells_all_communication(self) -> bool:
        return 0 < _passes_ns(self.parts) <= self.told_of_ns

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

    @property
    def offloaded_ns(self) -> int:
        """Of the optimizer's part, what ran on the CPU."""
        return min(self.offload_ns, self.parts[OPTIMIZER])

    @property
    def own_ns(self) -> int:
        """What the rank computed by itself, as far as the frames tell it from waiting."""
        if self.tells_communication:
            return max(0, self.working_ns - self.communication_ns - self.offloaded_ns)
        if self.parts[BUBBLE]:  # No collective is in a stage's backward pass.
            return self.parts[FORWARD] + self.parts[BACKWARD]
        return self.parts[FORWARD]


def _passes_ns(parts: list[int]) -> int:
    return parts[FORWARD] + parts[BACKWARD] + parts[OPTIMIZER] + parts[WHOLE]
