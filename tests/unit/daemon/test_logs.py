"""The log is for whoever reads it; that nobody does any more must not reach the loop."""

from __future__ import annotations

import os
import subprocess
import sys

LOGS = """
import structlog
from governor.daemon.logs import configure
configure("info")
for _ in range(2):
    structlog.get_logger("costgov").warning("alarm", text="x")
print("alive")
"""


def test_a_log_whose_reader_is_gone_raises_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", LOGS], stdout=subprocess.PIPE, stderr=writing, timeout=60, check=False)
    os.close(writing)
    assert done.stdout == b"alive\n"
