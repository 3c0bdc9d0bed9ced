"""Every benchmark in one table: `python -m benchmarks [--json] [NAME …]`; `make bench`. About seven minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Row, as_json, as_text, from_json

HERE = Path(__file__).resolve().parent
LIMIT_S = 300
ERROR_CHARS = 4_000


def main(arguments: list[str]) -> int:
    wanted = [name for name in arguments if not name.startswith("-")]
    programs = sorted(path.stem for path in HERE.glob("bench_*.py"))
    rows: list[Row] = []
    failed: list[str] = []
    for name in programs:
        if wanted and name.removeprefix("bench_") not in wanted:
            continue
        begun_s = time.monotonic()
        argv = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
        # Frameworks warn hundreds of times: what a program says beside its rows is shown when it fails.
        done = subprocess.run(argv, cwd=HERE.parent, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        print(f"{name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
        if done.returncode:
            failed.append(name)
            print(done.stderr[-ERROR_CHARS:], file=sys.stderr)
            continue
        rows += from_json(done.stdout.splitlines()[-1])  # Frameworks print what they like before it.
    if "--json" in arguments:
        print(as_json(rows))
    else:
        load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"{os.cpu_count()} cores, load average {load}: other work shows up in p99 first\n\n{as_text(rows)}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
