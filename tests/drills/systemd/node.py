"""The box as an operator sees it: a governor to ask, and trainers of other users beside it."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.drills.systemd.booted import BootedSystemd

SAFETY_S = 120.0  # Longer is a hang on any machine; nothing here measures time.
SERVICE_PYTHON = "/opt/costgov/venv/bin/python"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/box/wheels"}  # The box has no network.
ASK = "import json, sys; from governor.wire.control_client import ask; a = ask(sys.argv[1], json.loads(sys.argv[2])); "
ASK += "print(json.dumps({'ok': a.ok, 'data': a.data, 'error': a.error}))"

Found = TypeVar("Found")


class Node:
    def __init__(self, box: BootedSystemd) -> None:
        self.box = box

    def until(self, look: Callable[[], Found | None], what: str) -> Found:
        """Look again until something true is there. Each look is a command in the box, which takes its time."""
        deadline = time.monotonic() + SAFETY_S
        while not (found := look()):
            assert time.monotonic() < deadline, f"never saw {what}:\n{self.box.journal('costgov')[-4000:]}"
        return found

    def ask(self, **request: Any) -> Any:
        """One request on the control socket; None when nobody answers."""
        found = self.box.run(SERVICE_PYTHON, "-I", "-c", ASK, "/run/costgov/control.sock", json.dumps(request))
        answer = json.loads(found.stdout)
        return answer["data"] if answer["ok"] else None

    def governor(self) -> dict[str, Any]:
        status = self.ask(cmd="status")
        assert status is not None, self.box.journal("costgov")
        return dict(status["governor"])

    def run(self, name: str) -> dict[str, Any] | None:
        status = self.ask(cmd="status") or {"runs": []}
        return next((run for run in status["runs"] if run["run"] == name), None)

    def incident(self, run: str) -> dict[str, Any] | None:
        """The newest incident of that run."""
        found = [one for one in self.ask(cmd="incidents", last=100) or [] if one["run"] == run]
        return found[-1] if found else None

    def ended_incident(self, run: str) -> dict[str, Any]:
        """Wait for the end of that run's newest halt, and for the governor's look at the checkpoint that it saved."""

        def look() -> dict[str, Any] | None:
            found = self.incident(run)
            if not found or not found["closed_wall_ns"]:
                return None
            is_checked = "checkpoint_read" in [entry["what"] for entry in found["timeline"]]
            return found if is_checked or found["checkpoint"] is None else None

        return self.until(look, f"the end of the halt of {run}")

    def wait_for_another(self, before: int) -> None:
        """Wait until a governor that is not process `before` answers."""
        self.until(lambda: self.main_pid() not in (0, before) and self.ask(cmd="ping") is not None, "another governor")

    def main_pid(self) -> int:
        return int(self.box.property("costgov", "MainPID"))

    def is_alive(self, pid: int) -> bool:
        return self.box.run("test", "-d", f"/proc/{pid}", check=False).returncode == 0


@dataclass
class Trainer:
    node: Node
    name: str
    directory: str
    process: subprocess.Popen[bytes]
    pid: int = 0

    def line(self) -> str:
        """Its next line; "" when it has ended."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SAFETY_S)
        assert ready, f"{self.name} said nothing"
        return self.process.stdout.readline().decode().strip()

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order.encode() + b"\n")
        self.process.stdin.flush()
        assert self.line() == order

    def wait_until_gone(self) -> None:
        self.process.wait(SAFETY_S)
        assert not self.node.is_alive(self.pid)
