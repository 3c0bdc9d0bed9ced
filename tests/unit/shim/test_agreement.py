"""The agreement over a dictionary, ranks interleaved in every order that hypothesis can think of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_shim.saving.agreement import LIVE_PHASES, MARGIN_STEPS, NEXT, Answer, Phase, Round
from trainer_shim.saving.facts import all_tokens
from trainer_shim.saving.open_requests import CheckpointRequest, merged, notice_of, request_of, request_of_notice
from trainer_shim.saving.store import MemoryStore, begin_turn, next_meeting


def ask(
    incident: str = "i", checkpoint: str = "good", deadline_ns: int = 1_000, exit_after: bool = False
) -> CheckpointRequest:
    return CheckpointRequest(incident, checkpoint, deadline_ns, exit_after, 86, "")


def ranks(world_size: int, generation: int = 0, store: MemoryStore | None = None) -> list[Round]:
    store = store or MemoryStore()
    return [Round(store, generation, rank, world_size) for rank in range(world_size)]


def test_the_target_is_one_margin_past_the_furthest_rank() -> None:
    first, second, third = ranks(3)
    first.post(Phase.POSITION, {"step": 7})
    second.post(Phase.POSITION, {"step": 9})
    assert first.verdict(Phase.POSITION) is None, "nobody decides before all have promised"
    third.post(Phase.POSITION, {"step": 4})
    assert first.verdict(Phase.POSITION) == {"target": 9 + MARGIN_STEPS}


def test_whoever_runs_out_of_time_names_the_silent_ranks_and_it_is_final() -> None:
    first, second, third = ranks(3)
    first.post(Phase.POSITION, {"step": 7})
    verdict = first.abort(Phase.POSITION, "no agreement")
    assert verdict == {"abort": "no agreement (no answer from ranks 1, 2)"}
    second.post(Phase.POSITION, {"step": 7})
    third.post(Phase.POSITION, {"step": 7})
    assert verdict == third.verdict(Phase.POSITION), "the late ranks are released, too"


def test_a_decision_is_not_aborted_afterwards() -> None:
    first, second = ranks(2)
    first.post(Phase.POSITION, {"step": 1})
    second.post(Phase.POSITION, {"step": 2})
    assert first.abort(Phase.POSITION, "too late") == {"target": 3}


def test_a_rank_that_decided_nothing_before_it_died_is_replaced() -> None:
    store = MemoryStore()
    first, second = ranks(2, store=store)
    first.post(Phase.POSITION, {"step": 1})
    # The last rank posts, counts, and is gone before it decides.
    store.set("0/position/1", '{"step": 5}')
    store.add("0/position/count", 1)
    assert first.complete(Phase.POSITION)
    first.decide(Phase.POSITION)
    assert second.verdict(Phase.POSITION) == {"target": 6}


def test_one_rank_that_cannot_write_stops_the_save_everywhere() -> None:
    first, second = ranks(2)
    first.post(Phase.READY, {"error": None})
    second.post(Phase.READY, {"error": "disk full"})
    assert first.verdict(Phase.READY) == {"abort": "rank 1: disk full", "error": True}


def test_the_outcome_is_settled_by_hand_and_names_those_that_did_not_vote() -> None:
    first, second = ranks(2)
    first.post(Phase.OUTCOME, {"parts": []})
    assert not first.complete(Phase.OUTCOME)
    assert second.abort(Phase.OUTCOME, "late") == {"abort": "late (no answer from rank 1)"}
    second.post(Phase.OUTCOME, {"parts": []})
    assert first.complete(Phase.OUTCOME)
    assert first.verdict(Phase.OUTCOME) == {"abort": "late (no answer from rank 1)"}, "what was first stays"


def test_the_table_of_phases_is_complete_and_goes_forward_only() -> None:
    assert set(NEXT) == {(phase, answer) for phase in LIVE_PHASES for answer in Answer}
    order = list(Phase)
    assert all(order.index(after) > order.index(before) for (before, _), after in NEXT.items())
    begun = {NEXT[phase, answer] for phase in (Phase.WRITTEN, Phase.OUTCOME) for answer in Answer}
    assert Phase.ABORTED not in begun, "what may have been written is not as if nobody had asked"


@pytest.mark.parametrize(
    ("verdicts", "ends"),
    [
        ([{"target": 7}, {"go": True}, {"written": True}, {"record": {}}], Phase.SAVED),
        ([{"abort": "late"}], Phase.ABORTED),
        ([{"abort": "rank 1: lost its way", "error": True}], Phase.FAILED),
        ([{"target": 7}, {"abort": "late"}], Phase.ABORTED),
        ([{"target": 7}, {"abort": "rank 1: disk full", "error": True}], Phase.FAILED),
        ([{"target": 7}, {"go": True}, {"abort": "rank 1: broke"}], Phase.FAILED),
        ([{"target": 7}, {"go": True}, {"abort": "rank 1: broke", "error": True}], Phase.FAILED),
        ([{"target": 7}, {"go": True}, {"written": True}, {"abort": "rank 0: manifest"}], Phase.FAILED),
    ],
)
def test_a_round_follows_its_verdicts_to_one_end(verdicts: list[dict], ends: Phase) -> None:
    (alone,) = ranks(1)
    for verdict in verdicts:
        assert alone.phase in LIVE_PHASES
        alone.follow(verdict)
    assert alone.phase is ends


def test_no_two_meetings_have_one_place() -> None:
    """A second question, another subject, the next training. Restarts: test_starts.py."""
    begin_turn(0)
    places = [
        next_meeting("test"),
        next_meeting("test"),
        next_meeting("test2"),
    ]
    assert places == ["test/0/1", "test/0/2", "test2/0/1"]
    begin_turn(7)
    assert next_meeting("test") == "test/7/1", "however often another rank has asked before"


def test_the_first_notice_counts_for_all() -> None:
    first, second = ranks(2)
    ours = notice_of(ask("a"), "boot", 0)
    theirs = notice_of(ask("b"), "boot", 0)
    assert first.notice() is None
    assert ours == first.announce(ours)
    assert ours == second.announce(theirs)


def test_generations_do_not_see_each_other() -> None:
    store = MemoryStore()
    for generation in range(3):
        first, second = ranks(2, generation, store)
        assert first.notice() is None
        first.announce(notice_of(ask(str(generation)), "boot", 0))
        first.post(Phase.POSITION, {"step": generation})
        second.post(Phase.POSITION, {"step": generation})
        assert {"target": generation + MARGIN_STEPS} == second.verdict(Phase.POSITION)


def test_a_suspect_request_anywhere_decides_the_kind_once_for_all() -> None:
    first, second = ranks(2)
    second.harden(ask(checkpoint="suspect", exit_after=True))
    first.post(Phase.READY, {"error": None})
    second.post(Phase.READY, {"error": None})
    verdict = first.verdict(Phase.READY)
    assert verdict is not None
    assert verdict["suspect"] is True
    assert verdict["exit"] == "86"
    hardened = first.hardened(ask())
    assert (hardened.checkpoint, hardened.exit_after, hardened.exit_code) == ("suspect", True, 86)


def test_a_request_merges_into_the_open_one_without_softening_it() -> None:
    first = CheckpointRequest("first", "good", 500, False, 1, "")
    later = CheckpointRequest("second", "suspect", 900, True, 86, "")
    assert merged(first, later) == CheckpointRequest("first", "suspect", 500, True, 86, "")
    assert merged(later, first) == CheckpointRequest("second", "suspect", 500, True, 86, "")
    assert merged(first, CheckpointRequest("n", "none", 100, False, 3, "")).checkpoint == "good"


def test_a_deadline_from_another_boot_is_taken_as_time_left() -> None:
    text = notice_of(ask(deadline_ns=1_000), "here", 400)
    assert request_of_notice(text, "here", 9_000).deadline_ns == 1_000
    assert request_of_notice(text, "elsewhere", 9_000).deadline_ns == 9_600


def test_a_checkpoint_kind_from_the_future_is_kept_but_never_trusted() -> None:
    request = {"incident": "i", "checkpoint": "golden", "deadline_mono_ns": 5, "exit_after": False, "exit_code": 86}
    assert request_of(request).checkpoint == "suspect"


class Trainer:
    """One rank as a generator: each next() is one atomic action, so that any interleaving can be played."""

    def __init__(self, round_: Round, step: int, gives_up_after: int | None) -> None:
        self.round = round_
        self.step = step
        self.gives_up_after = gives_up_after
        self.verdict: dict | None = None

    def play(self) -> Iterator[None]:
        promised = self.step
        self.round.post(Phase.POSITION, {"step": promised})
        patience = self.gives_up_after
        while self.verdict is None:
            yield
            # The training thread runs on, up to its promise and no further.
            self.step = min(self.step + 1, promised + MARGIN_STEPS)
            self.verdict = self.round.verdict(Phase.POSITION)
            if self.verdict is None and patience is not None:
                patience -= 1
                if patience < 0:
                    self.verdict = self.round.abort(Phase.POSITION, "deadline")


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    impatient=st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=5, max_size=5),
    schedule=st.lists(st.integers(0, 4), max_size=60),
)
def test_in_every_interleaving_all_ranks_read_one_verdict_that_nobody_has_passed(
    steps: list[int], impatient: list[int | None], schedule: list[int]
) -> None:
    store = MemoryStore()
    trainers = [Trainer(Round(store, 0, rank, len(steps)), step, impatient[rank]) for rank, step in enumerate(steps)]
    running = {rank: trainer.play() for rank, trainer in enumerate(trainers)}
    # The drawn order first, then everybody in turn until all are done: nobody may be left waiting.
    for turn in [*schedule, *list(range(len(steps))) * 20]:
        if turn in running:
            try:
                next(running[turn])
            except StopIteration:
                del running[turn]
    assert not running, "somebody was left holding"
    verdicts = [trainer.verdict for trainer in trainers]
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert verdicts[0] is not None
    if "target" in verdicts[0]:
        assert all(trainer.step <= verdicts[0]["target"] for trainer in trainers)


def told(place: int, total: int, size: int = 2) -> dict[str, int]:
    return {"place": place, "total": total, "size": size}


@pytest.mark.parametrize(
    ("posts", "tokens"),
    [
        ([told(0, 30), told(1, 70)], 1_100),
        ([told(0, 30), told(0, 30), told(1, 70), told(1, 70)], 1_100),
        ([told(0, 30), None, told(1, 70)], 1_100),
        ([told(0, 30), None], None),
        ([told(0, 30), told(0, 30)], None),
        ([told(0, 30), told(1, 70, size=3)], None),
    ],
)
def test_a_checkpoint_has_the_tokens_that_each_rank_has_counted(posts: list[Any], tokens: int | None) -> None:
    """1,000 went before; rank 0 has counted 30 of its own, and of two such ranks."""
    assert all_tokens(1_060, told(0, 30), posts) == tokens


def test_where_this_rank_does_not_know_neither_does_the_checkpoint() -> None:
    assert all_tokens(None, told(0, 30), [told(0, 30), told(1, 70)]) is None
    assert all_tokens(1_060, None, [told(0, 30), told(1, 70)]) is None
