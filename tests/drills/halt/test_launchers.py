"""A launcher that restarts its workers must not bring a halted run back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.drills.halt.conftest import BIN, HERE, Run, is_alive
from trainer_shim.wire import HALT_EXIT_CODE


def test_torchrun_with_restarts_left_does_not_come_back(costgov_run: Run, tmp_path: Path) -> None:
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "2", "--max-restarts", "3"]
    halted = costgov_run(
        [*torchrun, str(HERE / "elastic.py"), str(tmp_path)], environ={"OMP_NUM_THREADS": "1", "COSTGOV_RUN": "drill"}
    )
    assert halted.code == HALT_EXIT_CODE, halted.output
    starts = [json.loads(line) for line in (tmp_path / "starts").read_text().splitlines()]
    assert [start["restart"] for start in starts] == ["0", "0"], "no worker was started again"
    assert "saved" in halted.seen
    roles = {target["role"] for target in halted.incident["targets"]}
    assert {"launcher", "rank"} <= roles
    assert [start["pid"] for start in starts if is_alive(start["pid"])] == []
