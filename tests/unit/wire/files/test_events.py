"""TensorBoard's event files, cut as they grow: what TensorBoard's own loader reads of them, we read."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.replay.logs import records
from governor.wire.files import TENSORBOARD
from governor.wire.files.choice import named
from governor.wire.files.cutter import RECORD_BYTES_MAX, Cutter
from governor.wire.files.events import masked
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from tests.unit.wire.files.written import BEGAN_S, begin, events, frame, scalar


def cutter(**mapped: str) -> Cutter:
    made = named(TENSORBOARD, field_map(mapped))
    made.anew()
    return made


def told(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def given_in(pieces: list[bytes], made: Cutter) -> list[dict[str, Any]]:
    return told([line for piece in pieces for line in made.give(piece)] + made.rest())


def test_crc32c_is_tensorboards() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    for data in (b"", b"123456789", bytes(range(256))):
        assert masked(data) == masked_crc32c(data)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_scalars_of_a_step_are_one_record_however_they_come(size: int) -> None:
    data = begin() + events(range(1, 6))
    found = given_in([data[n : n + size] for n in range(0, len(data), size)], cutter())
    assert [(one["step"], one["train/loss"], one["train/grad_norm"]) for one in found] == [
        (n, 2.0, 1.0) for n in range(1, 6)
    ]
    assert found[0]["timestamp"] == BEGAN_S + 1


def test_what_pytorch_writes_is_what_replay_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    for step in range(1, 30):
        writer.add_scalar("train/loss", 3.0 / step if step < 25 else math.nan, step)
        writer.add_scalar("train/grad_norm", 1.5, step)
        if step % 10 == 0:
            writer.add_scalar("eval/loss", 2.5, step)
            writer.add_text("note", "hello", step)
        writer.add_histogram("weights", torch.arange(100.0), step)
    writer.close()
    (path,) = tmp_path.iterdir()
    found = given_in([path.read_bytes()], cutter())
    replayed = [record for _, record in records(path, DEFAULT_FIELDS) if isinstance(record, dict)]
    assert len(found) == len(replayed) == 31
    for ours, theirs in zip(found, replayed, strict=True):
        for one in (ours, theirs):
            one.pop("t", None)
            one.pop("timestamp", None)
        assert repr(ours) == repr({**{k: v for k, v in theirs.items() if k != "step"}, "step": theirs["step"]})


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int32", "int64", "uint8", "uint64"])
def test_scalars_in_tensors_are_read(kind: str) -> None:
    (found,) = given_in([begin() + scalar(3, "loss", 2, tensor=kind)], cutter())
    assert found["loss"] == 2.0


def test_a_nan_in_a_tensor_is_a_nan() -> None:
    (found,) = given_in([begin() + scalar(3, "loss", math.nan, tensor="float32")], cutter())
    assert math.isnan(found["loss"])


def test_validation_has_its_own_record_and_a_tag_that_comes_again_begins_one() -> None:
    data = begin() + scalar(1, "loss", 2.0) + scalar(1, "eval/loss", 3.0) + scalar(2, "loss", 1.0) * 2
    assert [sorted(one) for one in given_in([data], cutter())] == [
        ["loss", "step", "timestamp"],
        ["eval/loss", "step", "timestamp"],
        ["loss", "step", "timestamp"],
        ["loss", "step", "timestamp"],
    ]


def test_the_last_step_waits_for_its_other_scalars_only_while_something_comes() -> None:
    made = cutter()
    assert made.give(begin() + scalar(1, "loss", 2.0)) == []
    assert made.at_end(grew=True) == made.at_end(grew=False) == []
    assert [one["loss"] for one in told(made.at_end(grew=False))] == [2.0]
    assert made.behind == 0
    assert made.give(scalar(1, "lr", 1e-4)) == []
    assert [sorted(one) for one in told(made.give(scalar(2, "loss", 2.0)))] == [["lr", "step", "timestamp"]]


def test_who_goes_on_begins_before_the_step_that_is_not_complete() -> None:
    data, made = begin() + events([1, 2]), cutter()
    first = told(made.give(data[:-5]))
    again = cutter()
    at = len(data) - 5 - made.behind
    again.go_on(at, made.state() or {}, lambda count, offset: data[offset : offset + count])
    assert [one["step"] for one in first + told(again.give(data[at:]) + again.rest())] == [1, 2]


def test_history_is_passed_also_where_it_ends_inside_an_event() -> None:
    past, new = begin() + events(range(1, 50)) + frame(bytes(RECORD_BYTES_MAX * 2)), events([50])
    data = past + scalar(49, "lr", 1.0) + new
    made = named(TENSORBOARD, DEFAULT_FIELDS)
    at = made.begin(len(past) + 5, lambda count, offset: data[offset : offset + count])
    found = []
    while at < len(data):
        found += made.give(data[at : at + 4096])
        at = min(at + 4096, len(data))
        beyond = min(made.ahead, len(data) - at)
        made.leave_out(beyond)
        at += beyond
    assert [one["step"] for one in told(found + made.rest())] == [50]


def test_a_log_without_a_known_tag_has_no_step() -> None:
    found = given_in([begin() + scalar(1, "ce", 2.0) + scalar(2, "ce", 2.0)], cutter())
    assert found == [{"ce": 2.0}, {"ce": 2.0}]
    (mapped,) = given_in([begin() + scalar(1, "ce", 2.0)], cutter(loss="ce"))
    assert (mapped["step"], mapped["ce"]) == (1, 2.0)


def test_an_event_that_is_not_all_there_waits_and_a_damaged_one_is_counted() -> None:
    data = begin() + scalar(1, "loss", 2.0)
    empty = data[:-20] + bytes(20)  # Its end is not on this machine yet.
    made = cutter()
    assert made.give(empty) == []
    assert made.behind > 0
    made = cutter()
    assert [one["step"] for one in given_in([empty + events([2])], made)] == [2]
    assert made.faulty == 1
    assert made.problem is None


@pytest.mark.parametrize("data", [b"step,loss\n1,2.0\n", bytes(100), b"\xff" * 100, struct.pack("<QI", 2**60, 0)])
def test_what_is_no_event_file_is_said_in_a_line(data: bytes) -> None:
    made = cutter()
    assert made.give(data) == []
    assert made.problem == "no TensorBoard event file: it does not begin with an event"
    assert made.drop() == len(data)
    made.give(begin() + events([1, 2]))
    assert made.problem is None, "the file server had not sent it yet"


def test_a_length_of_an_exabyte_costs_nothing() -> None:
    length = struct.pack("<Q", 2**60)
    made = cutter()
    made.give(begin() + length + struct.pack("<I", masked(length)) + bytes(1000))
    assert made.problem is not None
    assert made.problem.startswith(f"damaged at byte {len(begin())}")
    made.drop()
    assert made.behind == 0


def test_an_event_of_a_gigabyte_is_left_out_without_being_read() -> None:
    length = struct.pack("<Q", 2**30)
    made = cutter()
    made.give(begin() + length + struct.pack("<I", masked(length)) + bytes(1000))
    assert made.problem is None
    assert made.behind == 0
    assert made.ahead == 2**30 + 4 - 1000
    made.leave_out(made.ahead)
    assert [one["step"] for one in given_in([events([7])], made)] == [7]


@given(st.binary(max_size=400), st.integers(0, 200))
def test_whatever_an_event_holds_is_read_or_counted(data: bytes, cut: int) -> None:
    made = cutter()
    for piece in (begin(), frame(data), scalar(1, "loss", 2.0)[:cut] + data, frame(events([1])[:cut])):
        told(made.give(piece))
    made.rest()
