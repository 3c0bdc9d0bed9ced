"""A trainer that only prints, as Megatron does or as lines of JSON.

    python prints_steps.py WORK STEPS WAITS_S NAN_FROM [jsonl|megatron] [FILE]

NAN_FROM 0: never; WORK/nan_at has the monotonic time at which the first one is printed as Megatron does. Lines go to
FILE, or to standard output. Behind its steps it touches WORK/printed, and lives on until WORK/go_on is there.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

from tests.unit.wire.formats.written import WRITERS, run

if __name__ == "__main__":
    work, steps, waits_s, nan_from = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    (work / "pids").write_text(json.dumps([os.getpid()]))
    did = run(steps, broken_from=nan_from or None)
    if sys.argv[5:6] == ["jsonl"]:
        lines = iter(f'{{"step": {d.step}, "loss": {"NaN" if math.isnan(d.loss) else d.loss}}}' for d in did)
    else:
        lines = WRITERS["megatron"](did)
    with open(sys.argv[6], "w", buffering=1) if len(sys.argv) > 6 else sys.stdout as out:
        for line in lines:
            if "nan |" in line.lower() and not (work / "nan_at").exists():
                (work / "nan_at").write_text(str(time.monotonic_ns()))
            print(line, file=out)
            time.sleep(waits_s)
        out.flush()
        (work / "printed").touch()
        while not (work / "go_on").exists():
            time.sleep(0.02)
