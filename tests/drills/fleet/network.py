"""A network of its own for nodes: an Ethernet that no other program of this machine sees, and a cable to each node.

The namespace has no name and no process: a descriptor keeps it, so it ends with whoever holds that.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
NET = "10.77.0"
NOBODYS = "02:77:00:00:ff:ff"  # A card that no node has: what is sent to it nobody hears.
BRIDGE = "nodes"
BRIDGES_CARD = "02:77:00:00:fe:01"  # Its own: else it has the least of those plugged in, and changes with a cut.

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def address(number: int) -> str:
    return f"{NET}.{number}"


def card(number: int) -> str:
    return f"02:77:00:00:00:{number:02x}"


def _called(result: int) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def within(namespace: int, call: Callable[[], T]) -> T:
    """Call in a network namespace, given as a descriptor. A socket that is made there stays there."""

    def enter() -> None:
        _called(_libc.setns(namespace, CLONE_NEWNET))

    return _apart(enter, call)


def _apart(enter: Callable[[], None], call: Callable[[], T]) -> T:
    """On a thread of its own: a namespace of network is each thread's."""

    def both() -> T:
        enter()
        return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(both).result()


class Network:
    """An Ethernet without nodes. `connect` lays a cable to one."""

    def __init__(self) -> None:
        def unshared() -> None:
            _called(_libc.unshare(CLONE_NEWNET))

        own = Path("/proc/thread-self/ns/net")
        self.namespace = _apart(unshared, lambda: os.open(own, os.O_RDONLY | os.O_CLOEXEC))
        bridge = f"link add {BRIDGE} address {BRIDGES_CARD} type bridge"
        self.ip(bridge, f"link set {BRIDGE} up", "link set lo up")

    def ip(self, *orders: str, of: str | None = None) -> None:
        """iproute2 on this network, or in the namespace with this path."""
        argv = [*self.entered(of), "ip", "-batch", "-"]
        done = subprocess.run(argv, input="\n".join(orders) + "\n", text=True, capture_output=True)
        assert done.returncode == 0, f"{orders}: {done.stderr}"

    def entered(self, of: str | None = None) -> list[str]:
        """What starts a program in this network, or in the namespace with this path."""
        return ["nsenter", f"--net={of or f'/proc/{os.getpid()}/fd/{self.namespace}'}"]

    def inside(self, call: Callable[[], T]) -> T:
        """Call in this network, where `host` serves."""
        return within(self.namespace, call)

    def host(self, number: int) -> str:
        """An address on which programs in this network serve the nodes. A node that is cut off does not reach it."""
        self.ip(f"addr add {address(number)}/24 dev {BRIDGE}")
        return address(number)

    def connect(self, number: int, pid: int, numbers: range) -> None:
        """Lay a cable to the node with this number, whose namespace `pid` has.

        It knows the card of every other node for good: nobody asks for one, so a cut makes no error at the sender.
        """
        port = self.port(number)
        self.ip(
            f"link add {port} type veth peer name eth0 address {card(number)} netns {pid}",
            f"link set {port} up",
            f"link set {port} master {BRIDGE}",
        )
        others = [f"neigh replace {address(n)} lladdr {card(n)} dev eth0 nud permanent" for n in numbers if n != number]
        self.ip(
            "link set lo up", f"addr add {address(number)}/24 dev eth0", "link set eth0 up", *others,
            of=f"/proc/{pid}/ns/net",
        )  # fmt: skip

    def port(self, number: int) -> str:
        return f"port{number}"

    def plug(self, number: int, plugged: bool) -> None:
        """Out: a black hole, both ways. The node's own end stays up, as it does beside a switch."""
        port = self.port(number)
        self.ip(f"link set {port} master {BRIDGE}" if plugged else f"link set {port} nomaster")

    def close(self) -> None:
        os.close(self.namespace)
