"""Published measurements of training speed: rows of tables, read as set-ups, with the speed that each states."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from governor.planner.model.setup import Setup
from governor.planner.model.step_time import model_flops_per_token
from governor.planner.table import read

OWN = Path(__file__).resolve().parent.parent / "data" / "published_speeds.csv"
TABLE = "throughput_dev.csv"

# One publisher, one source: its tables share machines, software and habits, and are left out together.
PUBLISHERS = (
    "llm-foundry", "Megatron-Bridge", "bigscience", "InternEvo", "ModelZoo", "24.12", "NeMo", "deepcompile", "azure",
    "Korthikanti", "SC21", "nanotron", "moe_training", "mx_formats", "pytorch/ao", "Megatron-LM", "torchtitan",
    "fms-fsdp", "gist",
)  # fmt: skip
# Whose FLOPs count attention as if it were not causal, or count the recomputed forward pass as well.
NOT_CAUSAL = ("non-causal", "hardware", "nemo")
RECOMPUTE = 4 / 3


@dataclass(frozen=True)
class Measured:
    row_id: str
    source: str  # the publisher, or the recipe of one model where a publisher has many
    setup: Setup
    assumed: tuple[str, ...]
    tokens_per_gpu_s: float


def measured(folder: Path | None) -> list[Measured]:
    """The package's own rows, and those of the folder's table where there is one."""
    tables = [OWN] + ([folder / TABLE] if folder is not None else [])
    return [one for table in tables for one in _rows(table)]


def _rows(table: Path) -> Iterator[Measured]:
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found = read(row)
            yield Measured(
                row["row_id"], publisher(row["source"]), found.setup, found.assumed, _speed(row, found.setup)
            )


def publisher(text: str) -> str:
    if "dgxc" in text:
        return "dgxc " + text.split()[-1]
    known = (name for name in PUBLISHERS if name.lower() in text.lower())
    return next(known, text[:20])


def _speed(row: dict[str, str], setup: Setup) -> float:
    """As stated; else from the FLOP/s or the MFU, by the convention of the source."""
    if row["tok_s_gpu"]:
        return float(row["tok_s_gpu"])
    convention = (row["flops_convention"] + row["framework"]).lower()
    flops = model_flops_per_token(setup.shape, setup.seq_len, causal=not any(word in convention for word in NOT_CAUSAL))
    if "hardware" in convention:
        flops *= RECOMPUTE
    per_s = float(row["tflops_gpu"]) * 1e12 if row["tflops_gpu"] else float(row["mfu"]) * setup.gpu.peak_bf16 * 1e12
    return per_s / flops
