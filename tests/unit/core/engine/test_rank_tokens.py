"""Tokens that ranks have counted themselves: exact however frames come, the lead rank's estimate where none do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from governor.cli.status_table import render_status
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.inputs import Disconnected, Hello, Step
from governor.core.runs import intake
from governor.core.runs.rank_tokens import LATE_STEPS_MAX, PLACES_MAX, STEPS_MAX
from governor.core.runs.state import Run
from governor.core.views.status import run_status
from governor.text.screen import FILE
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick


class Ranks:
    """Ranks that eat batches of any length, and tell it as the shim does."""

    def __init__(self, *places: int, size: int = 0, seed: int = 0) -> None:
        self.places = places
        self.size = size or len(set(places))
        self.rng = random.Random(seed)
        self.base, self.base_step = 0, 0
        self.own = [0] * self.size
        self.attempt_step = 0
        self.truth = {0: 0}  # The run's total by step.

    def hello(self, rank: int, **changes: object) -> Hello:
        shares = {"data_parallel_size": self.size, "data_parallel_rank": self.places[rank], "world_size": 64}
        return hello(rank, tokens_per_step=None, **{**shares, **changes})

    def hellos(self) -> Iterator[Hello]:
        return (self.hello(rank) for rank in range(len(self.places)))

    def step(self, number: int, lengths: Sequence[int] = ()) -> list[Step]:
        """The frames of all ranks, in order of rank."""
        eaten = list(lengths) or [self.rng.randint(1, 100) for _ in self.own]
        own_before = list(self.own)
        self.attempt_step += 1
        self.own = [was + length for was, length in zip(self.own, eaten, strict=True)]
        self.truth[number] = self.base + sum(self.own)
        frames = []
        for rank, place in enumerate(self.places):
            own = self.own[place]
            told = {"tokens": (own - own_before[place]) * self.size, "tokens_total": self.base + own * self.size}
            told["attempt_step"] = self.attempt_step
            padding = {"tokens_nonpad": (own - own_before[place]) * self.size // 2, "nonpad_own_total": own // 2}
            frames.append(a_step(number, rank, tokens_own_total=own, **told, **padding))
        return frames

    def resume(self, number: int) -> None:
        """From the checkpoint of step `number`, which has the exact total."""
        self.base, self.own = self.truth[number], [0] * self.size


def begin(ranks: Ranks) -> tuple[Node, Run]:
    node = make_node()
    play(node, tick(0), *ranks.hellos())
    return node, node.runs["llama"].run


def metered(node: Node) -> tuple[int, int]:
    """Progress and waste."""
    meter = node.runs["llama"].history.meter
    assert meter is not None
    return meter.progress_tokens, meter.wasted_tokens


@pytest.mark.parametrize("is_lead_last", [False, True])
def test_the_ranks_sum_is_counted_and_not_the_leads_times_their_number(is_lead_last: bool) -> None:
    ranks = Ranks(0, 1)
    node, run = begin(ranks)
    for number, lengths in enumerate([(6, 16), (16, 26), (26, 6)], 1):
        frames = ranks.step(number, lengths)
        play(node, *(frames[::-1] if is_lead_last else frames))
        assert (run.tokens_total, run.step_tokens) == (ranks.truth[number], sum(lengths))
        assert run.furthest == (number, ranks.truth[number])
    assert metered(node) == (96, 0)


def test_ranks_of_one_place_count_once() -> None:
    """Two by two: tensor-parallel pairs."""
    ranks = Ranks(0, 0, 1, 1)
    node, run = begin(ranks)
    play(node, *ranks.step(1, (10, 30)), *ranks.step(2, (1, 3)))
    assert run.tokens_total == 44


def test_the_ranks_of_other_nodes_are_taken_to_be_like_these() -> None:
    ranks = Ranks(0, 1, size=4)
    node, run = begin(ranks)
    play(node, *ranks.step(1, (10, 30, 999, 999)))
    assert run.tokens_total == 80


def test_a_step_waits_for_all_and_is_counted_once() -> None:
    ranks = Ranks(0, 1, 2)
    node, run = begin(ranks)
    first, second, third = ranks.step(1, (5, 50, 500))
    play(node, third, first)
    assert run.tokens_total is None
    play(node, second)
    assert (run.tokens_total, metered(node)) == (555, (555, 0))
    play(node, second, third)
    assert (run.tokens_total, metered(node)) == (555, (555, 0))


@pytest.mark.parametrize("seed", range(40))
def test_any_order_between_ranks_and_any_loss_of_frames_leave_the_total_of_a_step_exact(seed: int) -> None:
    ranks = Ranks(0, 1, 2, 3, seed=seed)
    node, run = begin(ranks)
    rng = random.Random(seed)
    queues: list[list[Step]] = [[], [], [], []]
    for number in range(1, 61):
        for rank, frame in enumerate(ranks.step(number)):
            if rng.random() < 0.97 or number == 60:
                queues[rank].append(frame)
        while sum(map(len, queues)) > (0 if number == 60 else 6):
            oldest = min(queue[0].step for queue in queues if queue)
            queue = rng.choice([queue for queue in queues if queue and queue[0].step <= oldest + 2])
            play(node, queue.pop(0))
            total = run.tokens_total
            assert total is None or total == ranks.truth[run.counted_step or 0]
            assert metered(node)[1] == 0 if node.runs["llama"].history.meter else True
    assert run.tokens_total == ranks.truth[60]
    assert metered(node) == (ranks.truth[60], 0)


def test_a_resumed_step_counts_from_the_checkpoints_total() -> None:
    ranks = Ranks(0, 1, seed=5)
    node, run = begin(ranks)
    for number in range(1, 11):
        play(node, *ranks.step(number))
    reached = ranks.truth[10]
    ranks.resume(6)
    for number in range(7, 13):
        frames = ranks.step(number)
        play(node, *(frames if number % 2 else frames[::-1]))
        assert run.tokens_total == ranks.truth[number]
    progress, wasted = metered(node)
    assert progress == max(reached, ranks.truth[12])
    assert wasted == min(reached, ranks.truth[12]) - ranks.truth[6]


def test_a_new_attempt_counts_from_the_checkpoints_total() -> None:
    ranks = Ranks(0, 1, seed=6)
    node, run = begin(ranks)
    for number in range(1, 11):
        play(node, *ranks.step(number))
    ranks.resume(8)
    play(node, *(ranks.hello(rank, attempt="a2", when=20.0) for rank in (0, 1)))
    for number in range(9, 12):
        play(node, *ranks.step(number))
        assert run.tokens_total == ranks.truth[number]


def test_a_rank_that_is_gone_is_not_waited_for_and_what_it_told_counts() -> None:
    ranks = Ranks(0, 1)
    node, run = begin(ranks)
    play(node, *ranks.step(1, (10, 20)))
    first, second = ranks.step(2, (1, 2))
    play(node, first, Disconnected(first.at, first.connection), second)  # type: ignore[arg-type]
    assert run.tokens_total == 33


def test_without_the_others_totals_the_leads_estimate_counts_and_memory_has_a_bound() -> None:
    ranks = Ranks(0, 1)
    node, run = begin(ranks)
    for number in range(1, 201):
        play(node, ranks.step(number, (10, 30))[0])
        assert run.tokens_total is None or run.tokens_total % 20 == 0
    assert run.tokens_total is not None
    assert 200 - LATE_STEPS_MAX - 1 <= run.tokens_total // 20 <= 200
    silent = Ranks(0, 1)
    node, run = begin(silent)
    for number in range(1, 201):
        play(node, silent.step(number)[1])
    assert len(run.rank_tokens.told) <= STEPS_MAX


def test_tokens_that_are_no_padding_are_summed_too() -> None:
    ranks = Ranks(0, 1)
    node, run = begin(ranks)
    play(node, *ranks.step(1, (10, 30)), *ranks.step(2, (4, 8)))
    assert (run.nonpad_tokens, run.nonpad_of_tokens) == (26, 52)
    alone = make_node()
    play(alone, tick(0), hello(0, world_size=1), a_step(1, tokens=100, tokens_total=100, tokens_nonpad=77))
    play(alone, a_step(2, tokens=100, tokens_total=200))
    run = alone.runs["llama"].run
    assert (run.tokens_total, run.nonpad_tokens, run.nonpad_of_tokens) == (200, 77, 100)
    assert run.pad_frac == pytest.approx(0.23)
    told = run_status(alone.runs["llama"], at(2))
    assert (told["tokens_nonpad"], told["pad_frac"]) == (77, run.pad_frac)
    governor = {"node": "node-a", "mode": "enforce", "price_usd_per_hour": 98.32, "policies": ["p"]}
    assert "pad 23%" in render_status({"governor": governor, "runs": [told]}, FILE)
    again = intake.restored(run_snapshot(alone, alone.runs["llama"], at(2)), at(2), same_boot=True)
    assert (again.nonpad_tokens, again.nonpad_of_tokens) == (77, 100)


def test_no_step_has_more_tokens_that_are_no_padding_than_it_has() -> None:
    node = make_node()
    play(node, tick(0), hello(0, world_size=1), a_step(1, tokens=100, tokens_total=100, tokens_nonpad=130))
    run = node.runs["llama"].run
    assert (run.nonpad_tokens, run.pad_frac) == (100, 0)


def test_a_total_that_the_own_ones_contradict_is_the_leads_word_alone() -> None:
    ranks = Ranks(0, 1, size=64)
    node, run = begin(ranks)
    huge = 2**53
    play(node, *(a_step(1, rank, tokens=huge, tokens_total=huge, tokens_own_total=huge) for rank in (0, 1)))
    assert run.tokens_total == huge


def test_a_rank_that_says_other_places_all_the_time_fills_no_memory() -> None:
    ranks = Ranks(0, 1, size=60_000)
    node, run = begin(ranks)
    for place in range(2, 1_000):
        shares = {"data_parallel_size": 60_000, "data_parallel_rank": place, "world_size": 60_000}
        play(node, hello(1, tokens_per_step=None, **shares), a_step(1, 1, tokens=1, tokens_own_total=1))
    assert sum(map(len, run.rank_tokens.told.values())) <= PLACES_MAX


def test_places_are_told_with_the_first_batch_and_waited_for() -> None:
    """The shim asks who sees what when the first batch is here, and says hello again."""
    ranks = Ranks(0, 1)
    node = make_node()
    play(node, tick(0), *(ranks.hello(rank, data_parallel_size=None, data_parallel_rank=None) for rank in (0, 1)))
    first, second = ranks.step(1, (1_000, 10))
    play(node, ranks.hello(0), first)
    run = node.runs["llama"].run
    assert run.tokens_total is None
    play(node, ranks.hello(1), second)
    assert (run.tokens_total, metered(node)) == (1_010, (1_010, 0))
    play(node, *ranks.step(2, (10, 10)))
    assert (run.tokens_total, metered(node)) == (1_030, (1_030, 0))


def test_ranks_that_never_tell_a_place_are_not_waited_for_again() -> None:
    """One of two nodes; its second rank is a stage of a pipeline that gets no tokens."""
    ranks = Ranks(0, size=2)
    node = make_node()
    play(node, tick(0), ranks.hello(0), hello(1, tokens_per_step=None, world_size=64))
    run = node.runs["llama"].run
    for number in range(1, LATE_STEPS_MAX + 2):
        assert run.tokens_total is None
        play(node, *ranks.step(number, (50, 50)))
    assert (run.tokens_total, metered(node)) == (100 * (LATE_STEPS_MAX + 1), (100 * (LATE_STEPS_MAX + 1), 0))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert meter.began_tokens == 0
    play(node, *ranks.step(LATE_STEPS_MAX + 2, (50, 50)))
    assert run.tokens_total == 100 * (LATE_STEPS_MAX + 2)
