"""A log's bare "tokens": each step's own or a running total, and nothing of it is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest

from governor.core.base.units import MTOK
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Step
from governor.core.events.streams import StreamOpened
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from governor.wire.records import RecordReader
from tests.unit.core.engine.test_step import at, make_node, play, tick

GROWS_THEN_STAYS = [100_000 + 4000 * min(step, 15) for step in range(1, 26)]


class Log:
    def __init__(self, name: str = "tokens", **fields: str) -> None:
        self.name = name
        self.reader = RecordReader("log", field_map(fields) if fields else DEFAULT_FIELDS)
        self.node = make_node()
        self.told: list[str] = []
        self._step = 0
        play(self.node, tick(0), StreamOpened(at(0), "log", 1000))

    def write(self, counts: Iterable[int], stride: int = 1) -> int | None:
        """The run's tokens after these lines."""
        for count in counts:
            self._step += stride
            events = self.reader.read({"step": self._step, "loss": 2.0, self.name: count}, at(self._step))
            assert isinstance(events, tuple)
            effects = play(self.node, *events)
            self.told += [one.text for one in effects if isinstance(one, Alarm) and one.name == "tokens_read"]
        return self.node.runs["log"].run.tokens_total

    def begin_anew(self) -> None:
        """The next line is of step 1."""
        self._step = 0

    def end(self) -> int | None:
        """The run's tokens when the log has ended."""
        effects = play(self.node, *self.reader.end(at(self._step + 1)))
        self.told += [one.text for one in effects if isinstance(one, Alarm) and one.name == "tokens_read"]
        return self.node.runs["log"].run.tokens_total


@pytest.mark.parametrize("name", ["tokens", "tokens_per_step", "step_tokens", "batch_tokens"])
def test_a_batch_that_grows_and_then_stays_is_counted_whole(name: str) -> None:
    log = Log(name)
    assert log.write(GROWS_THEN_STAYS) == sum(GROWS_THEN_STAYS) == 3_580_000
    meter = log.node.runs["log"].history.meter
    assert meter is not None
    assert (meter.trained_tokens, meter.wasted_tokens) == (3_580_000, 0)
    assert log.node.runs["log"].run.step_tokens == 160_000


@pytest.mark.parametrize("name", ["tokens_per_step", "step_tokens", "batch_tokens"])
def test_a_name_that_says_step_is_no_total_however_long_it_rises(name: str) -> None:
    log = Log(name)
    assert log.write(range(1000, 500_000, 1000)) == sum(range(1000, 500_000, 1000))
    assert log.told == []


def test_counts_that_rise_at_first_are_held_and_not_lost() -> None:
    counts = [30_000 + step % 5 * 1000 for step in range(1, 13)]
    log = Log()
    assert log.write(counts) == sum(counts)
    assert log.told == [], "it was for three lines"


def test_one_large_count_that_comes_first_is_held_and_not_lost() -> None:
    log = Log()
    log.write([2_000_000], stride=5)
    assert log.write([2_000_000]) == 4_000_000
    meter = log.node.runs["log"].history.meter
    assert meter is not None
    assert meter.trained_tokens == 4_000_000


def test_a_batch_that_grows_from_nothing_is_a_total_until_it_stays() -> None:
    """Nothing tells it from a total before that. What it was told as is taken back."""
    counts = [1000 * min(step, 30) for step in range(1, 60)]
    log = Log()
    assert log.write(counts[:20]) == 20_000
    assert log.write(counts[20:]) == sum(counts)
    assert [text.split(";")[0] for text in log.told] == [
        'its "tokens" only rises and is taken for a running total',
        'its "tokens" is each step\'s own: it no longer rises',
    ]


def test_a_batch_that_grows_from_nothing_after_a_large_first_one_is_counted_whole() -> None:
    counts = [2_000_000 * min(step, 15) for step in range(1, 30)]
    log = Log()
    log._step = 1
    assert log.write(counts) == sum(counts)


def test_a_growing_batch_that_does_not_begin_near_its_rise_is_not_told_as_a_total() -> None:
    log = Log()
    assert log.write(GROWS_THEN_STAYS[:15]) == 104_000
    assert ["is not counted yet" in text for text in log.told] == [True]


@pytest.mark.parametrize("first", [0, 512, 512 * 700])
def test_a_total_is_told_from_its_eighth_rise_on(first: int) -> None:
    log = Log()
    log._step = first // 512
    counts = [first + 512 * line for line in range(1, 50)]
    assert log.write(counts) == counts[-1]
    assert len(log.told) == 1


