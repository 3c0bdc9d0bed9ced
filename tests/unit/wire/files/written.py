"""Writes logs that are no lines by the writers of those formats: TensorBoard's, PyTorch's, W&B's SDK."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.util.tensor_util import make_tensor_proto

BEGAN_S = 1_800_000_000.0
BLOCK = 32 * 1024


# --- TensorBoard ----------------------------------------------------------------------------------------------


def frame(data: bytes) -> bytes:
    """As tensorboard.summary.writer.record_writer does it."""
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(one)) for one in (length, data)]
    return length + checksums[0] + data + checksums[1]


def begin() -> bytes:
    return frame(Event(wall_time=BEGAN_S, file_version="brain.Event:2").SerializeToString())


def scalar(step: int, tag: str, value: float, at: float | None = None, *, tensor: str | None = None) -> bytes:
    """A frame with an event."""
    return frame(event(step, tag, value, at, tensor=tensor))


def event(step: int, tag: str, value: float, at: float | None = None, *, tensor: str | None = None) -> bytes:
    """An event with a scalar as PyTorch writes it, or with a tensor of that type as TensorFlow 2 does."""
    one = Summary.Value(tag=tag)
    if tensor is None:
        one.simple_value = value
    else:
        import numpy as np

        one.tensor.CopyFrom(make_tensor_proto(np.array(value, dtype=tensor)))
    made = Event(wall_time=BEGAN_S + (step if at is None else at), step=step, summary=Summary(value=[one]))
    return bytes(made.SerializeToString())


def events(steps: Iterable[int], loss: float = 2.0) -> bytes:
    """As the Hugging Face Trainer writes them."""
    return b"".join(
        scalar(step, tag, value)
        for step in steps
        for tag, value in (("train/loss", loss), ("train/grad_norm", 1.0), ("train/epoch", 0.5))
    )


# --- W&B ------------------------------------------------------------------------------------------------------


class RunFile:
    """Writes W&B's local log as wandb 0.31 does: a test compares both."""

    def __init__(self) -> None:
        self.data = bytearray(b":W&B" + b"\xe1\xbe\x00")

    def put(self, record: bytes) -> None:
        is_first = True
        while True:
            left = BLOCK - len(self.data) % BLOCK
            if left < 7:
                self.data += bytes(left)
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if not record else 2) if is_first else (4 if not record else 3)
            checksum = zlib.crc32(piece, zlib.crc32(bytes([kind])))
            self.data += struct.pack("<IHB", checksum, len(piece), kind) + piece
            is_first = False
            if not record:
                return

    def row(self, step: int, values: Mapping[str, Any]) -> None:
        self.put(history(step, values))


def history(step: int, values: Mapping[str, Any]) -> bytes:
    from wandb.proto import wandb_internal_pb2 as proto

    record = proto.Record(num=step)
    for name, value in ({"_step": step, "_timestamp": BEGAN_S + step} | dict(values)).items():
        record.history.item.add(nested_key=[name], value_json=json.dumps(value))
    record.history.step.num = step
    return bytes(record.SerializeToString())


_SCRIPT = """
import json, sys, wandb
rows = json.loads(sys.argv[2])
run = wandb.init(project="p", dir=sys.argv[1], settings=wandb.Settings(x_disable_stats=True, console="off"))
for row in rows:
    run.log({"hist": wandb.Histogram([1, 2, 3])} | row["values"], step=row["step"])
run.finish()
"""


def run_file(directory: Path, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Path:
    """A local log by W&B's own SDK, offline."""
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    told = json.dumps([{"step": step, "values": values} for step, values in rows])
    command = [sys.executable, "-P", "-c", _SCRIPT, str(directory), told]
    subprocess.run(command, check=True, env=environment, timeout=120, capture_output=True, cwd=directory)
    (path,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return path
