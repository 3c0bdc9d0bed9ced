"""The daemon's journal is destroyed behind its back: budgets go on, and the node's time is charged all the same."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from governor.adapters.journal.runtime_files import MIRROR_NAME
from tests.drills.halt.conftest import BIN, SAFETY_S, Service

PRICE_USD_PER_HOUR = 98.32  # As the drill's configuration has it.


def _cost(governor: Service) -> Any:
    argv = [str(BIN / "costgov"), "cost", "--json", "--config", str(governor.config)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S, check=True)
    return json.loads(done.stdout)["total"]


def _killed_amid_a_run(service: Callable[..., Service]) -> tuple[Service, float]:
    governor = service()
    governor.start()
    governor.trainee("healthy")
    governor.until(lambda: governor.run().get("spend_usd"), "money is spent")
    governor.ask({"cmd": "hold", "run": "drill", "duration_ns": 3600 * 10**9, "reason": "keeps what is known now"})
    spent = governor.run()["spend_usd"]
    mirror = governor.work / "run" / MIRROR_NAME  # Written behind the commit that was answered for.
    governor.until(lambda: "keeps what is known now" in mirror.read_text(), "the copy has it, too")
    governor.kill9()
    return governor, spent


@pytest.mark.parametrize("damage", ["empty", "garbage", "torn"])
def test_a_run_goes_on_with_what_it_has_spent(service: Callable[..., Service], damage: str) -> None:
    governor, spent = _killed_amid_a_run(service)
    journal = governor.work / "state" / "costgov.db"
    content = journal.read_bytes()
    torn = {"empty": b"", "garbage": os.urandom(len(content)), "torn": content[:100] + os.urandom(4000)}[damage]
    journal.write_bytes(torn)
    journal.with_name("costgov.db-wal").unlink()
    governor.start()
    known = governor.until(lambda: governor.run().get("ranks_connected") and governor.run(), "it is back")
    assert known["spend_usd"] >= spent, "its budget is not begun anew"
    assert known["hold"]["reason"] == "keeps what is known now"
    governor.until_said("a fresh journal is begun")
    [aside] = journal.parent.glob("costgov.db.corrupt-*Z")
    assert aside.read_bytes() == torn
    governor.until(lambda: float(_cost(governor)["reconstructed_usd"]) > 0, "the gap is charged, and marked")


def test_with_nothing_left_the_node_is_charged_from_its_boot(service: Callable[..., Service]) -> None:
    governor, _ = _killed_amid_a_run(service)
    journal = governor.work / "state" / "costgov.db"
    journal.write_bytes(b"")
    journal.with_name("costgov.db-wal").unlink()
    (governor.work / "run" / MIRROR_NAME).unlink()
    booted_for_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    governor.start()
    governor.until_said("a daemon charges what passed since the boot anew")
    least = PRICE_USD_PER_HOUR * booted_for_s / 3600
    governor.until(lambda: float(_cost(governor)["reconstructed_usd"]) >= least, "all of it, marked as reconstructed")
    assert float(_cost(governor)["usd"]) < least * 1.01 + PRICE_USD_PER_HOUR * SAFETY_S / 3600, "and no more than that"
