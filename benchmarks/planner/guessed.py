"""What it costs the predicted speed that a column is blank: each stated value left out and guessed, on published rows.

python -m benchmarks.planner.guessed FOLDER    FOLDER holds throughput_dev.csv

The doubt of a column is the standard deviation with which four of five rows lie within an 80 % interval of the speed
that is predicted with the value stated. Each source counts by the square root of its rows.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planner.measured_speeds import OWN, TABLE, publisher
from governor.planner.model.candidates import DEEPSPEED
from governor.planner.model.predict import GUESSED_SPEED, MICRO_OF_STEP, MICRO_OF_STEP_EAGER, Z80
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.table import UnreadableRowError, read

SIZES = ("model", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab")
# Column: what is blank with it, as a table without it lacks that as well.
BLANKED: dict[str, tuple[str, ...]] = {
    "params_b": (*SIZES, "params_b", "n_experts", "topk", "moe_ffn", "ep"),
    "hidden": SIZES,
    "layers": ("model", "layers"),
    "heads": ("model", "heads", "kv_heads"),
    "vocab": ("model", "vocab"),
    "gpu": ("gpu",),
    "gpus": ("gpus", "dp"),
    "seq_len": ("seq_len",),
    "micro_bs": ("micro_bs", "grad_accum", "global_batch_tokens"),
    "grad_accum": ("grad_accum", "global_batch_tokens"),
    "framework": ("framework",),
    "precision": ("precision",),
    "zero_stage": ("zero_stage",),
    "act_ckpt": ("act_ckpt",),
    "ep": ("ep",),
}


def without(row: dict[str, str], column: str) -> float | None:
    """The logarithm of the speed with the column guessed over that with it stated. None: it is not guessed."""
    if not row.get(column, "").strip() and column not in ("params_b", "hidden", "layers", "heads", "vocab"):
        return None
    stated = read(row)
    if any(one.split()[0] == column for one in stated.assumed):
        return None
    blanks = dict.fromkeys(BLANKED[column], "")
    sizes = {} if column == "params_b" else {"params_b": f"{stated.setup.shape.params / 1e9}"}
    try:
        guessed = read(row | sizes | blanks)
        if not any(one.split()[0] == column for one in guessed.assumed):
            return None
        return math.log(tokens_per_gpu_s(guessed.setup) / tokens_per_gpu_s(stated.setup))
    except (ValueError, UnreadableRowError):
        return None  # Refused: no figure.


def without_micro(row: dict[str, str]) -> float | None:
    """The same of the micro-batch alone, where the tokens of the step are stated."""
    stated = read(row)
    if not row.get("micro_bs", "").strip() or {"micro_bs", "grad_accum"} & {one.split()[0] for one in stated.assumed}:
        return None
    step = {"micro_bs": "", "grad_accum": "", "global_batch_tokens": f"{stated.setup.tokens_per_step}"}
    guessed = read(row | step)
    return math.log(tokens_per_gpu_s(guessed.setup) / tokens_per_gpu_s(stated.setup))


def doubt(errors: Sequence[tuple[str, float]]) -> float:
    crowd = Counter(source for source, _ in errors)
    weighed = sorted((abs(error), crowd[source] ** -0.5) for source, error in errors)
    half, total = 0.0, sum(weight for _, weight in weighed)
    for error, weight in weighed:
        half += weight
        if half >= (0.8 - 1e-9) * total:  # 4 of 5, however they round
            return error / Z80
    raise AssertionError("no rows")


def rows_of(folder: Path) -> list[dict[str, str]]:
    found = []
    for table in (OWN, folder / TABLE):
        with table.open(encoding="utf-8", newline="") as lines:
            found += list(csv.DictReader(lines))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    if not (folder / TABLE).exists():
        print(f"skipped: {folder / TABLE} is not there")
        return 0
    rows = rows_of(folder)
    print(f"{'column':<12} {'rows':>5} {'sources':>7} {'median':>7} {'p90':>6} {'doubt':>6} {'in the model':>12}")
    for column in BLANKED:
        errors = [(publisher(row["source"]), error) for row in rows if (error := without(row, column)) is not None]
        if not errors:
            print(f"{column:<12} {0:>5}")
            continue
        sizes = sorted(abs(error) for _, error in errors)
        print(
            f"{column:<12} {len(errors):>5} {len({source for source, _ in errors}):>7} {sizes[len(sizes) // 2]:>7.2f} "
            f"{sizes[int(0.9 * len(sizes))]:>6.2f} {doubt(errors):>6.2f} {GUESSED_SPEED.get(column, 0.0):>12.2f}"
        )
    for name, is_eager, known in (("of a step", False, MICRO_OF_STEP), ("and eager", True, MICRO_OF_STEP_EAGER)):
        some = [row for row in rows if (read(row).setup.framework in DEEPSPEED) is is_eager]
        made = ((publisher(row["source"]), without_micro(row)) for row in some)
        errors = [(source, error) for source, error in made if error is not None]
        if errors:
            print(f"micro_bs {name}: {len(errors)} rows, doubt {doubt(errors):.2f}, in the model {known}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
