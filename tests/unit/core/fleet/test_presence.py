"""A node's rows and its runs': read as they were written, and nothing else is read."""

from __future__ import annotations

import json

import pytest

from governor.core.base.identity import JOB_CHARS_MAX
from governor.core.events.fleet_store import Kept
from governor.core.fleet.presence import (
    NodeRow,
    RunRow,
    holder_in,
    live_key,
    node_key,
    node_name,
    node_row,
    row_text,
    run_key,
    run_row,
)
from governor.core.fleet.scopes import ROW_CHARS_MAX, Holder

HOLDER = Holder("gpu/1~a", "boot", "ledger")
NODE = NodeRow("gpu-1", 7, "aws", "i-1", "eu-1", "0.1", True, True, 98_320_000, None, ("no price",))
RUN = RunRow("llama", 1000, "training", True, "stage1", {"team": "nlp"}, "job-1", 5, None, 8, 8, 10, None, 3, 60)


def kept(text: str) -> Kept:
    return Kept("key", text, 3)


def test_rows_are_read_as_they_were_written() -> None:
    assert node_row(kept(row_text(NODE))) == NODE
    assert run_row(kept(row_text(RUN))) == RUN


def test_a_job_of_kubernetes_has_its_place() -> None:
    row = RunRow("llama", 1000, "training", True, job="kubernetes:" + "n" * (JOB_CHARS_MAX - 11))
    assert run_row(kept(row_text(row))) == row


def test_a_key_names_its_holder_whatever_the_node_is_called() -> None:
    keys = (live_key(HOLDER), node_key(HOLDER), run_key(HOLDER, "a/b~c"))
    assert [holder_in(key) for key in keys] == [HOLDER.text] * 3
    assert node_name(HOLDER.text) == "gpu/1~a"


def test_a_row_has_its_place_whatever_the_labels() -> None:
    long = {f"{number}" * 40: "é" * 80 for number in range(8)}
    crowded = RunRow("r" * 128, 1, "training", True, "s" * 160, {**long, "x": "y" * 4_000})
    text = row_text(crowded)
    assert len(text) <= ROW_CHARS_MAX
    assert run_row(kept(text)) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 2},
        {"node": 5},
        {"node": "a\nb"},
        {"node": "x" * 300},
        {"said_wall_ns": -1},
        {"said_wall_ns": True},
        {"said_wall_ns": 1.5},
        {"observes": 1},
        {"health": "no"},
        {"health": ["x"] * 9},
        {"rate_usd_micros_per_hour": 2**63},
        {"version": 5},
    ],
)
def test_a_node_s_row_of_another_form_is_none(changes: dict[str, object]) -> None:
    assert node_row(kept(json.dumps({**json.loads(row_text(NODE)), **changes}))) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 3_000, '{"v": 1}', row_text(NODE) + " " * 5_000])
def test_what_is_no_row_is_none(text: str) -> None:
    assert node_row(kept(text)) is None
    assert run_row(kept(text)) is None


def test_a_governor_of_an_earlier_version_is_read_and_what_it_did_not_know_has_its_default() -> None:
    raw = json.loads(row_text(RUN))
    del raw["may_stop"], raw["held_s"], raw["runway_s"]
    row = run_row(kept(json.dumps(raw)))
    assert row is not None
    assert (row.may_stop, row.held_s, row.runway_s) == (False, None, None)
    del raw["state"]
    assert run_row(kept(json.dumps(raw))) is None, "without a state it says nothing"


@pytest.mark.parametrize("labels", [[], {"a": 1}, {"a\x1b": "b"}, {str(n): "" for n in range(33)}])
def test_labels_are_few_and_printable(labels: object) -> None:
    assert run_row(kept(json.dumps({**json.loads(row_text(RUN)), "labels": labels}))) is None
