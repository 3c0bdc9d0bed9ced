"""The table of `costgov status` on screens of every width."""

from __future__ import annotations

import pytest

from governor.cli.status import for_programs
from governor.cli.status_table import render_status
from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import Whole, time_row
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.views.status import run_status
from governor.text.nodes import fleet_notes
from governor.text.screen import FILE, Screen
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node


def table_of(columns: int, **changed: object) -> list[str]:
    """The table of `status` and what stands below it, of one run."""
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    run = run_status(world.node.runs["llama"], MonoNs(world.mono)) | {"step": 150, "total_steps": 150}
    governor = {"node": "n", "mode": "enforce", "policies": [], "alerts": {}, "cloud": {}}
    lines = render_status({"governor": governor, "runs": [run | changed]}, Screen(columns, False)).splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith("RUN")) :]


QUIET = {"last_frame_age_s": 0.1, "findings": [], "stepless_s": None, "loss_unseen_steps": None, "saves": None}
FIGURES = {
    "step": 25, "total_steps": 3000, "loss": 4.1932, "tokens_per_s": 2549.0, "usd_per_mtok": 2.2,
    "spend_usd": 0.0518, "spend_rate_usd_per_hour": 22.0, "ceiling_usd": 300.0, "runway_s": 49_080.0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "columns"), [("ab", 80), ("plain-1123-083517-21261", 100)])
def test_a_run_has_one_line_where_ranks_and_last_frame_make_room_for_it(name: str, columns: int) -> None:
    head, row = table_of(columns, run=name, **QUIET, **FIGURES)
    assert " ".join(head.split()) == "RUN STATE STEP LOSS TOK/S SPENT $/1M NOW RUNWAY"
    assert row.startswith(f"{name}  ")


@pytest.mark.parametrize(("name", "columns"), [("ab", 60), ("plain-1123-083517-21261", 80)])
def test_no_figure_is_left_out_for_a_long_name(name: str, columns: int) -> None:
    shown = " ".join(table_of(columns, run=name, **QUIET, **FIGURES)).split()
    assert {"2,549", "$2.20", "13h", "1/1", "100ms", name} <= {*shown}


def test_a_name_that_leaves_no_room_for_a_line_of_its_own_is_wrapped() -> None:
    head, row, more, *_ = table_of(100, run="a-script-of-32-1123-083517-21261", **QUIET, **FIGURES)
    assert head.split()[-1] == "RANKS"
    assert (row.split()[0], more.split()) == ("a-script-of-32-", ["1123-083517-21261"])


def test_a_narrow_table_has_one_line_a_run_and_says_below_it_what_a_column_would_have_shown() -> None:
    shown = table_of
    assert shown(120)[0].endswith("RANKS  LAST FRAME")
    head, row, *notes = shown(80, last_frame_age_s=2.0)
    assert head.split()[-1] == "RANKS"
    assert row.startswith("llama ")
    assert not any("frame" in note for note in notes)
    assert "llama: its last frame came 42.0s ago" in shown(80, last_frame_age_s=42.0)
    narrower = shown(68, ranks_connected=1, world_size=2, last_frame_age_s=2.0)
    assert narrower[0].split()[-1] == "RUNWAY"
    assert "llama: 1 of 2 ranks are connected" in narrower
    for columns in (68, 100):  # Nobody has said yet that there are two.
        starting = "\n".join(shown(columns, state="starting", ranks_connected=0, world_size=1, last_frame_age_s=None))
        assert "ranks are connected" not in starting
        assert "0/1" not in starting.split()


def test_gpus_that_cannot_be_read_any_more_are_said_with_why() -> None:
    governor = {"node": "n", "mode": "enforce", "policies": [], "alerts": {}, "cloud": {}}
    told = render_status({"governor": governor | {"gpus_unread": "GPU sampler ended with code -9"}, "runs": []}, FILE)
    assert "no GPU figures: GPU sampler ended with code -9" in told
    assert "no GPU figures" not in render_status({"governor": governor, "runs": []}, FILE)


@pytest.mark.parametrize("rate", [None, 22.0])
def test_without_a_price_dollars_are_null_for_programs(rate: float | None) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    run = run_status(world.node.runs["llama"], MonoNs(world.mono))
    run |= {"spend_usd": 0.0, "spend_rate_usd_per_hour": rate, "wasted_usd": 0.0, "wasted_usd_by_cause": {"halt": 0.0}}
    run["time"] = time_row(Whole({Cause.PRODUCTIVE: Amount(2 * NS_PER_S), Cause.DATA: Amount(NS_PER_S)}, 2, {}))
    (told,) = for_programs({"governor": {"node": "n"}, "runs": [run]})["runs"]
    time = told["time"]
    figures = [told["spend_usd"], told["wasted_usd"], told["wasted_usd_by_cause"], time["usd"], time["productive_usd"]]
    figures += [one[name] for one in time["causes"] for name in ("usd", "usd_per_hour")]
    assert {figure is None for figure in figures} == {rate is None}
    assert run["time"]["usd"] == 0.0  # What the tables are drawn of.


def fleet(**changes: object) -> dict[str, object]:
    return {"problem": None, "orders_read": True, "orders": [], "grants": [], **changes}


def test_a_fleet_that_is_well_takes_no_line() -> None:
    granted = {"run": "llama", "scope": "fleet", "why": None, "lasts_s": 300.0}
    assert fleet_notes(None) == fleet_notes(fleet(grants=[granted])) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": "fleet: there is no such file"},
        {"orders_read": False},
        {"orders": [{"id": "halt-00000a", "act": "halt", "scope": "fleet", "by": "ann@ops", "reason": "x\x1b"}]},
        {"grants": [{"run": "llama", "scope": "fleet", "why": "silent", "lasts_s": 88.0}]},
    ],
)
def test_what_is_wrong_with_a_fleet_or_ordered_is_one_printable_line(changes: dict[str, object]) -> None:
    [line] = fleet_notes(fleet(**changes))
    assert line.isprintable()


def test_a_run_that_has_ended_lives_on_nothing() -> None:
    ended = {"run": "llama", "scope": "fleet", "why": "silent", "lasts_s": 88.0, "has_ended": True}
    assert fleet_notes(fleet(grants=[ended])) == []
