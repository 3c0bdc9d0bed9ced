"""Where the wall time of one optimizer step went, measured on the host clock without touching the device.

The clock is always in exactly one part: switching charges the time since the last switch to the part that was left.
So the parts cannot overlap, and their sum is the step's wall time. Communication overlaps them and is counted beside
them ("of which").
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

# Indices rather than an Enum: attribute access on an Enum member costs as much as the whole switch.
OTHER = 0
GAP = 1  # Between steps or micro-steps: the loop's own code where fetches of data are seen, else also these.
DATA = 2
FORWARD = 3
AFTER_FORWARD = 4  # Up to backward(): the loop computes its loss. Where nobody sees that call, it is the backward pass.
BACKWARD = 5
OPTIMIZER = 6
CHECKPOINT = 7
HOLD = 8  # Waiting for the ranks to agree on a step.
EVAL = 9
AFTER_BACKWARD = 10  # Up to the optimizer it is the optimizer's (clipping); up to anything else it is the gap.
BUBBLE = 11  # A stage of a pipeline waits for other stages.
PARTS_TOTAL = 12

# After a batch was fetched inside one of these, the loop is still inside it.
FETCHES_INSIDE = frozenset((DATA, FORWARD, OPTIMIZER, CHECKPOINT, HOLD, EVAL))
# What is waited for here has its own name already: it is no communication of the training.
NOT_TRAINING = frozenset((CHECKPOINT, HOLD, EVAL, BUBBLE))
# What is waited for here lies in no pass: it is the loop's, which averages weights or a loss.
BETWEEN_PASSES = frozenset((OTHER, GAP, DATA, AFTER_BACKWARD))


class StepTimes(NamedTuple):
    """One step's raw times in nanoseconds; `spent[part]` by the indices above."""

    step_ns: int
    spent: Sequence[int]
    comm_ns: int
    comm_between_ns: int = 0  # Of it: in BETWEEN_PASSES.


class StepClock:
    """Accumulates one step after the other. Owned by the training thread."""

    __slots__ = ("_comm_here", "comm_between_ns", "comm_ns", "now_ns", "part", "since_ns", "spent", "started_ns")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = now_ns
        self.part = GAP
        self.spent: List[int] = [0] * PARTS_TOTAL
        self.comm_ns = self.comm_between_ns = 0
        self._comm_here = (0, 0)  # The part that began then has so much of it.
        self.started_ns = self.since_ns = now_ns()

    def switch(self, part: int) -> int:
        """Charge the time since the last switch to the current part, enter `part`, return the part left."""
        now = self.now_ns()
        left = self.part
        self.spent[left] += now - self.since_ns
        self.since_ns = now
        self.part = part
        return left

    def add_comm(self, ns: int) -> None:
        """Communication took so long, and has ended now. In a part of NOT_TRAINING it does not count."""
        part = self.part
        if part in NOT_TRAINING:
            return
        self.comm_ns += ns
        since_ns, here_ns = self._comm_here
        self._comm_here = (self.since_ns, here_ns + ns if since_ns == self.since_ns else ns)
        if part in BETWEEN_PASSES:
            self.comm_between_ns += ns

    def relabel(self, part: int) -> None:
        """What the clock is in turns out to be `part`, with the communication in it."""
        since_ns, here_ns = self._comm_here
        if since_ns == self.since_ns:
            self.comm_between_ns += here_ns * ((part in BETWEEN_PASSES) - (self.part in BETWEEN_PASSES))
        self.part = part

    def close(self) -> StepTimes:
        """End the step now, start the next one in the gap, and return the ended step's times."""
        self.switch(GAP)
        times = StepTimes(self.since_ns - self.started_ns, self.spent, self.comm_ns, self.comm_between_ns)
        self.started_ns = self.since_ns
        self.spent = [0] * PARTS_TOTAL
        self.comm_ns = self.comm_between_ns = 0
        self._comm_here = (0, 0)
        return times


def put_seconds(
    fields: Dict[str, Any], times: StepTimes, loader_timed: bool, backward_seen: bool, forward_seen: bool = True
) -> None:
    """Put a step's parts into its frame; what is left of `step_s` is `other`. No `eval_s`: there was no evaluation; no
    `bubble_s`: no stage was waited for.

    Where no fetch of data was seen the whole gap counts as one: an upper bound, and `data_bound` says so. Without a
    backward call, what follows the forward pass is the backward pass. Where no forward pass was seen (it is part of
    something that the loop has compiled) the gap holds all of it, and none of these is known.
    """
    # By name from a single look: one by one by index they cost as much as a clock.
    (
        _, gap_ns, data_ns, forward_ns, after_ns, backward_ns, optimizer_ns, checkpoint_ns, hold_ns, eval_ns, late_ns,
        bubble_ns,
    ) = times.spent  # fmt: skip
    gap_ns += late_ns
    if backward_seen:
        forward_ns += after_ns
    else:
        backward_ns += after_ns
    # Whole microseconds: finer is noise, and digits cost bytes in every frame.
    fields["step_s"] = times.step_ns // 1000 / 1e6
    if forward_seen:
        if loader_timed:
            fields["loop_s"] = gap_ns // 1000 / 1e6
        else:
            data_ns += gap_ns
            fields["data_bound"] = True
        fields["data_s"] = data_ns // 1000 / 1e6
        fields["forward_s"] = forward_ns // 1000 / 1e6
    elif loader_timed:
        fields["data_s"] = data_ns // 1000 / 1e6
    if forward_seen or backward_seen:
        fields["backward_s"] = backward_ns // 1000 / 1e6
    fields["optimizer_s"] = optimizer_ns // 1000 / 1e6
    fields["checkpoint_s"] = checkpoint_ns // 1000 / 1e6
    fields["hold_s"] = hold_ns // 1000 / 1e6
    if eval_ns:
        fields["eval_s"] = eval_ns // 1000 / 1e6
    if bubble_ns:
        fields["bubble_s"] = bubble_ns // 1000 / 1e6


class Overlapping:
    """What an engine adds to each step's fields beside the parts: "of which" they were spent on this or that."""

    def __init__(self) -> None:
        self._puts: List[Callable[[Dict[str, Any], StepTimes], None]] = []

    def add(self, put: Callable[[Dict[str, Any], StepTimes], None]) -> Callable[[], None]:
        """Call `put` with each step's fields and raw times; it may not raise. Returns what ends that."""
        self._puts.append(put)
        return lambda: self._puts.remove(put)

    def put(self, fields: Dict[str, Any], times: StepTimes) -> None:
        """Complete one step's fields."""
        for put in self._puts:
            put(fields, times)


def put_comm(fields: Dict[str, Any], times: StepTimes) -> None:
    """Put the time in collectives, where all of them are seen."""
    fields["comm_s"] = seconds(times.comm_ns)
    put_comm_between(fields, times)


def put_comm_between(fields: Dict[str, Any], times: StepTimes) -> None:
    """Put the time in collectives between the passes, where there was any and the passes are known."""
    if times.comm_between_ns and "forward_s" in fields:
        fields["comm_between_s"] = seconds(min(times.comm_between_ns, times.step_ns))


def seconds(nanoseconds: int) -> float:
    """Return seconds in whole microseconds."""
    return nanoseconds // 1000 / 1e6
