"""A real training over nodes: DDP on gloo, two ranks a node, `env://` with its store in rank 0's process.

with Training(fleet) as training:
    training.until_step(5)
    training.steer("nan", 3)
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.drills.fleet.nodes import HERE, Fleet, Node, until
from tests.drills.fleet.warm_nodes import RESTARTS
from tests.drills.halt.conftest import ROOT, SAFETY_S, is_alive

ENVIRON = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "COSTGOV_RUN": "drill"}


class Training:
    """Starts with `with`, and ends with it. Rank r is on node r // ranks_per_node + 1."""

    def __init__(
        self, fleet: Fleet, *, ranks_per_node: int = 2, steps: int = 10**6, env: dict[str, str] | None = None,
        restarts: int = 0,
    ) -> None:  # fmt: skip
        """`restarts`: so often each launcher starts its ranks again where one of them has failed."""
        self.fleet, self.ranks_per_node, self.steps, self.restarts = fleet, ranks_per_node, steps, restarts
        self.env = env or {}
        self.world_size = len(fleet) * ranks_per_node
        self.place = fleet.place / "training"
        self.place.mkdir()
        self._pids: dict[int, int] = {}

    def __enter__(self) -> Training:
        argv = [sys.executable, str(HERE / "warm_nodes.py"), "torch"]
        environ = {**self.fleet[1].environ(), "TORCHDYNAMO_DISABLE": "1"}
        pipe = subprocess.PIPE
        with (self.place / "warm.log").open("wb") as log:
            self._warm = subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe, stderr=log, text=True)
        return self

    def launch(self) -> None:
        """Start all ranks; returns when each of them has made a step."""
        self.begin()
        self.until_step(1)

    def begin(self) -> None:
        """Start all ranks, and do not wait for a step."""
        nodes = [self._order(node) for node in self.fleet]
        order = {"argv": [str(HERE / "ddp_loop.py")], "cwd": str(self.place), "nodes": nodes}
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(order) + "\n")
        self._warm.stdin.flush()
        assert select.select([self._warm.stdout], [], [], SAFETY_S)[0], "the ranks' program does not answer"
        assert self._warm.stdout.readline() == "begun\n", (self.place / "warm.log").read_text()

    def forget(self) -> None:
        """What the launch before was told, and what it wrote: the next one begins at its first step."""
        for path in (*self.place.glob("nan.*"), *self.place.glob("steps.*"), *self.place.glob("pid.*")):
            path.unlink()
        self._pids.clear()

    def _order(self, node: Node) -> dict[str, Any]:
        if node.number == 1:
            self._port = node.inside(_free_port)
        ranks = []
        for local in range(self.ranks_per_node):
            rank = (node.number - 1) * self.ranks_per_node + local
            env = {
                **node.environ(), **ENVIRON, "MASTER_ADDR": self.fleet[1].address, "MASTER_PORT": str(self._port),
                "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self.world_size),
                "LOCAL_WORLD_SIZE": str(self.ranks_per_node), "GROUP_RANK": str(node.number - 1),
                "FLEET_PLACE": str(self.place), "FLEET_STEPS": str(self.steps), "PYTHONPATH": str(ROOT), **self.env,
            }  # fmt: skip
            ranks.append({"env": env, "log": str(self.place / f"rank{rank}.log")})
        log = str(self.place / f"launcher{node.number}.log")
        return {"init": node.init, "log": log, "restarts": self.restarts, "ranks": ranks}

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    def ranks_on(self, node: Node) -> range:
        first = (node.number - 1) * self.ranks_per_node
        return range(first, first + self.ranks_per_node)

    def steer(self, what: str, rank: int, value: str = "") -> None:
        """nan, nan_spreads, or pace and its seconds, for one rank from its next step on."""
        fresh = self.place / f"{what}.{rank}.new"
        fresh.write_text(value)
        fresh.rename(self.place / f"{what}.{rank}")

    def step(self, rank: int) -> int:
        """The last step that a rank has made; 0 before the first."""
        path = self.place / f"steps.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(lines[-1].split()[0]) if lines else 0

    def until_step(self, step: int, ranks: Sequence[int] | None = None) -> None:
        """Wait until these ranks (all) have made it."""
        chosen = self.ranks if ranks is None else ranks
        try:
            until(lambda: all(self.step(rank) >= step for rank in chosen), f"step {step}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def until_worth(self, seconds: float) -> None:
        """Wait until so much work would be lost: a halt waits for a save no longer than that."""

        def worth() -> bool:
            lines = (self.place / "steps.0").read_text().splitlines()
            return float(lines[-1].split()[1]) - float(lines[0].split()[1]) >= seconds

        until(worth, f"{seconds} s of work")

    def pid(self, rank: int) -> int:
        """This machine's pid of a rank that has attached."""
        if rank not in self._pids:
            node = self.fleet[rank // self.ranks_per_node + 1]
            self._pids[rank] = node.host_pid(int((self.place / f"pid.{rank}").read_text()))
        return self._pids[rank]

    def know(self) -> None:
        """Learn all pids now: of a rank that has ended nobody can be asked."""
        for rank in self.ranks:
            assert self.pid(rank), f"rank {rank} has ended"

    def running(self) -> list[int]:
        """The ranks whose processes have not ended, of those known."""
        return [rank for rank, pid in self._pids.items() if is_alive(pid)]

    def restarted(self) -> list[int]:
        """The nodes whose launchers have started their ranks again."""
        logs = {node.number: self.place / f"launcher{node.number}.log" for node in self.fleet}
        return [number for number, log in logs.items() if RESTARTS in log.read_text()]

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.place / "checkpoints").glob("cg_*"))

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.place.glob("*.log")))

    def __exit__(self, *_: object) -> None:
        """What is on the nodes ends with them."""
        self._warm.communicate()


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
