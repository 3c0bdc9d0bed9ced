"""Who waited for a processor because of others. Each look is a second after the last; figures are seconds of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from governor.core.attribution.queue_time import QueueTime, QueueWait
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

BOTH, FIRST, SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})


@dataclass
class One:
    """A rank: how much of each second it runs and waits, and where it may."""

    runs: float
    waits: float | None
    cores: frozenset[int] | None = BOTH
    granted: float | None = None


def pid(rank: int) -> ProcessId:
    return ProcessId(100 + rank, 1, "boot")


def look(second: int, busy: float | None, *ranks: One) -> HostSample:
    uses = tuple(
        ProcessUse(pid(rank), pid(rank), "python", "R", int(one.runs * second * NS_PER_S),
                   None if one.waits is None else int(one.waits * second * NS_PER_S), cores=one.cores,
                   cores_max=one.granted)
        for rank, one in enumerate(ranks)
    )  # fmt: skip
    return HostSample(MonoNs(second * NS_PER_S), NodeUse(2, None if busy is None else busy * second), uses, "run")


def told(busy: float | None, *ranks: One) -> dict[int, float]:
    """The share of each rank's time that others cost, after ten looks."""
    queue = QueueTime()
    for second in range(1, 11):
        queue.see(look(second, busy, *ranks), {pid(rank): rank for rank in range(len(ranks))})
    waits = {rank: queue.take(rank) for rank in range(len(ranks))}
    return {rank: round(wait.frac, 3) for rank, wait in waits.items() if wait is not None}


def test_a_hog_on_one_ranks_core_costs_that_rank_its_wait() -> None:
    assert told(2.0, One(1.0, 0.0, FIRST), One(0.5, 0.5, SECOND)) == {1: 0.5}


def test_two_ranks_and_a_hog_on_two_cores_lose_a_third_each() -> None:
    assert told(2.0, One(0.667, 0.333), One(0.667, 0.333)) == {0: 0.333, 1: 0.333}


def test_two_ranks_on_one_core_wait_for_each_other() -> None:
    """And a hog on the other core is none of their business."""
    assert told(2.0, One(0.5, 0.5, FIRST), One(0.5, 0.5, FIRST)) == {}


def test_two_ranks_and_a_hog_on_one_core_lose_what_the_hog_takes() -> None:
    """Each of them waits for two thirds, and would wait for half without the hog: its steps take a third less then."""
    assert told(1.0, One(0.333, 0.666, FIRST), One(0.333, 0.666, FIRST)) == {0: 0.334, 1: 0.334}


def test_four_ranks_and_a_hog_on_two_cores_lose_a_fifth_each() -> None:
    """Each runs 0.4 s of a second, and would run half of it without the hog: the rest they wait for each other."""
    assert told(2.0, *[One(0.4, 0.6)] * 4) == dict.fromkeys(range(4), 0.2)


def test_a_wait_for_its_own_limit_is_no_others() -> None:
    """Granted half a core of two; others use all that is left of the machine."""
    assert told(2.0, One(0.5, 0.5, granted=0.5)) == {}
    assert told(2.0, One(0.25, 0.25, granted=0.5)) == {0: 0.25}, "what is granted and not had is the others'"
    assert told(2.0, One(0.5, 0.5, granted=8.0)) == {0: 0.5}, "more than there is limits nothing"


def test_a_healthy_run_waits_for_nobody() -> None:
    assert told(2.0, One(1.0, 0.01), One(1.0, 0.01)) == {}


def test_loader_workers_are_the_runs_own() -> None:
    queue = QueueTime()
    for second in range(1, 11):
        sample = look(second, 2.0, One(0.667, 0.333))
        worker = ProcessUse(ProcessId(900, 1, "boot"), pid(0), "pt_data_worker", "R", int(1.333 * second * NS_PER_S))
        queue.see(HostSample(sample.at, sample.node, (*sample.processes, worker), "run"), {pid(0): 0})
    wait = queue.take(0)
    assert wait is None or wait.frac < 0.001


def test_use_of_processes_that_were_not_looked_at_is_not_said_to_be_others() -> None:
    queue = QueueTime()
    for second in range(1, 11):
        queue.see(replace(look(second, 2.0, One(0.5, 0.5)), cut=frozenset({pid(0)})), {pid(0): 0})
    assert queue.take(0) is None


@pytest.mark.parametrize(
    ("busy", "rank"),
    [
        (2.0, One(0.5, None)),  # A kernel without schedstat.
        (2.0, One(0.5, 0.0)),  # One that does not count: its field stays 0.
        (None, One(0.5, 0.5)),  # A container that does not see the machine.
    ],
)
def test_without_the_kernels_figures_nothing_is_claimed(busy: float | None, rank: One) -> None:
    assert not any(told(busy, rank).values())


def test_a_counter_that_went_back_and_a_long_silence_count_nothing() -> None:
    queue, ranks = QueueTime(), {pid(0): 0}
    queue.see(look(50, 2.0, One(0.5, 0.5)), ranks)
    queue.see(look(90, 2.0, One(0.5, 0.5)), ranks)  # Forty seconds.
    assert queue.take(0) is None
    back = look(40, 2.0, One(0.5, 0.5))
    queue.see(HostSample(MonoNs(91 * NS_PER_S), back.node, back.processes, "run"), ranks)
    assert queue.take(0) in (None, QueueWait(0.0, 0.0, 0.0))


def test_where_it_may_run_is_all_cores_if_it_is_not_told() -> None:
    assert told(2.0, One(0.5, 0.5, None)) == {0: 0.5}
