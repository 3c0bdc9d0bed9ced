"""The alert rules and the dashboard name metrics and pages that exist, and Grafana's own types know every key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from docs.generators.dashboard import COLUMNS, PANELS
from governor.adapters.exporters.prometheus_machine import MACHINE_METRICS
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.core.attribution.causes import Cause, When
from governor.core.events.hardware import FATAL_XIDS
from tests.tidy.sources import ROOT

RULES = "deploy/prometheus/costgov.rules.yml"
DASHBOARD = "deploy/grafana/costgov.json"
KNOWN = {metric.name for metric in (*METRICS, *info_metrics("", ""))}


@pytest.mark.parametrize("file", [RULES, DASHBOARD])
def test_every_metric_that_is_asked_for_exists(file: str) -> None:
    text = re.sub(r"^ *#.*$", "", (ROOT / file).read_text(), flags=re.MULTILINE)
    named = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\bcostgov_\w+", text)}
    assert len(named) > 20
    assert named <= KNOWN, f"{file} asks for what nobody exports: {sorted(named - KNOWN)}"


@pytest.mark.parametrize("file", [RULES, DASHBOARD])
def test_every_cause_that_is_named_exists(file: str) -> None:
    matched = re.findall(r'cause!?[=~]+\\?"([^"\\]+)', (ROOT / file).read_text())
    assert matched
    assert {cause for one in matched for cause in one.split("|")} <= {cause.value for cause in Cause}


def test_the_alert_of_large_causes_leaves_out_what_is_chosen_and_what_comes_once_a_launch() -> None:
    (left_out,) = re.findall(r'ratio_rate1h\{cause!~"([^"]+)"\} > 0.15', (ROOT / RULES).read_text())
    of_their_own = {Cause.PRODUCTIVE, Cause.HALT, Cause.IDLE}  # No loss, and what other alerts tell.
    expected = {cause for cause in Cause if cause.when in (When.CHOSEN, When.LAUNCH)} | of_their_own
    assert set(left_out.split("|")) == {cause.value for cause in expected}


def test_the_xids_of_the_alert_are_the_triggers() -> None:
    told = re.findall(r"costgov_gpu_xid_last == (\d+)", (ROOT / RULES).read_text())
    assert [int(number) for number in told] == sorted(FATAL_XIDS)


def test_every_metric_of_the_machine_has_a_panel() -> None:
    text = (ROOT / DASHBOARD).read_text()
    assert [metric.name for metric in MACHINE_METRICS if not re.search(rf"\b{metric.name}\b", text)] == []


def test_every_alert_has_its_page() -> None:
    text = (ROOT / RULES).read_text()
    alerts, pages = re.findall(r"- alert: (\w+)", text), re.findall(r"runbook: (\S+)", text)
    assert len(alerts) == len(set(alerts)) == len(pages)
    for page in pages:
        path, _, anchor = page.partition("#")
        assert not anchor or f"\n## {anchor}\n" in (ROOT / path).read_text(), page
    told = (ROOT / "docs/howto/monitoring.md").read_text()
    assert set(alerts) <= set(re.findall(r"`(\w+)`", told)), "docs/howto/monitoring.md has no row for it"
    assert f"has {text.count('expr:')} rules" in told


def test_grafanas_own_types_know_every_key() -> None:
    """What their classes do not have would be lost on the way through them and back."""
    register_default_plugins()
    raw = json.loads((ROOT / DASHBOARD).read_text())
    assert list(_lost(raw, _through(raw), "")) == []
    planted = raw | {"panels": [raw["panels"][1] | {"colour": "red"}]}
    assert list(_lost(planted["panels"], _through(planted)["panels"], "")) == ["[0].colour"]


def _through(raw: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(Dashboard.from_json(raw), cls=JSONEncoder))
    return told


def _lost(raw: Any, back: Any, place: str) -> Iterator[str]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            if not isinstance(back, dict) or key not in back:
                yield f"{place}.{key}"
            else:
                yield from _lost(value, back[key], f"{place}.{key}")
    elif isinstance(raw, list):
        assert isinstance(back, list)
        assert len(raw) == len(back), place
        for number, (one, other) in enumerate(zip(raw, back, strict=True)):
            yield from _lost(one, other, f"{place}[{number}]")
    elif raw != back:
        yield f"{place}: {raw!r} became {back!r}"


def test_panels_have_their_own_place_and_number() -> None:
    panels = json.loads((ROOT / DASHBOARD).read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells


def test_a_panel_that_may_be_empty_says_when() -> None:
    assert [panel.title for panel in PANELS if panel.needs and "Empty without" not in panel.description] == []
