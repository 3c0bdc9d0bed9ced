"""The journal's disk is full while a halt runs: a record may be lost, the halt is not, and the incident says so."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import SAFETY_S, Service

Make = Callable[..., Service]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a tmpfs of its own")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    state = tmp_path / "state"
    state.mkdir()
    options = ["-t", "tmpfs", "-o", "size=512k", "tmpfs", str(state)]
    subprocess.run(["mount", *options], check=True, capture_output=True, timeout=SAFETY_S)
    yield state
    subprocess.run(["umount", "--lazy", str(state)], check=True, capture_output=True, timeout=SAFETY_S)


def _fill(directory: Path) -> None:
    # A log whose pages are in the journal by now would be written anew from its beginning, and take no room.
    with contextlib.closing(sqlite3.connect(directory / "costgov.db", timeout=SAFETY_S)) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (directory / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def _run(governor: Service) -> Any:
    return next(iter(governor.ask({"cmd": "status"})["runs"]), None)


def test_a_full_disk_costs_the_record_and_not_the_halt(small_disk: Path, service: Make) -> None:
    governor = service()
    governor.start()
    process = governor.trainee("healthy")
    governor.until(lambda: (run := _run(governor)) is not None and (run["step"] or 0) > 30, "it trains")
    _fill(small_disk)
    governor.ask({"cmd": "halt", "run": "drill", "reason": "the drill says so"})
    incident = governor.until_checked()
    process.wait(SAFETY_S)
    assert incident["checkpoint"]["verified_by"] == "governor"
    assert "exited" in [entry["what"] for entry in incident["timeline"]]
    assert incident["undurable"] is True
    status = governor.ask({"cmd": "status"})["governor"]
    assert status["journal_errors_total"] > 0
    fallback = (governor.work / "run" / "journal-fallback.jsonl").read_text().splitlines()
    assert any(json.loads(line)["table"] == "incidents" for line in fallback), "its rows wait in the runtime directory"
