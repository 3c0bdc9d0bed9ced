"""TensorBoard's event files as logs: written by TensorBoard's own writer, as those of PyTorch are."""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from governor.replay.logs import logs, records
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from tests.unit.replayed import rows, run

BEGAN_S = 1_800_000_000.0
Scalar = tuple[float, int, str, float]  # Seconds after the begin, step, tag, value.


def written(directory: Path, scalars: Iterable[Scalar], began_s: float = BEGAN_S) -> Path:
    """An event file of these scalars. Its own begin is set to `began_s`, which the writer takes from the clock."""
    before = set(directory.glob("*")) if directory.exists() else set()
    writer = EventFileWriter(str(directory), filename_suffix=f".{len(before)}")
    writer.add_event(Event(wall_time=began_s, file_version="brain.Event:2"))
    for at, step, tag, value in scalars:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(wall_time=began_s + at, step=step, summary=summary))
    writer.close()
    (path,) = set(directory.glob("*")) - before
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    name = path.with_name(f"events.out.tfevents.{round(began_s)}.node.1.{len(before)}")
    path.rename(name)
    name.write_bytes(data[length + 16 :])  # The first event is the writer's own: of now.
    return name


def steps(count: int, first: int = 1, loss: float = 2.0, every_s: float = 10.0) -> list[Scalar]:
    """As the Hugging Face Trainer writes them: one scalar after the other, milliseconds apart."""
    return [
        (every_s * n + 0.001 * place, first + n - 1, tag, value)
        for n in range(1, count + 1)
        for place, (tag, value) in enumerate((("train/loss", loss), ("train/grad_norm", 1.0), ("train/epoch", 0.5)))
    ]


def read(path: Path, **mapped: str) -> list[dict[str, object] | list[str]]:
    return [record for _, record in records(path, field_map(mapped) if mapped else DEFAULT_FIELDS)]


def test_scalars_of_one_step_are_one_record_at_the_time_of_the_last(tmp_path: Path) -> None:
    first, second = read(written(tmp_path, steps(2)))
    assert first == {"step": 1, "train/loss": 2.0, "train/grad_norm": 1.0, "t": pytest.approx(10.001)}
    assert second == {"step": 2, "train/loss": 2.0, "train/grad_norm": 1.0, "t": pytest.approx(20.001)}


def test_a_nan_is_caught_at_its_step_and_time_and_epochs_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, [*steps(5), (60.0, 6, "train/loss", math.nan), (61.0, 6, "train/grad_norm", math.inf)])
    result = run(path, "--json")
    verdict, summary = rows(result)
    assert (result.exit_code, verdict["rule"], verdict["step"], verdict["evidence"]["loss"]) == (
        0,
        "nonfinite",
        6,
        "nan",
    )
    assert verdict["t"] == pytest.approx(61.0)
    assert (summary["log"], summary["records"]) == (str(path), 6)


def test_other_axes_and_validation_are_no_steps(tmp_path: Path) -> None:
    """Megatron draws each number over samples too, between those over iterations."""
    scalars: list[Scalar] = []
    for n in range(1, 4):
        scalars += [
            (n, n, "lm loss", 3.0), (n, 256 * n, "lm loss vs samples", 3.0),
            (n, n, "grad-norm", 1.5), (n, 256 * n, "grad-norm vs samples", 1.5), (n, n, "iteration-time", 0.9),
            (n + 0.5, n, "lm loss validation", 3.1),
        ]  # fmt: skip
    found = read(written(tmp_path, scalars))
    assert [record for record in found if isinstance(record, dict) and "lm loss" in record] == [
        {"step": n, "lm loss": 3.0, "grad-norm": 1.5, "iteration-time": pytest.approx(0.9), "t": float(n)}
        for n in range(1, 4)
    ]
    assert [[*record] for record in found[1::2]] == [["step", "lm loss validation", "t"]] * 3


def test_a_tag_of_ones_own_is_mapped(tmp_path: Path) -> None:
    path = written(tmp_path, [(n, n, "ce", math.nan if n == 9 else 2.0) for n in range(1, 12)])
    unknown = run(path, "--json")
    assert [row["records"] for row in rows(unknown)] == [0], "an unknown tag is no record"
    assert unknown.stderr == f"costgov: {path}: no tag is known: ce; say which is what: --map loss=TAG\n"
    verdict, summary = rows(run(path, "--json", "--map", "loss=ce"))
    assert (verdict["step"], summary["records"]) == (9, 11)
    for wrong in ("loss", "los=ce"):
        assert run(path, "--map", wrong).exit_code == 2


