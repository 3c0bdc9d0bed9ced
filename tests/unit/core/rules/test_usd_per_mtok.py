"""What the verdict of dear tokens has for evidence, beside the figures of its own incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.findings import Reading
from governor.core.base.policy import Expected
from governor.core.base.units import MTOK, NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.events.inputs import Tick
from governor.core.money.paid_tokens import Bought, PaidTokens
from governor.core.money.token_windows import TokenMeter
from governor.core.rules.triggers.usd_per_mtok import UsdPerMtok
from governor.core.runs.state import Run
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, started
from tests.unit.core.engine.test_step import a_step, at, play, rule


def played(expected: Expected) -> tuple[Node, int | None]:
    """A quarter of a million tokens a second at $3.60/h, which is $0.004 for 1M; of each 100 s, 46 are a pause.

    And the second at which it was halted.
    """
    node = started("1000", tokens=1000 * MTOK)
    managed = node.runs["llama"]
    params = {"times": 1.5, "window": DurationNs(60 * NS_PER_S), "warmup_time": DurationNs(0)}
    rules = (rule("usd_per_mtok", params=params),)
    managed.judge_by(replace(managed.policy, rules=rules, expected=expected))
    number = 0
    for second in range(1, 1000):
        play(node, a_tick(second))
        if second % 100 < 55:
            number += 1
            play(node, a_step(number, when=second, tokens=MTOK // 4, tokens_total=number * MTOK // 4))
        if managed.incident is not None:
            return node, second
    return node, None


def test_a_steady_plan_has_no_pauses_held_against_it() -> None:
    """It would cost 1.8 times the plan with them. Its drift, in all views, is 0."""
    node, second = played(Expected(usd_micros_per_mtok=4_000))
    assert second is None
    assert run_status(node.runs["llama"], at(1000))["drift_frac"] == 0.0


def test_of_two_planned_prices_the_evidence_names_the_one_that_was_exceeded() -> None:
    node, _ = played(Expected(usd_micros_per_mtok=2_000, usd_micros_per_mtok_all_in=40_000))
    incident = node.runs["llama"].incident
    assert incident is not None
    told = incident_snapshot(node, incident)["evidence"]
    assert (told["expected_by"], told["usd_micros_per_mtok_of_time"]) == ("usd_per_mtok", 4_000)
    assert (told["expected_usd_micros_per_mtok"], told["times_expected"]) == (2_000, 2.0)


def test_its_evidence_has_no_name_of_another_figure() -> None:
    """Of a minute 20 s were a pause, so it cost 1.5 times the plan, while each window is on plan."""
    node, second = played(Expected(usd_micros_per_mtok=4_000, usd_micros_per_mtok_all_in=4_000))
    assert second is not None
    incident = node.runs["llama"].incident
    assert incident is not None
    told = incident_snapshot(node, incident)
    status = run_status(node.runs["llama"], at(second))
    assert (told["usd_micros_per_mtok"], status["drift_frac"]) == (4_000, 0.0)
    assert {name: told["evidence"][name] for name in ("usd_micros_per_mtok_of_time", "times_expected")} == {
        "usd_micros_per_mtok_of_time": 6_000,
        "times_expected": 1.5,
    }
    assert not {*told["evidence"]} & {*told, *status}
    assert (told["evidence"]["expected_by"], told["evidence"]["expected_usd_micros_per_mtok"]) == (
        "usd_per_mtok_all_in",
        4_000,
    )


def dear(expected: Expected) -> UsdPerMtok:
    params = {"times": 1.5, "window": DurationNs(60 * NS_PER_S), "warmup_time": DurationNs(0)}
    return UsdPerMtok({**params, "expected": expected})


@pytest.mark.parametrize("how", ["paid by another", "paid by another, trained again", "trained elsewhere"])
@pytest.mark.parametrize("key", ["usd_per_mtok", "usd_per_mtok_all_in"])
def test_tokens_that_others_have_paid_for_make_none_of_its_own_cheap(key: str, how: str) -> None:
    """$4 for 1M, where $2 are planned; in the middle of the window 200 steps cost nothing, or 100 of them twice."""
    trigger = dear(Expected(**{key.replace("usd_", "usd_micros_"): 2_000_000}))
    meter, run = TokenMeter(), Run("r", 0, at(0))
    meter.begin(0, UsdMicros(0), BootNs(0))
    run.set_paid_tokens(PaidTokens(Bought(meter=meter)))
    run.first_step_at, total, spent = at(0), 0, 0
    for second in range(1, 131):
        if second == 100 and how == "trained elsewhere":
            total += 200 * 1_000
            assert meter.go_on(total, 0) == 200 * 1_000
        if 80 < second <= 100 and how != "trained elsewhere":
            total += 10_000
            if how.endswith("again") and second == 91:
                total -= 100_000
            meter.lend(total, BootNs(at(second)))
        else:
            total, spent = total + 1_000, spent + 4_000
            meter.add(total, 1_000, UsdMicros(spent), BootNs(at(second)), has_gone_on=second == 100)
        run.tokens_total = total
        run.set_money(UsdMicros(spent), UsdMicros(14_400_000), UsdMicros(0))
        trigger.observe(Tick(at(second), BootNs(at(second)), WallNs(0)), run)
    found = trigger.judge(at(130), run)
    assert (found.reading, found.evidence.get("usd_micros_per_mtok_of_time")) == (Reading.FIRING, 4_000_000)
