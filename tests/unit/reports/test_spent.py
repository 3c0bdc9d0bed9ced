"""What a run has spent, as every view of its halt tells it: known, unknown, or paid by another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.cli.incident.command import row as listed
from governor.reports.incident import incident_document, incident_markdown, timeline_lines
from governor.text.incident_money import spent_text
from tests.golden.report_cases import hang_deaf, nan_halt
from tests.unit.cli.test_ended import call, home, leave

__all__ = ["home"]  # A fixture.


def test_an_unknown_price_is_not_zero() -> None:
    document = incident_document(hang_deaf() | {"wasted_usd_micros": {"hang": 0}})
    spent = ("spend_usd", "spend_at_verdict_usd", "spend_usd_micros", "spend_at_verdict_usd_micros")
    assert {name: document[name] for name in (*spent, "wasted_usd_micros")} == dict.fromkeys(
        (*spent, "wasted_usd_micros")
    )
    assert "$0" not in "\n".join(timeline_lines(hang_deaf()))


def test_a_list_for_programs_has_no_zero_of_an_unknown_price(home: Path) -> None:
    leave(home, hang_deaf(), nan_halt())
    code, out, _ = call("incident", "list", "--json")
    assert code == 0
    spent = {one["incident_id"]: one["spend_usd_micros"] for one in json.loads(out)}
    priced = nan_halt()
    assert spent == {hang_deaf()["incident_id"]: None, priced["incident_id"]: priced["spend_usd_micros"]}


def test_a_halt_that_was_over_before_the_next_tick_does_not_say_that_it_cost_nothing() -> None:
    halted = nan_halt() | {"spend_at_verdict_usd_micros": 2_000_000, "spend_usd_micros": 2_000_000}
    assert spent_text(halted).startswith("$2.00 (nothing was charged since the verdict) at ")


def test_a_halted_run_whose_time_another_run_has_taken_over_has_spent_nothing_negative() -> None:
    halted = nan_halt() | {"spend_at_verdict_usd_micros": 2_000_000, "spend_usd_micros": 0}
    assert spent_text(halted).startswith("$0.00 (another run has taken its time over) at ")


@pytest.mark.parametrize(
    ("over", "text", "cell", "is_unknown"),
    [
        ({"paid_by": None, "spend_usd_micros": 0}, "unknown: no price is known for this machine", "unknown", True),
        ({"paid_by": None, "spend_usd_micros": 40_000}, "$0.0400, as far as a price was known", "$0.0400", False),
        ({"paid_by": "a", "spend_usd_micros": 0}, "nothing of its own: a pays for the command", "-", False),
        ({"paid_by": "a", "spend_usd_micros": 250_000}, "$0.2500 of its own, before: a pays", "$0.2500", False),
    ],
)
def test_what_another_run_pays_is_not_unknown_in_any_view(
    over: dict[str, Any], text: str, cell: str, is_unknown: bool
) -> None:
    halted = nan_halt() | {"spend_rate_usd_micros_per_hour": None} | over
    assert spent_text(halted).startswith(text)
    assert listed(halted)[-1] == cell
    has_spent = halted["spend_usd_micros"] > 0
    assert (incident_document(halted)["spend_usd"] is not None) == has_spent
    for told in (incident_markdown(halted), "\n".join(incident_document(halted)["not_observed"])):
        assert ("The price of this machine is unknown" in told) == is_unknown
