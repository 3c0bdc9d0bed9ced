"""What the look at all trained parameters adds to a save: `python -m benchmarks.bench_saves [--json]`.

The weights are those of a plain model on the CPU, in tensors as a transformer has them. The peer is the save that
follows: torch.save of the same weights, without AdamW's two states beside them, and one fsync.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.table import Row, program, row
from trainer_shim.sight.weights import first_harmed

REPEATS = 15
WIDTH, LAYERS = 1024, 4
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def weights(kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Of four layers: four matrices for attention, two for the MLP, two norms."""
    made: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        for name in ("q", "k", "v", "o"):
            made[f"{layer}.{name}"] = torch.randn(WIDTH, WIDTH).to(kind)
        made[f"{layer}.up"] = torch.randn(4 * WIDTH, WIDTH).to(kind)
        made[f"{layer}.down"] = torch.randn(WIDTH, 4 * WIDTH).to(kind)
        made[f"{layer}.norm_1"] = torch.ones(WIDTH, dtype=kind)
        made[f"{layer}.norm_2"] = torch.ones(WIDTH, dtype=kind)
    return made


def save(held: dict[str, torch.Tensor], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(held, file)
        file.flush()
        os.fsync(file.fileno())


def milliseconds(call: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(REPEATS + 1):
        begun_s = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begun_s))
    return taken[1:]  # The first one touches the pages.


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=os.curdir) as home:  # On a disk: /tmp may be memory.
        for name, kind in KINDS.items():
            held = weights(kind)
            megabytes = sum(one.numel() * one.element_size() for one in held.values()) / 1e6
            assert first_harmed(held.items()) == "", "the look finds nothing here"
            looks = milliseconds(lambda held=held: first_harmed(held.items()))  # type: ignore[misc]
            saves = milliseconds(lambda held=held: save(held, Path(home) / "weights.pt"))  # type: ignore[misc]
            what = f"look at all trained parameters at a save, {megabytes:.0f} MB of {name}"
            peer = "torch.save and fsync of the weights"
            rows.append(row(what, "ms", looks, peer=peer, peer_samples=saves))
    return rows


if __name__ == "__main__":
    program(__doc__, measure)
