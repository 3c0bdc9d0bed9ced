"""The machine's service side: the self-test before start-up promises a halt, and messages to systemd.

The self-test proves the kill path on our own child, and sight and reach of other users' processes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from governor.adapters.machine.own_process import OwnProcess
from governor.core.base.units import NS_PER_S
from governor.ports import Processes, Sent

# A signal takes microseconds. A machine that needs longer cannot halt anything either.
EXIT_BOUND_S = 10.0
CAP_KILL = 5
HIDEPID_ADVICE = "mount /proc without hidepid for the governor"
CAP_ADVICE = "give it CAP_KILL (AmbientCapabilities=CAP_KILL) or run it as the trainer's user"
_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = NS_PER_S // _US_PER_S

Result = tuple[str, bool, str]  # Name, ok, one line.


def run_selftest(processes: Processes, *, other_uids: bool = False) -> list[Result]:
    """Return (name, ok, line) for each test. It signals only its own child, and sends signal 0 to pid 1.

    `other_uids`: runs of other users are to be halted, so a missing right to signal them is a failure.
    """
    return [_kill_path(processes), _sight(processes), _reach(processes, required=other_uids)]


def selftest_lines(results: Sequence[Result]) -> list[str]:
    """One line for all that is well, and one for each that is not."""
    well = "; ".join(line for _, ok, line in results if ok)
    return [
        *([f"self-test ok: {well}"] if well else []),
        *(f"self-test FAILED: {line}" for _, ok, line in results if not ok),
    ]


def _kill_path(processes: Processes) -> Result:
    name = "kill_path"
    child = OwnProcess(
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
            # A batch script with `trap '' TERM` has us and the child ignore SIGTERM: that says nothing of the machine.
            sent = processes.send(facts.process, signal.SIGKILL)
            if sent is not Sent.SENT:
                return name, False, f"signalling our own child: {sent.value} (a seccomp profile?)"
            if not select.select([pidfd], [], [], EXIT_BOUND_S)[0]:
                return name, False, f"our own child did not exit within {EXIT_BOUND_S:.0f} s of SIGKILL"
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
    if os.geteuid() == 0 or has_cap_kill():
        try:
            pidfd = os.pidfd_open(1)
            try:
                # Signal 0 checks the permission and delivers nothing.
                signal.pidfd_send_signal(pidfd, 0)
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


def has_cap_kill() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_KILL & 1)


# --- sd_notify(3): does nothing outside systemd -----------------------------------------------------------


class SystemdNotifier:
    """`ports.ServiceManager` over $NOTIFY_SOCKET. Never blocks or raises: an absent service manager costs no halt."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # A leading @ is an abstract socket. Any other non-path (vsock:) is not for processes of this machine.
        self._address = "\0" + name[1:] if name.startswith("@") else name if name.startswith("/") else None
        self._watchdog_period_s = _watchdog_period_s(environ)
        self.failed_total = 0

    def notify(self, *lines: str) -> None:
        if self._address is None:
            return
        if "RELOADING=1" in lines and not any(line.startswith("MONOTONIC_USEC=") for line in lines):
            # The time lets Type=notify-reload distinguish this reload's READY=1 from an earlier one's.
            lines += (f"MONOTONIC_USEC={time.monotonic_ns() // _NS_PER_US}",)
        message = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(message, self._address)
        # Its queue is full or it restarts. The next WATCHDOG=1 follows in seconds.
        except OSError:
            self.failed_total += 1

    @property
    def watchdog_period_s(self) -> float | None:
        return self._watchdog_period_s


def _watchdog_period_s(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # Meant for the process that started us.
    try:
        period_us = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return period_us / _US_PER_S if period_us > 0 else None
