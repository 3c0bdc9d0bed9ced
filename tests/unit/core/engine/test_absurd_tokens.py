"""One frame or line whose tokens cannot be: it is not believed, and what all the others say stays right."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import COUNT_MAX, MTOK, NS_PER_S, MonoNs
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import FramesLost, Hello, ProcessesSeen, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.events.streams import StreamOpened
from governor.core.money.expected import row_of
from governor.core.money.token_windows import TokenMeter
from governor.core.runs import intake
from governor.core.runs.belief import Belief
from governor.core.runs.belief import Told as Weighed
from governor.core.runs.counting import count_step, tokens_at_last_step
from governor.core.views.status import run_status
from governor.ports import Packet
from governor.wire.answer_shapes import ANSWERS, is_shaped
from governor.wire.frames import FrameReader
from governor.wire.records import RecordReader
from tests.unit.core.engine.test_rank_tokens import Ranks
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

Told = tuple[int | None, int | None]  # Tokens of the step, and in all.


def world(*ranks: Hello) -> Node:
    node = make_node(cloud="none")
    play(node, tick(0), *(ranks or (hello(0, world_size=1, tokens_per_step=None),)))
    return node


def said(node: Node, told: Iterable[Told], first: int = 1) -> list[Effect]:
    effects: list[Effect] = []
    for number, (tokens, total) in enumerate(told, first):
        effects += play(node, a_step(number, tokens=tokens, tokens_total=total), tick(number))
    return effects


def meter(node: Node, run: str = "llama") -> TokenMeter:
    found = node.runs[run].history.meter
    assert found is not None
    return found


def figures(node: Node, run: str = "llama") -> tuple[int, int]:
    """Progress and waste since metering began."""
    return meter(node, run).useful_tokens, meter(node, run).wasted_tokens


def alarms(effects: Iterable[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm) and effect.name == "figure_refused"]


def totals(*mtok: float) -> list[Told]:
    return [(None, round(each * MTOK)) for each in mtok]


@pytest.mark.parametrize("lie", [2**53, 2**52, 2**40, 0, 1])
@pytest.mark.parametrize("tokens", [MTOK, None])
def test_one_total_that_cannot_be_moves_no_figure(lie: int, tokens: int | None) -> None:
    node = world()
    effects = said(node, [(tokens, each * MTOK) for each in (1, 2, 3, 4, 5)])
    held = said(node, [(tokens, lie)], 6)
    assert node.runs["llama"].run.tokens_total == 5 * MTOK
    effects += held + said(node, [(tokens, each * MTOK) for each in (7, 8, 9, 10)], 7)
    assert node.runs["llama"].run.tokens_total == 10 * MTOK
    assert meter(node).progress_tokens == 10 * MTOK
    assert meter(node).wasted_tokens == 0
    assert alarms(effects) == ["figure_refused"]


@pytest.mark.parametrize("tokens", [MTOK, None])
def test_one_large_step_among_small_ones_counts_at_once(tokens: int | None) -> None:
    """A training that begins anew with a larger batch, or the last line of a log, has no next one that confirms it."""
    node = world()
    effects = said(node, [(tokens, each * MTOK) for each in (1, 2, 3)])
    effects += said(node, [(None, 503 * MTOK)], 4)
    assert node.runs["llama"].run.tokens_total == 503 * MTOK
    assert alarms(effects) == []


def test_several_lies_are_one_alarm() -> None:
    node = world()
    effects = said(node, [*totals(1, 2), (None, 2**50), *totals(4, 5), (None, 2**51), *totals(7)])
    assert figures(node)[1] == 0
    assert alarms(effects) == ["figure_refused"]


@pytest.mark.parametrize("how", ["exit", "another attempt", "halt"])
@pytest.mark.parametrize("told", [(None, 2**50), (2**39, None), (MTOK, 7)])
def test_what_is_held_at_an_attempts_end_is_said(how: str, told: Told) -> None:
    node = world()
    has_total = told[1] is not None
    assert alarms(said(node, [(MTOK, number * MTOK if has_total else None) for number in (1, 2, 3)])) == []
    assert alarms(said(node, [told], 4)) == []
    if how == "exit":
        effects = play(node, TrainerExited(at(5), "llama", 0))
    elif how == "another attempt":
        effects = play(node, hello(0, 5, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    else:
        play(node, OperatorHalt(at(5), "llama", uid=0, reason="enough"))
        incident = node.runs["llama"].incident
        assert incident is not None
        asks = [tick(second) for second in range(6, 1_000)]
        effects = play(node, *asks, ProcessesSeen(at(1_000), incident.incident_id, ()))
        assert incident.is_closed
    [text] = [effect.text for effect in effects if isinstance(effect, Alarm) and effect.name == "figure_refused"]
    lost = told[0] if told[0] is not None else 2**50 - 3 * MTOK
    assert f"{lost:,} tokens are in no figure of it" in text
    assert figures(node) == (3 * MTOK, 0)
    effects = play(node, hello(0, 1_001, world_size=1, tokens_per_step=None, attempt="a3", peer=peer(300)))
    assert alarms(effects + said(node, [(MTOK, 4 * MTOK), (MTOK, 5 * MTOK)], 1_002)) == []


def test_tokens_of_one_step_that_cannot_be_are_not_believed_without_a_total_either() -> None:
    node = world()
    effects = said(node, [(MTOK, None)] * 5 + [(2**39, None)] + [(MTOK, None)] * 4)
    assert figures(node) == (10 * MTOK, 0)
    assert alarms(effects) == ["figure_refused"]


@pytest.mark.parametrize("has_total", [True, False])
def test_batches_that_really_become_so_large_lose_no_token(has_total: bool) -> None:
    node = world()
    sizes = [MTOK] * 3 + [500 * MTOK] * 3 + [MTOK] * 2
    effects = said(node, [(size, sum(sizes[: n + 1]) if has_total else None) for n, size in enumerate(sizes)])
    assert figures(node) == (sum(sizes), 0)
    assert alarms(effects) == []


def test_totals_that_go_on_from_another_count_were_not_trained_here() -> None:
    node = world()
    effects = said(node, [(MTOK, each * MTOK) for each in (1, 2, 3, 1_000_004, 1_000_005, 1_000_006)])
    assert node.runs["llama"].run.tokens_total == 6 * MTOK
    assert figures(node) == (6 * MTOK, 0)
    assert alarms(effects) == ["figure_refused"]


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("tokens", [MTOK, None])
def test_tokens_of_frames_lost_before_a_count_jumps_were_trained(lost: int, tokens: int | None) -> None:
    """So many steps after the third are never heard. The next one's total goes on from another count."""
    node = world()
    said(node, [(tokens, each * MTOK) for each in (1, 2, 3)])
    after = range(4 + lost, 7 + lost)
    effects = said(node, [(tokens, each * MTOK + 10**13) for each in after], after[0])
    assert node.runs["llama"].run.tokens_total == after[-1] * MTOK
    assert sum(figures(node)) == (after[-1] - (tokens is None)) * MTOK, "the first total tells nothing of its own step"
    assert alarms(effects) == ["figure_refused"]


