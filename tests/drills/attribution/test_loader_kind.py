"""Which kind of loader starves a run: real loaders, the real sampler, and what the journal keeps of it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.rows import time_row, whole_of
from tests.drills.attribution.compare import read_run
from tests.drills.attribution.inject import BIN, HERE, PRICE, run

FILE_BYTES = 256 << 20


@pytest.mark.parametrize("kind", ["cpu", "disk", "outside", "no_workers"])
def test_the_kind_of_a_starving_loader_is_told(kind: str) -> None:
    pytest.importorskip("torch")
    with tempfile.TemporaryDirectory(prefix="load-") as directory:  # A short path: sockets lie in it.
        work = Path(directory)
        file = work / "rows"
        if kind == "disk":
            file.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
            try:
                os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
            except OSError:
                pytest.skip("needs a disk that can be read past the page cache (O_DIRECT)")
        train = [sys.executable, str(HERE / "loading.py"), kind, str(file)]
        code, output = run([str(BIN / "costgov"), "run", "--name", "load", "--price", str(PRICE), "--", *train], work)
        assert code == 0, output[-4000:]
        kept = read_run(next(work.glob("state/**/costgov.db")))
        rows = time_row(whole_of(TimeAccount.restored(kept["time"], same_boot=False)))["causes"]
    row = next(one for one in rows if one["cause"] == "data_starvation")
    assert row["s"] > 5, rows
    assert row["kind"] == kind, (row, kept["time"].get("loader"))
