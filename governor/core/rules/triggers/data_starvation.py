"""The GPUs wait for data for most of the step."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event, Step
from governor.core.rules.trigger import Key, Trigger, is_step_time
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import RANKS_MAX, Run

SUMMED_STEPS: Final = 1_024  # So often the running sums begin anew.
FAR_BELOW: Final = 0.99  # In so many additions a sum drifts by a billionth of it at most.
_FIRST, _SECOND = itemgetter(0), itemgetter(1)


@dataclass(slots=True)
class _Rank:
    """The data wait and the step time of one rank's last steps, in seconds."""

    ROW: ClassVar[bool] = True

    steps_seen: int = 0
    steps: deque[tuple[float, float]] = field(default_factory=deque)
    # Running sums of both. They drift over many steps, so they only tell what is far below a limit.
    _waited_s: float = field(default=0.0, metadata=UNKEPT)
    _took_s: float = field(default=0.0, metadata=UNKEPT)
    is_bound: bool = field(default=False, metadata=UNKEPT)  # The waits have the loop's own code: its last step tells.

    def add(self, data_s: float, step_s: float) -> None:
        steps = self.steps
        if len(steps) == steps.maxlen:
            oldest_data_s, oldest_step_s = steps[0]
            self._waited_s -= oldest_data_s
            self._took_s -= oldest_step_s
        steps.append((data_s, step_s))
        self._waited_s += data_s
        self._took_s += step_s
        if self.steps_seen % SUMMED_STEPS == 0:
            self.restored()

    def restored(self) -> None:
        self._waited_s, self._took_s = sum(map(_FIRST, self.steps)), sum(map(_SECOND, self.steps))

    def reaches(self, share_frac: float) -> bool:
        """Whether the share is as high. Nearly always the sums are enough to say no."""
        if len(self.steps) < (self.steps.maxlen or 0) or self._waited_s < FAR_BELOW * share_frac * self._took_s:
            return False
        share = self.share_frac
        return share is not None and share >= share_frac

    @property
    def share_frac(self) -> float | None:
        """Over the whole window; None until it is full. Summed anew, so that it is exact."""
        if len(self.steps) < (self.steps.maxlen or 0):
            return None
        return self._share_frac(sum(map(_FIRST, self.steps)), sum(map(_SECOND, self.steps)))

    def _share_frac(self, data_s: float, step_s: float) -> float:
        """The share of all steps, or of all but the one with the longest wait, whichever is less."""
        waited_s, slowest_s = max(self.steps)
        rest_s = step_s - slowest_s
        return min(data_s / step_s, (data_s - waited_s) / rest_s if rest_s > 0 else 1.0)


@dataclass(slots=True)
class _State:
    ranks: defaultdict[int, _Rank]


class DataStarvation(Trigger):
    """The part of the step time that a rank waits for its next batch, over the last `window_steps` steps.

    The longest wait of the window is left out: one batch behind a restart of the loader's workers, or behind a shard
    that must arrive first, outweighs twenty steps and is no evidence. One starved rank is enough: the others wait for
    it in their collectives, which looks like communication. Saves, evaluations and the wait for an agreed step do not
    count as step time. Where no fetch of data is seen, the loop's own code counts as waiting, and the verdict says so.
    The first `warmup_steps` steps of the attempt are left out (the loader's workers start, caches are cold). The rule's
    `for` says how long it must last. UNKNOWN while no rank reports its waiting, before the window is full, and while no
    rank is connected. Resets at each attempt.
    """

    KIND: ClassVar[str] = "data_starvation"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("share_frac", "frac", 0.5, "Fires at this part of the step time: half of the money waits."),
        Key("window_steps", "count", 20, "Steps that are summed, but for the longest wait.", 1),
        Key("warmup_steps", "count", 20, "First steps of each rank that are left out."),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step})
    LIMITS: ClassVar[tuple[str, ...]] = ("share_frac",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "a rank waits for data during {share_frac} of its step time or more, over its last {window_steps} steps",
        "The first {warmup_steps} steps of each rank are left out.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._share_frac: float = params["share_frac"]
        self._window_steps: int = params["window_steps"]
        self._warmup_steps: int = params["warmup_steps"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(defaultdict(lambda: _Rank(steps=deque(maxlen=self._window_steps))))

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return False
        waited = waited_of(event)
        if waited is None:
            return False
        ranks = self._state.ranks
        state = ranks.get(event.rank)
        if state is None:
            if len(ranks) >= RANKS_MAX:
                return False
            state = ranks[event.rank]
        state.steps_seen += 1
        state.is_bound = event.data_bound is True
        if state.steps_seen > self._warmup_steps:
            state.add(*waited)
        return state.reaches(self._share_frac)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if run.is_cut_off():
            return unknown("no_connection")
        ranks = self._state.ranks
        worst: tuple[float, int] | None = None
        shares = {rank: state.share_frac for rank, state in ranks.items()}
        for rank, share in shares.items():
            if share is not None and (worst is None or share > worst[0]):
                worst = (share, rank)
        if worst is None:
            return unknown("warming_up" if ranks else "no_data_times")
        share_frac, rank = worst
        if share_frac < self._share_frac:
            return QUIET
        or_loop = " or runs the loop's own code" if ranks[rank].is_bound else ""
        return firing(
            "data_starved",
            f"rank {rank} waits for data{or_loop} {share_frac:.0%} of its step time, "
            f"over the last {self._window_steps} steps",
            {
                "rank": rank,
                "data_frac": share_frac,
                "share_frac": self._share_frac,
                "window_steps": self._window_steps,
                "data_frac_by_rank": {str(rank): share for rank, share in shares.items()},
            },
        )


def waited_of(step: Step) -> tuple[float, float] | None:
    """Seconds that the step waited for data, and those of the step. None when its frame does not report them."""
    step_s = step.training_s
    if step.data_s is None or step_s is None:
        return None
    if not is_step_time(step_s) or not 0 <= step.data_s < math.inf:  # NaN fails too.
        return None
    return min(step.data_s, step_s), step_s
