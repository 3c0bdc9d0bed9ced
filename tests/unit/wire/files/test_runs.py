"""W&B's local logs, cut as they grow: what `wandb leet inspect` prints of them, we read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.replay.logs import records
from governor.wire.files import WANDB
from governor.wire.files.choice import named
from governor.wire.files.cutter import RECORD_BYTES_MAX, Cutter
from governor.wire.files.runs import history_of
from governor.wire.jsonl import DEFAULT_FIELDS
from tests.unit.wire.files.written import BLOCK, RunFile, history, run_file


def cutter() -> Cutter:
    made = named(WANDB, DEFAULT_FIELDS)
    made.anew()
    return made


def told(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def steps(lines: list[bytes]) -> list[int]:
    return [one["_step"] for one in told(lines)]


def many(count: int) -> bytes:
    """Some blocks of rows."""
    file = RunFile()
    for n in range(count):
        file.row(n, {"loss": 2.0, "filler": "x" * 100})
    return bytes(file.data)


def test_what_the_sdk_writes_is_what_leet_prints(tmp_path: Path) -> None:
    rows = [(n, {"loss": 2.0 / (n + 1), "train/lr": 1e-4, "a": {"b": n}, "ok": True}) for n in range(300)]
    rows.append((300, {"loss": math.nan, "train/lr": 1e-4, "a": {"b": 0}, "ok": False}))
    path = run_file(tmp_path, rows)
    assert path.stat().st_size > 3 * BLOCK
    made, data, found = cutter(), path.read_bytes(), list[bytes]()
    for n in range(0, len(data), 997):
        found += made.give(data[n : n + 997])
    assert made.faulty == 0
    inspected = [record for _, record in records(path) if isinstance(record, dict)]
    assert len(found) == len(inspected) == 301
    for ours, theirs in zip(told(found), inspected, strict=True):
        known = {name: value for name, value in theirs.items() if not name.startswith("hist.")}
        ours = {name: value for name, value in ours.items() if not name.startswith("hist.")}
        if isinstance(known["loss"], str):
            assert known.pop("loss") == "NaN"
            assert math.isnan(ours.pop("loss"))
        assert ours == pytest.approx(known)


def test_our_writer_is_the_sdks(tmp_path: Path) -> None:
    path = run_file(tmp_path, [(0, {"loss": 2.0})])
    assert path.read_bytes()[:7] == bytes(RunFile().data)


@pytest.mark.parametrize("size", [1, 13, 5000])
def test_rows_come_in_pieces(size: int) -> None:
    data, made, found = many(400), cutter(), list[bytes]()
    for n in range(0, len(data), size):
        found += made.give(data[n : n + size])
    assert steps(found) == list(range(400))
    assert made.behind == 0


def test_typed_values_are_read() -> None:
    """As the SDK's protocol of 2026 has them beside JSON."""
    from wandb.proto import wandb_internal_pb2 as proto

    record = proto.Record()
    if not hasattr(proto.HistoryItem(), "number"):
        pytest.skip("this SDK has JSON alone")
    record.history.item.add(key="loss", number=2.5)
    record.history.item.add(key="n", integer=-7)
    record.history.item.add(key="ok", boolean=True)
    record.history.item.add(key="text", text="nan")
    record.history.item.add(nested_key=["a", "b"], json="3")
    assert history_of(record.SerializeToString()) == {"loss": 2.5, "n": -7, "ok": True, "text": "nan", "a.b": 3}


def test_history_is_passed() -> None:
    data = many(700)
    made = named(WANDB, DEFAULT_FIELDS)
    for end in (7, 100, BLOCK - 3, BLOCK, BLOCK + 1, len(data) - 10, len(data)):
        at = made.begin(end, lambda count, offset: data[offset : offset + count])
        found = steps(made.give(data[at:]))
        assert found == list(range(700 - len(found), 700))
        assert end - at <= BLOCK
        assert made.faulty == 0
    assert found == []


def test_who_goes_on_begins_at_the_record_that_is_not_complete() -> None:
    data = many(700)
    for cut in (9, 1000, BLOCK + 2, BLOCK * 2 - 30, len(data) - 3):
        made, again = cutter(), cutter()
        first = steps(made.give(data[:cut]))
        at = cut - made.behind
        if at:
            again.go_on(at, made.state() or {}, lambda count, offset: data[offset : offset + count])
        assert first + steps(again.give(data[at:])) == list(range(700))


def test_behind_a_damaged_place_reading_goes_on_with_the_next_block() -> None:
    data = bytearray(many(700))
    data[BLOCK + 5_000 : BLOCK + 5_010] = bytes(10)
    made = cutter()
    found = steps(made.give(bytes(data)))
    assert made.faulty == 1
    assert found[-1] == 699
    assert 300 < len(found) < 700
    assert made.problem is None


def test_a_record_of_many_megabytes_is_left_out() -> None:
    file = RunFile()
    file.row(1, {"loss": 2.0})
    file.put(bytes(RECORD_BYTES_MAX * 3))
    file.row(2, {"loss": 2.0})
    made, found, held = cutter(), list[bytes](), 0
    for n in range(0, len(file.data), 65536):
        found += made.give(bytes(file.data[n : n + 65536]))
        held = max(held, made.behind)
    assert steps(found) == [1, 2]
    assert held <= 2 * RECORD_BYTES_MAX


def test_a_log_without_a_known_name_has_no_step() -> None:
    file = RunFile()
    file.row(1, {"ce": 2.0})
    assert told(cutter().give(bytes(file.data))) == [{"ce": 2.0}]


def test_what_is_no_log_of_wandb_is_said_in_a_line() -> None:
    made = cutter()
    assert made.give(b'{"step": 1}\n') == []
    assert made.problem == "no W&B log: it does not begin with :W&B"
    made = cutter()
    made.give(b":W&B\xe1\xbe\x07" + b"\xaa" * BLOCK * 6)
    assert made.problem is not None
    assert "no W&B log that is understood" in made.problem
    before = made.problem
    made.drop()
    made.give(b"\xaa" * 4096)
    assert made.problem == before


@given(st.binary(max_size=400), st.integers(0, 200))
def test_whatever_a_record_holds_is_read_or_counted(data: bytes, cut: int) -> None:
    file = RunFile()
    for record in (data, history(1, {"loss": 2.0})[:cut] + data, data[:cut]):
        file.put(record)
    made = cutter()
    told(made.give(bytes(file.data)))
    made.rest()
