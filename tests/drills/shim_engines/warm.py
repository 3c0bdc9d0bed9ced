"""Starts ranks that have torch in them already: `warm.py MODULE …` imports once, and every rank is a fork of it.

Importing DeepSpeed costs two seconds of processor, transformers' Trainer four, and these drills start a hundred ranks.
One order a line on stdin: {"argv": […], "cwd": "…", "ranks": [{"env": {…}, "log": "…"}, …]}. Answers, a line each: the
pids, and when all have ended their exit codes. Each rank runs the script as a program of its own, and nothing of the
shim is imported before.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

# What a package imports with the first optimizer of a loop: two seconds of processor in each rank.
LATER = {"torch": "torch._dynamo", "deepspeed": "deepspeed.runtime.zero.muon.muon_optimizer"}


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


def await_ranks(pids: set[int]) -> int:
    """Wait for these children as torchrun's agent does: the first that fails ends the others. 1 where one failed."""
    failed = 0
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if status and not failed:
            failed = 1
            for other in pids:
                os.kill(other, signal.SIGTERM)
    return failed


def load(modules: list[str]) -> None:
    """Import them. What frameworks import where it is installed, and no loop here uses, is as if it were not."""
    named = {module.split(".")[0] for module in modules}
    for optional in ("datasets", "wandb"):
        if optional not in named:
            sys.modules.setdefault(optional, None)  # type: ignore[arg-type]
    gc.disable()  # A quarter of the time of an import is the collector's, which finds nothing.
    for module in modules:
        importlib.import_module(module)
    for package, later in LATER.items():
        if package in sys.modules:
            importlib.import_module(later)
    gc.freeze()
    gc.enable()


def main() -> None:
    load(sys.argv[1:])
    threads = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    mine = [name for name in threads if name != "jemalloc_bg_thd"]  # pyarrow's allocator sees to its own at a fork.
    assert len(mine) == 1, f"threads {mine}: a fork would lose all but one"
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
