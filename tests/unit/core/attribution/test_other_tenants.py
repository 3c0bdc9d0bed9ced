"""On a node with other tenants: a rank that sleeps, for data or in its loop, computes no longer than its like.

Every rank computes alike and waits alike for a core. What one sleeps, the others wait for it in a collective.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import HardwareTime, Losses
from governor.core.attribution.parts import RankSums
from governor.core.attribution.split import split
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.machine import HostSample, NodeUse, ProcessUse
from tests.unit.core.attribution.test_split import sums

STEPS = 10
MS = NS_PER_S // 1000
CORES = 2
PARTS = st.sampled_from(["data", "loop"])


def pid(rank: int) -> ProcessId:
    return ProcessId(100 + rank, 1, "boot")


def losses(
    ranks: dict[int, RankSums], ran: list[int], waited: list[int], *, threads: int = 1, told: bool = True
) -> Losses:
    """Of STEPS steps, in which each rank's main thread ran and waited for a core so long; others use what is left.

    `threads`: so many of each rank run at once. `told`: the kernel tells the main thread's own time.
    """
    time, whole = HardwareTime(), max(one.total_ns for one in ranks.values())
    for place in range(2):
        uses = tuple(
            ProcessUse(pid(rank), pid(rank), "python", "R", threads * ran[rank] * place, waited[rank] * place,
                       core_run_ns=ran[rank] * place if told else None)
            for rank in ranks
        )  # fmt: skip
        busy_s = CORES * whole * place / NS_PER_S
        sample = HostSample(MonoNs(whole * place + 1), NodeUse(CORES, busy_s), uses, "run")
        time.queue.see(sample, {pid(rank): rank for rank in ranks})
    return time.take(ranks)


def asleep(computes: int, sleeps: list[int], where: str) -> dict[int, RankSums]:
    """Milliseconds of each rank. The last one to come waits for nobody."""
    return {
        rank: sums(max(sleeps) - slept, steps=STEPS, forward=computes, backward=max(sleeps) - slept, **{where: slept})
        for rank, slept in enumerate(sleeps)
    }


@pytest.mark.parametrize("where", ["data", "loop"])
@pytest.mark.parametrize(("threads", "told"), [(1, True), (1, False), (2, True)])
def test_who_sleeps_loses_as_much_to_others_as_who_waits_for_it(where: str, threads: int, told: bool) -> None:
    """Both run 2 s and wait 2 s for a core. Rank 1 sleeps 5 s besides."""
    ranks = asleep(4000 * MS, [0, 5000 * MS], where)
    lost = losses(ranks, [2000 * MS] * 2, [2000 * MS] * 2, threads=threads, told=told)
    assert lost[0][Cause.OTHER_TENANTS] == pytest.approx(2000 * MS, rel=0.01)
    assert lost[1][Cause.OTHER_TENANTS] == pytest.approx(2000 * MS, rel=0.01)
    assert split(ranks, lost).slow_rank is None


def test_a_wait_for_a_core_in_the_loops_own_work_is_not_taken_out_of_the_steps() -> None:
    """Rank 0's loop works as long as its steps do: half of its waits for a core come there."""
    ranks = {0: sums(0, steps=STEPS, forward=4000 * MS, loop=4000 * MS)}
    assert losses(ranks, [4000 * MS], [4000 * MS])[0][Cause.OTHER_TENANTS] == pytest.approx(2000 * MS, rel=0.01)


@given(
    st.integers(100, 5000), st.floats(0, 0.9), st.lists(st.integers(0, 5000), min_size=2, max_size=5), PARTS,
    st.integers(1, 4), st.booleans(),
)  # fmt: skip
def test_nobody_becomes_a_straggler_by_sleeping(
    computes: int, queued: float, sleeps: list[int], where: str, threads: int, told: bool
) -> None:
    ranks = asleep(computes * MS, [slept * MS for slept in sleeps], where)
    waited = int(queued * computes) * MS
    lost = losses(ranks, [computes * MS - waited] * len(ranks), [waited] * len(ranks), threads=threads, told=told)
    found = split(ranks, lost)
    assert found.slow_rank is None
    assert found.by_cause.keys().isdisjoint({Cause.STRAGGLER, Cause.IMBALANCE})


NS = st.integers(0, 10**9)


@given(st.lists(st.tuples(NS, NS, st.floats(0, 1)), min_size=2, max_size=5), PARTS)
def test_a_straggler_is_one_whose_steps_compute_longer(told: list[tuple[int, int, float]], where: str) -> None:
    """Whatever is said to come from outside: the report's table of ranks shows what their steps computed."""
    ranks = {rank: sums(0, forward=computed, **{where: slept}) for rank, (computed, slept, _) in enumerate(told)}
    lost = {
        rank: {Cause.OTHER_TENANTS: int(ranks[rank].parts[part.FORWARD] * frac)} for rank, (*_, frac) in enumerate(told)
    }
    found = split(ranks, lost)
    if found.slow_rank is not None:
        own = sorted(one.own_ns for one in ranks.values())
        assert ranks[found.slow_rank].own_ns > own[(len(own) - 1) // 2]


def test_the_straggler_is_who_is_waited_for() -> None:
    """Rank 3 computes longest, and is there before rank 2, which had no data and computes longer than usual as well."""
    usual = sums(200, forward=1000, backward=200)
    found = split({
        0: usual, 1: usual, 2: sums(0, data=100, forward=1100), 3: sums(50, forward=1150, backward=50),
    })  # fmt: skip
    assert found.slow_rank == 2


def test_who_loses_to_others_as_much_as_it_gains_waits_for_nobody() -> None:
    """All steps compute alike; rank 0's by a third for others. Rank 3 has no data for as long."""
    alike = sums(300, forward=900, backward=300)
    found = split({0: alike, 1: alike, 2: alike, 3: sums(0, data=300, forward=900)}, {0: {Cause.OTHER_TENANTS: 300}})
    assert Cause.IMBALANCE not in found.by_cause


def test_a_light_rank_waits_no_longer_than_until_the_last_one_comes() -> None:
    """Rank 0 computes 400 less than its like and waits 350 for its own data: it comes 50 before the last one."""
    usual = sums(0, forward=1000)
    found = split({0: sums(50, data=350, forward=600, backward=50), 1: usual, 2: usual, 3: usual})
    assert found.by_cause[Cause.IMBALANCE] == 50
