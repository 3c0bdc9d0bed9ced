"""The last good checkpoint as a row of the journal: older rows are read, and older versions read what is written."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.events.checkpoints import NamedCheckpoint, SavedCheckpoint
from governor.core.runs.last_good import LastGood

ROWS: list[dict[str, Any]] = [
    {"step": 20, "path": "/ck/cg_20"},
    {"step": None, "path": "/ck/s"},
    {"step": 20, "path": None},
    {"step": 20, "path": "/ck/20", "tokens_total": 5, "mono_ns": 7},
    {"step": 20, "path": "/ck/20", "mono_ns": 7, "trained_finite": True},
    {"step": 20, "path": "/ck/20", "mono_ns": 7, "gone": "is no longer there"},
    {"step": 20, "path": "/ck/20", "unseen": "not visible here"},
    {"step": 20, "path": "/ck/theirs/20", "sought_in": "/ck/ours"},
    {"step": 20, "path": "/ck/20", "trained_finite": True},
    {"step": 20, "path": "/ck/20", "unsampled": "ema.bin", "lacks": "no optimizer in it"},
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_read_and_written_as_it_was(row: dict[str, Any]) -> None:
    found = LastGood.of(row)
    assert found is not None
    assert found.row() == row


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"step": "20", "path": 5, "sought_in": 7},
        {"trained_finite": 1, "own_finite": "yes"},
        {"step": True, "path": [], "mono_ns": 1.5, "tokens_total": "many", "gone": 1, "x": {}},
    ],
)
def test_what_is_of_no_use_is_left_out_of_a_row_and_of_a_hello(said: dict[str, Any]) -> None:
    assert LastGood.of(said) == LastGood(None, None)
    assert NamedCheckpoint.named(said) == NamedCheckpoint(None, None)


def test_what_trainers_have_seen_of_their_parameters_is_taken_from_hello_and_ack() -> None:
    named = NamedCheckpoint.named({"step": 20, "path": "/ck/20", "own_finite": True, "trained_finite": True})
    assert named is not None
    assert (named.own_finite, named.trained_finite) == (True, True)
    assert LastGood.named(named).as_named.trained_finite
    saved = SavedCheckpoint.named({"path": "/ck/20", "trained_finite": True})
    assert saved is not None
    assert saved.trained_finite
    assert SavedCheckpoint.named({"path": "/ck/20", "trained_finite": 1}) == SavedCheckpoint("/ck/20")


def test_where_resume_looks_instead_stays_with_it_while_it_is_looked_at() -> None:
    said = {"step": 20, "path": "/ck/theirs/20", "sought_in": "/ck/ours"}
    named = NamedCheckpoint.named(said)
    assert named is not None
    assert LastGood.named(named).as_named == named
    assert LastGood.named(named).row() == said
    assert NamedCheckpoint.named({**said, "sought_in": "/" * 5_000}) == NamedCheckpoint(20, "/ck/theirs/20")


def test_none_is_none() -> None:
    assert LastGood.of(None) is None
    assert NamedCheckpoint.named(None) is None
