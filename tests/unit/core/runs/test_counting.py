"""Tokens counted step by step, at the edges: counts that go back, lines that are held, and totals of another run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.units import COUNT_MAX, MTOK, MonoNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.checkpoints import Origin
from governor.core.events.inputs import Step
from governor.core.events.streams import Held, TokensSettled
from governor.core.runs import intake
from governor.core.runs.counting import count_settled, count_step
from governor.core.runs.state import Run
from governor.core.runs.trained_count import TrainedCount
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

S = MTOK // 4  # Tokens of a step.
JUMP = 10**13


class Trainer:
    """One rank of one run. It makes a step a second."""

    def __init__(self) -> None:
        self.node: Node = make_node(cloud="none")
        self.now, self.own, self.launches = 0, 0, 0
        play(self.node, tick(0))

    def launch(self, **changes: Any) -> None:
        self.launches += 1
        self.own = 0
        named = {"attempt": f"a{self.launches}", "peer": peer(100 + self.launches)} | changes
        self._hear(**named)

    def say(self, origin: Origin | None, **changes: Any) -> None:
        """The same process says it: it has loaded a checkpoint, behind the steps that it has made."""
        named = {"attempt": f"a{self.launches}", "peer": peer(100 + self.launches), "loaded_at": self.own} | changes
        self._hear(origin=origin, **named)

    def train(self, *numbers: int, higher: int = 0, totals: bool = True, lost: int = 0) -> None:
        """Of these steps the first ones are lost."""
        for place, number in enumerate(numbers):
            self.now, self.own = self.now + 1, self.own + 1
            if place < lost:
                continue
            total = number * S + higher if totals else None
            self._tell(number, total)
            play(self.node, tick(self.now))

    def wait(self, seconds: int, *, trains: bool = False) -> None:
        """`trains`: a step each second, whose frame is lost."""
        for _ in range(seconds):
            self.now += 1
            play(self.node, tick(self.now))
        self.own += seconds if trains else 0

    def restart(self) -> None:
        """Another governor begins, which has the run from the journal."""
        managed = self.node.runs["llama"]
        row = json.loads(json.dumps(run_snapshot(self.node, managed, at(self.now))))
        managed.run = intake.restored(row, at(self.now), same_boot=True)
        self.node.connections.clear()

    def _hear(self, **said: Any) -> None:
        play(self.node, hello(0, self.now, world_size=1, tokens_per_step=None, **said))

    def _tell(self, number: int, total: int | None) -> None:
        play(self.node, a_step(number, when=self.now, attempt_step=self.own, tokens=S, tokens_total=total))

    @property
    def counted(self) -> tuple[int, int]:
        """Steps of its total, and those trained twice."""
        managed = self.node.runs["llama"]
        meter, total = managed.history.meter, managed.run.tokens_total
        assert meter is not None
        assert total is not None
        return total // S, meter.wasted_tokens // S

    @property
    def paid(self) -> int:
        """Steps that are in its prices, those trained twice too."""
        meter = self.node.runs["llama"].history.meter
        assert meter is not None
        return meter.trained_tokens // S


class Shares(Trainer):
    """Ranks that see different tokens and count them, behind each load from nothing."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.size, self.loaded_at = size, 0

    def _hear(self, **said: Any) -> None:
        said["loaded_at"] = self.loaded_at = said.get("loaded_at", 0)
        for rank in range(self.size):
            told = {"world_size": self.size, "data_parallel_size": self.size, "data_parallel_rank": rank} | said
            told["peer"] = peer(1_000 * self.launches + rank)
            play(self.node, hello(rank, self.now, tokens_per_step=None, **told))

    def _tell(self, number: int, total: int | None) -> None:
        for rank in range(self.size):
            self.tell(rank, number, total)

    def tell(self, rank: int, number: int, total: int | None) -> None:
        own = (self.own - self.loaded_at) * S // self.size
        told = {"attempt_step": self.own, "tokens": S, "tokens_total": total, "tokens_own_total": own}
        play(self.node, a_step(number, rank, when=self.now, **told))


def test_a_training_of_the_same_processes_has_its_own_totals_whatever_the_launches_before_went_on_from() -> None:
    trainer = Trainer()
    trainer.launch()
    trainer.train(*range(1, 6))
    trainer.launch()
    trainer.train(*range(5_001, 5_008))
    trainer.launch(attempt="a2+1", peer=peer(102))
    trainer.train(1, 2, 3)
    assert trainer.counted == (3, 0)


def test_the_attempt_that_jumped_is_back_where_its_count_was() -> None:
    trainer = Trainer()
    trainer.launch()
    trainer.train(*range(1, 10))
    trainer.train(*range(10, 21), higher=JUMP)
    trainer.train(7, 8, 9)
    assert trainer.counted == (9, 3)
    trainer.train(*range(10, 23))
    assert trainer.counted == (22, 3 + 11)


