"""Real process trees in the states that make killing hard, and the real kill set against them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.core.base.identity import ProcessId
from governor.core.halt.kill_set import KillSet, find_launchers, kill_set, remaining, strays
from governor.ports import Sent

SAFETY_S = 60
ROOT = Path(__file__).parents[2]
NOBODY, DAEMON = 65534, 1
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and other uids")

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
WAIT = "while True: signal.pause()"

# A launcher as torchrun behaves: each rank in a session of its own; told to restart them, it does.
TORCHRUN = """
import signal, subprocess, sys
rank, restarts = sys.argv[1], int(sys.argv[2])
for attempt in range(restarts + 1):
    subprocess.Popen([sys.executable, rank], start_new_session=True).wait()
"""
# A rank with a data loader worker that has a worker of its own; both deaf to SIGTERM and to the rank's death.
RANK = r"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(2):
    if os.fork():
        break
os.write(1, b"%d\n" % os.getpid())  # In one piece: three processes share this pipe.
while True: signal.pause()
"""
# The main thread ends, another one lives on: /proc shows a zombie that still holds its GPU.
THREAD_OUTLIVES_MAIN = """
import ctypes, signal, threading
threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
libc = ctypes.CDLL(None)
libc.syscall.argtypes = [ctypes.c_long, ctypes.c_long]
libc.syscall(60 if ctypes.sizeof(ctypes.c_void_p) == 8 and __import__("platform").machine() == "x86_64" else 93, 0)
"""


@pytest.fixture
def processes() -> LinuxProcesses:
    return LinuxProcesses(SystemClock().boot_id)


class Children:
    """Processes that the drill started; whatever is left of them and of what they left behind is ended."""

    def __init__(self, processes: LinuxProcesses) -> None:
        self.processes = processes
        self._started: list[subprocess.Popen[str]] = []
        self.identities: list[ProcessId] = []

    def start(self, *argv: str, lines: int = 1, **options: object) -> tuple[ProcessId, list[str]]:
        """Start a command and wait for as many lines of its output. Returns who it is and the lines."""
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
        self._started.append(child)
        assert child.stdout is not None
        told = [child.stdout.readline().strip() for _ in range(lines)]
        return self.identify(child.pid), told

    def identify(self, pid: int) -> ProcessId:
        facts = self.processes.facts(pid)
        assert facts is not None
        self.identities.append(facts.process)
        return facts.process

    def reap(self, pid: int) -> None:
        next(child for child in self._started if child.pid == pid).wait(SAFETY_S)

    def close(self) -> None:
        for identity in self.identities:
            self.processes.send(identity, signal.SIGKILL)
        for child in self._started:
            child.kill()
            child.wait(SAFETY_S)
            assert child.stdout is not None
            child.stdout.close()


@pytest.fixture
def children(processes: LinuxProcesses) -> Iterator[Children]:
    children = Children(processes)
    yield children
    children.close()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def wait_gone(processes: LinuxProcesses, target: ProcessId) -> None:
    pidfd = processes.watch(target)
    if pidfd is not None:
        assert select.select([pidfd], [], [], SAFETY_S)[0], f"{target} is still there"
        os.close(pidfd)
    assert processes.is_gone(target)


def end_all(processes: LinuxProcesses, killed: KillSet) -> KillSet:
    """SIGKILL the set, wait on pidfds, rescan until nobody was found twice."""
    empty_scans = 0
    while empty_scans < 2:
        for member in killed.members:
            processes.send(member, signal.SIGKILL)
        for member in killed.members:
            wait_gone(processes, member)
        found = strays(processes.table(), killed, os.getpid())
        killed = killed.widened(found)
        empty_scans = 0 if found else empty_scans + 1
    return killed


def start_run(children: Children, tmp_path: Path, restarts: int = 0) -> tuple[ProcessId, list[ProcessId]]:
    """Start a launcher with one rank, its worker and the worker's worker. Returns the launcher and those three."""
    launcher, rank = tmp_path / "torchrun", tmp_path / "train.py"
    launcher.write_text(TORCHRUN)
    rank.write_text(RANK)
    agent, told = children.start(sys.executable, str(launcher), str(rank), str(restarts), lines=3)
    chain = [children.identify(int(pid)) for pid in told]
    chain.sort(key=lambda process: (process.start_ticks, process.pid))
    return agent, chain


