"""README's quick starts, run as they stand there, with a model that breaks; then the line `resume` that is printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NAN_AT = 120
SAVE_EVERY = 50  # Of the examples. Ranks agree on a step at or after it, on a loaded machine a good many after it.
HALTED = 86
SAFETY_S = 300.0


@dataclass(frozen=True)
class QuickStart:
    title: str
    code: str  # What the reader adds to a script.
    command: str


def quick_starts() -> dict[str, QuickStart]:
    """Title -> quick start, of every section that has a command."""
    text = (ROOT / "README.md").read_text().partition("## Quick start")[2].partition("\n## ")[0]
    found = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        blocks = re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)
        command = "".join(block for kind, block in blocks if kind == "bash")
        if command:
            found[title] = QuickStart(title, "".join(block for kind, block in blocks if kind == "python"), command)
    return found


STARTS = quick_starts()
FOREIGN = next(title for title in STARTS if "JSONL" in title)
PRINTED = next(title for title in STARTS if "prints" in title)
# A foreign trainer knows nothing of it.
RESUMED = [title for title in STARTS if "shim.resume()" in STARTS[title].code]
TRAINER = "Hugging Face Trainer"
LIGHTEST = "Accelerate"  # Of these. A third launch of each would take a minute.


@pytest.fixture
def checkout() -> Iterator[Path]:
    """What the reader stands in: the commands name examples/, and write beside it."""
    with tempfile.TemporaryDirectory(prefix="readme-") as directory:  # pytest's own is too long a path for a socket.
        (Path(directory) / "examples").symlink_to(ROOT / "examples")
        yield Path(directory)


def play(command: str, checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    # The launcher's own port is one for the whole machine, where other drills may hold it. `resume` has it already.
    command = re.sub(r"-- deepspeed (?!--master_port)", "-- deepspeed --master_port 29617 ", command)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=checkout,
        env={
            **{name: value for name, value in os.environ.items() if name != "COSTGOV_SOCKET"},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "DS_ACCELERATOR": "cpu",
            "PYTHONUNBUFFERED": "1",  # A script that is halted may end before it writes what it has printed.
            "OMP_NUM_THREADS": "1",
            "COSTGOV_PATHS__STATE_DIR": str(checkout / "state"),
            "COSTGOV_PATHS__RUNTIME_DIR": str(checkout / "run"),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=SAFETY_S,
        check=False,
    )


def incidents(checkout: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((checkout / "state").glob("**/incidents/*.json"))]


def test_there_is_one_for_each_framework() -> None:
    assert len(STARTS) == 7, list(STARTS)


@pytest.mark.parametrize("title", STARTS)
def test_what_the_reader_adds_is_in_the_script(title: str) -> None:
    script = re.search(r"examples/quickstart/\w+\.py", STARTS[title].command)
    assert script
    lines = (ROOT / script[0]).read_text().splitlines()
    added = {line for line in STARTS[title].code.splitlines() if not line.startswith("#")}
    assert added <= set(lines)


@pytest.mark.parametrize("title", STARTS)
def test_a_nan_is_halted_and_the_line_resume_trains_on(title: str, checkout: Path) -> None:
    quick_start = STARTS[title]
    broken = play(quick_start.command, checkout, NAN_AT=str(NAN_AT))
    said = broken.stdout + broken.stderr
    assert broken.returncode == HALTED, said[-6000:]
    (incident,) = incidents(checkout)
    assert [entry for entry in incident["timeline"] if entry["what"] == "halted"], incident
    assert incident["timeline"][0]["detail"]["rule"] == "nonfinite"
    assert f"loss nan at step {NAN_AT}" in said
    if title == TRAINER:
        good = incident["last_good"]["path"]
        assert Path(good).is_dir(), "the halt's own save deleted it"
        assert re.search(rf"^last good +step \d+: {re.escape(good)}", said, re.MULTILINE), said[-6000:]
        assert "resume from" not in said, "the script calls shim.resume(): it needs no other word"

    (resume,) = re.findall(r"^resume  +(.+)$", said, re.MULTILINE)
    assert resume.startswith(f"cd {checkout} && costgov run --again ")
    healthy = play(resume, checkout)
    said = healthy.stdout + healthy.stderr
    assert healthy.returncode == 0, said[-6000:]
    assert len(incidents(checkout)) == 1
    ended = {FOREIGN: "foreign: ended with exit code 0; step 200;", PRINTED: ": ended with exit code 0; step 200;"}
    assert ended.get(title, "step 200/200;") in said, said[-6000:]
    if title in RESUMED:
        begun = [int(step) for step in re.findall(r"begins at step (\d+)", healthy.stdout)]
        assert begun, said[-6000:]
        assert SAVE_EVERY <= incident["last_good"]["step"] < NAN_AT
        assert {*begun} == {incident["last_good"]["step"]}, incident["last_good"]
    if title == LIGHTEST:
        _assert_breaks_past_its_step(quick_start, checkout)


@pytest.mark.parametrize("title", RESUMED)
def test_a_script_that_resumes_breaks_by_the_runs_step(title: str) -> None:
    script = re.search(r"examples/quickstart/\w+\.py", STARTS[title].command)
    assert script
    text = (ROOT / script[0]).read_text()
    assert "shim.resume()" in text.partition("break_at(NAN_AT, model, done=shim.step)")[0]


def _assert_breaks_past_its_step(quick_start: QuickStart, checkout: Path) -> None:
    """A reader may train first, and look at a halt afterwards: the newest checkpoint is past NAN_AT by then."""
    broken = play(quick_start.command, checkout, NAN_AT=str(NAN_AT))
    said = broken.stdout + broken.stderr
    assert broken.returncode == HALTED, said[-6000:]
    begun = {int(step) for step in re.findall(r"begins at step (\d+)", broken.stdout)}
    assert len(begun) == 1, begun
    assert min(begun) > NAN_AT
    assert f"loss nan at step {min(begun) + 1}" in said
    assert len(incidents(checkout)) == 2
