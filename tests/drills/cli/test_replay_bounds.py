"""`costgov policy replay` on input that is far too large: what it does not need it does not keep."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.drills.cli.installed import BOUND_S, COSTGOV

LINE_BYTES = 1024**3
MEMORY_KIB = 400_000  # Address space, the interpreter's own included: a third of the line.


@pytest.mark.parametrize("is_piped", [False, True])
def test_a_line_of_a_gigabyte_is_skipped_in_bounded_memory(is_piped: bool, tmp_path: Path) -> None:
    log = tmp_path / "huge.jsonl"
    with log.open("wb") as file:
        file.write(b'{"t": 0, "step": 1, "loss": 2.0}\n')
        file.truncate(file.tell() + LINE_BYTES)  # A hole: zeros that no disk holds.
        file.seek(0, 2)
        file.write(b'\n{"t": 1, "step": 2, "loss": NaN}\n')
    name = "-" if is_piped else str(log)
    words = f"ulimit -v {MEMORY_KIB}; {f'cat {log} |' if is_piped else 'exec'} {COSTGOV} policy replay --json {name}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=BOUND_S)
    assert done.stderr == f"costgov: {name}:2: longer than 1048576 bytes; skipped\n"
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["records"], summary["first_halt_step"]) == (2, 2)


def test_a_standard_input_that_is_closed_is_one_line() -> None:
    words = f"exec {COSTGOV} policy replay - <&-"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=BOUND_S)
    assert done.stderr == "costgov: -: standard input is closed; name a log that can be read\n"
    assert done.returncode == 1
