"""A rank waits in the kernel (D state): SIGKILL does nothing, so the stop of the machine has to end the spending."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo_cloud import DemoCloud
from tests.drills.halt.conftest import SAFETY_S, Service, cloud_table

needs_ext4 = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("mkfs.ext4") and shutil.which("fsfreeze") and Path("/dev/loop0").exists()),
    reason="needs root, loop devices, mkfs.ext4 and fsfreeze",
)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=SAFETY_S)


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes no writes until the test is over."""
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    _run("mkfs.ext4", "-q", str(image))
    _run("mount", "-o", "loop", str(image), str(disk))
    try:
        _run("fsfreeze", "--freeze", str(disk))
        try:
            yield disk
        finally:
            _run("fsfreeze", "--unfreeze", str(disk))
    finally:
        _run("umount", "--lazy", str(disk))


@needs_ext4
def test_the_machine_is_stopped_though_the_rank_lives_and_though_the_governor_died(
    service: Callable[..., Service], cloud: DemoCloud, frozen_disk: Path
) -> None:
    assert frozen_disk.is_dir()
    governor = service(stop="instance", cloud=cloud_table(cloud))
    governor.start()
    trainee = governor.trainee("unkillable")
    governor.until_stage("KILLED")
    governor.kill9()
    governor.start()
    incident = governor.until_stage("HALTED")
    whats = [entry["what"] for entry in incident["timeline"]]
    assert "exited" not in whats, "it was not seen to exit, and nobody says so"
    assert whats.index("kill") < whats.index("stop_requested") < whats.index("verified")
    assert cloud.state() == "stopped"
    assert trainee.poll() is None, "still waiting for the disk"
