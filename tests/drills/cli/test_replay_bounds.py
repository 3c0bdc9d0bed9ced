"""`costgov policy replay` on input that is far too large: what it does not need it does not keep."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.drills.cli.installed import BOUND_S, COSTGOV

LINE_BYTES = 1024**3
PACKED_MIB = 512  # More than the memory that there is.
MANY = 3_000
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


@pytest.mark.parametrize("packed", [gzip.GzipFile, lzma.LZMAFile], ids=[".gz", ".xz"])
def test_a_packed_bomb_is_one_line_in_bounded_memory(
    packed: type[gzip.GzipFile] | type[lzma.LZMAFile], tmp_path: Path
) -> None:
    log = tmp_path / f"bomb.jsonl{'.gz' if packed is gzip.GzipFile else '.xz'}"
    with packed(log, "wb") as file:
        for _ in range(PACKED_MIB):
            file.write(bytes(1024 * 1024))
    words = f"ulimit -v {MEMORY_KIB}; exec {COSTGOV} policy replay {log}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=BOUND_S)
    assert done.stderr == f"costgov: {log}:1: longer than 1048576 bytes; skipped\n"
    assert done.returncode == 1


def test_thousands_of_logs_are_played_in_bounded_memory(tmp_path: Path) -> None:
    record = json.dumps({"t": 1.0, "step": 1, "loss": 2.0})
    for n in range(MANY):
        (tmp_path / f"{n}.jsonl").write_text(record if n % 100 else "{")
    words = f"ulimit -v {MEMORY_KIB} -n 64; exec {COSTGOV} policy replay {tmp_path}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=BOUND_S)
    assert len(done.stderr.splitlines()) == MANY // 100, "a line for each that cannot be read"
    assert done.stdout.splitlines()[0] == f"{MANY} logs, {MANY - MANY // 100:,} records"


def test_a_standard_input_that_is_closed_is_one_line() -> None:
    words = f"exec {COSTGOV} policy replay - <&-"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=BOUND_S)
    assert done.stderr == "costgov: -: standard input is closed; name a log that can be read\n"
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_ends_a_replay_of_many_logs_leaves_no_process(number: int, tmp_path: Path) -> None:
    line = json.dumps({"t": 1.0, "step": 1, "loss": 2.0})
    logs = [tmp_path / f"{n}.jsonl" for n in range(5)]
    for log in logs:
        log.write_text("\n".join([line] * (400_000 if log is not logs[0] else 1)))
    words = [COSTGOV, "policy", "replay", "--json", "--jobs", "2", *map(str, logs)]
    out, err = subprocess.PIPE, subprocess.PIPE
    with subprocess.Popen(words, stdout=out, stderr=err, start_new_session=True, text=True) as replay:
        assert replay.stdout is not None
        assert json.loads(replay.stdout.readline())["log"] == str(logs[0]), "a worker has played it, and plays on"
        if number == signal.SIGINT:
            os.killpg(replay.pid, number)  # As a terminal does.
        else:
            os.kill(replay.pid, number)
        _, said = replay.communicate(timeout=BOUND_S)  # Each of them has these pipes.
    assert "Traceback" not in said
    assert replay.returncode in (-number, 130, 143)
