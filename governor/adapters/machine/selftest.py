"""What start-up proves before it promises a halt: the kill path on a child of our own, and sight of other users."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from governor.ports import Processes, Sent

EXIT_BOUND_S = 10.0  # A signal takes microseconds; a machine that needs longer cannot halt anything either.
CAP_KILL = 5
HIDEPID_ADVICE = "mount /proc without hidepid for the governor"
CAP_ADVICE = "give it CAP_KILL (AmbientCapabilities=CAP_KILL) or run it as the trainer's user"

Result = tuple[str, bool, str]  # name, ok, one line.


def run_selftest(processes: Processes, *, other_uids: bool = False) -> list[Result]:
    """Return (name, ok, line) for each test. Touches nobody but a child that it starts, and signals 0 to pid 1.

    `other_uids`: runs of other users are to be halted, so lacking the right to is a failure and not merely said.
    """
    return [_kill_path(processes), _sight(processes), _reach(processes, required=other_uids)]


def _kill_path(processes: Processes) -> Result:
    name = "kill_path"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        facts = processes.facts(child.pid)
        if facts is None:
            return name, False, f"/proc/{child.pid} of our own child is not readable: {HIDEPID_ADVICE}"
        pidfd = processes.watch(facts.process)
        if pidfd is None:
            return name, False, "no pidfd of our own child (Linux 5.3 or newer is needed, and free descriptors)"
        try:
            sent = processes.send(facts.process, signal.SIGTERM)
            if sent is not Sent.SENT:
                return name, False, f"signalling our own child: {sent.value} (a seccomp profile?)"
            if not select.select([pidfd], [], [], EXIT_BOUND_S)[0]:
                return name, False, f"our own child did not exit within {EXIT_BOUND_S:.0f} s of SIGTERM"
        finally:
            os.close(pidfd)
        if not processes.is_gone(facts.process):
            return name, False, "our own child exited and its /proc does not show it"
    finally:
        child.kill()
        child.wait()
    return name, True, "started, identified, signalled and watched a process of our own to its end"


def _sight(processes: Processes) -> Result:
    name = "see_other_users"
    facts = processes.facts(1)
    if facts is None:
        return name, False, f"/proc/1 is not readable: {HIDEPID_ADVICE}"
    if facts.uid == os.geteuid():
        return name, True, f"/proc shows pid 1, which is ours (uid {facts.uid})"
    return name, True, f"/proc shows processes of other users (pid 1 of uid {facts.uid})"


def _reach(processes: Processes, *, required: bool) -> Result:
    name = "signal_other_users"
    if os.geteuid() == 0 or _has_cap_kill():
        try:
            pidfd = os.pidfd_open(1)
            try:
                signal.pidfd_send_signal(pidfd, 0)  # Signal 0 asks for permission and delivers nothing.
            finally:
                os.close(pidfd)
        except OSError as error:
            return (
                name,
                False,
                f"signalling pid 1 is refused ({error.strerror}) in spite of CAP_KILL: a seccomp profile?",
            )
        return name, True, "may signal processes of every user"
    own = processes.facts(os.getpid())
    uid = own.uid if own is not None else os.geteuid()
    return name, not required, f"can halt runs of uid {uid} only: for others, {CAP_ADVICE}"


def _has_cap_kill() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_KILL & 1)
