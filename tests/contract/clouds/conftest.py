from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import demo_cloud
from tests.contract.clouds.rigs import RIGS, AwsRig, Bench, FakeRig, Rig, aws_rig


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with demo_cloud.moto() as port:
        yield port


@pytest.fixture
def aws(moto_port: int) -> Iterator[AwsRig]:
    with aws_rig(moto_port) as rig:
        yield rig


@pytest.fixture(params=["fake", *sorted(RIGS)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every provider that can end billing, and the fake that stands for one."""
    if request.param == "fake":
        yield FakeRig()
        return
    with RIGS[request.param](Bench(tmp_path, lambda: request.getfixturevalue("moto_port"))) as rig:
        yield rig
