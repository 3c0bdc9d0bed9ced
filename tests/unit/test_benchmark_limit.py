"""A benchmark at its limit ends what it has started, is named as failed, and costs no other its rows."""

from __future__ import annotations

import sys

from benchmarks.__main__ import run_one

# At its end it says so. It is interrupted where it waits, as soon as it has begun.
WAITS = """
import signal, sys
try:
    signal.pause()
finally:
    print("ended", flush=True)
"""


def test_at_its_limit_a_program_may_end_what_it_has_started() -> None:
    done = run_one([sys.executable, "-S", "-c", WAITS], limit_s=3)
    assert (done.returncode != 0, done.stdout) == (True, "ended\n")
    assert "no end within 3 s" in done.stderr


def test_a_program_that_ends_in_time_has_its_own_code_and_words() -> None:
    done = run_one([sys.executable, "-S", "-c", "print('rows'); raise SystemExit(3)"])
    assert (done.returncode, done.stdout) == (3, "rows\n")
