from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import demo_cloud
from tests.contract.clouds.rigs import AwsRig, CommandRig, FakeRig, Rig, aws_rig


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with demo_cloud.moto() as port:
        yield port


@pytest.fixture
def aws(moto_port: int) -> Iterator[AwsRig]:
    with aws_rig(moto_port) as rig:
        yield rig


@pytest.fixture(params=["fake", "aws", "command"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Every provider that can end billing. A new one is added here and passes the suite unedited."""
    match request.param:
        case "aws":
            with aws_rig(request.getfixturevalue("moto_port")) as rig:
                yield rig
        case "command":
            yield CommandRig(tmp_path)
        case _:
            yield FakeRig()