def test_tokens_that_are_of_all_steps_since_the_last_line_count_once_where_a_count_jumps() -> None:
    node = world()
    lines = [a_step(n, tokens=MTOK, tokens_total=n // 10 * MTOK + (10**13 if n > 30 else 0)) for n in range(10, 60, 10)]
    play(node, *lines)
    assert figures(node) == (5 * MTOK, 0)


@pytest.mark.parametrize(("first", "skipped"), [(50_001, 49_900), (202, 101), (201, 0), (104, 0)])
@pytest.mark.parametrize("tokens", [MTOK, None])
def test_what_an_attempt_that_goes_on_far_ahead_has_not_trained_is_skipped_and_said(
    first: int, skipped: int, tokens: int | None
) -> None:
    """After step 100: another run's checkpoint. A hundred steps may be lost frames, but no such time was paid for."""
    node = world()
    said(node, [(tokens, each * MTOK) for each in range(1, 101)])
    before = sum(figures(node))
    play(node, hello(0, 102, world_size=1, tokens_per_step=None, attempt="a2", peer=peer(200)))
    effects: list[Effect] = []
    for number in range(1, 6):
        step, when = first - 1 + number, 103 + number
        frame = a_step(step, when=when, attempt_step=number, tokens=tokens, tokens_total=step * MTOK)
        effects += play(node, frame, tick(when))
    assert sum(figures(node)) - before == 5 * MTOK
    assert node.runs["llama"].run.tokens_total == (first + 4 - skipped) * MTOK
    assert alarms(effects) == ["figure_refused"]


def test_a_governor_that_did_not_hear_the_attempt_before_counts_what_that_may_have_trained() -> None:
    node = world()
    said(node, totals(*range(1, 101)))
    again = intake.restored(run_snapshot(node, node.runs["llama"], at(101)), at(101), same_boot=True)
    frame = a_step(50_001, attempt_step=1, tokens=MTOK, tokens_total=50_001 * MTOK)
    assert count_step(again, None, frame, leads=True, is_first=True) is not None
    assert again.tokens_total == 50_001 * MTOK


def test_frames_that_were_lost_are_many_steps() -> None:
    node = world()
    said(node, [(MTOK, MTOK), (MTOK, 2 * MTOK)])
    effects = said(node, [(MTOK, 502 * MTOK), (MTOK, 503 * MTOK)], 502)
    assert figures(node) == (503 * MTOK, 0)
    assert node.runs["llama"].run.step_tokens == MTOK
    assert alarms(effects) == []


def test_tokens_of_a_step_that_its_total_contradicts_are_unknown() -> None:
    node = world()
    said(node, [(MTOK, MTOK), (MTOK, 2 * MTOK), (2**39, 3 * MTOK)])
    assert node.runs["llama"].run.step_tokens is None
    assert figures(node) == (3 * MTOK, 0)


def test_lengths_that_vary_a_thousandfold_are_believed() -> None:
    node = world()
    sizes = [10, 100_000, 20, 9_000_000, 300, 16_000_000]
    effects = said(node, [(size, sum(sizes[: n + 1])) for n, size in enumerate(sizes)])
    assert figures(node) == (sum(sizes), 0)
    assert alarms(effects) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_lies_of_its_own_tokens_is_as_one_that_was_not_heard(rank: int) -> None:
    ranks = Ranks(0, 1)
    node = world(*ranks.hellos())
    effects: list[Effect] = []
    for number in range(1, 12):
        frames = ranks.step(number)
        if number == 6:
            frames[rank] = replace(frames[rank], tokens_own_total=2**50)
        effects += play(node, *frames, tick(number))
    assert node.runs["llama"].run.tokens_total == ranks.truth[11]
    assert figures(node) == (ranks.truth[11], 0)


def test_what_was_known_of_its_steps_outlives_the_governor() -> None:
    node = world()
    said(node, totals(1, 2, 3))
    again = intake.restored(run_snapshot(node, node.runs["llama"], at(3)), at(3), same_boot=True)
    assert again.belief.largest == MTOK


# --- a log -------------------------------------------------------------------------------------------------------


def logged(*records: dict[str, int]) -> tuple[Node, list[Effect]]:
    node = make_node(cloud="none")
    effects = play(node, tick(0), StreamOpened(at(0), "log", 1000))
    reader = RecordReader("log")
    for number, record in enumerate(records, 1):
        read = reader.read_line(json.dumps({"loss": 2.0, **record}).encode(), at(number))
        assert not any(isinstance(one, str) for one in read), read
        effects += play(node, *[event for event in read if not isinstance(event, str)], tick(number))
    return node, effects


def test_one_line_of_a_log_that_lies_of_its_total_is_not_believed() -> None:
    lines = [{"step": n, "tokens_total": n * MTOK} for n in range(1, 11)]
    lines[5]["tokens_total"] = 2**52
    node, effects = logged(*lines)
    assert figures(node, "log") == (10 * MTOK, 0)
    assert alarms(effects) == ["figure_refused"]


def test_one_line_of_a_log_that_lies_of_its_step_is_not_believed() -> None:
    """It counts as no line: those of a log need not be of each step."""
    lines = [{"step": n, "batch_tokens": MTOK} for n in range(1, 11)]
    lines[5]["batch_tokens"] = 2**39
    node, effects = logged(*lines)
    assert figures(node, "log") == (9 * MTOK, 0)
    assert alarms(effects) == ["figure_refused"]


def test_lines_whose_batches_become_so_large_lose_no_token() -> None:
    sizes = [MTOK] * 3 + [500 * MTOK] * 3
    node, effects = logged(*({"step": n, "batch_tokens": size} for n, size in enumerate(sizes, 1)))
    assert figures(node, "log") == (sum(sizes), 0)
    assert alarms(effects) == []


@pytest.mark.parametrize("name", ["tokens_total", "batch_tokens", "attempt_step"])
def test_a_figure_of_a_line_beyond_any_run_is_left_out_in_a_line(name: str) -> None:
    _, effects = logged({"step": 1, name: 2**60}, {"step": 2, name: 2**60})
    assert alarms(effects) == ["figure_refused"]


def test_a_line_of_a_step_that_no_run_has_is_none() -> None:
    assert RecordReader("log").read({"step": COUNT_MAX + 1, "loss": 2.0}, MonoNs(NS_PER_S)) == [
        "step is more than any run has"
    ]


# --- what is written can be read, and what is answered is shown ----------------------------------------------------


@pytest.mark.parametrize("tokens", [2**63 - 1, 2**53, 2**40, 2**30])
@pytest.mark.parametrize("told", ["tokens", "tokens_total", "both", "turns"])
def test_no_tokens_of_frames_make_rows_or_answers_that_nobody_reads(tokens: int, told: str) -> None:
    node = make_node(cloud="none")
    reader = FrameReader()
    link = ConnectionId(1)

    def say(when: int, kind: str, **values: object) -> list[Effect]:
        frame = {"v": 1, "kind": kind, "rank": 0, "mono_ns": at(when), **values}
        events = reader.read(Packet(link, peer(900), json.dumps(frame).encode()), at(when))
        assert not any(isinstance(event, FramesLost) for event in events), events
        return play(node, *events)

    play(node, tick(0))
    schedule = {"tokens_per_step": tokens, "total_steps": 2**53}
    say(0, "hello", seq=1, run="evil", attempt="a", local_rank=0, world_size=1, signal=0, **schedule)
    effects: list[Effect] = []
    for number in range(1, 200):
        values = {"tokens": {"tokens": tokens}, "tokens_total": {"tokens_total": tokens * number}}.get(
            told, {"tokens": tokens, "tokens_total": tokens * (number % 2) if told == "turns" else tokens}
        )
        total = min(values.get("tokens_total", 0), 2**63 - 1)
        values |= {"tokens_total": total} if total else {}
        effects += say(number, "step", step=number, attempt_step=number, **values) + play(node, tick(number))
    assert is_shaped([run_status(node.runs["evil"], at(200))], ANSWERS["status"]["runs"])
    rows = [effect.data for effect in node.windows_uncommitted]
    for row in rows:
        assert row_of(row).window.to_tokens <= COUNT_MAX
    if tokens == 2**63 - 1 and told != "turns":
        assert alarms(effects) == ["figure_refused"]
        assert node.runs["evil"].run.tokens_total is None


def test_more_tokens_than_any_run_has_are_unknown_from_then_on() -> None:
    node = world()
    effects = said(node, [(2**40, None)] * (2**13 + 10))
    assert node.runs["llama"].run.tokens_total is None
    assert meter(node).progress_tokens <= COUNT_MAX
    assert alarms(effects) == ["figure_refused"]


def test_they_stay_unknown_over_a_restart_of_the_governor() -> None:
    node = world()
    said(node, [(2**40, None)] * (2**13 + 10))
    again = intake.restored(run_snapshot(node, node.runs["llama"], at(9000)), at(9000), same_boot=True)
    counted = count_step(again, None, a_step(9001, tokens=MTOK), leads=True, is_first=True)
    assert (counted, again.tokens_total) == (None, None)


def test_a_run_that_goes_back_for_ever_wastes_no_more_than_can_be_written() -> None:
    counted = TokenMeter(metered_to=0)
    for number in range(40):
        counted.add(2**50 * (number % 2), 2**50, 0, number, 0)  # type: ignore[arg-type]
    assert counted.wasted_tokens <= COUNT_MAX


@pytest.mark.parametrize("tokens", [MTOK, None])
def test_what_was_skipped_is_in_no_step_of_those_to_come(tokens: int | None) -> None:
    """Six steps of a million each, and 1,000,000M skipped with the fourth. Four steps more are four million."""
    node = world()
    said(node, [(tokens, each * MTOK) for each in (1, 2, 3, 1_000_004, 1_000_005, 1_000_006)])
    run = node.runs["llama"].run
    run.total_steps = 10
    assert tokens_at_last_step(run) == 10 * MTOK
    assert figures(node) == (6 * MTOK if tokens is not None else 5 * MTOK, 0), "the first total says nothing of its own"


def test_a_step_may_have_64_times_the_tokens_of_the_largest_so_far() -> None:
    """Below that many steps of 2^36 tokens are believed anyway."""
    largest = 2**31
    belief = Belief(largest=largest)
    assert (belief.may_be(64 * largest), belief.may_be(64 * largest + 1)) == (True, False)
    assert belief.may_be(2 * 64 * largest, steps=2)


def test_one_step_that_was_believed_at_last_does_not_make_all_others_possible() -> None:
    belief = Belief()
    belief.weigh(Weighed(1, MTOK), None, may_fall=False)
    assert belief.weigh(Weighed(2, 2**45), (1, MTOK), may_fall=False) is None, "it is held"
    assert belief.weigh(Weighed(3, 2**46), (1, MTOK), may_fall=False) is not None, "the next is as far away again"
    assert (belief.may_be(2**42), belief.may_be(2**42 + 1)) == (True, False)
