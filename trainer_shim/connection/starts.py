"""Which start of the ranks this is, and what this launch is called: both settled in the ranks' own store. Where it is.

torchrun keeps one store over its restarts. Its TORCHELASTIC_RESTART_COUNT counts the failures of one node's own ranks:
the agent of another node, which restarts its ranks because of those, goes on with its former count. So ranks of one
start may have different counts, and only a number that they settle is the same for all of them.
"""

from __future__ import annotations

import binascii
import ipaddress
import os
import re
from typing import Any, Dict, Mapping, Optional, Protocol, Tuple

_COUNTS_MAX = 1_000  # A larger restart count is a typing error, over which we would loop.
_JOB_BYTES = 16  # Two launches never draw the same.
_HOST_CHARS_MAX = 253  # As the DNS has it.
_NAME = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?"
)
# Of this machine alone: no other one is found by it.
_LOCAL = re.compile(r"(?:.*\.)?localhost\.?|localhost\..*|(?:ip6-)?loopback|ip6-localhost", re.IGNORECASE)
_STARTS: Dict[int, int] = {}  # By process: a fork is none of its parent's ranks.


class Settling(Protocol):
    """As saving.store.KeyStore, which imports this."""

    def get(self, key: str) -> Any: ...
    def settle(self, key: str, value: str) -> str: ...


class Default:
    """torch's default store itself, for a question in attach(). Raises what that raises."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> Any:
        return self._store.get("costgov/" + key) if self._store.check(["costgov/" + key]) else None

    def settle(self, key: str, value: str) -> str:
        # One round trip of ~80 us; compare_set never waits for another rank: the first one's value counts.
        return bytes(self._store.compare_set("costgov/" + key, "", value)).decode("ascii", "replace")


def restarts_of(environ: Mapping[str, str]) -> int:
    """Return how often this node's agent says that it has restarted its ranks."""
    text = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return min(int(text), _COUNTS_MAX) if text.isascii() and text.isdigit() else 0


def this_start(store: Settling) -> int:
    """Return start_of() this process. It stays: ranks of the same start may end before this one asks again."""
    pid = os.getpid()
    if pid not in _STARTS:
        _STARTS[pid] = start_of(store)
    return _STARTS[pid]


def start_of(store: Settling) -> int:
    """Return the number of this start of all ranks in their store, from 1 on. Waits for no rank. Raises StoreLostError.

    All ranks of the start before have ended before one of this start begins. So a start is over for a rank that sees
    the first one of its own machine there gone: whoever sees that first opens the next. A rank of a machine that had
    none in the newest start belongs to that one.
    """
    number, mine, machine = 1, born(os.getpid()), _machine()
    while store.get("start/%d" % (number + 1)) is not None:
        number += 1
    while True:
        first = store.settle("start/%d/%s" % (number, machine), mine)
        if first == mine or is_alive(first):
            return number
        number += 1
        store.settle("start/%d" % number, "1")


def restart_of(store: Settling, environ: Mapping[str, str]) -> int:
    """Return how often the ranks of this launch were restarted, the same for all of them. Raises as start_of().

    Agents of several nodes count unlike, and some launchers make a new store for each start.
    """
    start = this_start(store)
    return int(store.settle("%d/restarts" % start, str(max(start - 1, restarts_of(environ)))))


def job_of(store: Settling, known: Any = None) -> str:
    """Return what the launch whose keys these are is called, the same for all its ranks. Raises StoreLostError.

    `known`: what this rank has called it before, where the store is another one now. A name made of machine, process
    and address may come again, so it is drawn.
    """
    return store.settle("job", str(known or binascii.hexlify(os.urandom(_JOB_BYTES)).decode("ascii")))


def host_of(text: Any) -> Optional[str]:
    """Return the host or address by which other machines may find this one, None where it is nothing of that kind.

    The system reads a name that ends in a number as an address, "127.1" too.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _HOST_CHARS_MAX:
        return None
    host = text[1:-1] if text[0] == "[" and text[-1] == "]" else text
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        is_number = last[:1].isdigit() and re.fullmatch(r"0[xX][0-9A-Fa-f]*|[0-9]+", last) is not None
        return host if _NAME.fullmatch(host) and not is_number and not _LOCAL.fullmatch(host) else None
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_loopback or mapped.is_unspecified or mapped.is_multicast or str(mapped) == "255.255.255.255":
        return None
    return host if host.isprintable() else None  # An IPv6 zone may be anything.


def born(pid: int) -> str:
    """Name a process of this machine once and for all: a pid alone comes back."""
    try:
        _, ticks = _state_and_ticks(pid)
        # The boot id, not the boot time: that moves with the wall clock, and ranks read it at different moments.
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            boot = stream.read(8)
    except (OSError, ValueError, IndexError):  # No /proc, or hidden from us.
        ticks, boot = 0, "unknown"
    return "%s-%x-%x" % (boot, ticks, pid)


def is_alive(name: str) -> bool:
    """Whether the process that born() has named so lives. One that nobody can see counts as living."""
    boot, _, rest = name.partition("-")
    if boot == "unknown":
        return True
    try:
        pid = int(rest.rpartition("-")[2], 16)
        state, _ = _state_and_ticks(pid)
    except (OSError, ValueError, IndexError):
        return False
    return state not in "ZX" and born(pid) == name


def _state_and_ticks(pid: int) -> Tuple[str, int]:
    with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as stream:
        # The name in parentheses may hold anything; start ticks are the twentieth word after it.
        words = stream.read().rpartition(")")[2].split()
    return words[0], int(words[19])


def _machine() -> str:
    """Name where pids mean what they mean here: containers of one machine share its boot id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return "%s/%s" % (stream.read(8), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return "unknown-%s" % os.uname().nodename
