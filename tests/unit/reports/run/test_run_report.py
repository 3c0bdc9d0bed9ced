"""A run's account adds up, whatever it is shown as, and what a stranger named cannot steer a page."""

from __future__ import annotations

import colorsys
import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from governor.core.attribution.causes import Cause
from governor.core.base.model_speed import SLICED
from governor.core.base.units import NS_PER_S
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import Ack, PhaseChange
from governor.core.events.machine import GpuSample
from governor.planner.catalog import driver_peaks
from governor.reports.causes import WORTH_FRAC
from governor.reports.incident.page import incident_page
from governor.reports.run.compare import SAME, compare_document, is_regression
from governor.reports.run.document import run_document
from governor.reports.run.drawn import COLOUR_OF, page
from governor.reports.run.facts import RunFacts, speed_of
from governor.reports.run.sections import adding_up, sections
from governor.reports.run.series import RunSeries
from governor.text.svg import CURVE, CURVE_ON_DARK, RED, RED_ON_DARK
from governor.wire.recorded import break_note
from tests.golden.report_cases import nan_halt
from tests.golden.run_report_cases import (
    CASES,
    FIRST,
    account,
    at,
    bare_run,
    hello,
    hostile_run,
    step,
    trained,
    whole_run,
)
from trainer_shim.wire import worded


@pytest.mark.parametrize("case", CASES)
def test_productive_time_and_causes_add_up(case: str) -> None:
    document = run_document(CASES[case]())
    assert document["productive_s"] + sum(one["s"] for one in document["causes"]) == pytest.approx(document["wall_s"])
    dollars = [document["productive_usd"], *(one["usd"] for one in document["causes"])]
    if document["usd"] is None:  # Without a price no part of it is a number.
        assert {*dollars, *(one["usd_per_hour"] for one in document["causes"])} == {None}
    else:
        assert sum(dollars) == pytest.approx(document["usd"])
    assert (document["usd"] is None) == (case == "bare")
    assert {"run", "wall_s", "usd", "productive_s", "mfu", "goodput"} <= document.keys()
    for cause in document["causes"]:
        assert {"cause", "s", "usd", "confidence", "evidence", "next_step"} <= cause.keys()
    json.dumps(worded(document), allow_nan=False)


@pytest.mark.parametrize("total", [0.000_007, 0.3, 2.08, 1_234.56])
def test_printed_dollars_add_up_to_the_printed_total(total: float) -> None:
    amounts = [total * part for part in (0.1, 0.2, 0.333_333, 0.366_667)]
    *rows, whole = (round(float(one[1:].replace(",", "")) * 1e6) for one in adding_up(amounts, total))
    assert sum(rows) == whole


def test_mfu_is_absent_where_one_of_its_figures_is() -> None:
    whole = whole_run()
    assert speed_of(whole).mfu == pytest.approx(6 * 1e9 * 32_768 / (2 * 989e12))
    no_peak = RunFacts("a", whole.told, "ended", series=whole.series)
    assert run_document(no_peak)["mfu"] is None
    assert any("name it with --gpu" in line for line in run_document(no_peak)["not_verified"])
    fast = RunFacts("a", whole.told, "ended", series=trained(length=0.01), peak=whole.peak)
    assert speed_of(fast).mfu is None
    assert any("would be above 1" in line for line in run_document(fast)["not_verified"])
    no_gpu = trained(steps=5)
    no_gpu.has_gpus = False
    assert speed_of(RunFacts("a", whole.told, "ended", series=no_gpu, peak=whole.peak)).mfu is None


def test_the_gpus_names_in_the_recording_tell_their_peak() -> None:
    series = trained(steps=5)
    series.see(GpuSample(at(30), None, (0.9, 0.9), names=("NVIDIA H100 80GB HBM3",) * 2))
    named = RunFacts("a", whole_run().told, "ended", series=series, peaks=driver_peaks())
    document = run_document(named)
    assert document["mfu"] == pytest.approx(6 * 1e9 * 32_768 / (2 * 989e12))
    assert document["throughput"]["gpu"] == "H100-SXM-80GB"
    assert document["throughput"]["model_flops_per_s"] == pytest.approx(6 * 1e9 * 32_768)
    series.see(GpuSample(at(31), None, (0.9,), figures=(GpuFigures(is_mig=True),)))
    assert run_document(named)["mfu"] is None
    assert run_document(named)["throughput"]["gpu"] is None
    assert f"no MFU: {SLICED}" in run_document(named)["not_verified"]


