"""A rank that sleeps in its data set: while another waits for it in a collective, and alone between two micro-steps."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.drills.halt.conftest import HERE, Run
from trainer_shim.wire import HALT_EXIT_CODE

POLICY = """
[policy]
name = "drill"
[halt]
checkpoint = "none"
term_grace = "1s"
stop = "{stop}"
[[rule]]
name = "hang"
trigger = "hang"
response = "halt"
tight_min = "1s"
data_min = "1s"
"""
PAUSE_AT, PAUSE_S, SLEEP_AT = 50, 3, 600
ALONE = POLICY.replace('tight_min = "1s"', 'tight_min = "4s"\nworth_max = "4s"\nbetween_limit = "12s"')


def test_a_rank_that_sleeps_in_its_data_is_halted_and_one_that_only_pauses_is_not(
    costgov_run: Run, tmp_path: Path
) -> None:
    """The pause lasts three times the limit. Then it is one step of so many that it is no longer their p99."""
    words = [str(tmp_path), str(PAUSE_AT), str(PAUSE_S), str(SLEEP_AT)]
    halted = costgov_run([sys.executable, str(HERE / "sleeper.py"), *words], policy=POLICY)
    assert halted.code == HALT_EXIT_CODE, halted.output
    incident = halted.incident
    assert (incident["rule"], incident["reason"]) == ("hang", "rank_waits_for_data")
    evidence = incident["evidence"]
    assert (evidence["suspects"], evidence["waiting"]) == ([1], [0])
    waiting, asleep = sorted(evidence["ranks"], key=lambda row: row["rank"])
    assert asleep["step"] == SLEEP_AT, "rank 0's pause before it was no hang"
    assert asleep["stack"][0].startswith("sleeper.py:__getitem__:")
    assert not asleep["in_step"]
    assert asleep["fetching_s"] >= evidence["still_s"] >= evidence["limit_s"] >= 1
    assert waiting["in_step"]
    assert "fetching_s" not in waiting
    assert waiting["stack"][0].startswith("graph.py:_engine_run_backward:")
    assert all(row["stack"][0] in halted.output for row in (asleep, waiting)), "both facts, on the terminal"
    assert halted.running() == []


def test_data_that_comes_late_within_a_step_is_waited_for_as_long_as_between_two_steps(
    costgov_run: Run, tmp_path: Path
) -> None:
    """The pause lasts twice what a step may. One process whose data never comes is halted, and it is said where."""
    words = [str(tmp_path), str(PAUSE_AT), "8", str(SLEEP_AT)]
    halted = costgov_run([sys.executable, str(HERE / "accumulating.py"), *words], policy=ALONE)
    assert halted.code == HALT_EXIT_CODE, halted.output
    incident = halted.incident
    assert (incident["rule"], incident["reason"]) == ("hang", "overdue_step")
    evidence = incident["evidence"]
    (asleep,) = evidence["ranks"]
    assert asleep["step"] == SLEEP_AT, "the pause before it was no hang"
    assert asleep["in_step"], "with one micro-step done"
    assert asleep["stack"][0].startswith("accumulating.py:__getitem__:")
    assert asleep["fetching_s"] >= evidence["limit_s"] == 12
    said = f"({asleep['stack'][0]})"
    assert "it has waited for data for " in incident["text"]
    assert said in incident["text"]
    assert said in halted.output
    assert halted.running() == []
