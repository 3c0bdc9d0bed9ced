"""Every ServiceManager: lines arrive as one message; outside systemd, and with a dead one, nothing happens."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from governor.adapters.machine.service import SystemdNotifier
from governor.ports import ServiceManager
from tests.contract.fakes import FakeServiceManager

SAFETY_S = 30


class World(Protocol):
    manager: ServiceManager

    def heard(self) -> str: ...
    def close(self) -> None: ...


class RealWorld:
    """A notify socket as systemd opens it."""

    def __init__(self, address: str, name: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.settimeout(SAFETY_S)
        self._sock.bind(address)
        self.manager = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"})

    def heard(self) -> str:
        return self._sock.recv(4096).decode()

    def close(self) -> None:
        self._sock.close()


class FakeWorld:
    def __init__(self) -> None:
        self.manager = FakeServiceManager(watchdog_period_s=3.0)

    def heard(self) -> str:
        return "\n".join(self.manager.told.pop(0))

    def close(self) -> None:
        pass


def path_world(directory: Path) -> World:
    return RealWorld(str(directory / "notify"), str(directory / "notify"))


def abstract_world(directory: Path) -> World:
    name = f"costgov-test-{os.getpid()}-{directory.name}"
    return RealWorld("\0" + name, "@" + name)


@pytest.fixture(params=[path_world, abstract_world, lambda _: FakeWorld()], ids=["path", "abstract", "fake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    make: Callable[[Path], World] = request.param
    world = make(tmp_path)
    yield world
    world.close()


def test_lines_arrive_as_one_message(world: World) -> None:
    world.manager.notify("READY=1", "STATUS=watching 2 runs")
    assert world.heard() == "READY=1\nSTATUS=watching 2 runs"


def test_the_watchdog_period_is_told_in_seconds(world: World) -> None:
    assert world.manager.watchdog_period_s == 3.0


def test_a_reload_carries_the_monotonic_time(tmp_path: Path) -> None:
    world = path_world(tmp_path)
    world.manager.notify("RELOADING=1")
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=[0-9]+", world.heard())
    world.manager.notify("RELOADING=1", "MONOTONIC_USEC=5")
    assert world.heard() == "RELOADING=1\nMONOTONIC_USEC=5"
    world.close()


def test_a_status_cannot_smuggle_in_another_line(tmp_path: Path) -> None:
    world = path_world(tmp_path)
    world.manager.notify("STATUS=run x\nMAINPID=1")
    assert world.heard() == "STATUS=run x MAINPID=1"
    world.close()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_outside_systemd_nothing_happens(environ: dict[str, str]) -> None:
    manager = SystemdNotifier(environ)
    manager.notify("READY=1")
    assert manager.watchdog_period_s is None


def test_a_dead_or_full_service_manager_is_counted_and_waited_for_by_nobody(tmp_path: Path) -> None:
    dead = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    dead.notify("READY=1")
    assert dead.failed_total == 1
    world = path_world(tmp_path)
    assert isinstance(world.manager, SystemdNotifier)
    for _ in range(1_000):  # Nobody reads: a datagram queue holds a dozen.
        world.manager.notify("WATCHDOG=1")
    assert world.manager.failed_total > 0
    world.close()


@pytest.mark.parametrize(
    ("environ", "period_s"),
    [
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_a_watchdog_meant_for_another_process_is_not_ours(environ: dict[str, str], period_s: float | None) -> None:
    assert SystemdNotifier(environ).watchdog_period_s == period_s
