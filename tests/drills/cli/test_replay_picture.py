"""The picture of a replayed log: of the promised size, with what was decided, whatever the log holds."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from governor.core.base.policy import Mode
from governor.replay.output.page import MARKS_MAX
from governor.replay.output.picture import draw, verdict_line
from tests.unit.replay.test_page import nan_policy, replayed
from tests.unit.replayed import run


def drawn(tmp_path: Path, *losses: object, name: str = "a.jsonl", **kwargs: Any) -> Any:
    """The picture's pixels: rows of (red, green, blue, opaque), each from 0 to 1."""
    path = tmp_path / "a.png"
    draw(path, name, *replayed(*losses, **kwargs))
    return image.imread(path)


def places(pixels: Any) -> list[int]:
    """In which columns, from the left, a red line runs down most of the drawing."""
    red, green, blue = (pixels[:, :, channel] for channel in range(3))
    reddish = (red - green > 0.3) & (red - blue > 0.3)
    return [column for column, count in enumerate(reddish.sum(axis=0)) if count > 500]


def test_a_halt_is_a_red_line_where_it_came(tmp_path: Path) -> None:
    early = drawn(tmp_path, 3.0, 2.5, math.nan, *[2.0] * 17)
    late = drawn(tmp_path, 3.0, *[2.0] * 17, math.nan, 2.0)
    none = drawn(tmp_path, 3.0, *[2.0] * 19)
    assert {early.shape, late.shape, none.shape} == {(1000, 1600, 4)}
    assert places(none) == []
    assert 96 + 0.08 * 1480 < places(early)[0] < 96 + 0.13 * 1480, "the third second of twenty"
    assert 96 + 0.92 * 1480 < places(late)[0] < 96 + 0.97 * 1480


def test_the_verdict_says_who_halted_when_and_whether_it_would_have(tmp_path: Path) -> None:
    replay, _ = replayed(3.0, 2.5, math.nan)
    assert verdict_line(replay) == "mine: halt by nan at step 3, 3.0s"
    observed, _ = replayed(3.0, math.nan, policy=nan_policy(Mode.OBSERVE), timed=False)
    assert verdict_line(observed) == "mine: would halt (observe mode) by nan at step 2"
    assert verdict_line(replayed(3.0)[0]) == "mine: no halt"
    often, trace = replayed(*[loss for _ in range(MARKS_MAX + 50) for loss in (1.0, math.nan)])
    draw(tmp_path / "often.png", "often", often, trace)
    assert verdict_line(often) == "mine: halt by nan at step 2, 2.0s; 250 verdicts in all"


@pytest.mark.parametrize("losses", [(), (None,), (math.nan,), (1e308, -1e308, 1e-308), (0.0, 0.0), (5e-324, 1e308)])
def test_whatever_a_log_holds_and_however_it_is_named_it_is_drawn_without_a_warning(
    tmp_path: Path, losses: tuple[object, ...]
) -> None:
    """Warnings are errors here; letters that the font has not, and formulas of TeX, are where they come from."""
    assert drawn(tmp_path, *losses, name="日本 $\\frac{ \x1b[31m" + "x" * 300).shape == (1000, 1600, 4)


def test_one_log_is_one_file_and_several_are_one_each(tmp_path: Path) -> None:
    logs = [tmp_path / "a" / "log.jsonl", tmp_path / "b" / "log.jsonl", tmp_path / "c.jsonl"]
    for path in logs:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"step": 1, "t": 1.0, "loss": 2.0}) + "\n")
    out = tmp_path / "out"
    out.mkdir()
    assert run(logs[0], "--plot", out / "x.png").exit_code == 0
    assert run(*logs, "--plot", out / "y.png").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "x.png", "y-c.jsonl.png", "y-log.jsonl-2.png", "y-log.jsonl.png",
    ]  # fmt: skip


def test_without_matplotlib_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(log, "--plot", tmp_path / "x.png")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: --plot: a PNG needs matplotlib: pip install 'costgov[plot]', or name FILE.html"
    ]
    assert result.stdout == "", "it is said before hours of logs are replayed"
