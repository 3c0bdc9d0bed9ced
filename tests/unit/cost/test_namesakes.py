"""Runs of one name in several journals: which are one, and that each is counted where several are."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from governor.core.base.units import MTOK, parse_utc, usd
from governor.core.money.charges import Payer
from governor.core.money.expected import ExpectedCost, plan_row
from governor.core.money.reports.namesakes import Namesakes
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.token_windows import TokenMeter
from governor.core.money.waste import SpendSplit, SpentOn
from tests.hand_table.cases import Case, played
from tests.hand_table.commands import called, journal_of
from tests.hand_table.more_cases import CASES
from tests.unit.cost.ledger_file import charge
from tests.unit.cost.stages_file import windows, write_stages

RUN = "foreign"


@dataclass(frozen=True)
class Launch:
    """What one `costgov run` has left, in micro-dollars. All of it has trained, but for `wasted`."""

    spent: int
    wasted: int  # Its start, and what came behind its last step.
    tokens: int
    ceiling: str | None = "300"
    began: int = 0


def write(home: Path, launches: Sequence[Launch]) -> dict[str, str]:
    """Each in a journal of its own, one after the other. Whole millions are windows; the rest is open."""
    env = {"COSTGOV_PATHS__STATE_DIR": str(home / "state"), "COSTGOV_PATHS__RUNTIME_DIR": str(home / "run")}
    for number, one in enumerate(launches):
        path = home / "state" / "runs" / f"train-{number}" / "costgov.db"
        plan = ExpectedCost(None, None, usd(one.ceiling) if one.ceiling else None, None, one.began)
        closed = one.tokens // MTOK
        meter = TokenMeter(
            progress_tokens=one.began + one.tokens, last_total=one.began + one.tokens, began_tokens=one.began,
            from_tokens=one.began + closed * MTOK,
        )  # fmt: skip
        causes = {SpentOn.START_UP: one.wasted - 7, SpentOn.AFTER_LAST_STEP: 7}
        split = SpendSplit({"": {**causes, SpentOn.TRAINING: one.spent - one.wasted}}, counted_usd_micros=one.spent)
        row: dict[str, Any] = {
            "run": RUN, "attempt": "a1", "step": 60, "alive": False, "wall_ns": parse_utc("2026-11-02T11:00:00"),
            "stage": None, "spend_usd_micros": one.spent, "plan": plan_row(plan),
            "spend_split": split.snapshot(), "tokens": json.loads(json.dumps(asdict(meter))) if one.tokens else None,
        }  # fmt: skip
        money = charge("2026-11-02T10:00:00Z", 0.1, Payer(RUN, "a1", None), usd_micros=one.spent)
        write_stages(path, [money], windows(RUN, None, closed, MTOK, "0.003", 1, plan), {RUN: row})
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return env


def stage(home: Path, *launches: Launch) -> dict[str, Any]:
    [row] = json.loads(called(write(home, launches), "cost", "stages", "--json"))["stages"]
    told: dict[str, Any] = row
    return told


def text(micros: Fraction | int) -> str:
    return f"{int(micros) // 1_000_000}.{int(micros) % 1_000_000:06}"


# As four live plays have left them.
PLAYS = {
    "the same log twice": (Launch(47_170, 28_828, 6 * MTOK), Launch(67_317, 48_993, 6 * MTOK)),
    "a log three times, twice for less than a window": (
        Launch(42_958, 24_636, 6 * MTOK), Launch(22_240, 19_151, 800_000), Launch(20_270, 18_713, 700_000),
    ),
    "a script twice": (Launch(63_380, 51_541, 3 * MTOK), Launch(64_269, 60_706, 750_000)),
    "four names of one log, the last from another's checkpoint": (
        Launch(279_183, 159_153, 18 * MTOK, "0.40"), Launch(452_279, 352_334, 2_400_000, None),
        Launch(397_814, 397_814, 400_000, None), Launch(119_951, 119_951, 3 * MTOK, "3", 500_100_000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("play", PLAYS)
def test_launches_that_begin_anew_are_as_many_runs(play: str, tmp_path: Path) -> None:
    launches = PLAYS[play]
    row = stage(tmp_path, *launches)
    spent, tokens = sum(one.spent for one in launches), sum(one.tokens for one in launches)
    limited = [one for one in launches if one.ceiling is not None]
    ceiling = sum(usd(one.ceiling or "0") for one in limited)
    assert (row["runs"], row["tokens"], row["actual_usd"]) == (len(launches), tokens, text(spent))
    all_in = text(Fraction(spent * MTOK, tokens))
    assert (row["usd_per_mtok_all_in"], row["usd_per_mtok_useful"]) == (all_in, all_in)
    assert row["wasted_usd"] == text(sum(one.wasted for one in launches))
    assert row["wasted_usd_by_cause"]["after_last_step"] == text(7 * len(launches))
    assert (row["ceiling_usd"], row["unlimited_runs"]) == (text(ceiling), len(launches) - len(limited))
    assert float(row["used_percent"]) == pytest.approx(100 * sum(one.spent for one in limited) / ceiling, abs=1e-4)
    assert row["untold_tokens"] == 0


def test_a_launch_that_goes_on_from_a_checkpoint_is_the_same_run(tmp_path: Path) -> None:
    """6.5M tokens, of which its checkpoint had 6M; from there another `costgov run` trains 2.4M more."""
    row = stage(tmp_path, Launch(60_000, 20_000, 6_500_000, "1"), Launch(40_000, 10_000, 2_400_000, "2", 6 * MTOK))
    assert (row["runs"], row["tokens"], row["wasted_usd"]) == (1, 8_900_000, "0.030000")
    assert (row["ceiling_usd"], row["used_percent"]) == ("2.000000", "5.0000"), "the newest one's"


def test_a_launch_that_tells_of_no_tokens_is_a_run_of_its_own(tmp_path: Path) -> None:
    row = stage(tmp_path, Launch(60_000, 60_000, 0, "1"), Launch(40_000, 10_000, 2_400_000, "2"))
    assert (row["runs"], row["tokens"], row["ceiling_usd"], row["used_percent"]) == (2, 2_400_000, "3.000000", "3.3333")


def test_waste_of_a_journal_without_causes_stands_beside_that_of_another() -> None:
    """An older version has trained half a million twice of 1.5M for $3; then the run goes on, with $0.50 of start."""
    tally, later = StageTally(), ExpectedCost(began_tokens=MTOK)
    for journal, plan, again in (("older", ExpectedCost(), MTOK // 2), ("newer", later, MTOK // 2)):
        [(run, _, row)] = windows(RUN, "s", 1, MTOK, "3.00", 1, plan, wasted=[again])
        tally.enter_window(run, row, journal)
    tally.enter_split(RUN, SpendSplit({"s": {SpentOn.START_UP: usd("0.50"), SpentOn.TRAINED_TWICE: usd(1)}}), "newer")
    [told] = tally.rows()
    assert (told.runs, told.wasted_usd_micros) == (1, usd("2.50"))
    assert told.wasted_by_cause is not None
    assert (told.wasted_by_cause["trained_twice"], told.wasted_by_cause["start_up"]) == (usd(2), usd("0.50"))


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ([(0, 6), (6, 9)], 1),
        ([(0, 6), (5, 9)], 1),  # Back to a checkpoint.
        ([(0, 6), (12, 15)], 1),  # Nobody watched it for a while.
        ([(0, 6), (13, 15)], 2),  # For longer than it is known to have trained.
        ([(0, 6), (0, 9)], 2),
        ([(500, 506), (500, 509)], 2),  # Both from one base model.
        ([(500, 506), (0, 9)], 2),
        ([(500, 506), (506, 509)], 1),
        ([(6, 9), (0, 6)], 1),  # The first journal was written last.
        ([(0, 6), (0, 3), (3, 5), (6, 8), (8, 9)], 2),
    ],
)
def test_a_run_goes_on_where_one_of_its_name_has_been(parts: list[tuple[int, int]], runs: int) -> None:
    namesakes = Namesakes()
    entered = [((f"{number}", "r"), began, to) for number, (began, to) in enumerate(parts)]
    namesakes.enter_all([*entered, (("0", "another"), 6, 7)])
    assert len({namesakes.run_of(part) for part, _, _ in entered}) == runs
    assert namesakes.run_of(("0", "another")) not in {namesakes.run_of(part) for part, _, _ in entered}


def test_it_goes_on_from_the_one_that_came_there() -> None:
    namesakes = Namesakes()
    namesakes.enter_all([(("a", "r"), 0, 6), (("b", "r"), 0, 3), (("c", "r"), 3, 5)])
    assert namesakes.run_of(("c", "r")) is namesakes.run_of(("b", "r"))


def test_cost_and_status_say_how_many_runs_have_the_name(tmp_path: Path) -> None:
    env = write(tmp_path, PLAYS["a log three times, twice for less than a window"])
    for words in (("--run", RUN), (), ("--by", "day", "--run", RUN)):
        assert json.loads(called(env, "cost", *words, "--json"))["runs_of_name"] == {RUN: 3}
        assert f"\n{RUN}: 3 runs of this name" in called(env, "cost", *words)
    assert json.loads(called(env, "cost", "--by", "stage", "--json"))["runs_of_name"] is None
    env |= {"COSTGOV_CONTROL": f"{tmp_path}/none"}
    assert json.loads(called(env, "status", RUN, "--json"))["runs_of_name"] == {RUN: 3}


def test_where_a_run_goes_on_in_another_journal_there_is_one_of_its_name(tmp_path: Path) -> None:
    env = write(tmp_path, [Launch(60_000, 20_000, 6 * MTOK), Launch(40_000, 10_000, 2_400_000, began=6 * MTOK)])
    assert json.loads(called(env, "cost", "--run", RUN, "--json"))["runs_of_name"] is None
    env |= {"COSTGOV_CONTROL": f"{tmp_path}/none"}
    assert "runs_of_name" not in json.loads(called(env, "status", RUN, "--json"))


TWICE = ("tokens", "actual_usd", "wasted_usd", "tokens_wasted", "expected_usd", "ceiling_usd", "lands_at_usd", "hours")
ALIKE = ("usd_per_mtok_all_in", "usd_per_mtok_useful", "usd_per_mtok_steady_stage", "used_percent", "burn_rate",
         "drift_stage_frac", "drift_all_in_frac", "tokens_per_s")  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_of_the_hand_table_that_ran_twice_has_the_same_prices(case: Case) -> None:
    world = played(case)
    with journal_of(world) as once, journal_of(world, "again") as twice:
        one, two = (json.loads(called(env, "cost", "stages", "--json")) for env in (once, twice))
    for alone, both in zip(one["stages"], two["stages"], strict=True):
        assert both["runs"] == 2 * alone["runs"]
        assert [both[name] for name in ALIKE] == [alone[name] for name in ALIKE]
        for name in TWICE:
            digit = 0.01 if name == "lands_at_usd" else 1e-6
            expected = None if alone[name] is None else pytest.approx(2 * float(alone[name]), abs=1.1 * digit)
            assert (None if both[name] is None else float(both[name])) == expected, name
