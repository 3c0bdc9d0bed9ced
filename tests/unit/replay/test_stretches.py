"""Which wall time a recording covers, and what a halt in it would have cut off."""

from __future__ import annotations

from pathlib import Path

from governor.core.base.units import NS_PER_S
from governor.replay.logs import recording
from governor.replay.play import Replay
from governor.replay.stretches import Span, Stretches, merged
from governor.wire.recorded import RecordedClock
from tests.unit.replay.recorded_file import Written, ns

WALL_S = 1_700_000_000


def seen(root: Path, run: str = "r") -> Stretches:
    replay, stretches, clock = Replay(()), Stretches(), RecordedClock()
    for _, record in recording(root / run, clock):
        assert isinstance(record, dict)
        replay.read(record)
        stretches.see(record, replay.clock.now, clock.wall_ahead_ns)
    return stretches


def walls(stretches: Stretches) -> list[tuple[float, float]]:
    return [tuple(at / NS_PER_S - WALL_S for at in span) for span in stretches.spans()]  # type: ignore[misc]


def after(stretches: Stretches, at_s: float) -> tuple[float, float] | None:
    number = stretches.attempt_at(ns(at_s))
    span = None if number is None else stretches.rest_of(number, ns(at_s))
    return None if span is None else (span.since / NS_PER_S - WALL_S, span.until / NS_PER_S - WALL_S)


def test_from_the_first_line_to_the_exit(tmp_path: Path) -> None:
    Written("r", WALL_S).hello(100).steps(range(1, 4), 160).exited(400).save(tmp_path)
    assert walls(seen(tmp_path)) == [(100.0, 400.0)]


def test_a_silence_is_recorded_and_a_gap_is_not(tmp_path: Path) -> None:
    silent = Written("r", WALL_S).hello(100).steps([1], 160).steps([2], 7_200)
    silent.gap(7_300, lines=3).hello(9_000).steps([3], 9_100).save(tmp_path)
    found = seen(tmp_path)
    assert walls(found) == [(100.0, 7_300.0), (9_000.0, 9_100.0)]
    assert (found.gaps, found.lines_lost) == (1, 3)


def test_a_segment_that_does_not_go_on_is_a_gap(tmp_path: Path) -> None:
    """The governor was restarted beside the run."""
    written = Written("r", WALL_S).hello(100).steps([1], 160).save(tmp_path)
    written.hello(500).steps([2], 560).save(tmp_path, 2)
    found = seen(tmp_path)
    assert (walls(found), found.gaps) == ([(100.0, 160.0), (500.0, 560.0)], 1)
    assert after(found, 130) == (130.0, 560.0), "it is one attempt"


def test_between_two_attempts_nothing_is_missed(tmp_path: Path) -> None:
    written = Written("r", WALL_S).hello(100).steps([1], 160).exited(200).save(tmp_path)
    written.hello(500, "b").steps([2], 560).halted(600).save(tmp_path, 2)
    found = seen(tmp_path)
    assert (walls(found), found.gaps) == ([(100.0, 200.0), (500.0, 600.0)], 0)
    assert found.ends_at_halt


def test_the_exit_of_a_halted_run_is_no_attempt_of_its_own(tmp_path: Path) -> None:
    written = Written("r", WALL_S).hello(100).steps([1], 160).halted(200).exited(205).save(tmp_path)
    found = seen(tmp_path)
    assert (found.ends_at_halt, len(found.attempts), walls(found)) == (True, 1, [(100.0, 200.0)])
    written.hello(500, "b").steps([2], 560).exited(600).save(tmp_path, 2)
    again = seen(tmp_path)
    assert (again.ends_at_halt, len(again.attempts)) == (False, 2)


def test_a_halt_cuts_off_the_rest_of_its_attempt_alone(tmp_path: Path) -> None:
    written = Written("r", WALL_S).hello(100).steps([1], 160).halted(200)
    written.hello(500, "b").steps([2], 560).exited(800).save(tmp_path)
    found = seen(tmp_path)
    assert after(found, 150) == (150.0, 200.0)
    assert after(found, 300) == (300.0, 300.0), "between two attempts there is nothing to halt"
    assert after(found, 600) == (600.0, 800.0)
    assert after(found, 50) is None


def test_an_attempt_whose_end_was_not_seen_ends_with_the_next_ones_first_line(tmp_path: Path) -> None:
    Written("r", WALL_S).hello(100).steps([1], 160).hello(500, "b").steps([2], 560).save(tmp_path)
    assert after(seen(tmp_path), 130) == (130.0, 160.0)


def test_another_boot_lies_where_the_wall_clock_says(tmp_path: Path) -> None:
    Written("r", WALL_S).hello(1_000).steps([1], 1_060).save(tmp_path)
    Written("r", WALL_S + 5_000, "boot-2").hello(10, "b").steps([2], 60).save(tmp_path, 2)
    found = seen(tmp_path)
    assert walls(found) == [(1_000.0, 1_060.0), (5_010.0, 5_060.0)]
    assert found.clock_set_ns == 0


def test_a_clock_that_was_set_is_followed_and_told(tmp_path: Path) -> None:
    Written("r", WALL_S).hello(1_000).steps([1], 1_600).save(tmp_path)
    Written("r", WALL_S - 3_600).steps([2], 1_700).exited(5_600).save(tmp_path, 2, continues=True)
    found = seen(tmp_path)
    assert found.clock_set_ns == 3_600 * NS_PER_S
    # The hour is shown twice by that clock, and counts once: no dollar is recorded twice.
    assert walls(found) == [(1_000.0, 2_000.0)]


def test_merged_spans_are_in_order_and_apart() -> None:
    assert merged([Span(5, 9), Span(1, 2), Span(2, 3), Span(4, 4), Span(6, 7)]) == [Span(1, 3), Span(5, 9)]
