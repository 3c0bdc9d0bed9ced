"""What ranks' steps of one window went to, by hand. Figures are nanoseconds of three steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import computed_ns
from governor.core.attribution.parts import PARTS, RankSums
from governor.core.attribution.split import Split, split


def in_steps(sums: RankSums) -> RankSums:
    """With its single steps, all alike but for what cannot be divided: a rank is never told without them."""
    assert sums.by_step is not None
    for done in range(sums.steps):
        share = [sums.parts[at] * (done + 1) // sums.steps - sums.parts[at] * done // sums.steps for at in part.APART]
        sums.by_step.add(done + 1, share)
    return sums


def sums(communication: int | None = None, recompute: int = 0, steps: int = 3, **parts: int) -> RankSums:
    told = [0] * PARTS
    for name, ns in parts.items():
        told[getattr(part, name.upper())] = ns
    computing = sum(told[index] for index in (part.FORWARD, part.BACKWARD, part.OPTIMIZER, part.WHOLE))
    return in_steps(RankSums(told, communication or 0, 0 if communication is None else computing, recompute, steps))


def of(*ranks: RankSums) -> Split:
    return split(dict(enumerate(ranks)))


def test_one_rank_says_what_it_waits_for() -> None:
    found = of(sums(data=300, forward=200, backward=400, optimizer=50, checkpoint=40, evaluation=5, loop=3, other=2))
    assert found.by_cause == {
        Cause.DATA: 300, Cause.CHECKPOINT: 40, Cause.EVALUATION: 5, Cause.LOOP: 3, Cause.UNKNOWN: 2,
        Cause.PRODUCTIVE: 650,
    }  # fmt: skip


def test_a_slow_rank_costs_every_rank_what_it_is_slower() -> None:
    """Rank 1 computes 300 longer. Rank 0 waits as long in its backward pass."""
    found = of(sums(forward=200, backward=800), sums(forward=500, backward=500))
    assert found.slow_rank == 1
    assert found.by_cause == {Cause.STRAGGLER: 600, Cause.PRODUCTIVE: 1400}


def test_who_waits_for_a_rank_without_data_waits_for_data() -> None:
    found = of(sums(data=10, forward=200, backward=790), sums(data=310, forward=200, backward=490))
    assert found.slow_rank is None
    assert found.by_cause == {Cause.DATA: 10 + 310 + 300, Cause.PRODUCTIVE: 2000 - 620}


def test_who_waits_for_the_one_that_saves_waits_for_the_checkpoint() -> None:
    found = of(sums(checkpoint=100, forward=450, backward=450), sums(forward=450, backward=550))
    assert found.by_cause == {Cause.CHECKPOINT: 200, Cause.PRODUCTIVE: 1800}


def test_for_whom_a_single_rank_waits_in_collectives_nobody_knows() -> None:
    alone, other = (
        sums(communication=300, forward=300, backward=700),
        sums(communication=200, forward=300, backward=700),
    )
    assert of(alone).weak == {Cause.COMMUNICATION: 300}
    assert of(alone, other).weak == {}


def test_communication_beyond_the_wait_is_the_wires() -> None:
    """Rank 1 arrives 100 later; both are 200 on the wire."""
    found = of(sums(communication=300, forward=300, backward=700), sums(communication=200, forward=400, backward=600))
    assert found.by_cause == {Cause.STRAGGLER: 200, Cause.COMMUNICATION: 400, Cause.PRODUCTIVE: 1400}


def test_small_differences_are_noise() -> None:
    found = of(sums(forward=480, backward=520), sums(forward=500, backward=500))
    assert found.by_cause == {Cause.PRODUCTIVE: 2000}


def test_recompute_is_of_the_backward_pass() -> None:
    assert of(sums(forward=300, backward=700, recompute=250)).by_cause == {Cause.RECOMPUTE: 250, Cause.PRODUCTIVE: 750}


def test_the_wait_for_other_stages_is_the_bubble() -> None:
    """Two stages, three micro-batches: each waits for a quarter of the step."""
    even = sums(communication=0, forward=250, backward=500, bubble=250)
    assert of(even, even).by_cause == {Cause.BUBBLE: 500, Cause.PRODUCTIVE: 1500}


def test_what_a_stage_waits_for_a_slow_one_is_no_bubble() -> None:
    """Stage 1 computes 300 longer. Both wait 100 besides."""
    fast = sums(communication=0, forward=200, backward=400, bubble=400)
    found = of(fast, sums(communication=0, forward=300, backward=600, bubble=100))
    assert found.slow_rank == 1
    assert found.by_cause == {Cause.STRAGGLER: 600, Cause.BUBBLE: 200, Cause.PRODUCTIVE: 1200}


def test_a_slow_stage_shows_where_no_communication_is_told() -> None:
    """As on a device: the backward pass of a stage has no collective in it."""
    found = of(sums(forward=300, backward=300, bubble=400), sums(forward=300, backward=600, bubble=100))
    assert found.by_cause == {Cause.STRAGGLER: 600, Cause.BUBBLE: 200, Cause.PRODUCTIVE: 1200}


def test_who_waits_for_a_stage_without_data_waits_for_data() -> None:
    found = of(sums(data=300, forward=300, backward=300, bubble=100), sums(forward=300, backward=300, bubble=400))
    assert found.by_cause == {Cause.DATA: 600, Cause.BUBBLE: 200, Cause.PRODUCTIVE: 1200}


def test_an_offloaded_optimizer_is_of_the_optimizer() -> None:
    one = sums(forward=300, backward=300, optimizer=400)
    one.offload_ns = 350
    assert of(one).by_cause == {Cause.OFFLOAD: 350, Cause.PRODUCTIVE: 650}
    one.offload_ns = 500
    assert of(one).by_cause == {Cause.OFFLOAD: 400, Cause.PRODUCTIVE: 600}


def test_one_fast_rank_waits_for_the_others_and_not_on_the_wire() -> None:
    """Ranks 1 and 2 compute 800; rank 0 computes 500 and waits 300 for them. All are 50 on the wire."""
    slow = sums(communication=50, forward=300, backward=550)
    found = of(sums(communication=350, forward=200, backward=650), slow, slow)
    assert found.by_cause == {Cause.IMBALANCE: 300, Cause.COMMUNICATION: 150, Cause.PRODUCTIVE: 2100}
    assert found.slow_rank is None


def test_a_fast_rank_waits_longer_for_the_straggler_than_the_others() -> None:
    """Rank 3 computes 900, ranks 1 and 2 compute 700, rank 0 computes 600."""
    usual = sums(communication=200, forward=300, backward=600)
    fast = sums(communication=300, forward=300, backward=600)
    found = of(fast, usual, usual, sums(communication=0, forward=400, backward=500))
    assert found.by_cause == {Cause.STRAGGLER: 800, Cause.IMBALANCE: 100, Cause.PRODUCTIVE: 2700}
    assert found.slow_rank == 3


def test_two_steps_say_nothing_of_who_is_slow() -> None:
    assert of(sums(steps=2, forward=200, backward=800), sums(steps=2, forward=500, backward=500)).slow_rank is None


def test_a_throttled_rank_costs_the_others_their_wait_for_it() -> None:
    """Rank 1 computes at half its clock: 500 of its 1,000. Rank 0 computes 500, and waits 500 in its backward pass."""
    ranks = {0: sums(forward=200, backward=800), 1: sums(forward=400, backward=600)}
    found = split(ranks, {1: {Cause.THROTTLING: 500}})
    assert found.by_cause == {Cause.THROTTLING: 1000, Cause.PRODUCTIVE: 1000}
    assert found.slow_rank is None


def test_of_two_throttled_ranks_the_worse_one_counts() -> None:
    """Rank 1 is at half its clock, rank 0 at three quarters."""
    ranks = {0: sums(forward=266, backward=734), 1: sums(forward=400, backward=600)}
    found = split(ranks, {0: {Cause.THROTTLING: 250}, 1: {Cause.THROTTLING: 500}})
    assert found.by_cause[Cause.THROTTLING] == 1000


def test_what_others_take_is_not_the_wires() -> None:
    """Rank 1 waits 300 of its 700 for a processor; both are 300 on the wire, and rank 0 waits 300 more for rank 1."""
    ranks = {
        0: sums(communication=600, forward=300, backward=700),
        1: sums(communication=300, forward=600, backward=400),
    }
    found = split(ranks, {1: {Cause.OTHER_TENANTS: 300}})
    assert found.by_cause == {Cause.OTHER_TENANTS: 600, Cause.COMMUNICATION: 600, Cause.PRODUCTIVE: 800}


def test_a_straggler_beside_a_throttled_rank_is_told_apart() -> None:
    """Rank 1 computes 800, of which its clock costs 100: the other 300 more than its like are its own."""
    ranks = {0: sums(forward=400, backward=600), 1: sums(forward=800, backward=200)}
    found = split(ranks, {1: {Cause.THROTTLING: 100}})
    assert found.slow_rank == 1
    assert found.by_cause[Cause.THROTTLING] == 200
    assert found.by_cause[Cause.STRAGGLER] == 2 * (800 - 80 - 400)


NS = st.integers(0, 10**12)
LOSSES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=5, max_size=5)
RANKS = st.lists(
    st.builds(
        RankSums, st.lists(NS, min_size=PARTS, max_size=PARTS), NS, NS, NS, st.integers(1, 9), NS
    ).map(in_steps),
    min_size=1, max_size=5,
)  # fmt: skip


@given(RANKS, LOSSES)
def test_whatever_ranks_tell_is_attributed_once(ranks: list[RankSums], fracs: list[tuple[float, float]]) -> None:
    losses: dict[int, dict[Cause, int]] = {}
    for rank, (one, (throttled, queued)) in enumerate(zip(ranks, fracs, strict=False)):
        lost = int(computed_ns(one) * throttled)
        losses[rank] = {Cause.THROTTLING: lost, Cause.OTHER_TENANTS: int((computed_ns(one) - lost) * queued)}
    found = split(dict(enumerate(ranks)), losses)
    assert sum(found.by_cause.values()) == sum(one.total_ns for one in ranks)
    assert all(ns > 0 for ns in found.by_cause.values())
    assert all(cause.is_in_steps or cause is Cause.UNKNOWN for cause in found.by_cause)
