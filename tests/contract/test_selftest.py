"""The start-up self-test on the machine that runs it, and on one whose /proc hides everything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.adapters.machine.service import run_selftest, selftest_lines


def test_a_healthy_machine_passes_in_one_line_each() -> None:
    results = run_selftest(LinuxProcesses(SystemClock().boot_id), other_uids=os.geteuid() == 0)
    assert {name: ok for name, ok, _ in results} == dict.fromkeys(
        ("kill_path", "see_other_users", "signal_other_users"), True
    )
    assert all(line and "\n" not in line for _, _, line in results)


def test_a_shell_that_ignores_sigterm_says_nothing_of_the_machine() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        results = run_selftest(LinuxProcesses(SystemClock().boot_id), other_uids=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert results[0][:2] == ("kill_path", True)


def test_a_hidden_proc_fails_and_says_what_to_mount(tmp_path: Path) -> None:
    results = run_selftest(LinuxProcesses(SystemClock().boot_id, proc=str(tmp_path)))
    lines = {name: line for name, ok, line in results if not ok}
    assert set(lines) == {"kill_path", "see_other_users"}
    assert all("hidepid" in line for line in lines.values())


def test_all_that_is_well_is_one_line_and_each_failure_is_one() -> None:
    told = selftest_lines([("a", True, "one"), ("b", False, "two"), ("c", True, "three"), ("d", False, "four")])
    assert told == ["self-test ok: one; three", "self-test FAILED: two", "self-test FAILED: four"]
    assert selftest_lines([("b", False, "two")]) == ["self-test FAILED: two"]
