"""The installed `costgov` in a world of its own, and a control socket that answers from a table."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.control_socket import ControlServer
from tests.drills.cli.installed import BOUND_S, COSTGOV, Costgov


@pytest.fixture
def environ(short_tmp: Path) -> dict[str, str]:
    """A machine of its own: no governor, no configuration, nothing of the caller's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("COSTGOV_", "SLURM_"))}
    paths = {"COSTGOV_PATHS__STATE_DIR": f"{short_tmp}/state", "COSTGOV_PATHS__RUNTIME_DIR": f"{short_tmp}/run"}
    paths |= {"COSTGOV_CONTROL": f"{short_tmp}/run/control.sock", "COSTGOV_PATHS__POLICIES_DIR": f"{short_tmp}/none"}
    return {**ours, **paths, "HOME": str(short_tmp), "TERM": "dumb", "COLUMNS": "100"}


@pytest.fixture
def costgov(environ: dict[str, str]) -> Costgov:
    def call(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COSTGOV, *words], env={**environ, **extra}, capture_output=True, text=True, timeout=BOUND_S
        )
        assert "Traceback" not in done.stderr or extra.get("COSTGOV_TRACEBACK")
        return done

    return call


RUN: dict[str, Any] = {
    "run": "run7", "uid": 1000, "attempt": "a1", "stage": None, "policy": "default", "mode": "enforce",
    "state": "training", "step": 41, "total_steps": 200, "loss": float("nan"), "tokens_total": 1, "tokens_per_s": 5e4,
    "step_s": 0.4, "spend_usd": 12.3456, "spend_rate_usd_per_hour": 22.0, "usd_per_mtok": 0.1194, "ceiling_usd": 90.0,
    "runway_s": 12720.0, "world_size": 8, "ranks_connected": 8, "last_frame_age_s": 0.2, "last_good": None,
    "hold": None, "halt": None,
    "findings": [{"rule": "nan", "trigger": "nonfinite", "reading": "firing", "reason": "loss_nan", "text": "NaN!"}],
}  # fmt: skip
STATUS: dict[str, Any] = {
    "governor": {
        "version": "0.1.0", "pid": 7, "node": "gpu-17", "mode": "enforce", "policies": ["default"],
        "price_usd_per_hour": 22.0, "price_source": "contract",
        "last_reload_ok": False, "reload_error": "a.toml:3: bad",
        "cloud": {"will": "stop i-0abc", "stays_billed": ["vol-1"], "problems": ["no permission"]}, "selftest": [],
    },
    "runs": [RUN, RUN | {"run": "evil\x1b[2J\nrun", "loss": None, "step": None, "spend_rate_usd_per_hour": None}],
    "unwatched_gpu_processes": [{"pid": 4321, "gpu": "GPU-1a2b", "usd_per_hour": 2.75}],
}  # fmt: skip


@pytest.fixture
def governor(short_tmp: Path) -> Iterator[dict[str, Any]]:
    """A control socket that answers from a table, and what it has been asked."""
    said: dict[str, Any] = {"answers": {"status": {"ok": True, "data": STATUS}}, "asked": []}
    server = ControlServer(f"{short_tmp}/run/control.sock")
    stop_reader, stop_writer = os.pipe()

    def serve() -> None:
        while stop_reader not in select.select([server, stop_reader], [], [])[0]:
            for request in server.poll():
                said["asked"].append(dict(request.body))
                refusal = {"ok": False, "error": "unknown command", "code": "bad_request"}
                server.reply(request.conn, said["answers"].get(request.body["cmd"], refusal))

    thread = threading.Thread(target=serve)
    thread.start()
    yield said
    os.write(stop_writer, b"x")
    thread.join(BOUND_S)
    server.close()
    os.close(stop_reader)
    os.close(stop_writer)