def test_launcher_rank_and_deaf_workers_are_ended_in_one_go(
    processes: LinuxProcesses, children: Children, tmp_path: Path
) -> None:
    agent, chain = start_run(children, tmp_path, restarts=3)
    rank = next(p for p in chain if (facts := processes.facts(p.pid)) is not None and facts.ppid == agent.pid)
    assert find_launchers(processes.table(), rank, os.getpid()) == (agent,)
    killed = kill_set(processes.table(), [rank], os.getpid())
    assert killed is not None
    assert killed.members[:2] == (agent, rank)
    assert set(killed.members) == {agent, *chain}
    end_all(processes, killed)
    assert remaining(processes.table(), killed) == ()


def test_workers_that_outlive_their_leader_are_found_after_it_is_gone(
    processes: LinuxProcesses, children: Children, tmp_path: Path
) -> None:
    agent, chain = start_run(children, tmp_path)
    rank = next(p for p in chain if (facts := processes.facts(p.pid)) is not None and facts.ppid == agent.pid)
    workers = set(chain) - {rank}
    for process in (agent, rank):
        processes.send(process, signal.SIGKILL)
        wait_gone(processes, process)
    children.reap(agent.pid)
    assert not any(processes.is_gone(worker) for worker in workers)
    killed = kill_set(processes.table(), [rank], os.getpid(), uid=os.geteuid())
    assert killed is not None
    assert workers <= set(killed.members)
    end_all(processes, killed)
    assert all(processes.is_gone(worker) for worker in workers)


def test_what_a_surviving_launcher_restarts_is_a_stray(
    processes: LinuxProcesses, children: Children, tmp_path: Path
) -> None:
    launcher, rank_file = tmp_path / "torchrun", tmp_path / "train.py"
    launcher.write_text(TORCHRUN)
    rank_file.write_text(f"import os, signal\nprint(os.getpid(), flush=True)\n{WAIT}\n")
    child = subprocess.Popen(
        [sys.executable, str(launcher), str(rank_file), "1"], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert child.stdout is not None
        rank = children.identify(int(child.stdout.readline()))
        agent = children.identify(child.pid)
        killed = kill_set(processes.table(), [rank], os.getpid())
        assert killed is not None
        processes.send(rank, signal.SIGKILL)
        respawned = children.identify(int(child.stdout.readline()))
        assert strays(processes.table(), killed, os.getpid()) == (respawned,)
        killed = end_all(processes, killed.widened([respawned]))
        assert agent in killed.members
    finally:
        child.kill()
        child.wait(SAFETY_S)
        assert child.stdout is not None
        child.stdout.close()


def test_an_unreaped_zombie_is_gone(processes: LinuxProcesses, children: Children) -> None:
    rank, _ = children.start(*python(f"import signal; print(1, flush=True); {WAIT[12:]}"))
    killed = kill_set(processes.table(), [rank], os.getpid())
    assert killed is not None
    processes.send(rank, signal.SIGKILL)
    wait_gone(processes, rank)
    facts = processes.facts(rank.pid)
    assert facts is not None
    assert facts.state == "Z"
    assert remaining(processes.table(), killed) == ()
    assert strays(processes.table(), killed, os.getpid()) == ()


def test_a_zombie_main_thread_with_a_living_thread_is_not_gone(processes: LinuxProcesses, children: Children) -> None:
    rank, _ = children.start(*python(THREAD_OUTLIVES_MAIN))
    poller = select.poll()
    pidfd = processes.watch(rank)
    assert pidfd is not None
    poller.register(pidfd, select.POLLIN)
    for _ in range(SAFETY_S * 100):
        facts = processes.facts(rank.pid)
        assert facts is not None
        if facts.state == "Z":
            break
        assert poller.poll(10) == [], "the process ended as a whole"
    assert facts.state == "Z"
    assert not processes.is_gone(rank)
    assert processes.send(rank, signal.SIGKILL) is Sent.SENT
    assert select.select([pidfd], [], [], SAFETY_S)[0]
    os.close(pidfd)
    assert processes.is_gone(rank)


def test_a_stopped_process_dies_of_sigterm_only_after_sigcont(processes: LinuxProcesses, children: Children) -> None:
    rank, _ = children.start(*python("import signal\nprint(1, flush=True)\nwhile True: signal.pause()"))
    processes.send(rank, signal.SIGSTOP)
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    processes.send(rank, signal.SIGTERM)
    assert not processes.is_gone(rank)
    facts = processes.facts(rank.pid)
    assert facts is not None
    assert facts.state == "T"
    processes.send(rank, signal.SIGCONT)
    wait_gone(processes, rank)


def test_a_stopped_and_deaf_process_dies_of_sigkill(processes: LinuxProcesses, children: Children) -> None:
    rank, _ = children.start(*python(f"{DEAF}\nprint(1, flush=True)\n{WAIT}"))
    processes.send(rank, signal.SIGSTOP)
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    processes.send(rank, signal.SIGKILL)
    wait_gone(processes, rank)


PID_REUSED = """
import json, os, signal, subprocess, sys
from dataclasses import replace
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses

processes = LinuxProcesses(SystemClock().boot_id)

def start():
    child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; print(1, flush=True); signal.pause()"],
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    return child

first = start()
rank = processes.facts(first.pid).process
first.kill()
first.wait()
while True:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(rank.pid - 1))
    second = start()
    stranger = processes.facts(second.pid).process
    if stranger.pid == rank.pid and stranger.start_ticks != rank.start_ticks:
        break
    second.kill()
    second.wait()
print(json.dumps({
    "same_pid": stranger.pid == rank.pid,
    "term": processes.send(rank, signal.SIGTERM).value,
    "kill": processes.send(rank, signal.SIGKILL).value,
    "gone": processes.is_gone(rank),
    "watch": processes.watch(rank),
    "stranger_lives": second.poll() is None and not processes.is_gone(stranger),
}))
second.kill()
second.wait()
"""


@needs_root
def test_a_really_reused_pid_is_not_touched() -> None:
    """In a pid namespace of its own, where the next pid can be chosen."""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PID_REUSED],
        cwd=ROOT, capture_output=True, text=True, timeout=SAFETY_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "same_pid": True, "term": "not_ours", "kill": "not_ours", "gone": True, "watch": None, "stranger_lives": True,
    }  # fmt: skip


