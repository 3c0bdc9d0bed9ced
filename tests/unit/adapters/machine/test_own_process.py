"""What the governor starts is known as its own as long as it lives, and everything that it starts is."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import governor
from governor.adapters.command.orphans import adoption
from governor.adapters.machine.own_process import OwnProcess, own_processes
from governor.adapters.machine.processes import LinuxProcesses
from trainer_shim.mark import RLIMIT_LOCKS

SAFETY_S = 60
ROOT = Path(governor.__file__).parent
# The launched command, which is not ours; the process that goes on as `costgov run`, before all else; a replay,
# and `costgov evidence`, beside which no command runs.
MAY_START = (
    "adapters/command/child.py", "adapters/command/init_process.py", "adapters/evidence/py_spy.py",
    "adapters/evidence/trace.py", "replay/readers/wandb.py",
)  # fmt: skip
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


# A stop that goes on behind a command that has ended, and what the launched command has left meanwhile. In a process of
# its own, which stays a subreaper.
LEAVES = """
import os, resource, subprocess, sys
from governor.adapters.command.orphans import adopt_orphans, adoption
from governor.adapters.machine.own_process import OwnProcess
from governor.adapters.machine.processes import LinuxProcesses
from trainer_shim.mark import RLIMIT_LOCKS, mark_this_process

def limited(to):
    return lambda: resource.setrlimit(RLIMIT_LOCKS, (to, resource.getrlimit(RLIMIT_LOCKS)[1]))

def left():
    table = processes.table()
    mine = {p: f for p, f in table.items() if f.ppid == os.getpid() and p not in (command.pid, stop.pid)}
    return table, {p: f.argv[-1] if f.argv[:1] == ("sleep",) else "" for p, f in mine.items()}

def leave(seconds, limit):
    subprocess.run(["sh", "-c", "setsid sleep %s &" % seconds], start_new_session=True, preexec_fn=limited(limit))
    while seconds not in left()[1].values():
        pass

assert adopt_orphans()
mark_this_process()
mark, processes = 0x8123456789, LinuxProcesses("boot", look_bound_s=60)
command = subprocess.Popen(["cat"], stdin=-1, start_new_session=True, preexec_fn=limited(mark))
ours = adoption(command.pid, mark, is_alone=True)
stop = OwnProcess(["sh", "-c", "setsid sleep 3602 & read line"], stdin=-1, start_new_session=True,
                  preexec_fn=limited(7), may_leave=True)
leave("3600", mark)
stop.stdin.close()
stop.wait()
while "3602" not in left()[1].values():
    pass
if sys.argv[1] == "ended":
    stop.note_left()
    leave("3601", 7)
table, names = left()
ours.learn(table)
print(sorted((name, ours.marked(table)[pid].mark == mark) for pid, name in names.items()))
for pid in (*names, command.pid):
    os.kill(pid, 9)
"""
STOP, ITS, LATE = ("3602", False), ("3600", True), ("3601", True)


@pytest.mark.parametrize(("when", "found"), [("not yet", [ITS, STOP]), ("ended", [ITS, LATE, STOP])])
def test_what_a_stop_command_leaves_behind_is_ours_and_not_the_commands(
    when: str, found: list[tuple[str, bool]]
) -> None:
    """The halt ended its own stop: without parents or a mark it looked like what the command had left."""
    done = subprocess.run([sys.executable, "-c", LEAVES, when], capture_output=True, text=True, timeout=SAFETY_S)
    assert done.stderr == ""
    assert done.stdout == f"{found}\n"


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
