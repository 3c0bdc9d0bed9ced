"""How long `costgov plan`, `plan batch` and `plan search` think: CPU time of one core, without Python's start.

`python -m benchmarks.bench_plan`. The search is over parallelism, ZeRO stage, micro-batch, checkpointing, GPUs and
three frameworks for Llama-3-8B, with Pareto front, primary and fallback; its time is given per 10,000 candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.table import Row, program, row
from governor.planner.batch import prediction
from governor.planner.estimate import estimate
from governor.planner.levers import levers_of
from governor.planner.model.candidates import Limits
from governor.planner.output.report import report
from governor.planner.search import searched, wanted
from governor.text.screen import FILE

REPEATS = 100
SEARCHES = 3
COUNTED = 10_000
PLAN = {"model": "llama3-8b", "tokens": "100B", "gpus": "64", "gpu": "h100", "price": "2.5"}
# As published tables have them: sizes and software, with blanks.
ROW = {
    "model": "Llama3-8B", "params_b": "8.03", "gpu": "H100-SXM-80GB", "gpus": "8", "seq_len": "8192", "micro_bs": "1",
    "precision": "bf16", "framework": "torchtitan (FSDP2)", "attention": "SDPA flash", "date": "2025-06",
}  # fmt: skip
ROWS = 1_000
SPACE = {"model": "llama3-8b", "framework": "deepspeed,fsdp2,megatron"}


def seconds(repeats: int, call: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(repeats):
        begun_s = time.process_time()
        call()
        taken.append(time.process_time() - begun_s)
    return taken


def plan() -> str:
    one = estimate(PLAN)
    levers, both = levers_of(one)
    return report(one, levers, both, screen=FILE)


def measure() -> list[Row]:
    plan()  # Reads the catalogue once; every later plan has it.
    want = wanted(SPACE, Limits(deadline_h=240, budget_usd=15_000))
    tried = searched(want, 100e9).tried
    assert tried >= COUNTED, "a search as large as it says"
    plans = [1000 * one for one in seconds(REPEATS, plan)]
    rows = [1e6 * one / ROWS for one in seconds(REPEATS // 10, lambda: [prediction(ROW, "1") for _ in range(ROWS)])]
    searches = [one * COUNTED / tried for one in seconds(SEARCHES, lambda: searched(want, 100e9))]
    return [
        row("one plan, predicted, priced, with its levers", "ms", plans, aim="< 50", note="after import"),
        row("a row of `plan batch`", "us", rows, aim="< 1,000", note=f"{ROWS:,} rows at a time"),
        row("a search, per 10,000 candidates", "s", searches, aim="< 2", note=f"{tried:,} candidates"),
    ]


if __name__ == "__main__":
    program(__doc__, measure)
