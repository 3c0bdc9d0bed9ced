"""One booted box with costgov installed in it by `make install`, for every drill of this directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.systemd.booted import BootedSystemd, missing
from tests.drills.systemd.node import OFFLINE, SAFETY_S, SERVICE_PYTHON, Node, Trainer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def node(wheels: Path) -> Iterator[Node]:
    lacking = missing()
    if lacking:
        pytest.skip(f"a booted systemd needs {lacking}")
    with BootedSystemd({ROOT: "/box/tree", wheels: "/box/wheels"}) as box:
        box.run("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "alice")
        box.run("make", "-C", "/box/tree", "install", env=OFFLINE)
        yield Node(box)


@pytest.fixture
def started(node: Node) -> Node:
    """The node with the service running, whatever the drill before left behind."""
    node.box.run("systemctl", "start", "costgov")
    return node


@pytest.fixture
def make_trainer(started: Node) -> Iterator[Callable[..., Trainer]]:
    """Start a trainer as user alice in a unit of her own, known to the governor when this returns."""
    trainers: list[Trainer] = []

    def make(name: str, *arguments: str, scope: bool = False) -> Trainer:
        box, directory = started.box, f"/srv/checkpoints/{name}"
        box.run("install", "-d", "-o", "alice", directory)
        # The tree is mounted where only root may look on some machines: she gets a copy of the program.
        program = f"/srv/{name}.py"
        box.write(program, (ROOT / "tests/drills/systemd/trainer.py").read_text())
        box.write("/srv/escapes.py", (ROOT / "tests/drills/halt/escapes.py").read_text())
        unit = ["systemd-run", "--quiet", "--collect", "--uid=alice", f"--unit=train-{name}"]
        unit.append("--scope" if scope else "--pipe")
        process = box.popen(*unit, SERVICE_PYTHON, program, name, directory, *arguments)
        trainer = Trainer(started, name, directory, process)
        trainers.append(trainer)
        trainer.pid = int(trainer.line().removeprefix("pid "))
        started.until(lambda: (started.run(name) or {}).get("step"), f"{name} stepping")
        return trainer

    yield make
    for trainer in trainers:
        started.box.run("systemctl", "kill", "--signal=KILL", f"train-{trainer.name}*", check=False)
        trainer.process.communicate(timeout=SAFETY_S)
