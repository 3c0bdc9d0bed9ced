"""`costgov incident show` beside a recording: its page, its plot, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.golden.report_cases import nan_halt
from tests.unit.cli.test_ended import call, home, leave
from tests.unit.replay.recorded_file import Written

__all__ = ["home"]  # A fixture.
ID = "gpt.node-1.1"
OPENED_S = 1_780_000_000
VERDICT_S = 10_000


@pytest.fixture
def halted(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("COSTGOV_CONTROL")
    leave(home, nan_halt() | {"run": "gpt", "incident_id": ID})
    return home


def record(home: Path, segments: int) -> None:
    """Each segment has a hundred steps. The last one ends with the verdict, and a later attempt follows."""
    root, begin = home / "state" / "recordings", VERDICT_S - 1_000 * segments
    written = Written("gpt", OPENED_S - VERDICT_S)
    for number in range(segments):
        at_s = begin + 1_000 * number
        written.hello(at_s).steps(range(100 * number + 1, 100 * number + 101), at_s + 1, 9.0, loss=float(number + 1))
        if number == segments - 1:
            written.halted(VERDICT_S, ID)
        written.save(root, number + 1, continues=number > 0, at_s=at_s)
    written.hello(VERDICT_S + 500, "b").steps(range(1, 101), VERDICT_S + 600, 9.0, loss=99.0)
    written.save(root, segments + 1, at_s=VERDICT_S + 500)


def test_the_terminal_shows_the_last_records(halted: Path) -> None:
    record(halted, 6)
    code, text, _ = call("incident", "show", ID)
    assert code == ExitCode.OK
    assert "loss of rank 0; from 5 to 6, last 6." in text, "of the two segments before the verdict, and none after it"
    assert max(map(len, text[text.index("│") :].splitlines()[:6])) <= 80


def test_the_page_has_the_whole_run(halted: Path, tmp_path: Path) -> None:
    record(halted, 6)
    file = tmp_path / "i.html"
    code, text, _ = call("incident", "show", ID, "--html", str(file))
    assert (code, text) == (ExitCode.OK, "")
    page = file.read_text()
    assert "All 600 records up to the verdict" in page
    assert "The last 400 records" in page
    assert ">99<" not in page, "of the attempt after the halt"


def test_without_a_recording_it_says_so(halted: Path, tmp_path: Path) -> None:
    assert "│" not in call("incident", "show", ID)[1]
    assert call("incident", "show", ID, "--html", str(tmp_path / "i.html"))[0] == ExitCode.OK
    assert "there is no recording that can be read" in (tmp_path / "i.html").read_text()


def test_a_file_that_cannot_be_written_is_one_line(halted: Path, tmp_path: Path) -> None:
    code, _, said = call("incident", "show", ID, "--html", str(tmp_path / "nowhere" / "i.html"))
    assert (code, "--html" in said, "No such file" in said) == (ExitCode.FAILED, True, True)


def test_a_broken_recording_costs_the_plot(halted: Path) -> None:
    (halted / "state" / "recordings" / "gpt").mkdir(parents=True)
    (halted / "state" / "recordings" / "gpt" / "frames-000001.jsonl.gz").write_bytes(b"no recording" * 100)
    code, text, _ = call("incident", "show", ID)
    assert code == ExitCode.OK
    assert "loss is NaN at step 41" in text
    assert "│" not in text
