"""sd_notify(3): what systemd is told, and how often it wants to hear from us. Outside systemd nothing happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from governor.core.base.units import NS_PER_S

_US_PER_S = 1_000_000
_NS_PER_US = NS_PER_S // _US_PER_S


class SystemdNotifier:
    """`ports.ServiceManager` over $NOTIFY_SOCKET. Never blocks, never raises: a deaf service manager costs no halt."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # A leading @ is an abstract socket; anything else but a path (vsock:) is not for processes of this machine.
        self._address = "\0" + name[1:] if name.startswith("@") else name if name.startswith("/") else None
        self._watchdog_period_s = _watchdog_period_s(environ)
        self.failed_total = 0

    def notify(self, *lines: str) -> None:
        if self._address is None:
            return
        if "RELOADING=1" in lines and not any(line.startswith("MONOTONIC_USEC=") for line in lines):
            # Type=notify-reload tells this reload's READY=1 from an earlier one's by the time.
            lines += (f"MONOTONIC_USEC={time.monotonic_ns() // _NS_PER_US}",)
        message = "\n".join(line.replace("\n", " ") for line in lines).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(message, self._address)
        except OSError:  # Its queue is full or it restarts; the next WATCHDOG=1 is seconds away.
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
