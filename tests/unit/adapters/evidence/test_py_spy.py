"""What py-spy may refuse, and what bounds it. A script stands in its place: it says what py-spy would."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from governor.adapters.evidence import py_spy
from governor.core.base.identity import ProcessId

TAKEN = json.dumps(
    [
        {"thread_name": "worker", "frames": [], "active": False, "owns_gil": False},
        {
            "thread_name": "MainThread", "active": True, "owns_gil": True, "locals": ["secret"],
            "frames": [{"name": "train", "filename": "/home/a/loop.py", "line": 7, "locals": ["secret"]}] * 100,
        },
    ]
)  # fmt: skip


def of_pid(pid: int) -> py_spy.Target:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return py_spy.Target(0, ProcessId(pid, ticks, "boot"), os.getuid())


@pytest.fixture
def me() -> py_spy.Target:
    return of_pid(os.getpid())


def script(folder: Path, text: str) -> str:
    """A program that first notes that it was started."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\necho $$ >> {folder}/started\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_main_thread_comes_first_and_nothing_of_its_variables(me: py_spy.Target, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text(TAKEN)
    (stacks,) = py_spy.take([me], 10, script(tmp_path, f"cat {tmp_path}/taken"))
    assert stacks.problem is None
    main, worker = stacks.threads
    assert (main.name, worker.name) == ("MainThread", "worker")
    assert main.frames == ("loop.py:train:7",) * py_spy.FRAMES_MAX
    assert "secret" not in json.dumps(stacks.row())


def test_without_py_spy_it_is_said_how_to_get_it(me: py_spy.Target) -> None:
    assert [one.problem for one in py_spy.take([me, me], 10, None)] == [py_spy.INSTALL] * 2


def test_a_refusal_of_the_kernel_is_told_as_that_and_another_fault_is_not(me: py_spy.Target, tmp_path: Path) -> None:
    """What py-spy 0.4 says where ptrace is not permitted."""
    denied = "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1"
    (refused,) = py_spy.take([me], 10, script(tmp_path, denied))
    (broken,) = py_spy.take([me], 10, script(tmp_path, "echo 'Error: no python process' >&2; exit 1"))
    assert refused.problem is not None
    assert broken.problem is not None
    assert refused.problem.startswith("not permitted")
    assert not broken.problem.startswith("not permitted")


def test_a_number_that_is_anothers_by_now_is_not_looked_at(me: py_spy.Target, tmp_path: Path) -> None:
    other = replace(me, process=replace(me.process, start_ticks=me.process.start_ticks + 1))
    with subprocess.Popen(["true"]) as ended:
        gone = of_pid(ended.pid)
        ended.wait()
    found = py_spy.take([other, gone], 10, script(tmp_path, "echo '[]'"))
    assert all(one.problem is not None and one.threads == () for one in found)
    assert not (tmp_path / "started").exists()


def test_a_process_that_ends_meanwhile_shows_nothing(tmp_path: Path) -> None:
    """Its number may have been another's when py-spy looked."""
    (tmp_path / "taken").write_text(TAKEN)
    with subprocess.Popen(["sleep", "3600"]) as rank:
        target = of_pid(rank.pid)
        threading.Thread(target=rank.wait).start()
        until_gone = f"kill -9 {rank.pid}; while [ -d /proc/{rank.pid} ]; do :; done"
        (stacks,) = py_spy.take([target], 10, script(tmp_path, f"{until_gone}; cat {tmp_path}/taken"))
    assert stacks.threads == ()
    assert stacks.problem is not None


def test_output_without_end_is_cut_off_while_it_is_read(me: py_spy.Target, tmp_path: Path) -> None:
    for endless in ("exec yes", "exec yes >&2"):
        (stacks,) = py_spy.take([me], 60, script(tmp_path, endless))
        assert stacks.threads == ()
        assert stacks.problem is not None
        assert "within" not in stacks.problem, "it was not the time that was over"
    assert_none_lives(tmp_path)


def test_one_that_does_not_answer_is_ended_and_holds_up_no_other(me: py_spy.Target, tmp_path: Path) -> None:
    found = script(tmp_path, f"mkdir {tmp_path}/first 2>/dev/null && exec sleep 3600; echo '[]'")
    stacks = py_spy.take([me, me], 2, found)
    assert sorted(one.problem is None for one in stacks) == [False, True]
    assert_none_lives(tmp_path)


def test_no_more_than_eight_run_at_once(me: py_spy.Target, tmp_path: Path) -> None:
    count = f"for p in $(cat {tmp_path}/started); do kill -0 $p 2>/dev/null && echo x; done | wc -l >> {tmp_path}/alive"
    stacks = py_spy.take([me] * (py_spy.AT_ONCE_MAX + 1), 1, script(tmp_path, f"{count}; exec sleep 3600"))
    assert len(stacks) == py_spy.AT_ONCE_MAX + 1
    alive = [int(line) for line in (tmp_path / "alive").read_text().split()]
    assert max(alive) <= py_spy.AT_ONCE_MAX
    assert_none_lives(tmp_path)


def test_a_process_that_is_another_users_by_now_is_not_looked_into(tmp_path: Path) -> None:
    """Root's may be one that cannot be traced: so as root the process is nobody's."""
    user = 65534 if os.getuid() == 0 else None
    with subprocess.Popen(["sleep", "3600"], user=user) as child:
        try:
            target = of_pid(child.pid)
            uid = os.stat(f"/proc/{child.pid}").st_uid
            found = script(tmp_path, "echo '[]'")
            (theirs,) = py_spy.take([replace(target, uid=uid + 1)], 10, found)
            assert theirs.problem is not None
            assert not (tmp_path / "started").exists()
            (mine,) = py_spy.take([replace(target, uid=uid)], 10, found)
            assert mine.problem is None
        finally:
            child.kill()


def assert_none_lives(folder: Path) -> None:
    pids = (folder / "started").read_text().split()
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
