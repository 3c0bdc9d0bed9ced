"""A state is written by its fields and read back; what another version wrote is an error, and never half a state."""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from governor.core.base.policy import Budget, Expected
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import MonoNs
from governor.core.rules.trigger import defaults
from governor.core.rules.trigger_state import ADDED, UNKEPT, read_json, to_json
from governor.core.rules.triggers import load


@dataclass(slots=True)
class _Rank:
    ROW: ClassVar[bool] = True

    seen: int = 0
    last: deque[float] = field(default_factory=lambda: deque(maxlen=2))


@dataclass(slots=True)
class _State:
    step: int = -1
    at: MonoNs | None = None
    peak: float = -math.inf
    late: set[int] = field(default_factory=set)
    pairs: deque[tuple[int, float]] = field(default_factory=deque)
    window: Reservoir = field(default_factory=lambda: Reservoir(3))
    ranks: defaultdict[int, _Rank] = field(default_factory=lambda: defaultdict(_Rank))
    by_gpu: defaultdict[str, _Rank] = field(default_factory=lambda: defaultdict(_Rank))
    later: bool = field(default=False, metadata=ADDED)
    heard: str = field(default="nothing", metadata=UNKEPT)
    twice: int = field(default=0, metadata=UNKEPT)

    def restored(self) -> None:
        self.twice = 2 * self.step


FRESH = {
    "step": -1, "at": None, "peak": None, "late": [], "pairs": [], "window": [], "ranks": [], "by_gpu": {},
    "later": False,
}  # fmt: skip
SEEN = {
    "step": 7, "at": 5, "peak": 2.5, "late": [1, 3], "pairs": [[1, 0.5], [2, 0.25]], "window": [1.0, 2.0, 3.0],
    "ranks": [[4, 9, [0.5]], [2, 8, []]], "by_gpu": {"GPU-1": [1, [0.5, 1.5]]}, "later": True,
}  # fmt: skip
# As the journals of older versions have them, in this order.
KEYS = {
    "budget": "",
    "data_starvation": "ranks",
    "expression": "",
    "gpu_starvation": "has_stepped are_own windows",
    "grad_norm": "rank step level",
    "hang": "log_pause_ns restarted log_gaps_s",
    "log_stalled": "log_pause_ns records",
    "loss_divergence": "rank step losses lowest lowest_step scale wobble above above_step peak recovered "
    "recovered_peak blocks",
    "loss_frozen": "rank step last equal changes longest size",
    "loss_spike": "rank step level",
    "loss_stall": "rank step best best_step since blocks",
    "loss_vanished": "rank step stride seen absent is_regular",
    "memory_pressure": "",
    "node_idle": "",
    "nonfinite": "ranks",
    "overflow_storm": "rank step updates well is_found scale scale_highest skipped_steps overflows",
    "restart_loop": "furthest first reached is_complete began_at counted barren",
    "runtime": "run_age_ns attempt_age_ns boot",
    "silence": "",
    "spot_notice": "",
    "straggler": "ranks",
    "slower_than_planned": "unit baseline steps_seen first_at recent early",
    "throughput_collapse": "unit baseline steps_seen first_at recent early",
    "unsaved_work": "",
    "usd_per_mtok": "samples progress_tokens trained_tokens last_total last_paid ends",
}


def read(saved: object) -> _State:
    state = _State()
    read_json(state, saved)
    return state


@pytest.mark.parametrize("saved", [FRESH, SEEN])
def test_what_is_written_is_read_back(saved: dict[str, Any]) -> None:
    assert json.dumps(to_json(read(saved))) == json.dumps(saved)


def test_what_is_not_kept_is_fresh_or_follows_from_the_rest() -> None:
    state = _State(heard="much")
    state.ranks[0].last.append(1.0)
    state = read(to_json(state) | {"step": 21})
    assert (state.heard, state.twice, list(state.ranks[0].last)) == ("nothing", 42, [1.0])


def test_a_state_from_before_a_field_was_added_is_read() -> None:
    assert to_json(read({key: value for key, value in SEEN.items() if key != "later"})) == SEEN | {"later": False}


def test_windows_keep_the_size_that_the_rule_asks_for() -> None:
    state = read(SEEN | {"window": [1, 2, 3, 4], "ranks": [[0, 1, [1, 2, 3]]]})
    assert (list(state.window), list(state.ranks[0].last)) == ([2.0, 3.0, 4.0], [2.0, 3.0])


@pytest.mark.parametrize(
    "saved",
    [
        {key: value for key, value in SEEN.items() if key != "step"},
        SEEN | {"step": None},
        SEEN | {"step": "many"},
        SEEN | {"pairs": [[1]]},
        SEEN | {"ranks": [[0, 1]]},
        SEEN | {"ranks": {"0": [1, []]}},
        SEEN | {"by_gpu": [1]},
        SEEN | {"window": 7},
        7,
        [],
    ],
)
def test_another_versions_state_is_an_error(saved: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(saved)


@pytest.mark.parametrize("kind", sorted(load()))
def test_the_keys_of_a_trigger_are_those_of_older_journals(kind: str) -> None:
    trigger = load()[kind]
    snapshot = trigger({**defaults(trigger.KEYS), "budget": Budget(), "expected": Expected()}).snapshot()
    assert list(snapshot) == KEYS.get(kind, " ".join(snapshot)).split()


def test_a_stored_baseline_of_another_plan_is_not_held_against_the_present_one() -> None:
    kind = load()["slower_than_planned"]

    def made(tokens_per_s: float) -> Any:
        return kind({**defaults(kind.KEYS), "budget": Budget(), "expected": Expected(tokens_per_s=tokens_per_s)})

    before, after = made(1000.0), made(400.0)
    saved = json.loads(json.dumps(before.snapshot())) | {"unit": "tokens/s", "baseline": 1000.0}
    after.restore(saved)
    assert after.snapshot()["baseline"] == 400.0
