"""Starts real training jobs under their launchers, and ends every process of them whatever happens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drills.shim.fake_governor import SAFETY_S, FakeGovernor

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
SCRIPTS = Path(sys.executable).parent


# What both scripts import, and ranks.py once for both ranks: three processes' imports last longer than most drills.
IMPORTED = {
    "train_rank.py": "deepspeed",
    "train_hf.py": "deepspeed,transformers.trainer,transformers.models.llama.modeling_llama",
}


class Job:
    """A launched training: two ranks below one launcher, "forks" unless the launcher is what a drill is about."""

    def __init__(
        self, launcher: str, place: Path, socket_path: Path, name: str, script: str, options: dict[str, Any]
    ) -> None:
        self.place = place
        self.name = name
        self.log = place / f"log.{name}"
        port = free_port()
        command = {
            "forks": [str(HERE.parent / "ranks.py"), "2", IMPORTED.get(script, "torch")],
            "torchrun": ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"],
            "deepspeed": [str(SCRIPTS / "deepspeed"), "--num_gpus=2", "--no_local_rank", f"--master_port={port}"],
        }[launcher]
        environ = {
            **os.environ,
            "COSTGOV_SOCKET": str(socket_path),
            "COSTGOV_RUN": options.pop("run", "drill"),
            "DRILL": json.dumps({"name": name, "place": str(place), **options}),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONWARNINGS": "ignore",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, str(HERE / script)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def losses(self, rank: int) -> dict[int, str]:
        lines = (self.place / f"losses.{self.name}.{rank}").read_text().splitlines()
        return {int(step): loss for step, loss in (line.split() for line in lines)}

    def wait(self) -> int:
        return self.process.wait(SAFETY_S)

    def end(self) -> None:
        """Kill launcher first, so that it restarts nothing, then everything it had started."""
        tree = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        for process in [self.process, *tree]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(SAFETY_S)
        psutil.wait_procs(tree, SAFETY_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def governor(short_tmp: Path) -> Iterator[FakeGovernor]:
    with FakeGovernor(short_tmp / "s") as made:
        yield made


Launch = Callable[..., Job]


@pytest.fixture
def launch(tmp_path: Path, governor: FakeGovernor) -> Iterator[Launch]:
    pytest.importorskip("torch", reason="needs torch")
    jobs: list[Job] = []

    def start(launcher: str = "forks", name: str = "first", script: str = "train_rank.py", **options: Any) -> Job:
        jobs.append(Job(launcher, tmp_path, governor.path, name, script, options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
        print(f"--- {job.name}\n{job.log.read_text()[-3000:]}")
