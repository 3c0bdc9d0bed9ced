"""The default policy on runs that nobody here trained: who is well is left alone, who is not is caught in time.

Rules in observe mode count as if they enforced. `COSTGOV_REAL_RUNS` names the archive where it is not in its place.
"""

from __future__ import annotations

import statistics

import pytest

from tests.real_runs.corpus import ARCHIVE, Outcome, replay_all, unpack

pytestmark = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no archive of real runs at {ARCHIVE}")

SEQ_HALTS_MAX = 1  # Of 98 healthy translation and speech runs.
SLOW_S, STARVED_S = 600.0, 600.0  # Of log time after the onset.
VANISHED_RECORDS = 3
CAUGHT_FRAC_MIN = 0.99
# From the last line before a cut to the verdict. A replay's ticks in a silence are exact to 1 %.
CUT_MEDIAN_S = 600.0 * 1.01
MS = 0.001  # To which logs round their times, and labels do not.
# Caught by nothing yet, each for its reason. One that is caught has to leave this list.
MISSED: dict[str, str] = {}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return replay_all(unpack(tmp_path_factory.mktemp("real_runs")))


def of(outcomes: list[Outcome], role: str, tier: str = "", label: str = "") -> list[Outcome]:
    return [
        one for one in outcomes
        if one.meta["role"] == role and one.meta["tier"].startswith(tier) and one.meta["label"].startswith(label)
    ]  # fmt: skip


def told(outcome: Outcome) -> str:
    first = outcome.halts[0]
    return f"{outcome.log}: {first.rule} at step {first.step}, {first.t} s: {first.text}"


def test_the_archive_is_the_one_that_is_described(outcomes: list[Outcome]) -> None:
    counted = [len(of(outcomes, "healthy", "lm")), len(of(outcomes, "healthy", "seq")), len(of(outcomes, "troubled"))]
    assert counted == [1346, 98, 17]


def test_no_healthy_language_model_is_halted(outcomes: list[Outcome]) -> None:
    assert [told(one) for one in of(outcomes, "healthy", "lm") if one.halts] == []


def test_hardly_a_healthy_translation_or_speech_run_is_halted(outcomes: list[Outcome]) -> None:
    halted = [told(one) for one in of(outcomes, "healthy", "seq") if one.halts]
    assert len(halted) <= SEQ_HALTS_MAX, halted


def test_no_healthy_run_of_another_kind_is_halted(outcomes: list[Outcome]) -> None:
    """Recommenders, images, tiny and uneven batches: not what the policy is for, and no less somebody's work."""
    assert [told(one) for one in of(outcomes, "healthy", "other") if one.halts] == []


def test_a_broken_loss_is_caught_with_its_record(outcomes: list[Outcome]) -> None:
    for one in of(outcomes, "troubled", label="nan"):
        if one.log in MISSED:
            continue
        since = [t for _, t, _ in one.steps if t >= one.meta["onset_t"] - MS]
        # A log that shows no broken loss shows none at all any more.
        vanished = since[:VANISHED_RECORDS][-1]
        broken = next((t for _, t, is_broken in one.steps if is_broken), vanished)
        assert one.halts, one.log
        assert one.meta["onset_t"] - MS <= one.halts[0].t <= broken, told(one)


@pytest.mark.parametrize(("label", "within_s"), [("slow", SLOW_S), ("starved", STARVED_S)])
def test_slow_and_starved_runs_are_caught_in_minutes(outcomes: list[Outcome], label: str, within_s: float) -> None:
    for one in of(outcomes, "troubled", label=label):
        if one.log not in MISSED:
            assert one.halts, one.log
            assert one.meta["onset_t"] - MS <= one.halts[0].t <= one.meta["onset_t"] + within_s, told(one)


def test_what_is_missed_is_said(outcomes: list[Outcome]) -> None:
    assert {one.log for one in of(outcomes, "troubled") if not one.halts} == {*MISSED}


def test_runs_that_fall_silent_are_caught(outcomes: list[Outcome]) -> None:
    """Healthy logs, cut at a random record while their clock runs on. Real hangs are hardly ever published."""
    cut = [one for one in of(outcomes, "healthy", "lm") if one.cut_at is not None]
    caught = [one for one in cut if any(halt.t >= one.cut_at for halt in one.cut_halts)]
    assert len(cut) > 300
    assert len(caught) >= CAUGHT_FRAC_MIN * len(cut), [one.log for one in cut if one not in caught]
    assert not [one.log for one in cut if any(halt.t < one.cut_at for halt in one.cut_halts)]


def test_half_of_the_runs_that_fall_silent_are_caught_within_ten_minutes(outcomes: list[Outcome]) -> None:
    """The others have shown too little of their rhythm, have long pauses, or say that they evaluate."""
    cut = [one for one in of(outcomes, "healthy", "lm") if one.cut_at is not None]
    delays = [min(halt.t for halt in one.cut_halts) - one.cut_at for one in cut if one.cut_halts]
    assert statistics.median(delays) <= CUT_MEDIAN_S, statistics.quantiles(delays, n=10)
