"""The orphans of a command come to us and are reaped; children of our own are left to whoever started them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAFETY_S = 60

# In a process of its own, which stays a subreaper. The command leaves orphans that end with the pipe, and one more.
REAPS = """
import os, select, signal, subprocess
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.adapters.command.orphans import Reaper, adopt_orphans, send_to_marked
from trainer_shim.mark import ChildMark

processes = LinuxProcesses(SystemClock().boot_id, look_bound_s=60)

def ours():
    return {pid: facts.argv for pid, facts in processes.table().items() if facts.ppid == os.getpid()}

assert adopt_orphans()
read_end, write_end = os.pipe()
leaves = "for i in 1 2 3 4 5; do (setsid cat <&%d &); done; (setsid sleep 3600 &); exit 7" % read_end
mark = ChildMark()
command = subprocess.Popen(
    ["/bin/sh", "-c", leaves], pass_fds=[read_end], start_new_session=True, preexec_fn=mark.take
)
helper = subprocess.Popen(["/bin/sh", "-c", "exit 5"], start_new_session=True)
while sorted(filter(None, ours().values())) != [("cat",)] * 5 + [("sleep", "3600")]:
    pass
ends = [os.pidfd_open(pid) for pid, argv in ours().items() if argv == ("cat",)]
os.close(write_end)
for end in ends:
    select.select([end], [], [])
reaper = Reaper(command.pid, mark.mark)
reaper.poll(0)
codes = command.wait(), helper.wait()
reaper.poll(0)
print(codes, list(ours().values()))
send_to_marked(processes, mark.mark, signal.SIGKILL)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
reaper.poll(0)
print(ours())
reaper.poll(0)
"""


def test_orphans_are_reaped_and_nobody_elses_exit_code_is_taken() -> None:
    done = subprocess.run([sys.executable, "-c", REAPS], capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "(7, 5) [('sleep', '3600')]\n{}\n"


# An ended child without the mark stands before those that have it, and is taken when nobody has come for it.
BLOCKED = """
import os, subprocess
from governor.adapters.command.orphans import LEFT_NS, LOOK_NS, Reaper, adopt_orphans
from trainer_shim.mark import ChildMark

def ended():
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    me = str(os.getpid())
    stats = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stats.append(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split())
        except OSError:
            pass
    return sum(stat[0] == "Z" and stat[1] == me for stat in stats)

assert adopt_orphans()
helper = subprocess.Popen(["/bin/sh", "-c", "exit 5"], start_new_session=True)
os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT)
mark = ChildMark()
leaves = "for i in 1 2 3; do (: &); done; read line"
command = subprocess.Popen(["/bin/sh", "-c", leaves], stdin=subprocess.PIPE, preexec_fn=mark.take)
while ended() < 4:
    pass
reaper = Reaper(command.pid, mark.mark)
reaper.poll(LOOK_NS)
print(ended())
reaper.poll(LOOK_NS + LEFT_NS - 1)
print(ended())
reaper.poll(2 * LOOK_NS + LEFT_NS)
command.communicate()
print(command.returncode)
try:
    os.waitid(os.P_ALL, 0, os.WEXITED)
except ChildProcessError:
    print("none")
"""


def test_a_child_that_nobody_takes_holds_up_no_reaping() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1\n1\n1\nnone\n"


# A reader of checkpoints was started at the same moment as the command, and ended by the command's halt.
STARTS = """
import resource, threading
from contextlib import nullcontext
from governor.adapters.command.child import start_command
from governor.adapters.command.orphans import BeforeChildren
from trainer_shim.mark import RLIMIT_LOCKS

inherited, is_over = set(), threading.Event()

def start():
    while not is_over.is_set():
        inherited.add(resource.getrlimit(RLIMIT_LOCKS))

found = BeforeChildren.look()
before = resource.getrlimit(RLIMIT_LOCKS)
starter = threading.Thread(target=start)
starter.start()
for _ in range(5):
    command = start_command(["true"], "socket", "r", None, nullcontext(), found)
    assert command.process.wait() == 0 and command.mark is not None
    if command.group is not None:
        command.group.remove()
is_over.set()
starter.join()
print(inherited == {before})
"""


def test_what_another_thread_starts_meanwhile_has_not_the_commands_mark() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=SAFETY_S)
    assert (done.stdout, done.stderr) == ("True\n", "")


# What `costgov run` starts itself is known by number. Its limit is no proof: the command may copy it.
TOLD_APART = """
import os, resource, subprocess, time
from contextlib import nullcontext
from governor.adapters.command.child import start_command
from governor.adapters.command.orphans import BeforeChildren
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.own_process import OwnProcess
from governor.adapters.machine.processes import LinuxProcesses

server = subprocess.Popen(["cat"], stdin=subprocess.PIPE) if os.environ["SERVER"] else None
ticks = lambda: int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
began = ticks()
while ticks() <= began + 1:  # A start is known to the tick: who comes later is later by one.
    pass
before = BeforeChildren.look()
ours = OwnProcess(["cat"], stdin=subprocess.PIPE, start_new_session=True)
limit = {"none": "unlimited", "ours": resource.getrlimit(10)[0]}[os.environ["LIMIT"]]
drops = f"(setsid prlimit --locks={limit}: env -i sleep 3600 &) > /dev/null; read line"
read_end, write_end = os.pipe()
os.dup2(read_end, 0)
command = start_command(["sh", "-c", drops], "socket", "r", None, nullcontext(), before)
if command.group is not None:
    command.group.remove()
processes = LinuxProcesses(SystemClock().boot_id, look_bound_s=60)
def below():
    table = processes.table()
    return {f.process.pid: f.argv[:1] for f in table.values() if f.ppid == os.getpid()}, table
while ("sleep",) not in below()[0].values():
    pass
names, table = below()
marked = command.adoption.marked(table)
print(command.adoption.is_ours_alone, [names[pid] for pid in sorted(names) if marked[pid].mark == command.mark],
      [facts.argv[0] for facts in command.adoption.unsure(table)])
for pid, name in names.items():
    os.kill(pid, 9)
"""


@pytest.mark.parametrize("limit", ["none", "ours"])
@pytest.mark.parametrize(
    ("server", "told"), [("", "True [('sh',), ('sleep',)] []\n"), ("1", "False [('sh',)] ['sleep']\n")]
)
def test_what_we_start_ourselves_is_known_from_the_commands_orphans(server: str, told: str, limit: str) -> None:
    environ = {**os.environ, "SERVER": server, "LIMIT": limit}
    done = subprocess.run(
        [sys.executable, "-c", TOLD_APART], capture_output=True, text=True, timeout=SAFETY_S, env=environ
    )
    assert (done.stdout, done.stderr) == (told, "")
