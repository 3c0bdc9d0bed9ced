"""The wall clock is set while the daemon runs and while it is down: money is charged once, and nothing halts.

libfaketime sets CLOCK_REALTIME alone, in the daemon alone: a time namespace covers the other clocks, and setting the
machine's own would disturb everybody on it.
"""

from __future__ import annotations

import glob
import json
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from governor.core.base.units import NS_PER_S
from governor.daemon.loop import TICK_NS
from tests.drills.halt.conftest import POLICY, Service

FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
pytestmark = pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime (apt-get install faketime)")

USD_PER_HOUR = 98.32
# An hour of wall time would already reach the ceiling; three days would pass for a hang.
CEILING = """
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
[[rule]]
name = "hang"
trigger = "hang"
response = "halt"
[budget]
ceiling_usd = 90
"""
STEPS = {"+3d": timedelta(days=3), "-400d": timedelta(days=-400), "-1h": timedelta(hours=-1)}  # Against the true time.
HOLD_NS = 3600 * NS_PER_S


class Clock:
    """The daemon's wall clock, as an offset in a file that it reads at every look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set("+0")
        self.prefix = [
            "env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={path}", "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1", "NO_FAKE_STAT=1",
        ]  # fmt: skip

    def set(self, offset: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(offset + "\n")
        fresh.rename(self.path)


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _usd(seconds: float) -> float:
    return USD_PER_HOUR * seconds / 3600


def _trained_on(governor: Service) -> float:
    """Wait until it has heard 50 steps more, and charged at least once since; returns what was charged by then."""
    step, spent = governor.step(), governor.run().get("spend_usd", 0.0)
    governor.until(lambda: governor.step() > step + 50, "it trains on")
    return float(governor.until(lambda: governor.run().get("spend_usd", 0.0) > spent and _spend(governor), "charged"))


def _spend(governor: Service) -> float:
    return float(governor.run()["spend_usd"])


def _off_by(governor: Service, reloads: int) -> timedelta:
    """How far the daemon's wall clock is from ours: the label of a log line that it writes now."""
    assert governor.process is not None
    governor.process.send_signal(signal.SIGHUP)
    governor.until(lambda: governor.log.read_text().count('"reloaded"') == reloads, "it writes a line")
    lines = [json.loads(line) for line in governor.log.read_text().splitlines()]
    said = datetime.fromisoformat([line["timestamp"] for line in lines if line["event"] == "reloaded"][-1])
    return said - datetime.now(UTC)


def test_it_is_set_and_money_is_charged_once_and_nothing_halts(service: Callable[..., Service], tmp_path: Path) -> None:
    clock = Clock(tmp_path / "wall")
    governor = service(policy=POLICY + CEILING, prefix=clock.prefix)
    governor.start()
    begun_s = _boot_s()
    trainee = governor.trainee("healthy")
    governor.until(lambda: governor.step() > 30, "it trains")
    heard_s = _boot_s()
    hold = {"cmd": "hold", "run": "drill", "duration_ns": HOLD_NS, "reason": "an hour, whatever the calendar says"}
    governor.ask(hold)

    spent = 0.0
    for reloads, (offset, set_by) in enumerate(STEPS.items(), start=1):
        clock.set(offset)
        assert abs(_off_by(governor, reloads) - set_by) < timedelta(minutes=10), "it was really set"
        now = _trained_on(governor)
        assert now > spent, "what was charged is not given back"
        spent = now
        _charged_once(governor, begun_s, heard_s)
    held = governor.run()["hold"]
    assert 0 < held["left_s"] <= HOLD_NS / NS_PER_S

    # While it is down, too: the time away is charged by the clock that cannot be set.
    governor.kill9()
    clock.set("+90d")
    governor.start()
    governor.until(lambda: governor.run().get("ranks_connected"), "the trainee is back")
    assert _trained_on(governor) > spent
    _charged_once(governor, begun_s, heard_s)
    assert governor.incidents() == []
    assert trainee.poll() is None


def _charged_once(governor: Service, begun_s: float, heard_s: float) -> None:
    """The run's spend lies between the price of its time since we saw it and of its time since it was launched.

    Of the grid's interval in which it said hello, it bears the whole.
    """
    known_s, known = _boot_s(), _spend(governor)
    governor.until(lambda: _spend(governor) > known, "a charge after that")
    charged = _spend(governor)
    assert _usd(known_s - heard_s) <= charged <= _usd(_boot_s() - begun_s + TICK_NS / NS_PER_S)