def test_a_scalar_as_tensorflow_writes_it_is_one_and_a_picture_is_none(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    for tag, value in (("loss", make_tensor_proto(2.5)), ("grad_norm", make_tensor_proto([1.0, 2.0]))):
        writer.add_event(
            Event(wall_time=BEGAN_S, step=3, summary=Summary(value=[Summary.Value(tag=tag, tensor=value)]))
        )
    image = Summary.Value(tag="lr", image=Summary.Image(encoded_image_string=b"png"))
    writer.add_event(Event(wall_time=BEGAN_S, step=3, summary=Summary(value=[image])))
    writer.close()
    (record,) = read(tmp_path)
    assert isinstance(record, dict)
    assert {name: record[name] for name in record if name != "t"} == {"step": 3, "loss": 2.5}


def test_the_files_of_a_directory_are_one_log_and_a_pause_between_attempts_is_no_hang(tmp_path: Path) -> None:
    torn = written(tmp_path / "run", steps(60))
    torn.write_bytes(torn.read_bytes()[:-7])
    written(tmp_path / "run", steps(60, first=41), BEGAN_S + 24 * 3600)
    (tmp_path / "run" / "notes.txt").write_text("no log")
    assert logs([tmp_path]) == ([tmp_path / "run"], [])
    result = run(tmp_path, "--json")
    (summary,) = rows(result)
    assert (summary["log"], summary["halts"], summary["records"]) == (str(tmp_path / "run"), 0, 120)
    assert result.exit_code == 1
    assert f"{torn}: torn or damaged at byte" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_written_beside_another_is_another_trainers(tmp_path: Path) -> None:
    written(tmp_path, steps(6))
    beside = written(tmp_path, steps(6), BEGAN_S + 30)
    result = run(tmp_path, "--json")
    assert rows(result)[-1]["records"] == 6
    assert f"{beside}: written beside the file before it" in result.stderr
    assert rows(run(beside, "--json"))[-1]["records"] == 6


def test_steps_that_go_back_in_one_file_go_on(tmp_path: Path) -> None:
    scalars = [*steps(50), *((at + 500.0, step, tag, value) for at, step, tag, value in steps(50, first=21))]
    result = run(written(tmp_path, scalars), "--json")
    assert (result.exit_code, [row["records"] for row in rows(result)]) == (0, [100])


def test_what_is_no_event_file_is_said_in_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    good = written(tmp_path / "good", steps(6))
    data = good.read_bytes()
    bad = {
        "empty.tfevents": b"",
        "garbage.tfevents": bytes(range(256)) * 4,
        "flipped.tfevents": data[:200] + b"\xff" + data[201:],
        "cut.tfevents": data[:-1],
        "endless.tfevents": endless(),
        "wrong.tfevents": framed(b"\xff\xff\xff"),
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "fifo.tfevents")
    paths = [tmp_path / name for name in (*bad, "fifo.tfevents", "missing.tfevents")]
    result = run(*paths, good, "--json")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in said] == [str(path) for path in paths]
    for line, word in zip(said, (
        "empty", "does not begin with an event", "torn or damaged at byte", "torn or damaged at byte",
        "damaged at byte 0", "damaged at byte 0", "not a regular file", "No such file",
    ), strict=True):  # fmt: skip
        assert word in line
    counts = {Path(row["log"]).name: row["records"] for row in rows(result)}
    assert counts["cut.tfevents"] == counts[good.name] == 6, "what came before the tear is replayed"


def framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc32c(length)) + event + struct.pack("<I", masked_crc32c(event))


def endless() -> bytes:
    """An event that says it has four exabytes, and says so rightly."""
    length = struct.pack("<Q", 2**62)
    return length + struct.pack("<I", masked_crc32c(length)) + b"x" * 100


def test_without_tensorboard_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, steps(6))
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    result = run(path, "--json")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"costgov: {path}: TensorBoard event files need TensorBoard's own reader: pip install 'costgov[tensorboard]'"
    ]
