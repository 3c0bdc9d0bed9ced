"""A halt waits for a checkpoint only from ranks that can still agree on one."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.identity import ConnectionId
from governor.core.engine.node import Node
from governor.core.events.effects import Ask, Effect, Term
from governor.core.events.inputs import Beat
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick

STEPS = 30
MINUTES_3 = 180
STUCK = Beat(at(0), ConnectionId(1), "llama", 0, 1_000, "train", at(STEPS), STEPS, in_step=True)


def hung(beating: tuple[int, ...], seconds: int = MINUTES_3, checkpoint: str = "good") -> tuple[Node, list[Effect]]:
    """Two ranks train, then neither makes progress: those in `beating` go on to say so, the others say nothing."""
    node = make_node(rule("hang", checkpoint=checkpoint))
    play(node, hello(0), hello(1))
    effects: list[Effect] = []
    for number in range(1, STEPS + 1):
        for rank in (0, 1):
            effects += play(node, a_step(number, rank, progress_seq=number), beat(rank, number))
        effects += play(node, tick(number))
    for second in range(STEPS + 1, STEPS + seconds):
        effects += play(node, *(beat(rank, second) for rank in beating), tick(second))
    return node, effects


def beat(rank: int, second: int) -> Beat:
    return replace(STUCK, at=at(second), connection=ConnectionId(rank + 1), rank=rank, progress_seq=min(second, STEPS))


def asked_and_ended(effects: list[Effect]) -> tuple[int, int]:
    return sum(isinstance(effect, Ask) for effect in effects), sum(isinstance(effect, Term) for effect in effects)


def test_a_rank_that_says_nothing_for_the_whole_limit_is_not_waited_for() -> None:
    for beating in ((0,), (1,), ()):
        node, effects = hung(beating)
        assert asked_and_ended(effects) == (0, 1)
        incident = node.runs["llama"].incident
        assert incident is not None
        silent = next(rank for rank in (0, 1) if rank not in beating)
        (told,) = [entry["detail"]["reason"] for entry in incident.timeline if entry["what"] == "save_failed"]
        assert told == f"rank {silent} has sent no beat for 2m 0s: no step can be agreed without it"


def test_ranks_that_hang_and_beat_are_asked_for_their_listeners_speak_for_them() -> None:
    node, effects = hung((0, 1), 60)
    assert asked_and_ended(effects) == (1, 0)
    assert node.runs["llama"].incident.at_of("save_failed") is None  # type: ignore[union-attr]


def test_nothing_is_said_of_a_checkpoint_that_nobody_wanted() -> None:
    node, effects = hung((0,), checkpoint="none")
    assert asked_and_ended(effects) == (0, 1)
    assert node.runs["llama"].incident.at_of("save_failed") is None  # type: ignore[union-attr]


def test_a_rank_that_fell_silent_a_moment_before_the_verdict_is_asked() -> None:
    node = make_node(rule("hang"))
    play(node, hello(0), hello(1))
    effects: list[Effect] = []
    for number in range(1, STEPS + 1):
        for rank in (0, 1):
            effects += play(node, a_step(number, rank, progress_seq=number), beat(rank, number))
        effects += play(node, tick(number))
    for second in range(STEPS + 1, STEPS + 23):  # Both beat on; the tight limit is 30 s.
        effects += play(node, beat(0, second), beat(1, second), tick(second))
    for second in range(STEPS + 23, STEPS + 140):
        effects += play(node, beat(0, second), tick(second))
    assert asked_and_ended(effects)[0] == 1
