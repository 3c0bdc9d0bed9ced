from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.exporters.rigs import RIGS, Rig


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with closing(RIGS[request.param](tmp_path)) as rig:
        yield rig