def test_a_total_that_stands_still_for_a_skipped_step_or_begins_anew_stays_a_total() -> None:
    log = Log()
    counts = [512 * step for step in range(1, 200)]
    skips = [count for step, count in enumerate(counts) for _ in range(2 if step % 20 == 19 else 1)]
    assert log.write(skips) == counts[-1]
    assert log.write(counts[:40]) == counts[39]
    assert len(log.told) == 1


def test_what_counts_of_a_first_line_is_said_where_the_rest_does_not() -> None:
    """At step 1 it may be a batch of six million tokens. A first line of a later step may be the tokens of before."""
    log = Log()
    assert log.write(range(6 * MTOK, 60 * MTOK, MTOK)) == 6 * MTOK
    assert log.end() == 6 * MTOK
    assert all("but for the 6,000,000 of its first line" in one for one in log.told)
    late = Log()
    assert late.write(range(6 * MTOK, 60 * MTOK, MTOK), stride=2) is None
    assert late.end() is None
    assert not any("first line" in one for one in late.told)


@pytest.mark.parametrize("again", [3, 20])
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_total_that_goes_on_while_the_steps_begin_anew_is_counted(again: int, lost: int, is_restarted: bool) -> None:
    """Five lines of a launch say too little. The next launch goes on with the total, at step 1."""
    log = Log()
    log.write(range(100_000, 600_000, 100_000))
    log.begin_anew()
    if is_restarted:
        log.write([(6 + lost) * 100_000])
        state = json.loads(json.dumps(log.reader.tokens.state()))
        log.reader = RecordReader("log")
        log.reader.tokens.resume(state)
    log.write((6 + lost + place) * 100_000 for place in range(is_restarted, again))
    assert log.end() == (5 + lost + again) * 100_000
    assert "is taken for a running total" in log.told[-1]


def test_a_batch_that_grows_on_while_the_steps_begin_anew_is_no_total() -> None:
    log = Log()
    log.write(range(100_000, 120_000, 4_000))
    log.begin_anew()
    log.write([*range(120_000, 180_000, 4_000), *[176_000] * 3])
    assert not any("is taken for a running total" in one for one in log.told)
    assert "is each step's own" in log.told[-1]


def test_a_total_of_an_earlier_training_too_is_one_after_many_rises() -> None:
    log = Log()
    counts = [500_000_000 + 1000 * step for step in range(100)]
    assert log.write(counts) == counts[-1]


def test_what_is_held_of_a_long_log_is_little_and_counts_whole() -> None:
    log = Log()
    counts = [1000 * min(step, 5000) for step in range(1, 5100)]
    assert log.write(counts) == sum(counts)


def test_of_lengths_at_random_every_token_counts() -> None:
    drawn = random.Random(5)
    for _ in range(50):
        counts = [drawn.randint(1, 4000) for _ in range(60)]
        assert Log().write(counts) == sum(counts)


def test_tokens_that_the_user_calls_the_total_are_no_steps_tokens() -> None:
    log = Log(tokens_total="tokens")
    assert log.write([3_000_000, 3_000_500]) == 3_000_500
    assert log.node.runs["log"].run.step_tokens is None


def test_a_restart_while_counts_are_held_says_each_step_once() -> None:
    """Lines of steps that were trained before add nothing, held or not."""
    log = Log()
    assert log.write([1000, 900, 1000, 900]) == 3800
    log.reader = RecordReader("log")  # A governor that comes back.
    log._step = 2
    assert log.write([1000, 1100, 1200, 1300, 1200]) == 3800 + 1200 + 1300 + 1200


def test_a_step_that_goes_back_among_rises_is_no_rise_over_no_steps() -> None:
    reader = RecordReader("log")
    told = [100, 101, 102, 103, 50, 51, 52, 53, *range(54, 120)]
    for line, step in enumerate(told):
        found = reader.read({"step": step, "loss": 2.0, "tokens": 900_000 + line}, at(line))
        assert isinstance(found, tuple)
    (last,) = found
    assert isinstance(last, Step)
    assert last.tokens_total == 900_000 + len(told) - 1


