"""Starts ranks on nodes and imports once for all of them: `warm_nodes.py MODULE …`.

One order a line on stdin: {"argv": […], "cwd": "…", "nodes": [{"init": pid, "log": "…", "restarts": n, "ranks":
[{"env": …, "log": "…"}, …]}, …]}. For each node a launcher enters its namespaces, forks its ranks there, and waits for
them as torchrun's agent does: the first rank that fails ends the others of its node, and so many times all of them are
started again. Answers with "begun", a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from tests.drills.shim_engines.warm import await_ranks, become, load

RESTARTS = "its ranks are started again"  # A line of the launcher's log.
SPACES = ("net", "uts", "pid", "mnt")  # The mounts last: behind them is another /proc.


def enter(init: int) -> None:
    """Be on the node of this process 1. Children are; this process keeps its own table of processes."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    opened = [os.open(f"/proc/{init}/ns/{space}", os.O_RDONLY) for space in SPACES]
    for space in opened:
        if libc.setns(space, 0):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        os.close(space)


def launch(order: dict[str, Any], node: dict[str, Any]) -> int:
    """As the launcher on the node: its exit code."""
    os.setsid()
    log = os.open(node["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(log, target)
    failed = attempt(order, node)
    for _ in range(node["restarts"]):
        if failed:
            os.write(1, f"{RESTARTS}\n".encode())
            failed = attempt(order, node)
    return failed


def attempt(order: dict[str, Any], node: dict[str, Any]) -> int:
    """Fork the ranks and wait for them."""
    pids = set()
    for rank in node["ranks"]:
        pid = os.fork()
        if pid == 0:
            become(order, rank)
        pids.add(pid)
    return await_ranks(pids)


def begin(order: dict[str, Any], node: dict[str, Any]) -> None:
    """In a child; never returns. It stays off the node, and ends with the launcher there."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1):
            os.dup2(nothing, target)
        enter(node["init"])
        launcher = os.fork()
        code = launch(order, node) if launcher == 0 else os.waitpid(launcher, 0)[1] != 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def main() -> None:
    load(sys.argv[1:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps.
    for line in sys.stdin:
        order = json.loads(line)
        for node in order["nodes"]:
            if os.fork() == 0:
                begin(order, node)
        print("begun", flush=True)


if __name__ == "__main__":
    main()
