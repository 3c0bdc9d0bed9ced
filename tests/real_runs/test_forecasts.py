"""How long the second half of a healthy run took, forecast from its first: do the 80 % intervals hold it?

The logs tell steps and no tokens, so windows are of equally many steps: 16, 40 and 100 of them in a log that has as
many records. The speed runs of one source (`modded`) make their batches larger at set steps, each a jump.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S, DurationNs, UsdMicros
from governor.core.money.forecast import RECENT_WINDOWS, forecast
from governor.core.money.token_windows import Window
from tests.real_runs.corpus import ARCHIVE, unpack

pytestmark = pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no archive of real runs at {ARCHIVE}")

WINDOWS = (16, 40, 100)
STEP = 1_000_000  # What one counts as, in tokens.
# The share that held, less 0.04, by the tier of the run and over all numbers of windows.
HELD = {"lm": 0.71, "seq": 0.78, "other": 0.71, "modded": 0.57}
ROUNDED_S = 0.01  # Logs round their times.


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {name: [] for name in HELD}
    for log in unpack(tmp_path_factory.mktemp("real_runs")):
        meta, points = read(log)
        if meta.get("role") == "healthy" and meta["clock"] in ("wall", "train"):
            found["modded" if meta["source"] == "modded" else meta["tier"]] += judged(points)
    return found


@pytest.mark.parametrize("tier", list(HELD))
def test_the_second_half_lies_inside_as_often_as_the_page_says(held: dict[str, list[bool]], tier: str) -> None:
    assert len(held[tier]) >= 290
    assert HELD[tier] <= statistics.fmean(held[tier]) <= HELD[tier] + 0.08


def read(log: Path) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """What it is, and when it had come to each step for the first time."""
    first, *lines = log.read_text().splitlines()
    points: list[tuple[int, float]] = []
    for line in lines:
        record = json.loads(line)
        step, t = record.get("step"), record.get("t")
        if step is not None and t is not None and (not points or step > points[-1][0]):
            points.append((step, t))
    return json.loads(first).get("meta", {}), points


def judged(points: list[tuple[int, float]]) -> Iterator[bool]:
    for count in WINDOWS:
        cut = windows(points, count) if len(points) > max(count, 11) else []
        known, ahead = cut[: len(cut) // 2][-RECENT_WINDOWS:], cut[len(cut) // 2 :]
        if len(cut) < 8 or any(window.duration_ns < 0 for window in cut):
            continue
        told = forecast(known, sum(window.tokens for window in ahead))
        if told is not None and told.hours_left.low is not None and told.hours_left.high is not None:
            took_s = sum(window.duration_ns for window in ahead) / NS_PER_S
            low_s, high_s = told.hours_left.low * 3600, told.hours_left.high * 3600
            yield low_s - ROUNDED_S <= took_s <= high_s + ROUNDED_S


def windows(points: list[tuple[int, float]], count: int) -> list[Window]:
    """About so many, without the first, which has the start in it. Each ends with the step that completes it."""
    size = (points[-1][0] - points[0][0]) / count
    begun, cut = points[0], []
    for step, t in points[1:]:
        if step >= begun[0] + size:
            took = DurationNs(round((t - begun[1]) * NS_PER_S))
            cut.append(Window(begun[0] * STEP, step * STEP, took, UsdMicros(0), 0))
            begun = (step, t)
    return cut[1:]
