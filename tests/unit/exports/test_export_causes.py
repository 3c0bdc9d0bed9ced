"""`costgov export`: seconds and dollars by cause, a step's further parts, and what a driver tells of GPUs."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from governor.core.attribution.account import Amount, TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S
from governor.core.events.hardware import GpuFigures
from governor.core.events.machine import GpuSample
from governor.core.events.step_parts import OF_WHICH_FIELDS
from governor.exports.series import OF_FRAMES, SPEND
from governor.replay.logs import records
from governor.wire import recording
from tests.tidy.sources import ROOT
from tests.unit.exports.exported import (
    RUN,
    account_row,
    at,
    charge,
    hello,
    leave_journal,
    leave_recording,
    read_lines,
    step,
)
from tests.unit.exports.test_export import document, export
from tests.unit.exports.test_export_goodput import READS
from trainer_shim.wire import FRAMES

SECONDS: dict[str, Any] = {"data_s": 0.25, "forward_s": 0.25, "backward_s": 0.5}


def leave(state: Path, *, charges: list[dict[str, Any]], last: int = 40) -> None:
    """A step a second from second 1 to `last`, a quarter of each of which is data; the ledger began before."""
    told = [step(n, n, step_s=1.0, **SECONDS) for n in range(1, last + 1)]
    leave_recording(state, [hello(0), *told])
    leave_journal(state, [], charges)


def causes(directory: Path, suffix: str) -> list[dict[str, float]]:
    return [
        {name.removesuffix(suffix): value for name, value in line.items() if name.endswith(suffix)}
        for line in read_lines(directory / "causes.jsonl")
    ]


def test_causes_add_up_to_the_recordings_time_and_to_its_money(state: Path, tmp_path: Path) -> None:
    leave(state, charges=[charge("c1", -100, 0, 5_000_000), charge("c2", 0, 20, 400), charge("c3", 20, 40, 1_200)])
    document(RUN, "--jsonl", str(tmp_path))
    lines = read_lines(tmp_path / "causes.jsonl")
    seconds, usd = causes(tmp_path, "_s"), causes(tmp_path, "_usd")
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 40], "every ten seconds, and at the end"
    assert math.isclose(sum(seconds[-1].values()), 40)
    assert math.isclose(sum(usd[-1].values()), 0.0016), "what was charged before is in no cause"
    assert math.isclose(seconds[-1]["data_starvation"], 10, abs_tol=0.3)
    for before, after in pairwise(seconds):
        assert all(after[cause] >= value for cause, value in before.items()), "cumulative"


@pytest.mark.parametrize("form", READS)
@pytest.mark.parametrize("each_s", [0.125, 1.0])
def test_a_steps_spend_is_that_of_its_moment_whoever_asks_for_later_ones(
    state: Path, tmp_path: Path, form: str, each_s: float
) -> None:
    leave_recording(state, [hello(0), *(step(n * each_s, n, step_s=each_s, **SECONDS) for n in range(1, 41))])
    leave_journal(state, [], [charge("c1", 0, 40 * each_s, 4_000_000)])
    option, name = READS[form]
    document(RUN, option, str(tmp_path))
    told = (one for _, one in records(tmp_path / name, {"spend": (SPEND,)}) if isinstance(one, dict))
    key = SPEND.partition("/")[2] if form == "jsonl" else SPEND
    assert [one[key] for one in told if key in one] == pytest.approx([n / 10 for n in range(1, 41)], rel=1e-6)


@pytest.mark.parametrize("own_s", [3, 400])
@pytest.mark.parametrize(("counted_to_s", "is_told"), [(100, True), (40, True), (15, True), (5, False), (None, False)])
def test_the_last_causes_are_the_runs_own_account_unless_that_ends_before_the_recording(
    state: Path, tmp_path: Path, counted_to_s: int | None, own_s: int, *, is_told: bool
) -> None:
    amounts = {Cause.PRODUCTIVE: Amount(NS_PER_S, 100), Cause.OTHER_TENANTS: Amount((own_s - 1) * NS_PER_S, 3_900)}
    row = account_row(TimeAccount(by_cause=amounts, has_begun=True), counted_to_s or 0)
    if counted_to_s is None:
        del row["wall_ns"]
    leave_recording(state, [hello(0), *(step(n, n, step_s=1.0, **SECONDS) for n in range(1, 41))])
    leave_journal(state, [], [charge("c1", 0, 40, 4_000)], {RUN: row})
    code, out, err = export(RUN, "--jsonl", str(tmp_path), "--json")
    told = json.loads(out)
    assert (code, told["is_own_account"]) == (0, is_told)
    assert told["account_behind_s"] == (35 if counted_to_s == 5 else None)
    assert err.count("\n") == (counted_to_s == 5), "one line says it"
    last = {cause: value for cause, value in causes(tmp_path, "_s")[-1].items() if value}
    assert (last == {"productive": 1.0, "other_tenants": own_s - 1.0}) is is_told
    assert (causes(tmp_path, "_usd")[-1].get("other_tenants") == 0.0039) is is_told


def test_an_account_is_as_old_as_its_own_count_whenever_its_row_was_written(state: Path, tmp_path: Path) -> None:
    account = TimeAccount(by_cause={Cause.PRODUCTIVE: Amount(40 * NS_PER_S)}, has_begun=True)
    account.held.boot_to = at(5)
    leave_recording(state, [hello(0), *(step(n, n, step_s=1.0, **SECONDS) for n in range(1, 41))])
    leave_journal(state, [], [], {RUN: account_row(account, 300)})
    assert json.loads(export(RUN, "--jsonl", str(tmp_path), "--json")[1])["account_behind_s"] == 35


def test_without_a_price_causes_have_seconds_alone(state: Path, tmp_path: Path) -> None:
    leave(state, charges=[])
    document(RUN, "--jsonl", str(tmp_path))
    assert causes(tmp_path, "_usd")[-1] == {}
    assert math.isclose(sum(causes(tmp_path, "_s")[-1].values()), 40)


def test_time_in_which_nobody_recorded_is_unknown(state: Path, tmp_path: Path) -> None:
    leave_recording(state, [hello(0), step(1, 1), step(2, 2), recording.gap(at(2), 0), step(62, 3)])
    document(RUN, "--jsonl", str(tmp_path))
    assert causes(tmp_path, "_s")[-1]["unknown"] >= 60


def test_no_recording_has_no_causes(state: Path, tmp_path: Path) -> None:
    leave_journal(state)
    assert export(RUN, "--jsonl", str(tmp_path))[0] == 0
    assert read_lines(tmp_path / "causes.jsonl") == []


@pytest.mark.parametrize("every", ["1", "7"])
def test_causes_are_in_event_files_whatever_steps_are_left_out(state: Path, tmp_path: Path, every: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    leave(state, charges=[charge("c2", 0, 40, 1_600)])
    document(RUN, str(tmp_path), "--to", "tensorboard", "--every", every)
    read = EventAccumulator(str(tmp_path / RUN))
    read.Reload()
    told = {name: read.Scalars(f"cause/{name}")[-1].value for name in ("data_starvation_s", "data_starvation_usd")}
    assert math.isclose(told["data_starvation_s"], 10, abs_tol=0.3)
    assert math.isclose(told["data_starvation_usd"], 0.0004, abs_tol=0.00002)


def test_every_part_of_a_step_is_a_series(state: Path, tmp_path: Path) -> None:
    named = [name for name in FRAMES["step"] if name.endswith("_s") and name != "step_s"]
    parts: dict[str, Any] = {name: 0.125 for name in named if name not in OF_WHICH_FIELDS}
    within: dict[str, Any] = dict.fromkeys(OF_WHICH_FIELDS, 0.0625)
    leave_recording(state, [hello(0), step(10, 1, step_s=2.0, **parts, **within)])
    document(RUN, "--jsonl", str(tmp_path))
    _, line = read_lines(tmp_path / "performance_metrics.jsonl")
    assert {name: value for name, value in line.items() if name.endswith("_s")} == {
        "step_s": 2.0, **parts, **within, "other_s": 2.0 - 0.125 * len(parts),
    }  # fmt: skip


def test_every_series_of_a_step_has_its_place_in_the_documents() -> None:
    page = (ROOT / "docs/howto/export.md").read_text(encoding="utf-8")
    names = {name: (f"`{name}`", f"`{name.split('/')[1]}`") for name in OF_FRAMES.values()}
    assert not [name for name, shown in names.items() if not any(one in page for one in shown)]


def test_gpus_have_what_the_driver_tells(state: Path, tmp_path: Path) -> None:
    told = GpuFigures(power_w=650.5, temperature_c=71.0, xid_total=1, xids=(79,), is_lost=True)
    sample = GpuSample(at(2), RUN, (0.5, 0.25), ("GPU-a", "GPU-b"), figures=(told, GpuFigures()))
    leave_recording(state, [hello(0), step(1, 1), recording.gpus(sample)])
    document(RUN, "--jsonl", str(tmp_path))
    first, second = read_lines(tmp_path / "gpu_metrics.jsonl")
    assert first == {
        "timestamp": "2027-01-15T08:00:02.000000Z", "step": 1, "gpu": 0, "uuid": "GPU-a", "busy_frac": 0.5,
        "power_w": 650.5, "temperature_c": 71.0, "xid_total": 1.0, "is_lost": 1.0,
    }  # fmt: skip
    assert second["busy_frac"] == 0.25
    assert "power_w" not in second, "unknown is not zero"
