"""One rank is slower than its peers, and all of them wait for it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event, Step
from governor.core.rules.trigger import Key, Trigger, is_step_time
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import RANKS_MAX, Run

_NO_OWN_TIMES: Final = unknown("no_own_times")
_STEPS_BETWEEN_MAX: Final = 100  # Twice what the shim leaves out at most, where a step is too short to read each.


@dataclass(slots=True)
class _Rank:
    """Own and whole seconds of one rank's last steps."""

    ROW: ClassVar[bool] = True

    steps_seen: int
    own_s: Reservoir
    step_s: Reservoir

    @property
    def is_full(self) -> bool:
        return len(self.own_s) == self.own_s.size


@dataclass(slots=True)
class _State:
    ranks: defaultdict[int, _Rank]
    finding: Finding = field(default=_NO_OWN_TIMES, metadata=UNKEPT)
    # Steps since a rank that reports its time in collectives did so. Its own time is of those steps alone.
    without_comm: dict[int, int] = field(default_factory=dict, metadata=UNKEPT)


class Straggler(Trigger):
    """A rank's median own time per step is `times` the median of its peers, and costs `lost_frac` of the step.

    Collectives make the step times of all ranks equal, so a rank is judged by its *own* time. That is the step without
    its time in collectives, if reported (host-blocking ones; steps of such a rank that lack it are left out), else data
    wait plus forward pass (device-timed ranks wait for others in the backward pass). The first `warmup_steps` steps of
    each rank, saves, holds and evaluations are left out. Causes of one slow rank of many: a throttled GPU, a bad link,
    a neighbour on its cores, a stage with more work. Its cost is the part of every rank's step by which it is slower.

    Sees only the ranks of this node, and needs three: with two, the slow one cannot be identified. Misses a slow
    backward pass under device timing, a slow rank under ZeRO-3 (its forward pass waits for the others), and a whole
    slow node. UNKNOWN for pipelines (their stages differ by design), until three ranks have a full window, and while no
    rank is connected. Resets at each attempt.
    """

    KIND: ClassVar[str] = "straggler"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Medians of 50 steps of equal ranks differ by a few per cent; experts and sequence lengths, by a quarter.
        Key("times", "number", 1.5, "Fires from so many times the median of the other ranks on.", 1),
        Key("lost_frac", "frac", 0.1, "And only where the difference is this part of the step: else nobody waits."),
        Key("window_steps", "count", 50, "Steps whose median is taken.", 5),
        Key("warmup_steps", "count", 20, "First steps of each rank that are left out: they compile."),
        Key("ranks", "count", 3, "Ranks that must be seen.", 3),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step})
    LIMITS: ClassVar[tuple[str, ...]] = ("times",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "a rank's own time a step, without waiting for others, is {times} times that of the median of its peers or "
        "more, over {window_steps} steps, and the difference is {lost_frac} of the step or more",
        "It takes {ranks} ranks on this node; the first {warmup_steps} steps of each are left out.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._times: float = params["times"]
        self._lost_frac: float = params["lost_frac"]
        self._window_steps: int = params["window_steps"]
        self._warmup_steps: int = params["warmup_steps"]
        self._ranks_min: int = params["ranks"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        size = self._window_steps
        return _State(defaultdict(lambda: _Rank(0, Reservoir(size), Reservoir(size))))

    def _restored(self) -> None:
        if self._state.ranks:
            self._compare()

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return False
        own_s = own_s_of(event)
        if own_s is None:
            return False
        ranks = self._state.ranks
        state = ranks.get(event.rank)
        if state is None:
            if len(ranks) >= RANKS_MAX:
                return False
            state = ranks[event.rank]
        if is_between(event, self._state.without_comm):
            return False
        state.steps_seen += 1
        if state.steps_seen <= self._warmup_steps:
            return False
        state.own_s.add(own_s)
        state.step_s.add(event.training_s or 0.0)
        # Once per step is enough: when the highest rank reports, most others have reported the step.
        if event.rank == max(ranks):
            self._compare()
        return self._state.finding.is_firing

    def _compare(self) -> None:
        ranks = self._state.ranks
        full = {number: state for number, state in ranks.items() if state.is_full}
        if len(full) < self._ranks_min:
            self._state.finding = unknown("warming_up" if len(ranks) >= self._ranks_min else "too_few_ranks")
            return
        medians = {number: state.own_s.median() or 0.0 for number, state in full.items()}
        slow = max(medians, key=lambda number: medians[number])
        peers = sorted(own_s for number, own_s in medians.items() if number != slow)
        peers_s = peers[len(peers) // 2]
        step_s = full[slow].step_s.median() or 0.0
        lost_s = medians[slow] - peers_s
        if medians[slow] < self._times * peers_s or lost_s < self._lost_frac * step_s or lost_s <= 0:
            self._state.finding = QUIET
            return
        self._state.finding = firing(
            "rank_slow",
            f"rank {slow} takes {medians[slow]:.3g} s a step by itself, its peers {peers_s:.3g} s: "
            f"{lost_s / step_s:.0%} of every rank's step, over the last {self._window_steps} steps",
            {
                "rank": slow,
                "own_s": medians[slow],
                "peers_s": peers_s,
                "step_s": step_s,
                "times": self._times,
                "lost_frac": self._lost_frac,
                "own_s_by_rank": {str(number): own_s for number, own_s in medians.items()},
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if run.is_cut_off():
            return unknown("no_connection")
        return unknown("stages_differ") if run.framework == "pipeline" else self._state.finding


def is_between(step: Step, without_comm: dict[int, int]) -> bool:
    """Whether other steps of this rank report its time in collectives, and this one does not.

    `without_comm`: steps since a rank did, noted here.
    """
    if step.comm_s is not None:
        without_comm[step.rank] = 0
    elif step.rank in without_comm:
        without_comm[step.rank] += 1
        if without_comm[step.rank] <= _STEPS_BETWEEN_MAX:
            return True
        del without_comm[step.rank]
    return False


def own_s_of(step: Step) -> float | None:
    """Seconds of the rank's own work; None when its frame does not report them."""
    training_s = step.training_s
    if training_s is None:
        return None
    if step.comm_s is not None:
        own_s = training_s - step.comm_s
    elif step.forward_s is not None:
        own_s = step.forward_s + (step.data_s or 0.0)
    else:
        return None
    if not is_step_time(training_s) or not 0 <= own_s < math.inf:  # NaN fails too.
        return None
    return min(own_s, training_s)
