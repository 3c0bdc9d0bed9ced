"""Why a command ended, as `costgov run` and the daemon say it: each cause was seen, none is guessed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.db import JournalReader
from tests.drills.halt.conftest import BIN, HERE, POLICY, SAFETY_S, Service, configuration, end_of
from tests.drills.halt.conftest import begin as begin_run

RAISED = "out of GPU memory on rank 0 (torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB "
RAISED += "(token=<redacted>), at trainee.py:misbehave:"


def closing(said: str) -> str:
    return next(line for line in reversed(said.splitlines()) if "ended with exit code" in line)


def rows(work: Path, kind: str) -> list[dict[str, Any]]:
    reader = JournalReader(str(work / "state" / "costgov.db"))
    try:
        return [json.loads(row["data"]) for row in reader.rows(None, kind, 10)]
    finally:
        reader.close()


def test_a_rank_that_raises_says_what_before_it_ends(tmp_path: Path) -> None:
    """Through a launcher that says nothing but 1, and with the script's own hook, which is called as ever."""
    hook = f"import sys; sys.excepthook = lambda *_: open({str(tmp_path / 'hook')!r}, 'w').write('called')"
    rank = f"{hook}; import runpy; sys.argv = ['trainee.py', 'raises', {str(tmp_path)!r}]"
    rank += f"; runpy.run_path({str(HERE / 'trainee.py')!r}, run_name='__main__')"
    environ = {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    done = end_of(
        begin_run(tmp_path, ["sh", "-c", '"$@" || exit 1', "-", sys.executable, "-c", rank], environ=environ), tmp_path
    )
    assert done.code == 1, done.output
    assert f"drill: ended with exit code 1: {RAISED}" in closing(done.output)
    assert "step 30" in closing(done.output)
    assert (tmp_path / "hook").read_text() == "called"
    assert done.incidents == []
    (row,) = rows(tmp_path, "end_cause")
    assert (row["exit_code"], row["step"]) == (1, 30)
    assert row["cause"].startswith(RAISED)
    assert [alarm["name"] for alarm in rows(tmp_path, "alarm")] == ["crashed"]
    assert b"hf_abcdefghijklmnopqrst" not in b"".join(
        path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()
    )


def test_a_daemon_says_how_a_run_ended_also_after_its_restart(service: Callable[..., Service], tmp_path: Path) -> None:
    daemon = service()
    daemon.start()
    assert daemon.trainee("raises").wait(SAFETY_S) == 1
    ended = daemon.until(lambda: daemon.run().get("end"), "the end of the run")
    assert ended["exit_code"] is None, "nobody waited for it"
    assert ended["cause"].startswith(RAISED)
    daemon.until(lambda: rows(tmp_path, "ended"), "the end in the journal")  # A busy disk has it later than status.
    daemon.kill9()
    daemon.start()
    assert daemon.run()["end"] == ended
    assert [row["cause"] for row in rows(tmp_path, "ended")] == [ended["cause"]]


def test_an_exit_code_alone_is_no_cause_and_the_next_attempt_shows_it(tmp_path: Path) -> None:
    done = end_of(begin_run(tmp_path, ["sh", "-c", "exit 3"]), tmp_path)
    assert closing(done.output).startswith("costgov: drill: ended with exit code 3; no step was seen")
    assert [row["cause"] for row in rows(tmp_path, "end_cause")] == [None]
    again = end_of(begin_run(tmp_path, ["true"]), tmp_path)
    assert "costgov: drill: the last attempt ended with exit code 3\n" in again.output
    assert closing(again.output).startswith("costgov: drill: ended with exit code 0; ")
    assert [row["exit_code"] for row in rows(tmp_path, "end_cause")] == [3]


def test_a_command_that_somebody_kills_was_not_out_of_memory(tmp_path: Path) -> None:
    run = begin_run(
        tmp_path, [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    )
    assert run.stdout is not None
    os.kill(int(run.stdout.readline()), signal.SIGKILL)
    done = end_of(run, tmp_path)
    assert done.code == 137
    assert "ended with exit code 137: SIGKILL; no out-of-memory kill was counted " in closing(done.output)
    assert "somebody" not in closing(done.output), "who sent it was not seen"


def test_a_signal_that_was_passed_on_is_the_cause_and_no_alarm(tmp_path: Path) -> None:
    run = begin_run(tmp_path, [sys.executable, "-c", "import os, signal; print('up', flush=True); signal.pause()"])
    assert run.stdout is not None
    run.stdout.readline()
    run.send_signal(signal.SIGTERM)
    done = end_of(run, tmp_path)
    assert "exit code 143: SIGTERM was sent to costgov run, which passed it on" in closing(done.output)
    assert rows(tmp_path, "alarm") == []


WATCHDOG = """
import os, sys
print("[rank1]:[E1123 01:00:00.0 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum=118, OpType=ALLREDUCE) ran for 600001 milliseconds before timing out.\\x1b[2J", file=sys.stderr)
print("[rank1]: Some NCCL operations have failed or timed out.", file=sys.stderr, flush=True)
os.abort()
"""
TIMED_OUT = (
    'a collective that timed out on rank 1 (its output says "[rank1]:[E1123 01:00:00.0 ProcessGroupNCCL.cpp:632] '
)


@pytest.mark.parametrize("by", ["shell", "--log"])
def test_what_the_last_lines_of_a_log_say_is_the_cause(by: str, tmp_path: Path) -> None:
    """An earlier run's lines in the same file are not this one's."""
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n")
    (tmp_path / "policy.toml").write_text(POLICY.format(stop="processes"))
    argv = [
        str(BIN / "costgov"),
        "run",
        "--config",
        str(configuration(tmp_path)),
        "--policy",
        str(tmp_path / "policy.toml"),
    ]
    argv += ["--name", "drill", *(["--log", str(log)] if by == "--log" else []), "--", sys.executable, "-c", WATCHDOG]
    with log.open("ab") as written:
        done = subprocess.run(
            argv, stdout=written, stderr=subprocess.PIPE if by == "--log" else written, timeout=SAFETY_S
        )
    assert done.returncode == 134
    line = closing((done.stderr or b"").decode() or log.read_text())
    assert f"ended with exit code 134: {TIMED_OUT}" in line
    assert "\x1b" not in line


# --- a real limit, and the kernel's own kill ----------------------------------------------------------------------

LIMIT_BYTES = 300 << 20  # The governor needs a third of it.
EATER = "held = []\nwhile True: held.append(b'x' * (8 << 20))"


def _delegated() -> Path | None:
    """The control group of version 2 below which we may make one that limits memory; else that of version 1."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    root = Path("/sys/fs/cgroup")
    for _, controllers, path in lines:
        own = root / ("memory" if controllers == "memory" else ".") / path.lstrip("/")
        has_memory = controllers == "memory" or (
            controllers == "" and (own / "cgroup.subtree_control").exists()
            and "memory" in (own / "cgroup.subtree_control").read_text().split()
        )  # fmt: skip
        if has_memory and os.access(own, os.W_OK):
            return own
    return None


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    parent = _delegated()
    if parent is None:
        pytest.skip("needs a control group in which this user may limit memory")
    group = parent / f"costgov-drill-{os.getpid()}"
    group.mkdir()
    for name, value in (
        ("memory.max", LIMIT_BYTES), ("memory.swap.max", 0),
        ("memory.limit_in_bytes", LIMIT_BYTES), ("memory.memsw.limit_in_bytes", LIMIT_BYTES),
    ):  # fmt: skip
        if (group / name).exists():
            (group / name).write_text(str(value))
    yield group
    group.rmdir()


def test_a_daemon_knows_a_kill_by_the_count_of_the_runs_control_group(
    limited: Path, service: Callable[..., Service]
) -> None:
    daemon = service()
    daemon.start()
    rank = daemon.trainee("eats", prefix=["sh", "-c", f'echo $$ > {limited}/cgroup.procs && exec "$@"', "-"])
    daemon.until(lambda: daemon.step() > 200, "two seconds, at a look each second")
    daemon.go_on()
    assert rank.wait(SAFETY_S) == -signal.SIGKILL
    ended = daemon.until(lambda: daemon.run().get("end"), "the end of the run")
    assert ended["text"] == (
        "ended: rank 0 ended without a word; the run's control group counted an out-of-memory kill"
    )


def test_a_command_that_the_kernel_kills_for_want_of_memory_says_so(limited: Path, tmp_path: Path) -> None:
    enter = ["sh", "-c", f'echo $$ > {limited}/cgroup.procs && exec "$@"', "-"]
    done = end_of(begin_run(tmp_path, [sys.executable, "-c", EATER], prefix=enter), tmp_path)
    assert done.code == 137, done.output
    expected = "exit code 137: SIGKILL, by the kernel's out-of-memory killer: the control group of costgov run counted "
    assert expected in closing(done.output)
