"""What was told but not trained here is in no figure and moves no rule: there is one count of trained tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Expected, Persistence, PersistenceKind, WarmUp
from governor.core.base.units import MTOK, NS_PER_S, DurationNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Disconnected
from governor.core.runs import intake
from governor.core.runs.belief import UNKNOWN_STEP_MAX
from governor.core.runs.counting import count_step, tokens_of_steps
from governor.core.runs.state import Run
from governor.core.runs.trained_count import BENDS_MAX, STRANDS_MAX, TrainedCount
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, started
from tests.unit.core.engine.test_rank_tokens import Ranks
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick

S = MTOK // 4  # Tokens of a step.
JUMP = 10**13


def halted_at(kind: str, jump: int | None, by: int, *, tokens: int = 10**15, ceiling: str = "1000", **how: Any) -> Any:
    """A step a second, $0.004 a million tokens. From step `jump` on its totals are higher by so many.

    Returns when it was halted, and the verdict.
    """
    params = how.pop("params", {"times": 1.5, "window": DurationNs(60 * NS_PER_S), "warmup_time": DurationNs(0)})
    expected = how.pop("expected", Expected(usd_micros_per_mtok=2_000))
    node = started(ceiling, tokens=tokens)
    managed = node.runs["llama"]
    managed.judge_by(replace(managed.policy, rules=(rule(kind, params=params, **how),), expected=expected))
    for number in range(1, 650):
        told = number * S + (by if jump is not None and number >= jump else 0)
        play(node, a_tick(number), a_step(number, when=number, tokens=S, tokens_total=told))
        if managed.incident is not None:
            return number, managed.incident.text
    return None, run_status(managed, at(650))["tokens_total"]


_ALL_IN = Expected(usd_micros_per_mtok_all_in=2_000)
_TEN_MINUTES = {"times": 1.5, "window": DurationNs(600 * NS_PER_S), "warmup_time": DurationNs(0)}
_OF_TOKENS = {"persistence": Persistence(PersistenceKind.TOKENS, 20 * MTOK)}


@pytest.mark.parametrize("by", [10**11, JUMP])
@pytest.mark.parametrize(
    ("kind", "jump", "halted", "how"),
    [
        ("usd_per_mtok", 590, 602, {"expected": _ALL_IN, "params": _TEN_MINUTES}),
        ("gate", 10, 20, {"ceiling": "1.50", "tokens": 10**9, "params": {"steps": 20, "tokens": 0}}),
        ("gate", 10, 41, {"ceiling": "1.50", "tokens": 10**9, "params": {"steps": 0, "tokens": 40 * S}}),
        ("usd_per_mtok", 70, 142, _OF_TOKENS),
        ("usd_per_mtok", 70, 401, {"warmup": WarmUp(PersistenceKind.TOKENS, 100 * MTOK)}),
        ("budget", 30, 80, {"tokens": 20 * MTOK, "params": {}}),
        ("budget", 30, None, {"tokens": 20_000 * MTOK, "params": {}}),
    ],
)
def test_a_rule_fires_at_the_same_moment_for_the_same_reason_with_a_count_that_jumps(
    kind: str, jump: int, halted: int | None, by: int, how: dict[str, Any]
) -> None:
    without = halted_at(kind, None, 0, **how)
    assert without[0] == halted
    assert halted_at(kind, jump, by, **how) == without


@given(
    jump=st.integers(7, 15).flatmap(lambda power: st.integers(10**power, min(10 ** (power + 1), 4 * 10**15))),
    step=st.sampled_from([10, 1_000, S, 4 * MTOK, 10**8]),
    tells_tokens=st.booleans(),
)
def test_a_jump_of_any_size_is_a_step_at_once_or_is_skipped_to_the_token(
    jump: int, step: int, tells_tokens: bool
) -> None:
    """Any step may have 2^36 tokens, and 64 times the largest: beyond that nothing of it counts."""
    run = Run("r", 0, at(0))
    for number in range(1, 40):
        told = number * step + (jump if number >= 30 else 0)
        tokens = step if tells_tokens else None
        frame = a_step(number, when=number, attempt_step=number, tokens=tokens, tokens_total=told)
        count_step(run, None, frame, leads=True, is_first=number == 1)
    may_be = jump + step <= max(UNKNOWN_STEP_MAX, 64 * step)
    assert run.tokens_total == 39 * step + (jump if may_be else 0)
    if not may_be:
        each = tokens_of_steps(run)
        assert each is not None
        assert each[0] == step * each[1]


def test_a_step_that_says_itself_what_no_step_has_is_skipped_too() -> None:
    run = Run("r", 0, at(0))
    for number in range(1, 20):
        total = number * S + (JUMP if number >= 10 else 0)
        tokens = JUMP + S if number == 10 else S
        frame = a_step(number, when=number, attempt_step=number, tokens=tokens, tokens_total=total)
        count_step(run, None, frame, leads=True, is_first=number == 1)
    assert run.tokens_total == 19 * S


# --- launches that go on from different counts --------------------------------------------------------------------


class Launches:
    """Launches from the own count, which begins at 0, and from those of two other runs. Knows what was trained."""

    BEGIN = (0, 5_000, 100_000)

    def __init__(self) -> None:
        self.run = Run("r", 0, at(0))
        self.ends = list(self.BEGIN)  # Of each count, the highest step that was trained here.
        self.now, self.attempts = 0, 0
        self.jumps_at: int | None = None  # The step of the next launch from which on its count is higher.
        self.jumped_at: dict[int, int] = {}  # The lowest step of each count since which that is so.

    def launch(self, count: int, back: int, steps: int, lost: int, *, restarts: bool) -> None:
        self.attempts += 1
        step = max(self.BEGIN[count], self.ends[count] - back)
        higher = JUMP if step >= self.jumped_at.get(count, step + 1) else 0
        for own in range(1, steps + 1):
            self.now, step = self.now + 1, step + 1
            if own == 1:
                intake.begin_attempt(self.run, f"a{self.attempts}", at(self.now))
            self.ends[count] = max(self.ends[count], step)
            if own <= min(lost, steps - 1):
                continue
            jumps = own == self.jumps_at and not higher
            if jumps:
                higher, self.jumped_at[count] = JUMP, min(step, self.jumped_at.get(count, step))
            frame = a_step(step, when=self.now, attempt_step=own, tokens=S, tokens_total=step * S + higher)
            intake.apply_step(self.run, None, frame)
            assert jumps or self.run.tokens_total == (self.trained - self.ends[count] + step) * S
            if restarts and own == steps // 2 + 1 and not jumps:  # What is held is not kept.
                node = make_node()
                play(node, tick(0), hello(0, world_size=1))
                managed = node.runs["llama"]
                managed.run = self.run
                row = json.loads(json.dumps(run_snapshot(node, managed, at(self.now))))
                self.run = intake.restored(row, at(self.now), same_boot=True)

    @property
    def trained(self) -> int:
        return sum(end - begin for end, begin in zip(self.ends, self.BEGIN, strict=True))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(3, 12), st.integers(0, 2), st.booleans()),
        max_size=12,
    )
)
def test_launches_that_change_between_counts_have_each_token_once(
    launches: list[tuple[int, int, int, int, bool]],
) -> None:
    """What is trained again is of a lower total, whatever was trained between, and over restarts of the governor."""
    world = Launches()
    world.launch(0, 0, 5, 0, restarts=False)
    for count, back, steps, lost, restarts in launches:
        world.launch(count, back, steps, lost, restarts=restarts and steps > 6)


def test_a_run_that_has_come_past_where_it_once_went_ahead_to_goes_on_from_its_own() -> None:
    world = Launches()
    for count, steps in ((0, 5), (1, 7), (0, 6_000), (0, 10)):
        world.launch(count, 0, steps, 0, restarts=False)
    assert world.run.tokens_total == 6_022 * S


def test_a_launch_that_goes_on_from_the_count_that_jumped_is_found_there() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, world_size=1, tokens_per_step=None))
    for number in range(1, 21):
        play(node, a_step(number, tokens=S, tokens_total=number * S + (JUMP if number >= 10 else 0)), tick(number))
    play(node, hello(0, 30, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    effects = []
    for own in range(1, 6):
        frame = a_step(20 + own, when=30 + own, attempt_step=own, tokens=S, tokens_total=(20 + own) * S + JUMP)
        effects += play(node, frame, tick(30 + own))
    assert node.runs["llama"].run.tokens_total == 25 * S
    assert [effect.name for effect in effects if isinstance(effect, Alarm)].count("figure_refused") == 0
    play(node, hello(0, 40, world_size=1, tokens_per_step=None, attempt="a3", peer=peer(300)))
    for own in range(1, 4):  # From its own checkpoint of step 8, before the jump.
        play(
            node, a_step(8 + own, when=40 + own, attempt_step=own, tokens=S, tokens_total=(8 + own) * S), tick(40 + own)
        )
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (node.runs["llama"].run.tokens_total, meter.wasted_tokens) == (11 * S, 3 * S)


def test_the_same_attempt_told_by_another_connection_keeps_its_offset() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, world_size=1, tokens_per_step=None))
    link = hello(0).connection
    for number in range(1, 21):
        told = number * S + (JUMP if number >= 10 else 0)
        if number == 15:
            again = ConnectionId(77)
            play(node, Disconnected(at(14.2), link))
            play(node, hello(0, 14.5, world_size=1, tokens_per_step=None, connection=again))
            link = again
        play(node, replace(a_step(number, tokens=S, tokens_total=told), connection=link), tick(number))
    assert node.runs["llama"].run.tokens_total == 20 * S


def test_several_ranks_count_together_what_was_trained_here() -> None:
    ranks = Ranks(0, 1)
    node = make_node(cloud="none")
    play(node, tick(0), *ranks.hellos())
    for number in range(1, 13):
        frames = ranks.step(number)
        if number >= 6:
            frames = [
                replace(one, tokens_total=one.tokens_total + JUMP) if one.tokens_total is not None else one
                for one in frames
            ]
        play(node, *frames, tick(number))
    run = node.runs["llama"].run
    assert run.tokens_total == ranks.truth[12]


# --- launches that go on from a count that has jumped -------------------------------------------------------------


def counted(launches: list[tuple[range, int]], jump: int = JUMP, *, lost: int = 0, size: int = S) -> tuple[int, int]:
    """A step a second. Each launch is a range of steps, and how much higher its totals are at its begin.

    From the first one's tenth step on they are higher by `jump`. All but the first lose their first frames.
    Returns the steps that count as trained, and those as trained twice.
    """
    node, now = make_node(cloud="none"), 0
    play(node, tick(0))
    for index, (numbers, higher) in enumerate(launches):
        named = hello(0, now, world_size=1, tokens_per_step=None, attempt=f"a{index}", peer=peer(100 + index))
        play(node, named)
        for own, number in enumerate(numbers, 1):
            now += 1
            told = number * size + (jump if index == 0 and number >= 10 else higher)
            frame = a_step(number, when=now, attempt_step=own, tokens=size, tokens_total=told)
            play(node, *([replace(frame, connection=named.connection)] if not index or own > lost else []), tick(now))
    meter, total = node.runs["llama"].history.meter, trained_of(node)
    assert meter is not None
    assert total is not None
    return total // size, meter.wasted_tokens // size


_BACK_AND_ON = [range(1, 201), range(161, 261), range(221, 321), range(281, 381), range(341, 441)]


@pytest.mark.parametrize("jump", [0, 10**11, 10**12, JUMP])
def test_what_each_launch_trains_again_of_a_count_that_jumped_is_no_progress(jump: int) -> None:
    assert counted([(numbers, jump if numbers[0] > 1 else 0) for numbers in _BACK_AND_ON], jump) == (440, 160)


@pytest.mark.parametrize("jump", [0, 10**11, JUMP])
@pytest.mark.parametrize("lost", [0, 1, 3, 5])
def test_a_launch_from_a_count_that_jumped_has_its_steps_though_its_first_frames_are_lost(jump: int, lost: int) -> None:
    assert counted([(range(1, 21), 0), (range(21, 31), jump)], jump, lost=lost) == (30, 0)
    assert counted([(range(1, 21), 0), (range(18, 28), jump)], jump, lost=lost) == (27, 3)


def test_a_launch_from_before_the_jump_and_one_from_after_it_are_of_one_training() -> None:
    from_before, from_after = (range(9, 31), 0), (range(19, 26), JUMP)
    assert counted([(range(1, 21), 0), from_before, from_after]) == (25, 12 + 7)
    assert counted([(range(1, 21), 0), from_before, from_after, (range(26, 41), JUMP)]) == (40, 12 + 7 + 5)


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_total_that_both_counts_have_had_is_of_the_one_that_had_it_at_that_step(is_mended: bool) -> None:
    """The jump is 100 steps long, and 190 were trained after it."""
    size = 2 * 10**9
    higher = 0 if is_mended else 100 * size
    assert counted([(range(1, 201), 0), (range(161, 211), higher)], 100 * size, size=size) == (210, 40)
    assert counted([(range(1, 201), 0), (range(201, 211), higher)], 100 * size, size=size) == (210, 0)


def test_between_two_launches_from_a_count_that_jumped_one_goes_on_from_another_run() -> None:
    jumped, other = (range(1, 21), 0), (range(5_001, 5_011), 0)
    assert counted([jumped, other, (range(18, 28), JUMP), (range(8, 31), 0)]) == (20 + 10 + 10, 3 + 20)


def test_a_process_that_goes_back_to_before_the_jump_trains_again() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, world_size=1, tokens_per_step=None))
    for number in range(1, 21):
        play(node, a_step(number, tokens=S, tokens_total=number * S + (JUMP if number >= 10 else 0)), tick(number))
    play(node, hello(0, 30, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    steps = [*((number, JUMP) for number in range(18, 25)), *((number, 0) for number in range(7, 10))]
    for own, (number, higher) in enumerate(steps, 1):
        frame = a_step(number, when=30 + own, attempt_step=own, tokens=S, tokens_total=number * S + higher)
        play(node, frame, tick(30 + own))
    assert trained_of(node) == 9 * S


def test_a_launch_from_before_the_jump_that_tells_no_totals_trains_again() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, world_size=1, tokens_per_step=None))
    for number in range(1, 21):
        play(node, a_step(number, tokens=S, tokens_total=number * S + (JUMP if number >= 10 else 0)), tick(number))
    play(node, hello(0, 30, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    for own in range(1, 21):
        play(node, a_step(4 + own, when=30 + own, attempt_step=own, tokens=S), tick(30 + own))
        assert trained_of(node) == (4 + own) * S


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(4, 12), st.integers(0, 4), st.booleans()),
        max_size=12,
    )
)
def test_launches_between_counts_of_which_any_jumps_have_each_token_once(
    launches: list[tuple[int, int, int, int, bool]],
) -> None:
    """Each begins with any step that the count had, before or after its jump, and may jump again as it did."""
    world = Launches()
    world.launch(0, 0, 5, 0, restarts=False)
    for count, back, steps, jumps, restarts in launches:
        world.jumps_at = jumps if 2 <= jumps <= steps - 2 else None
        world.launch(count, back, steps, 0, restarts=restarts and steps > 6)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_a_run_of_one_count_has_nothing_in_the_journal_and_is_read_back_as_it_was() -> None:
    assert TrainedCount().row() is None
    assert TrainedCount.of(None) == TrainedCount()
    count = TrainedCount()
    count.go_to(0, 0)
    count.go_on_apart(100, 5_000, (5, 50), 50)
    count.jump(6_000, 900)
    assert TrainedCount.of(json.loads(json.dumps(count.row()))) == count
    count.begin_attempt((6, 1_100))
    assert TrainedCount.of(json.loads(json.dumps(count.row()))) == count
    assert TrainedCount.of({**(count.row() or {}), "strands": [[5_000, 4_950, 5, 6_000, 50]]}).strands[0].line == 0


def test_counts_and_jumps_without_end_are_not_kept_without_end() -> None:
    count = TrainedCount()
    for number in range(1, 50):
        count.begin_attempt((number, number * 10**5))
        count.go_to(number, number * 10**6)
        count.go_on_apart(number, number * 10**6, (number, number * 10**5), number)
        for jump in range(20):
            count.jump(number * 10**6 + jump, 1)
    assert (len(count.strands), len(count.bends)) == (STRANDS_MAX, BENDS_MAX)


def trained_of(node: Node) -> int | None:
    return node.runs["llama"].run.tokens_total


def test_an_attempt_that_goes_back_before_its_own_begin_has_trained_all_of_that_for_the_first_time() -> None:
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, world_size=1, tokens_per_step=None))
    for number in range(1, 6):
        play(node, a_step(number, tokens=S, tokens_total=number * S), tick(number))
    play(node, hello(0, 10, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    for own, number in enumerate([*range(5_001, 5_008), *range(4_991, 4_995)], 1):
        play(node, a_step(number, when=10 + own, attempt_step=own, tokens=S, tokens_total=number * S), tick(10 + own))
    assert trained_of(node) == 16 * S
