"""What watching a training costs, and what it tells: beside TraceML and ml-goodput-measurement, in the same run.

`python -m benchmarks.bench_peers [--json]`. One small loop (benchmarks/attribution/train.py) is trained bare and
watched by each tool in turn, healthy and with a bottleneck whose seconds its own clock knows. Then a table says what
each tool told of it. The peers are no dependency: `pip install traceml-ai==0.5.0 ml-goodput-measurement==0.2.3` beside
costgov. One that is not installed is left out, and a line says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.table import Row, program

HERE = Path(__file__).resolve().parent
TRAIN = str(HERE / "attribution" / "train.py")
BIN = Path(sys.executable).parent
PACKAGES: Final = {"traceml": "traceml_ai", "goodput": "ml_goodput_measurement"}
FAULTS: Final = {
    "none": "nothing", "data": "slow data", "slow": "slow rank", "eval": "evaluation", "save": "saves",
}  # fmt: skip
CAUSES: Final = {"data": "data_starvation", "slow": "straggler", "eval": "evaluation", "save": "checkpoint_stall"}
REPEATS: Final = 3
WARM: Final = 20  # Steps: the first ones start the loader and fill caches.
PRICE: Final = 98.32  # Dollars an hour: an on-demand node of eight H100 in 2025.
RUN_MAX_S: Final = 300.0


def measure(repeats: int = REPEATS) -> list[Row]:
    """Overhead by alternating runs, then each bottleneck once for each tool."""
    tools = ["costgov", *(name for name, package in PACKAGES.items() if importlib.util.find_spec(package))]
    for name in PACKAGES.keys() - set(tools):
        print(f"bench_peers: {PACKAGES[name]} is not installed: left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        rows = overhead(tools, Path(directory), repeats)
        for fault in FAULTS:
            rows += [told_row(tool, fault, Path(directory)) for tool in tools]
    return rows


def overhead(tools: list[str], directory: Path, repeats: int) -> list[Row]:
    """The step's median and p99 beside the bare loop's, seconds until the first step, and memory."""
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in ("none", *tools)}
    for nth in range(repeats):
        for tool in runs:
            runs[tool].append(played(tool, "none", directory / f"cost-{tool}-{nth}"))
    bare = [one * 1e3 for run in runs["none"] for one in run["steps_s"][WARM:]]
    rows = []
    for tool in tools:
        steps = [one * 1e3 for run in runs[tool] for one in run["steps_s"][WARM:]]
        start_s, more_mb = (
            statistics.median(run[name] for run in runs[tool]) - statistics.median(run[name] for run in runs["none"])
            for name in ("start_s", "rss_mb")
        )
        steps.sort()
        note = f"{start_s:.1f} s at its start, {more_mb:+.0f} MB in the trainer"
        tail = steps[int(len(steps) * 0.99)]
        rows.append(Row(f"step watched by {tool}", "ms", statistics.median(steps), tail, len(steps), "", "bare",
                        statistics.median(bare), note))  # fmt: skip
    return rows


def told_row(tool: str, fault: str, directory: Path) -> Row:
    """How many of the injected seconds a tool names as that cause. Its own words are the note."""
    work = directory / f"told-{tool}-{fault}"
    found = played(tool, fault, work)
    injected_s = found["fault_s"]
    seconds, words = {"costgov": _costgov, "traceml": _traceml, "goodput": _goodput}[tool](work, fault, found)
    name = f"{tool}: {FAULTS[fault]}"
    return Row(name, "s", seconds, seconds, 1, "", "injected", injected_s or None, words)


def played(tool: str, fault: str, work: Path) -> dict[str, Any]:
    """One training. What its rank tells that lost the time."""
    work.mkdir(parents=True)
    ranks = 2 if fault == "slow" else 1
    script = [TRAIN, tool, fault, "--out", str(work / "told.json")]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks)]
    argv = [*torchrun, *script]
    if tool == "costgov":
        argv = [str(BIN / "costgov"), "run", "--observe", "--price", str(PRICE), "--name", "bench", "--", *argv]
    elif tool == "traceml":
        own = ["--logs-dir", str(work), "--run-name", "bench", "--nproc-per-node", str(ranks)]
        argv = [str(BIN / "traceml"), "run", *own, TRAIN, "--args", *script[1:]]
    environ = {
        **{name: value for name, value in os.environ.items() if name != "COSTGOV_SOCKET"},
        "PYTHONPATH": str(HERE.parent),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COSTGOV_PATHS__STATE_DIR": str(work / "state"),
        "COSTGOV_PATHS__RUNTIME_DIR": str(work / "run"),
    }
    done = subprocess.run(
        argv, cwd=work, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_MAX_S,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{tool}, {fault}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    rank = ranks - 1
    told: dict[str, Any] = json.loads((work / f"told.{rank}.json").read_text())
    if rank:  # What the recorder has computed is rank 0's.
        told = {**json.loads((work / "told.0.json").read_text()), "fault_s": told["fault_s"]}
    return told


def _costgov(work: Path, fault: str, _found: dict[str, Any]) -> tuple[float, str]:
    state = next((work / "state").glob("**/costgov.db")).parent
    argv = [str(BIN / "costgov"), "report", "bench", "--json", "--state-dir", str(state)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=RUN_MAX_S)
    report = json.loads(done.stdout)
    causes = {one["cause"]: one for one in report["causes"]}
    all_s = report["productive_s"] + sum(one["s"] for one in causes.values())
    exact = abs(all_s - report["wall_s"])
    mine = causes.get(CAUSES.get(fault, ""))
    top = max((one for one in causes.values() if one["cause"] not in ("start_up", "shut_down")), default=None,
              key=lambda one: float(one["s"]))  # fmt: skip
    words = "nothing else" if top is None else f"largest: {top['cause']} {top['s']:.2f} s, ${top['usd']:.4f}"
    return (mine["s"] if mine else 0.0), f"{words}; all causes sum to the wall-clock within {exact * 1e6:.0f} us"


def _traceml(work: Path, fault: str, _found: dict[str, Any]) -> tuple[float, str]:
    """It has no seconds of the run: its figures of a step, times the steps that it has looked at."""
    told = json.loads(next(work.glob("**/final_summary.json")).read_text())["step_time"]
    average, steps = told["global"]["average"], told["global"]["window"]["steps_analyzed"]
    ms = {
        "none": 0.0,
        "data": average["input_wait_ms"],
        "slow": told["diagnosis"]["evidence"].get("visible_cost_ms") or 0.0,
    }.get(fault, average["residual_ms"])  # An evaluation and a save have no name there.
    return ms * steps / 1e3, f"{told['diagnosis']['status']}: {told['diagnosis']['summary']}"


def _goodput(_work: Path, fault: str, found: dict[str, Any]) -> tuple[float, str]:
    badput = {name: share for name, share in found["badput_percent"].items() if share}
    whole_s = sum(found["steps_s"])
    mine = {"eval": "custom EVAL_STEP", "save": "custom CHECKPOINT"}.get(fault, "")
    share = next((one for name, one in badput.items() if name.upper() == mine.upper()), 0.0)
    told = ", ".join(f"{name} {one:.1f} %" for name, one in badput.items())
    return share / 100 * whole_s, f"goodput {found['goodput_percent']:.1f} %; {told}"


def rows() -> list[Row]:
    return measure()


if __name__ == "__main__":
    program(__doc__, rows)
