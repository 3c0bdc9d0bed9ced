"""Not a test of its own: what tests/drills/test_interrupted.py starts, to be interrupted. It waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


def test_a_halt_that_is_interrupted(service: Callable[..., Service]) -> None:
    place = Path(os.environ["CG_DRILL_PLACE"])
    governor = service()
    governor.start()
    trainee = governor.trainee("healthy")
    governor.until(lambda: governor.step() > 0, "it trains")
    subprocess.run([sys.executable, "-c", ORPHAN, str(place / "writing"), str(place / "orphan")], check=True)
    governor.until((place / "orphan").exists, "the orphan runs")
    assert governor.process is not None
    pids = [governor.process.pid, trainee.pid, int((place / "orphan").read_text())]
    (place / "writing").write_text(json.dumps(pids))
    (place / "writing").rename(place / "pids")
    if os.environ["CG_DRILL_ENDS"] == "waits":
        signal.pause()
