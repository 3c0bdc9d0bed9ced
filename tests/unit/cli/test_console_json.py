"""`costgov run --json`: one strict JSON object a line, whatever a run does. And the live lines of a terminal."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from governor.cli.run.command import _console
from governor.cli.run.console import Console, JsonConsole
from governor.core.base.identity import ConnectionId
from governor.daemon.stderr import QueuedStream
from tests.golden.report_cases import nan_halt
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, training


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in stream.getvalue().splitlines()]


def test_an_incident_is_told_once_a_stage_with_its_report() -> None:
    stream = io.StringIO()
    console = JsonConsole(stream=stream)
    for stage in ("ASKED", "ASKED", "HALTED"):
        console.incident(nan_halt() | {"halt_stage": stage})
    told = objects(stream)
    assert [(line["kind"], line["data"]["halt_stage"], line["data"]["loss"]) for line in told] == [
        ("incident", "ASKED", "nan"),
        ("incident", "HALTED", "nan"),
    ]
    assert told[-1]["data"]["not_observed"] == []


def read_late() -> tuple[dict[str, Any], dict[str, Any]]:
    """A halt as it ended, and after its checkpoint was read."""
    read = nan_halt()
    ended = {
        **read,
        "timeline": [moment for moment in read["timeline"] if moment["what"] != "checkpoint_read"],
        "checkpoint": {**read["checkpoint"], "verified_by": "trainer"},
    }
    return ended, read


def test_what_a_look_finds_after_the_halt_is_told() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    ended, read = read_late()
    for snapshot in (ended, read, read):
        console.incident(snapshot)
    lines = stream.getvalue().splitlines()
    report = next(at for at, line in enumerate(lines) if line.startswith("report"))
    assert not any(" checked " in line or "verified by governor" in line for line in lines[:report])
    checked, saved = lines[report + 1 :]
    assert " checked " in checked
    assert "verified by governor" in saved


@pytest.mark.parametrize("console", [Console, JsonConsole])
def test_a_last_good_one_that_is_found_to_be_torn_after_the_halt_is_told(console: type[Console]) -> None:
    good = {"step": 20, "path": "/ck/checkpoint-20"}
    halted = nan_halt() | {"checkpoint": None}
    stream = io.StringIO()
    told = console(stream=stream)
    told.incident(halted | {"last_good": good | {"unseen": "the look has not ended"}})
    before = stream.tell()
    for _ in range(2):
        told.incident(halted | {"last_good": good | {"torn": "model.safetensors is empty"}})
    news = stream.getvalue()[before:].splitlines()
    if console is JsonConsole:
        (line,) = objects(io.StringIO("\n".join(news)))
        assert (line["data"]["last_good"]["torn"], line["data"]["resume"]) == ("model.safetensors is empty", None)
    else:
        last, resume = news
        assert "NONE IS LEFT; step 20: /ck/checkpoint-20 (NOT WHOLE: model.safetensors is empty)" in last
        assert "not shown: no known checkpoint" in resume


def test_a_report_is_told_again_when_its_checkpoint_has_been_read() -> None:
    stream = io.StringIO()
    console = JsonConsole(stream=stream)
    ended, read = read_late()
    for snapshot in (ended, read, read):
        console.incident(snapshot)
    assert [line["data"]["checkpoint"]["verified_by"] for line in objects(stream)] == ["trainer", "governor"]


def test_alarms_and_words_are_objects_too() -> None:
    stream = io.StringIO()
    console = JsonConsole(stream=stream)
    console.alarm("unwatched", "run7", "nothing heard for 60 s")
    console.print_line("on halt I will …")
    assert [line["kind"] for line in objects(stream)] == ["alarm", "said"]
    assert objects(stream)[0]["data"]["run"] == "run7"


def test_a_reader_that_is_gone_does_not_matter() -> None:
    stream = io.StringIO()
    stream.close()
    JsonConsole(stream=stream).print_line("nobody reads this")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_run_is_redrawn_in_place_and_several_do_not_scroll_each_second() -> None:
    node, stream = make_node(), Terminal()
    console = Console(stream=stream)
    training(node)
    for second in range(31, 61):
        console.tick(node, at(second))
    assert stream.getvalue().count("\r\x1b[2K") == 30
    assert "\n" not in stream.getvalue()

    play(
        node, hello(0, run="mistral", connection=ConnectionId(9)), a_step(1, run="mistral", connection=ConnectionId(9))
    )
    stream = console.stream = Terminal()
    for second in range(61, 91):
        console.tick(node, at(second))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line] == ["llama", "mistral"] * 3, "every ten seconds, by name"


@pytest.mark.parametrize(("seconds", "told"), [(None, 30), (0.5, 30), (10.0, 3)])
def test_progress_says_how_often_a_run_is_an_object(seconds: float | None, told: int) -> None:
    """`--progress`, which the command line hands over whatever the form."""
    node, stream = make_node(), io.StringIO()
    training(node)
    with _console(seconds, as_json=True) as console:
        console.stream = stream
        for second in range(31, 61):
            console.tick(node, at(second))
    assert [line["kind"] for line in objects(stream)] == ["run"] * told


@pytest.mark.parametrize("is_read", [True, False])
def test_what_is_said_before_the_command_starts_stands_there_unless_its_reader_hangs(is_read: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0 if is_read else os.write(writing, b"x" * 1_000_000)
    os.set_blocking(writing, True)
    console = Console(stream=QueuedStream(writing, Console.lost_line))
    console.print_line("costgov: on halt I will end the run's processes")
    console.settle()
    os.set_blocking(reading, False)
    line = b"costgov: on halt I will end the run's processes\n"
    assert os.read(reading, 2_000_000) == (line if is_read else b"x" * filled)
    os.set_blocking(reading, True)
    assert is_read or os.read(reading, 100) == line
    assert console.stream.drain(60)
    os.close(reading)
    os.close(writing)