OTHER_UID = """
import json, signal, sys
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
from governor.adapters.machine.service import run_selftest

processes = LinuxProcesses(SystemClock().boot_id)
facts = processes.facts(int(sys.argv[1]))
print(json.dumps({
    "uid": facts.uid,
    "argv": list(facts.argv[-1:]),
    "in_table": processes.table()[facts.process.pid] == facts,
    "catches": processes.catches(facts.process, signal.SIGUSR1),
    "sent": processes.send(facts.process, signal.SIGUSR1).value,
    "selftest": {name: ok for name, ok, _ in run_selftest(processes, other_uids=True)},
}))
"""
HANDLES_USR1 = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *a: sys.stdout.write("rung\\n") and sys.stdout.flush())
print("ready", flush=True)
while True: signal.pause()
"""


@needs_root
@pytest.mark.parametrize(("capabilities", "sent"), [("+kill", "sent"), ("-all", "denied")])
def test_another_users_trainer_needs_cap_kill_and_nothing_more(
    children: Children, interpreter: str, public_source: str, capabilities: str, sent: str
) -> None:
    as_uid = ("setpriv", "--clear-groups", "--regid=65534")
    rank, told = children.start(*as_uid, f"--reuid={NOBODY}", interpreter, "-S", "-c", HANDLES_USR1)
    assert told == ["ready"]
    done = subprocess.run(
        [*as_uid, f"--reuid={DAEMON}", f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}",
         interpreter, "-c", OTHER_UID, str(rank.pid)],
        cwd=public_source, capture_output=True, text=True, timeout=SAFETY_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "uid": NOBODY, "argv": [HANDLES_USR1], "in_table": True, "catches": True, "sent": sent,
        "selftest": {"kill_path": True, "see_other_users": True, "signal_other_users": sent == "sent"},
    }  # fmt: skip
