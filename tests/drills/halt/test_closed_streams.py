"""A standard stream that the caller has closed costs neither a start nor a governor."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.halt.conftest import BIN, SAFETY_S, Service, configuration

CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("closed", CLOSED)
def test_a_command_starts_and_its_code_is_ours(closed: str, tmp_path: Path) -> None:
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--name", "drill", "--"]
    argv += ["sh", "-c", f"echo to stderr >&2; readlink /proc/$$/fd/2 > {tmp_path}/stderr; exit 7"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv], capture_output=True, timeout=SAFETY_S)
    assert done.returncode == 7
    assert b"internal error" not in done.stderr
    if "2>" in closed:
        assert (tmp_path / "stderr").read_text() == f"{os.devnull}\n"


def test_a_daemon_starts_without_standard_error(service: Callable[..., Service]) -> None:
    governor = service(prefix=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    governor.start()
    assert governor.process is not None
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0