def test_a_run_of_which_little_is_known_says_so() -> None:
    unseen = " ".join(run_document(bare_run())["not_verified"])
    for words in ("goes on", "no price was known", "no recording", "30.0% of its time has no known cause"):
        assert words in unseen
    nothing = run_document(RunFacts("a", {}, "unknown"))
    assert nothing["wall_s"] is None
    assert sections(nothing)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("case", CASES)
def test_the_page_fetches_nothing_and_runs_nothing(case: str) -> None:
    facts = CASES[case]()
    text = page(run_document(facts), facts.series)
    parser = _Tags()
    parser.feed(text)
    tags = {tag for tag, _ in parser.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "a", "b", "x"}
    names = {name for _, attributes in parser.found for name in attributes}
    assert not any(name.startswith("on") or name in ("src", "href") for name in names)
    assert "url(" not in text
    assert "@import" not in text
    assert "\x1b" not in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_of_a_long_run_stays_small() -> None:
    facts = whole_run()
    long = RunFacts("long", facts.told, "ended", series=trained(steps=30_000), peak=facts.peak)
    assert len(page(run_document(long), long.series)) < 400_000


def test_hostile_names_stay_text() -> None:
    facts = hostile_run()
    text = page(run_document(facts), facts.series)
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text
    assert re.search(r"<script", text) is None


def run(name: str, **over: Any) -> RunFacts:
    return RunFacts(name, whole_run().told, "ended", None, None, 22.0, series=trained(**over))


def verdicts(before: RunFacts, after: RunFacts) -> dict[str, str]:
    return {one["figure"]: one["verdict"] for one in compare_document(before, after)["figures"]}


def test_a_run_and_itself_do_not_differ() -> None:
    found = compare_document(run("a"), run("a"))
    assert found["beyond_noise"] == []
    assert not is_regression(found)
    assert verdicts(run("a"), run("a"))["tokens a second"] == SAME


def test_a_slower_run_is_worse_in_speed_and_price_and_in_the_part_that_is_longer() -> None:
    before, after = run("a"), run("b", length=2.6, data_s=1.0)
    found = verdicts(before, after)
    assert found["tokens a second"] == found["$/1M tokens, steady"] == found["data"] == "worse"
    assert found["forward"] == SAME
    assert is_regression(compare_document(before, after))
    assert verdicts(after, before)["tokens a second"] == "better"


def test_of_a_run_without_a_recording_nothing_is_claimed() -> None:
    found = verdicts(RunFacts("a", whole_run().told, "ended"), run("b"))
    assert found["tokens a second"] == "unknown"
    assert "step" in found


def test_so_few_steps_are_not_told_apart() -> None:
    assert verdicts(run("a", steps=5), run("b", steps=5, length=4.0))["step"] == "too few windows to tell"


def evidence_of(cause: str, facts: RunFacts) -> str:
    return next(one["evidence"] for one in run_document(facts)["causes"] if one["cause"] == cause)


def test_evidence_of_data_names_the_rank_that_starves() -> None:
    facts = whole_run()
    assert facts.series is not None
    for rank in (0, 1):
        facts.series.see(hello(300, rank))  # Behind its gap.
    for number in range(200, 300):
        facts.series.see_other({"rank": 1, "step": number, "step_s": 2.0, "data_s": 1.4, "forward_s": 0.2})
    assert "s on rank 1" in evidence_of("data_starvation", facts)


def test_evidence_of_communication_has_the_time_in_collectives_of_a_step() -> None:
    assert "200 ms of a step of 2 s" in evidence_of("exposed_communication", whole_run())


def test_a_pause_between_two_launches_is_no_gap_of_the_recording() -> None:
    """Within an attempt it is, and lost lines are lost at any time."""
    for notes, gaps in ((("exited", "gap"), 0), (("halted", "gap"), 0), (("gap",), 1), (("exited", "lost"), 1)):
        series = RunSeries()
        series.see(hello(0))
        series.see(step(2, 1))
        for number, note in enumerate(notes):
            row = break_note(at(3 + number))
            row |= {"lines": 4} if note == "lost" else {"note": note}
            series.note(row, at(3 + number))
        series.see(hello(60, attempt="a2"))
        assert series.gaps == gaps
        assert [mark.kind for mark in series.marks].count("gap") == gaps


