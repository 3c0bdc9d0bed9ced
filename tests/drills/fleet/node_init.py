"""A node's process 1: `node_init.py NAME PLACE`. It makes the namespaces a node, starts what it is told to, and reaps.

One order a line on stdin: {"argv": […], "env": {…}, "cwd": "…", "log": "…"}. Answers, a line each: {"started": pid},
and of each process that it has reaped {"ended": pid, "code": …}, with this node's own pids. When stdin ends, it ends,
and with it all that is on the node.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path


def furnish(name: str, place: Path) -> None:
    """A name, a /run with the governor's directory in it, and names that need no DNS."""
    socket.sethostname(name)
    mounts = [
        ("-t", "tmpfs", "-o", "mode=755", "run", "/run"),
        ("--bind", str(place.parent / "hosts"), "/etc/hosts"),
        ("--bind", str(place.parent / "nsswitch.conf"), "/etc/nsswitch.conf"),
    ]
    for mount in mounts:
        subprocess.run(["mount", "-n", *mount], check=True)
    Path("/run/costgov").mkdir()
    subprocess.run(["mount", "-n", "--bind", str(place / "run"), "/run/costgov"], check=True)


def begin(order: dict[str, object]) -> None:
    """In the child; never returns."""
    try:
        log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(str(order["cwd"]))
        argv, env = order["argv"], order["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        os.execvpe(argv[0], argv, env)
    finally:
        traceback.print_exc()
        os._exit(127)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)


def main(name: str, place: Path) -> None:
    furnish(name, place)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    print(json.dumps({"ready": name}), flush=True)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if 0 in ready:
            line = sys.stdin.buffer.raw.readline()  # Unbuffered: select knows of no line that was read ahead.
            if not line:
                return
            pid = os.fork()
            if pid == 0:
                begin(json.loads(line))
            print(json.dumps({"started": pid}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
