"""What a process shows of itself: its mark, where it works; nothing of another one that has its pid."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from governor.adapters.command.surroundings import MARK, Surroundings
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.core.base.identity import Clue, ProcessId

SAFETY_S = 60


def test_mark_and_directory_of_a_process_and_nothing_of_one_that_is_gone(tmp_path: Path) -> None:
    processes = LinuxProcesses(SystemClock().boot_id, look_bound_s=SAFETY_S)
    started = []
    for value in ("4711", "x", "9" * 20, ""):
        environ = {"A": "b", MARK: value, "C": "d" * 100_000}
        started.append(subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env=environ, cwd=tmp_path))
    who = []
    for one in started:
        facts = processes.facts(one.pid)
        assert facts is not None
        who.append(facts.process)
    here = os.getcwd()
    reused = replace(who[0], start_ticks=1)
    gone = ProcessId(2**22 + 1, 1, "boot")
    found = Surroundings().clues([*who, reused, gone])
    for one in started:
        one.communicate(timeout=SAFETY_S)
    assert found == {process: Clue(4711 if process == who[0] else 0, str(tmp_path)) for process in who}
    assert Surroundings().directory == here
    assert Surroundings().clues(()) == {}
