from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.alerts.conftest import tls_ca  # noqa: F401
from tests.contract.schedulers.fake_api_server import FakeApi, fake_api_server
from tests.contract.schedulers.kube_rig import KubeRig


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with fake_api_server() as made:
        yield made


@pytest.fixture
def rig(fake: FakeApi, tmp_path: Path) -> KubeRig:
    return KubeRig(fake, tmp_path)