# --- a log that ends before it is known what its counts are ------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "tokens"),
    [
        ([30_000, 31_000], 61_000),
        ([30_000, 31_000, 31_500, 32_000, 33_000], 157_500),
        ([512, 1024, 1536], 1536),
        ([600, 1000, 1700, 2100], 2100),
    ],
    ids=["two", "five", "a total", "a total of lengths at random"],
)
def test_what_is_held_when_the_log_ends_is_counted_by_the_best_reading(counts: list[int], tokens: int) -> None:
    log = Log()
    log.write(counts)
    assert log.end() == tokens
    meter = log.node.runs["log"].history.meter
    assert meter is not None
    assert (meter.trained_tokens, meter.wasted_tokens) == (tokens, 0)
    assert log.told, "a person is told which reading it was"
    again = len(log.told)
    assert log.end() == tokens, "it may be told twice that a log has ended"
    assert again <= len(log.told) <= again + 1


@pytest.mark.parametrize("counts", [[2_000_000], [500_000_000, 500_001_000, 500_002_000]])
def test_counts_that_may_be_anothers_total_when_the_log_ends_are_unknown_and_said(counts: list[int]) -> None:
    log = Log()
    log._step = 4
    log.write(counts)
    assert log.end() is None
    assert ["was not counted" in text for text in log.told] == [True]


# As well the total of a training whose steps count anew: 500 tokens a step, of which 20 steps went before.
NEVER_LEVELS = [10_000 + 500 * step for step in range(1, 101)]


@pytest.mark.parametrize("lines", [13, 63, 100])
def test_a_batch_that_grows_and_never_stays_is_no_total(lines: int) -> None:
    log = Log()
    first = NEVER_LEVELS[0]
    assert log.write(NEVER_LEVELS[:lines]) == first
    assert log.end() == first
    assert ["is not counted yet" in text for text in log.told] == [True, False]
    assert "was not counted" in log.told[1]


def test_a_batch_that_grows_for_long_and_then_stays_is_counted_whole() -> None:
    log = Log()
    assert log.write([*NEVER_LEVELS, 60_000, 60_000]) == sum(NEVER_LEVELS) + 120_000
    assert ["is each step's own" in text for text in log.told] == [False, True]


@pytest.mark.parametrize("began_anew", [False, True])
def test_one_line_of_what_may_be_a_total_does_not_tell_that_it_is_none(began_anew: bool) -> None:
    """A skipped step leaves a total where it was, and another launch begins it anew."""
    log = Log()
    counts = [500_000 + 1000 * line for line in range(1, 31)]
    more = [1000 * line for line in range(1, 31)] if began_anew else [530_000, *range(531_000, 561_000, 1000)]
    assert log.write([*counts, *more[:7]]) == 501_000
    assert log.write(more[7:]) == (30_000 if began_anew else 501_000)
    assert ["is not counted yet" in text for text in log.told] == ([True, False] if began_anew else [True])


def test_a_count_that_falls_a_little_is_each_steps() -> None:
    log = Log()
    assert log.write([*NEVER_LEVELS[:20], 19_000]) == sum(NEVER_LEVELS[:20]) + 19_000


def test_a_log_whose_reading_is_known_has_nothing_to_settle_when_it_ends() -> None:
    for counts in ([1000, 900, 1000], [512 * line for line in range(1, 20)]):
        log = Log()
        before = log.write(counts)
        told = list(log.told)
        assert (log.end(), log.told) == (before, told)


@pytest.mark.parametrize(("more", "tokens"), [([31_000, 33_000], 157_000), ([34_000, 34_000], 161_000)])
def test_a_log_that_goes_on_after_it_had_ended_loses_and_repeats_nothing(more: list[int], tokens: int) -> None:
    log = Log()
    log.write([30_000, 31_000, 32_000])
    log.end()
    log.write(more)
    assert log.end() == tokens


def test_a_total_that_goes_on_after_the_log_had_ended_stays_one() -> None:
    log = Log()
    log.write([512, 1024, 1536])
    log.end()
    assert log.write([2048, 2560]) == 1536
    assert log.end() == 2560


def test_what_is_held_outlives_the_reader() -> None:
    log = Log()
    log.write([30_000, 31_000, 32_000])
    state = json.loads(json.dumps(log.reader.tokens.state()))
    log.reader = RecordReader("log")
    log.reader.tokens.resume(state)
    assert log.reader.tokens.state() == state
    assert log.write([32_000]) == 30_000 + 31_000 + 2 * 32_000


@pytest.mark.parametrize(
    "state", [None, 5, [], [None] * 20, ["x"] * 12, {}, [None, False, 1, 2, 3, 4, 5, 6, None, 0, 7]]
)
def test_what_is_no_state_changes_nothing(state: object) -> None:
    log = Log()
    log.reader.tokens.resume(state)
    assert log.reader.tokens.state() is None
