"""`costgov run --json`: one strict JSON object a line, whatever a run does."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from governor.cli.run.console import JsonConsole
from tests.golden.report_cases import nan_halt


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
