"""One rank of a small training that one tool watches: `train.py TOOL FAULT --out FILE`.

The loop is the same for every tool, plus the lines that the tool's own documentation asks for. What is put in, the
loop's own clock times. FILE gets the times of its steps, what the fault took, and what the tool cost at its start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

asked = argparse.ArgumentParser()
asked.add_argument("tool", choices=("none", "costgov", "traceml", "goodput"))
asked.add_argument("fault", choices=("none", "data", "slow", "eval", "save"))
asked.add_argument("--out", type=Path, required=True)
asked.add_argument("--steps", type=int, default=120)
told = asked.parse_args()
TOOL, FAULT, STEPS = told.tool, told.fault, told.steps
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH, LENGTH, VOCABULARY, WIDTH = 8, 64, 256, 128
EVERY = 10  # Steps between evaluations, and between saves.
AMOUNT_S = 0.02  # A step, on the average: about as long as a step takes without it.
torch.set_num_threads(1)
torch.manual_seed(0)
fault_s = 0.0


class Sequences(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> torch.Tensor:
        if FAULT == "data":
            lose(AMOUNT_S / BATCH)
        return (torch.arange(LENGTH) * 3 + index) % VOCABULARY


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if FAULT == "slow" and RANK == 1 and self.training:
            lose(AMOUNT_S)
        x = self.head(self.layers(self.embed(ids)))
        return functional.cross_entropy(x[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def lose(seconds: float) -> None:
    global fault_s
    begun = time.perf_counter()
    time.sleep(seconds)
    fault_s += time.perf_counter() - begun


class LocalLog:
    """Where ml-goodput-measurement writes and reads instead of Google Cloud Logging."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.job_start_time = None

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def flush(self) -> None:
        """Nothing waits."""

    def read_cloud_logging_entries(self, *_args: Any, **_kwargs: Any) -> tuple[list[dict[str, Any]], tuple[Any, Any]]:
        return list(self.entries), (None, None)


if WORLD > 1:
    distributed.init_process_group("gloo")
model: Any = Model()
if WORLD > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Sequences(), batch_size=BATCH)
begun = time.perf_counter()
recorder: Any = None
traced: Any = lambda _model: contextlib.nullcontext()  # noqa: E731
log = LocalLog()
if TOOL == "costgov":
    from trainer_shim import attach

    attach(model, optimizer=optimizer, checkpoint_dir=str(told.out.parent))
elif TOOL == "traceml":
    import traceml_ai

    traceml_ai.init(mode="auto")
    traced = traceml_ai.trace_step
elif TOOL == "goodput":
    from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder

    recorder = GoodputRecorder("bench", "bench", True, log)
    recorder.record_job_start_time()
start_s = time.perf_counter() - begun


class Slow:
    """A part of the state that takes its time to be written."""

    def __getstate__(self) -> dict[str, Any]:
        time.sleep(EVERY * AMOUNT_S)
        return {}


def evaluate() -> None:
    """As long as ten steps' share of the fault, of real forward passes."""
    global fault_s
    begun = time.perf_counter()
    model.eval()
    with torch.no_grad():
        while time.perf_counter() - begun < EVERY * AMOUNT_S:
            model(torch.zeros((BATCH, LENGTH), dtype=torch.long))
    model.train()
    fault_s += time.perf_counter() - begun


def save() -> None:
    """To a disk that takes its time."""
    global fault_s
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        torch.save({"model": model.state_dict(), "slow": Slow()}, os.path.join(directory, "model.pt"))
    fault_s += time.perf_counter() - begun


def marked(event: str, call: Any) -> None:
    """Call it, and tell the recorder, as its documentation does for an evaluation."""
    if recorder is not None:
        recorder.record_custom_badput_event_start_time(custom_badput_event_type=event)
    call()
    if recorder is not None:
        recorder.record_custom_badput_event_end_time(custom_badput_event_type=event)


times: list[float] = []
last = time.perf_counter()
for step, ids in enumerate(loader, 1):
    if recorder is not None:
        recorder.record_step_start_time(step)
    with traced(model):
        optimizer.zero_grad()
        model(ids).backward()
        optimizer.step()
    if step % EVERY == 0 and FAULT == "eval":
        marked("eval_step", evaluate)
    if step % EVERY == 0 and FAULT == "save":
        marked("checkpoint", save)
    now = time.perf_counter()
    times.append(now - last)
    last = now
found: dict[str, Any] = {"steps_s": times, "fault_s": fault_s, "start_s": start_s}
found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
if recorder is not None:
    recorder.record_job_end_time()
    calculator = GoodputCalculator("bench", "bench", log, cache_dir=str(told.out.parent / "goodput"))
    goodput, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
    found["goodput_percent"] = goodput
    found["badput_percent"] = {
        getattr(name, "name", str(name)): share for name, share in badput.items() if not isinstance(share, dict)
    } | {
        f"custom {name}": share
        for shares in badput.values()
        if isinstance(shares, dict)
        for name, share in shares.items()
    }
told.out.with_suffix(f".{RANK}.json").write_text(json.dumps(found))
if WORLD > 1:
    distributed.destroy_process_group()
