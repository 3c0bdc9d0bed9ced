"""Nodes on this machine: each has its own network, name, mounts, /run and process table, and an EC2 instance.

    with nodes(3, place, moto_port) as fleet:
        governor = fleet[1].governor()
        fleet[2].kill()

`place` is a directory with a short path that all of them see: their shared disk. A node's process 1 ends with whoever
made it, and takes all that is on the node along; so nothing outlives a test, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from examples.demo_cloud import EFFECTS, DemoCloud
from tests.drills.fleet.governors import Governor
from tests.drills.fleet.network import NOBODYS, Network, address, card, within
from tests.drills.halt.conftest import ROOT, SAFETY_S

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
LOCAL = "127.0.0.1 localhost\n"


def until(look: Callable[[], Any], what: str) -> Any:
    """Look again and again until it is true."""
    deadline = time.monotonic() + SAFETY_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        select.select([], [], [], 0.01)
    raise AssertionError(f"not seen in {SAFETY_S} s: {what}")


class Process:
    """One that was started on a node. `pid` is this machine's; 0: it had ended before it was seen."""

    def __init__(self, node: Node, inner: int, log: Path) -> None:
        self.node, self.inner, self.log = node, inner, log
        self.pid = node.host_pid(inner)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.node.code_of(self.inner)

    def wait(self, timeout: float = SAFETY_S) -> int:
        """Its exit code, once it has ended. TimeoutExpired after so many seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.node.code_of(self.inner, 0.05)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.log.name, timeout)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class NodeCloud(DemoCloud):
    """The cloud as one node sees it: its own instance and metadata, on its own loopback, and the one EC2 behind.

    A node that was cut off from the others still reaches it, as a machine's metadata service is no neighbour.
    """

    def __init__(self, node: Node, moto_port: int) -> None:
        super().__init__(stopping_s=0.3, moto_port=moto_port)
        self.within = node.inside
        self.powers_off: Callable[[str], None] | None = None  # Fleet.machines_go_off

    def forward(self, body: bytes, service: str) -> tuple[int, bytes]:
        status, reply = super().forward(body, service)
        form = dict(parse_qsl(body.decode()))
        if self.powers_off is not None and status == 200 and form["Action"] in EFFECTS and "DryRun" not in form:
            for instance_id in (value for name, value in form.items() if name.startswith("InstanceId")):
                self.powers_off(instance_id)
        return status, reply


class Node:
    """A machine of the fleet. Numbers begin with 1, as addresses do."""

    def __init__(self, number: int, network: Network, place: Path, numbers: range) -> None:
        self.number, self.name, self.address = number, f"node{number}", address(number)
        self.network = network
        self.place = place / self.name
        (self.place / "run").mkdir(parents=True)
        self.is_frozen = False
        self.governors: list[Governor] = []
        argv = [
            "unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            sys.executable, "-S", "-E", str(HERE / "node_init.py"), self.name, str(self.place),
        ]  # fmt: skip
        pipe = subprocess.PIPE
        with (self.place / "init.log").open("wb") as log:
            self._unshare = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=log, bufsize=0)
        self._heard = b""
        self._answers: list[dict[str, Any]] = []
        self._codes: dict[int, int] = {}  # By the pids there, of all that have ended.
        self._is_gone = False
        self._started = 0
        self._numbers = numbers
        self.cloud: NodeCloud

    def come_up(self, moto_port: int) -> None:
        """Wait until its process 1 is ready; lay the cable."""
        assert self._answer() == {"ready": self.name}, f"{self.name} did not come up"
        outer = self._unshare.pid
        self.init = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
        self._net = os.open(f"/proc/{self.init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._table = os.readlink(f"/proc/{self.init}/ns/pid")
        self.network.connect(self.number, self.init, self._numbers)
        self.cloud = NodeCloud(self, moto_port)

    # What runs there.

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "log") -> Process:
        """Start a program there, in a session of its own. Its output goes to `place/log`, behind what is there."""
        assert not self.is_frozen, "nobody would start it"
        environ = {**self.environ(), **(env or {})}
        path = self.place / log
        order = {"argv": list(argv), "env": environ, "cwd": str(self.place), "log": str(path)}
        assert self._unshare.stdin is not None
        self._unshare.stdin.write(json.dumps(order).encode() + b"\n")
        self._started += 1
        return Process(self, self._answer()["started"], path)

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        """What a program there writes; it has to end well."""
        log = f"run{self._started}"
        done = self.start(argv, env, log)
        code = done.wait()
        assert code == 0, f"{argv} ended with {code}: {done.log.read_text()}"
        return done.log.read_text()

    def governor(self, **options: Any) -> Governor:
        """A governor there that answers. The options are Governor's."""
        made = self.new_governor(**options)
        made.start()
        return made

    def new_governor(self, **options: Any) -> Governor:
        """One that is not started yet: several come up together (`Fleet.govern`)."""
        self.governors.append(Governor(self, **options))
        return self.governors[-1]

    def environ(self) -> dict[str, str]:
        """Nothing of the caller's that names a governor or a scheduler's job."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("COSTGOV_", "SLURM_"))}
        return {**ours, "HOME": str(self.place), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}

    def inside(self, call: Callable[[], T]) -> T:
        """Call in this node's network: a socket that is made there stays there."""
        return within(self._net, call)

    def processes(self) -> dict[int, str]:
        """All that run there, by this machine's pids, with their command lines; without process 1 and the dead."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.init:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") == self._table and _state(int(entry.name)) not in "ZX":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = command.strip()
        return found

    def host_pid(self, inner: int) -> int:
        """This machine's pid of a process there; 0: there is none."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/status").read_text()
                if int(text.partition("NSpid:")[2].splitlines()[0].split()[-1]) == inner:
                    return pid
        return 0

    # What befalls it.

    def kill(self) -> None:
        """All that runs there is gone at once, and its network with it: nobody says goodbye."""
        if self._unshare.poll() is not None:
            return
        self.network.plug(self.number, False)  # Before: no connection of it says that it is reset.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self._unshare.wait(SAFETY_S)
        until(lambda: not self.processes(), f"{self.name} is empty")

    def crash(self) -> None:
        """As `kill`, but the kernel there closes all connections, as it does where processes alone are killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self._unshare.wait(SAFETY_S)

    def freeze(self) -> None:
        """Everything there stands still; its kernel still acknowledges what comes."""
        self.is_frozen = True

        def stopped() -> bool:
            running = [pid for pid in (*self.processes(), self.init) if _state(pid) not in "TZX"]
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            return not running

        until(stopped, f"{self.name} stands still")

    def thaw(self) -> None:
        """It goes on where it stood."""
        for pid in (self.init, *self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.is_frozen = False

    def cut(self) -> None:
        """No packet from or to any other node arrives, and nobody is told."""
        self.network.plug(self.number, False)

    def heal(self) -> None:
        """The end of `cut`, and of what `one_way` did here."""
        self.network.plug(self.number, True)
        for number in self._numbers:
            self._send_to(number, card(number))

    def one_way(self, to: Node) -> None:
        """What this node sends to that one is lost; what comes from there arrives."""
        self._send_to(to.number, NOBODYS)

    def _send_to(self, number: int, its: str) -> None:
        if number != self.number:
            order = f"neigh replace {address(number)} lladdr {its} dev eth0 nud permanent"
            self.network.ip(order, of=f"/proc/{self.init}/ns/net")

    # Its process 1.

    def code_of(self, inner: int, for_s: float = 0.0) -> int | None:
        """The exit code of a process there, by its pid there; None while it runs. Waits for news so long."""
        if inner not in self._codes:
            self._heed(for_s)
        return self._codes.get(inner, -signal.SIGKILL if self._is_gone else None)

    def _heed(self, for_s: float) -> None:
        """Take what process 1 says."""
        out = self._unshare.stdout
        assert out is not None
        while not self._is_gone and select.select([out], [], [], for_s)[0]:
            said = os.read(out.fileno(), 65536)
            self._is_gone = not said
            *lines, self._heard = (self._heard + said).split(b"\n")
            for answer in map(json.loads, lines):
                if "ended" in answer:
                    self._codes[answer["ended"]] = answer["code"]
                else:
                    self._answers.append(answer)
            for_s = 0.0

    def _answer(self) -> dict[str, Any]:
        def heard() -> bool:
            self._heed(0.05)
            return bool(self._answers) or self._is_gone

        until(heard, f"{self.name} answers")
        assert self._answers, f"{self.name} is gone: {(self.place / 'init.log').read_text()}"
        return self._answers.pop(0)

    def end(self) -> None:
        """Leave nothing."""
        if self._unshare.poll() is None:
            for pid in (self.init, self._unshare.pid) if hasattr(self, "init") else (self._unshare.pid,):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._unshare.wait(SAFETY_S)
        for stream in (self._unshare.stdin, self._unshare.stdout):
            if stream is not None:
                stream.close()
        if hasattr(self, "_net"):
            os.close(self._net)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Fleet:
    """Nodes by their numbers, from 1 on."""

    def __init__(self, made: list[Node], place: Path) -> None:
        self.nodes, self.place = made, place

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number - 1]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def govern(self, **options: Any) -> list[Governor]:
        """A governor on each node, which come up together."""
        made = [node.new_governor(**options) for node in self.nodes]
        for governor in made:
            governor.begin()
        for governor in made:
            governor.await_answer()
        return made

    def machines_go_off(self) -> None:
        """From now on a node whose instance is stopped is killed before the answer comes, as EC2 may do.

        Without, a governor reads back that its machine has stopped, and can be asked.
        """

        def power_off(instance_id: str) -> None:
            for node in self.nodes:
                if node.cloud.instance_id == instance_id:
                    node.kill()

        for node in self.nodes:
            node.cloud.powers_off = power_off

    def stops(self, node: Node) -> int:
        """How often anybody has asked EC2 to stop this node's instance, dry runs aside."""
        calls = [call for one in self.nodes for call in list(one.cloud.calls)]
        stops = [call["ids"] for call in calls if call["action"] == "StopInstances" and not call["dry_run"]]
        return sum(node.cloud.instance_id in ids for ids in stops)


@contextlib.contextmanager
def nodes(count: int, place: Path, moto_port: int) -> Iterator[Fleet]:
    """So many nodes on one Ethernet; needs root. What runs there ends with it."""
    numbers = range(1, count + 1)
    network = Network()
    (place / "hosts").write_text(LOCAL + "".join(f"{address(number)} node{number}\n" for number in numbers))
    (place / "nsswitch.conf").write_text("hosts: files\n")
    made: list[Node] = []
    with contextlib.ExitStack() as stack:
        stack.callback(network.close)
        for number in numbers:
            made.append(Node(number, network, place, numbers))
            stack.callback(made[-1].end)
        for node in made:
            node.come_up(moto_port)
            stack.enter_context(node.cloud)
        yield Fleet(made, place)
