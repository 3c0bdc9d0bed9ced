"""What the governor starts is known as its own as long as it lives, and everything that it starts is."""

from __future__ import annotations

import ast
import os
import resource
from pathlib import Path

import governor
from governor.adapters.command.orphans import adoption
from governor.adapters.machine.own_process import OwnProcess, own_processes
from governor.adapters.machine.processes import LinuxProcesses
from trainer_shim.mark import RLIMIT_LOCKS

ROOT = Path(governor.__file__).parent
# The launched command, which is not ours, and a replay, beside which no command runs.
MAY_START = ("adapters/command/child.py", "replay/readers/wandb.py")
STARTS = {"Popen", "run", "call", "check_call", "check_output", "fork", "posix_spawn", "posix_spawnp", "forkpty"}


def test_a_child_of_ours_that_has_dropped_its_limit_is_not_the_commands() -> None:
    """As by `runuser`, whose PAM modules set all limits anew."""

    def drop() -> None:
        resource.setrlimit(RLIMIT_LOCKS, (7, resource.getrlimit(RLIMIT_LOCKS)[1]))

    mark = 0x81234 << 20 | 0x91234
    with OwnProcess(["cat"], stdin=-1, stdout=-1, start_new_session=True, preexec_fn=drop) as child:
        table = LinuxProcesses("boot").table()
        ours = adoption(1, mark, is_alone=True)
        ours.learn(table)
        assert ours.reaper == os.getpid()
        assert table[child.pid].mark == 7
        assert ours.marked(table)[child.pid].mark == 7
        assert child.pid in {pid for pid, _ in own_processes()}
    with OwnProcess(["true"]):
        assert child.pid not in {pid for pid, _ in own_processes()}


def test_nothing_else_of_the_governor_starts_a_process() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        if any(f".{start}" in (text := path.read_text()) for start in STARTS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("subprocess", "os")
        and node.func.attr in STARTS
    }
    assert {place for place in found if not place.startswith(MAY_START)} == set()
