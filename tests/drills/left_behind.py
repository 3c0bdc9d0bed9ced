"""Not a test of its own: what tests/drills/test_interrupted.py starts, to be interrupted. It waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.drills.halt.conftest import Service, moto_port, service

__all__ = ["moto_port", "service"]

# In a session of its own, below a process that has ended, deaf to what can be ignored: as a trainer that hangs.
ORPHAN = """
import os, signal, sys
for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(ignored, signal.SIG_IGN)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as told:
    told.write(str(os.getpid()))
os.rename(sys.argv[1], sys.argv[2])
signal.pause()
"""

# Each is its own session's, below nobody of the run, and has an environment of its own.
OWN_ENVIRONMENT = """
import os, sys
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as told:
    told.write(str(os.getpid()))
os.rename(sys.argv[1], sys.argv[2])
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


def plant(governor: Service, place: Path, name: str, program: str, **popen: Any) -> int:
    """Start an orphan and return its pid."""
    told = place / name
    subprocess.run([sys.executable, "-c", program, f"{told}.writing", str(told)], check=True, **popen)
    governor.until(told.exists, f"{name} runs")
    return int(told.read_text())


def test_a_halt_that_is_interrupted(service: Callable[..., Service]) -> None:
    place = Path(os.environ["CG_DRILL_PLACE"])
    governor = service()
    governor.start()
    trainee = governor.trainee("healthy")
    governor.until(lambda: governor.step() > 0, "it trains")
    assert governor.process is not None
    pids = [governor.process.pid, trainee.pid, plant(governor, place, "orphan", ORPHAN)]
    if os.environ["CG_DRILL_ENDS"] == "waits":
        pids.append(plant(governor, place, "executed", OWN_ENVIRONMENT))
        pids.append(plant(governor, place, "started", OWN_ENVIRONMENT, env={"PATH": os.environ["PATH"]}))
        if os.geteuid() == 0:
            setpriv = ["setpriv", "--clear-groups", "--regid=65534", "--reuid=65534", "sleep", "1000"]
            other = subprocess.Popen(setpriv, env={"PATH": os.environ["PATH"]}, start_new_session=True)
            pids.append(other.pid)
    (place / "writing").write_text(json.dumps(pids))
    (place / "writing").rename(place / "pids")
    if os.environ["CG_DRILL_ENDS"] == "waits":
        signal.pause()