@pytest.mark.parametrize(("note", "step_at", "more"), [("halted", 123, 1), ("halted", 120, 0), ("exited", 123, 0)])
def test_steps_behind_a_verdict_are_told_as_not_recorded(note: str, step_at: int, more: int) -> None:
    series = trained(steps=120)
    series.note({**break_note(at(400)), "note": note}, at(400))
    seen = trained(steps=120)
    ended, plain = (
        run_document(RunFacts("a", {**whole_run().told, "step": step_at}, "ended", series=one))["not_verified"]
        for one in (series, seen)
    )
    assert len(ended) == len(plain) + more


def test_a_priced_run_that_has_spent_nothing_is_not_told_as_one_without_a_price() -> None:
    nothing = dataclasses.replace(whole_run(), told={"time": account() | {"usd": 0.0}}, node_usd_per_hour=22.0)
    priced, unpriced = (run_document(dataclasses.replace(nothing, node_usd_per_hour=rate)) for rate in (22.0, None))
    assert "$0.00" in sections(priced)[0].lines[0]
    assert "$" not in sections(unpriced)[0].lines[0]
    assert len(unpriced["not_verified"]) == len(priced["not_verified"]) + 1


def held(cause: str, series: RunSeries) -> str:
    """The evidence of such a cause, where the account has nothing else."""
    told = {"time": {"wall_s": 60.0, "usd": 1.0, "causes": [{"cause": cause, "s": 1.0, "usd": 1.0, "evidence": "e"}]}}
    told["time"]["causes"][0] |= {"next_step": None, "confidence": "high"}
    return evidence_of(cause, RunFacts("a", told, "ended", series=series))


@pytest.mark.parametrize("ranks", [1, 2])
def test_saves_and_their_wait_are_told_in_one_unit_and_one_rank_waits_for_none(ranks: int) -> None:
    series = RunSeries()
    for rank in range(ranks):
        series.see(hello(0, rank, world_size=ranks))
    for number in range(1, 60):
        series.see(step(10 + 20 * number, number, step_s=20.0, checkpoint_s=1.0 if number in (30, 50) else 0.0))
        if ranks > 1:
            waited = {"step": number, "step_s": 20.0, "checkpoint_s": 3.0 if number in (30, 50) else 0.0}
            series.see_other({"rank": 1, **waited})
    told = held("checkpoint_stall", series)
    assert "of a step" not in told
    assert told.count("in all") == ranks


def test_evaluations_are_told_with_their_number_and_in_seconds_of_all_of_the_run() -> None:
    series = RunSeries()
    series.see(hello(0, world_size=1))
    for number in range(1, 60):
        if number in (20, 40):
            series.see(PhaseChange(at(20 * number - 5), FIRST, "llama", 0, "eval", number))
        series.see(step(20 * number, number, step_s=20.0, eval_s=1.5 if number in (20, 40) else 0.0))
    told = held("evaluation", series)
    assert "of a step" not in told
    assert re.search(r"\b2 \w+, 3 s in all", told)


def test_the_first_step_is_no_pace_but_its_tokens_count() -> None:
    series = trained(steps=1)
    assert (series.tokens, series.tokens_per_s) == (65_536, None)


def halted(waited_s: float, **over: Any) -> RunFacts:
    """Of the 7 s of its halt it waited for a checkpoint."""
    facts = whole_run()
    opened = facts.halts[0]["opened_mono_ns"]
    timeline = [
        {"what": what, "mono_ns": opened + round(s * NS_PER_S), "wall_ns": 0, "detail": {}}
        for what, s in (("asked", 0.0), ("term", waited_s), ("term", 90.0))
    ]
    told = {**facts.halts[0], "timeline": timeline, "checkpoint": None} | over
    return dataclasses.replace(facts, halts=[told])


def test_a_halt_that_waited_in_vain_for_a_checkpoint_has_a_next_step() -> None:
    advised = halted(5.0)
    (halt,) = (one for one in run_document(advised)["causes"] if one["cause"] == "halt")
    assert "llama.gpu-17.1" in halt["next_step"]
    for other in (halted(2.0), halted(5.0, checkpoint={"path": "/a"}), halted(5.0, kind="none"), whole_run()):
        (halt,) = (one for one in run_document(other)["causes"] if one["cause"] == "halt")
        assert halt["next_step"] is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_of_one_rank_lacks_no_communication(ranks: int) -> None:
    series = RunSeries()
    series.see(hello(0, world_size=ranks))
    for number in range(1, 9):
        series.see(step(number, number, comm_s=None))
    told = run_document(dataclasses.replace(bare_run(), series=series))["not_verified"]
    assert any("collectives" in line for line in told) is (ranks > 1)


