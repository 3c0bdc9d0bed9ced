"""Every benchmark in one table: `python -m benchmarks [--json] [NAME …]`; `make bench`. Some thirty minutes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Row, as_json, as_text, from_json

HERE = Path(__file__).resolve().parent
LIMIT_S = 400
END_S = 60  # For what a program ends after its interruption.
ERROR_CHARS = 4_000


def run_one(argv: list[str], limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run one program. At its limit it is interrupted, so that it ends what it has started, and has failed."""
    with subprocess.Popen(argv, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            said, errors = program.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGINT)
            try:
                said, errors = program.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                program.kill()
                said, errors = program.communicate()
            errors += f"\nno end within {limit_s:.0f} s"
            return subprocess.CompletedProcess(argv, program.returncode or 1, said, errors)
    return subprocess.CompletedProcess(argv, program.returncode, said, errors)


def main(arguments: list[str]) -> int:
    programs = {path.stem.removeprefix("bench_"): f"benchmarks.{path.stem}" for path in sorted(HERE.glob("bench_*.py"))}
    for path in sorted(HERE.glob("scale/bench_*.py")):  # Minutes each: growth to a thousand nodes.
        programs[f"scale_{path.stem.removeprefix('bench_')}"] = f"benchmarks.scale.{path.stem}"
    asked = argparse.ArgumentParser(prog="python -m benchmarks", description="Our cost beside a peer's, in one table.")
    asked.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(programs)}")
    asked.add_argument("--json", action="store_true", help="one JSON list of rows instead of the table")
    told = asked.parse_args(arguments)
    if unknown := [name for name in told.names if name not in programs]:
        asked.error(f"no such benchmark: {', '.join(unknown)}")
    rows: list[Row] = []
    failed: list[str] = []
    for name, module in programs.items():
        if told.names and name not in told.names:
            continue
        begun_s = time.monotonic()
        argv = [sys.executable, "-m", module, "--json"]
        # Frameworks warn hundreds of times: what a program says beside its rows is shown when it fails.
        done = run_one(argv)
        print(f"{name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
        if done.returncode:
            failed.append(name)
            print(done.stderr[-ERROR_CHARS:], file=sys.stderr)
            continue
        rows += from_json(done.stdout.splitlines()[-1])  # Frameworks print what they like before it.
    if told.json:
        print(as_json(rows))
    else:
        load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"{os.cpu_count()} cores, load average {load}: other work shows up in p99 first\n\n{as_text(rows)}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
