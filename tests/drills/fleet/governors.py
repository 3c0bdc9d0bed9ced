"""A node's governor: the installed `costgov daemon` with the paths that it has as a service, read from outside."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.drills.halt.conftest import BIN, Service, cloud_table, policy_text

HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("gcc")
NO_COMPILER = "a wall clock that is wrong needs gcc: apt-get install gcc libc6-dev"
USD_PER_HOUR = 98.32

# Each node stops its own machine. The save may take as long as a busy machine needs.
POLICY = policy_text("fleet", grace="30s", term_grace="2s")

TOML = """
[node]
name = "{name}"
price_usd_per_hour = {usd_per_hour}
[paths]
state_dir = "{place}/state"
runtime_dir = "/run/costgov"
[metrics]
enabled = false
"""


def off_by(seconds: int, place: Path) -> dict[str, str]:
    """The environment of a program whose wall clock is so far off. Its other clocks are true. Builds what does it."""
    assert COMPILER is not None, NO_COMPILER
    library = place / "wall_clock.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, HERE / "wall_clock.c"], check=True)
    return {"LD_PRELOAD": str(library), "WALL_CLOCK_OFF_S": str(seconds)}


class Governor(Service):
    """What `Service` tells and waits for; the daemon runs on a node. Its state outlives it, as the node's disk does."""

    def __init__(
        self, node: Any, *, policy: str = POLICY, stop: str = "instance", toml: str = "", clock_off_s: int = 0,
        usd_per_hour: float = USD_PER_HOUR, has_cloud: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(node.place, stop=stop, policy=policy)
        self.node = node
        self.environ = off_by(clock_off_s, node.place) if clock_off_s else {}
        text = TOML.format(name=node.name, place=node.place, usd_per_hour=usd_per_hour)
        self.config.write_text(text + (cloud_table(node.cloud) if has_cloud else "") + toml)

    def begin(self) -> None:
        """Start it, and do not wait: several come up together."""
        argv = [str(BIN / "costgov"), "daemon", "--config", str(self.config), "--policy", str(self.policy)]
        self.process = self.node.start(argv, self.environ, self.log.name)

    def await_answer(self) -> None:
        self.until(lambda: self.ask({"cmd": "ping"}) is not None, f"the governor of {self.node.name} answers")

    def start(self) -> None:
        self.begin()
        self.await_answer()

    def end(self) -> None:
        """Ask it to end, as a service manager does. What is left on the node ends with the node."""
        if self.process is not None and self.process.poll() is None and not self.node.is_frozen:
            self.process.terminate()
            self.process.wait()

    def beside(self) -> list[str]:
        raise NotImplementedError("a training on nodes is training.Training")

    def status(self) -> Any:
        """What `costgov status --json` says, asked on the node as a person would."""
        return json.loads(self.node.run([str(BIN / "costgov"), "status", "--json"]))

    def reports(self) -> list[dict[str, Any]]:
        """The incidents on the node's disk: they are there after the governor, too."""
        return [json.loads(path.read_text()) for path in sorted(Path(self.work, "state", "incidents").glob("*.json"))]

    def alarms(self) -> list[str]:
        """The names of all that it has told, in their order."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line["name"] for line in lines if line.get("event") == "alarm"]

    def incident(self) -> dict[str, Any]:
        """The one that there is."""
        found = self.incidents()
        assert len(found) == 1, f"{self.node.name}: {[one['incident_id'] for one in found]}"
        return found[0]