def test_pages_of_runs_and_of_incidents_have_the_same_colours_on_a_dark_screen() -> None:
    facts = whole_run()
    dark = [
        set(re.findall(r'\[(?:stroke|fill)="(#\w+)"\] { (?:stroke|fill): (#\w+)', text))
        for text in (page(run_document(facts), facts.series), incident_page(nan_halt(), None))
    ]
    assert dark[0] == dark[1] == {(CURVE, CURVE_ON_DARK), (RED, RED_ON_DARK)}


def test_a_cause_that_is_not_worth_an_hour_has_no_advice() -> None:
    """In no section: at 0 ms, and below the share from which it is among what to fix first."""
    facts = whole_run()
    little = account(LOOP=(0.0, 0.000001), CHECKPOINT=(2.0, 0.012))
    document = run_document(dataclasses.replace(facts, told={**facts.told, "time": little}))
    told = {one["cause"]: one for one in document["causes"]}
    small = [one for one in told.values() if one["next_step"] and one["share"] < WORTH_FRAC]
    assert {one["cause"] for one in small} >= {"loop_code", "checkpoint_stall"}
    (items,) = (one.items for one in sections(document) if one.title == "Evidence")
    assert not [item for item in items for one in small if one["next_step"] in item]
    assert [item for item in items if told["data_starvation"]["next_step"] in item]


def test_what_comes_once_is_told_by_what_it_cost() -> None:
    (items,) = (one.items for one in sections(run_document(whole_run())) if one.title == "What to fix first")
    assert [item for item in items if "/h:" in item]
    assert not [item for item in items if item.startswith("start up") and "/h:" in item]


def test_a_save_is_told_in_one_order() -> None:
    """Its acknowledgement comes before the seconds of its step, or behind them."""
    texts = []
    for is_first in (True, False):
        series = RunSeries()
        series.see(hello(0))
        series.see(step(1, 1))
        series.see(PhaseChange(at(1.5), FIRST, "llama", 0, "checkpoint", 1))
        events = [Ack(at(2), FIRST, "llama", 0, 3, "own", "saved", 1), step(3, 2, checkpoint_s=0.25)]
        for event in events if is_first else reversed(events):
            series.see(event)
        texts.append(next(mark.text for mark in series.marks if mark.kind == "save"))
    assert len(set(texts)) == 1


def luminance(colour: str) -> float:
    """As WCAG has it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("ground", ["#ffffff", "#0d1117"])
def test_each_colour_of_a_cause_is_seen_on_light_and_on_dark(ground: str) -> None:
    for cause, colour in COLOUR_OF.items():
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3, cause


def test_each_cause_has_a_colour_of_its_own_and_training_alone_is_green() -> None:
    assert COLOUR_OF.keys() == {cause.value for cause in Cause}
    assert len({*COLOUR_OF.values()}) == len(COLOUR_OF)
    hues: dict[str, set[str]] = {"green": set(), "red": set()}
    for cause, colour in COLOUR_OF.items():
        hue, _, saturation = colorsys.rgb_to_hls(*(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)))
        if saturation > 0.1 and 70 < 360 * hue < 170:
            hues["green"].add(cause)
        if saturation > 0.1 and not 12 < 360 * hue < 345:
            hues["red"].add(cause)
    assert hues == {"green": {"productive"}, "red": {"halt", "hang", "hardware"}}


def test_a_cause_has_the_same_colour_whatever_it_is_beside() -> None:
    """The largest cause of one report is a small one of the next."""
    found = []
    for seconds in (1.0, 500.0):
        told = {**whole_run().told, "time": account(DATA=(seconds, 0.1))}
        shown = page(run_document(dataclasses.replace(whole_run(), told=told)), None)
        found.append(re.findall(r"background:(#[0-9a-f]{6})\" title=\"data starvation", shown))
    assert found == [[COLOUR_OF["data_starvation"]]] * 2
