"""Starts ranks that have torch in them already: `warm.py MODULE …` imports once, and every rank is a fork of it.

Importing DeepSpeed costs two seconds of processor, transformers' Trainer four, and these drills start a hundred ranks.
One order a line on stdin: {"argv": […], "cwd": "…", "ranks": [{"env": {…}, "log": "…"}, …]}. Answers, a line each: the
pids, and when all have ended their exit codes. Each rank runs the script as a program of its own, and nothing of the
shim is imported before.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def become(order: dict[str, Any], rank: dict[str, Any]) -> None:
    """Never returns."""
    code = 1
    try:
        log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(rank["env"])
        sys.argv = order["argv"]
        sys.path[0] = str(Path(order["argv"][0]).parent)
        runpy.run_path(order["argv"][0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    # transformers imports it where trl has it installed, and its pyarrow starts a thread. No loop here uses it.
    sys.modules["datasets"] = None  # type: ignore[assignment]
    for module in sys.argv[1:]:
        importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    assert not any(name.split(".")[0] == "trainer_shim" for name in sys.modules)
    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for rank in order["ranks"]:
            pid = os.fork()
            if pid == 0:
                become(order, rank)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