def test_a_total_that_goes_on_as_the_own_one_is_another_runs_where_the_checkpoint_says_so() -> None:
    """The other run had come as far as this one: its next total is the one that this run would have told."""
    trainer = Trainer()
    trainer.launch(origin=Origin())
    trainer.train(*range(1, 21))
    trainer.launch(origin=Origin("A", 20, 20 * S))
    trainer.train(*range(21, 31))
    trainer.launch(origin=Origin())
    trainer.train(*range(21, 26))
    assert trainer.counted == (20 + 10 + 5, 0)


def test_a_launch_further_on_than_the_last_one_came_has_the_total_of_the_one_before_that() -> None:
    trainer = Trainer()
    trainer.launch()
    trainer.train(*range(1, 21), totals=False)
    trainer.launch()
    trainer.train(*range(5, 9), totals=False)
    trainer.launch()
    trainer.train(19, totals=False)
    assert trainer.counted == (19, 4 + 1)
    trainer.train(20, 21, totals=False)
    assert trainer.counted == (21, 4 + 2)


def test_a_step_that_was_held_is_of_what_an_attempt_trained_before_its_own_begin() -> None:
    """From step 5007 on its totals are those of steps 4991 and 4992, which nobody has trained here."""
    trainer = Trainer()
    trainer.launch()
    trainer.train(*range(1, 6))
    trainer.launch()
    trainer.train(*range(5_001, 5_008))
    trainer.train(5_008, 5_009, higher=-17 * S)
    assert trainer.counted == (5 + 7 + 2, 0)


def test_no_run_has_trained_more_than_any_run_has() -> None:
    """What other launches have trained since is not in its totals."""
    run = Run("r", 0, at(0), tokens_total=COUNT_MAX - 2 * S, counted_step=1)
    run.trained_count, run.belief.largest = TrainedCount(offset=-10 * S), S
    for number, total in ((2, COUNT_MAX - 11 * S), (3, COUNT_MAX - 10 * S), (4, COUNT_MAX - 9 * S)):
        frame = a_step(number, tokens=S, tokens_total=total)
        count_step(run, None, frame, leads=True, is_first=False)
        assert run.tokens_total == min(COUNT_MAX, total + 10 * S)


def test_a_log_that_is_opened_anew_shows_any_steps_of_its_run() -> None:
    run = a_log(range(1, 6))
    intake.begin_attempt(run, "stream", MonoNs(100))
    line = Step(MonoNs(101), None, "log", 0, 5_001, attempt_step=1, tokens=S, tokens_total=5_001 * S)
    intake.apply_step(run, None, line)
    assert run.tokens_total == 5_001 * S


# --- lines of a log -------------------------------------------------------------------------------------------------


def a_log(numbers: range, tokens: int = S) -> Run:
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    for number in numbers:
        intake.apply_step(run, None, a_line(number, tokens))
    return run


def a_line(number: int, tokens: int | None) -> Step:
    return Step(MonoNs(number), None, "log", 0, number, tokens=tokens)


def test_a_line_of_tokens_that_no_step_had_counts_with_the_next_one_like_it() -> None:
    run, large = a_log(range(1, 11)), 2**40
    assert count_step(run, None, a_line(11, large), leads=True, is_first=False) is None
    counted = count_step(run, None, a_line(12, large), leads=True, is_first=False)
    assert counted is not None
    assert (counted.tokens, run.tokens_total) == (2 * large, 10 * S + 2 * large)
    assert run.log_totals[-2:] == [(11, 10 * S + large), (12, 10 * S + 2 * large)]


def test_a_line_between_two_that_are_known_has_a_total_between_theirs() -> None:
    run = a_log(range(10, 60, 10))
    for number, total in ((35, 3.5), (31, 3.1), (40, 4), (11, 1.1), (5, 1)):
        intake.apply_step(run, None, a_line(number, S))
        assert run.tokens_total == total * S


@pytest.mark.parametrize("numbers", [(5,), (4, 5)])
def test_the_last_lines_of_a_log_that_were_trained_before_are_no_lines_more(numbers: tuple[int, ...]) -> None:
    """It was opened anew, and its line is of the step that the attempt before had counted last."""
    run = a_log(range(1, 6))
    intake.begin_attempt(run, "stream", MonoNs(100))
    held = Held(tuple((number, S) for number in numbers))
    step = count_settled(run, TokensSettled(MonoNs(101), "log", 5, held))
    assert (step.step, run.tokens_total, run.furthest) == (5, 5 * S, (5, 5 * S))
