"""The files of deploy/slurm as they stand: train.sbatch with a real training of two ranks, Prolog and Epilog."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from tests.drills.halt.conftest import BIN, ROOT
from tests.drills.slurm.cluster import PATH, Cluster, needs_slurm, shown, until

needs_slurm()

WARNED_S = 90  # In train.sbatch. What is measured here is far below it.

DEPLOYED = ROOT / "deploy/slurm"
# The script itself runs unchanged. What it tells the node's log is written to a file, with the real costgov beside it.
HOOK = """#!/bin/sh
PATH={root}/bin:$PATH exec {script}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    root = Path(tempfile.mkdtemp(prefix="cg-"))
    (root / "bin").mkdir()
    (root / "bin/costgov").symlink_to(BIN / "costgov")
    (root / "bin/logger").write_text(f'#!/bin/sh\n[ $# -gt 2 ] && echo "$@" >> {root}/told || cat > /dev/null\n')
    for name in ("prolog", "epilog"):
        (root / f"{name}.sh").write_text(HOOK.format(root=root, script=DEPLOYED / f"{name}.sh"))
    for path in (*root.glob("*.sh"), root / "bin/logger"):
        path.chmod(0o755)
    try:
        with Cluster(root, count=1, more=f"Prolog={root}/prolog.sh\nEpilog={root}/epilog.sh") as running:
            yield running
    finally:
        shutil.rmtree(root, ignore_errors=True)


def submitted(cluster: Cluster, work: Path, ranks: int, **more: str) -> str:
    """train.sbatch, in a directory with a train.py: the quick start of DDP, on gloo."""
    work.mkdir()
    shutil.copy(ROOT / "examples/quickstart/with_ddp.py", work / "train.py")
    shutil.copy(ROOT / "examples/quickstart/tiny.py", work)
    # Later than our PATH nothing of a user's environment is needed.
    environ = {
        "PATH": f"{BIN}:{PATH}", "HOME": str(work), "PYTHONPATH": str(ROOT), "SLURM_GPUS_ON_NODE": str(ranks),
        "COSTGOV_NODE__PRICE_USD_PER_HOUR": "98.32", "COSTGOV_METRICS__ENABLED": "false",
        "COSTGOV_PATHS__STATE_DIR": f"{work}/state", "COSTGOV_PATHS__RUNTIME_DIR": f"{work}/run",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more,
    }  # fmt: skip
    export = ",".join(f"{name}={value}" for name, value in environ.items())
    options = ["--account=nlp", f"--chdir={work}", f"--output={work}/out", f"--export={export}"]
    done = cluster.run("sbatch", "--parsable", *options, str(DEPLOYED / "train.sbatch"))
    assert done.returncode == 0, done.stderr
    (work / "costgov.toml").write_text(f'[paths]\nstate_dir = "{work}/state"\nruntime_dir = "{work}/run"\n')
    return done.stdout.strip()


def test_a_nan_in_ddp_saves_one_step_of_both_ranks_and_gives_the_allocation_back(
    cluster: Cluster, short_tmp: Path
) -> None:
    work = short_tmp / "w"
    job = submitted(cluster, work, ranks=2, NAN_AT="30", STEPS="100000")
    until(lambda: cluster.states(job) == {"CANCELLED"}, f"job {job} is cancelled", 90)
    assert "Requeue=0" in cluster.shown(job)
    assert cluster.said("sinfo", "-h", "-o", "%T") == "idle", "the allocation is given back"
    incident, shown_to_people = shown(work, cluster.environ)
    assert (incident["plan"]["stop"], incident["job"], len(incident["ranks"])) == ("JOB", job, 2)
    assert incident["agreed_step"] >= 30
    assert_whole(incident, ranks=2)
    assert "CANCELLED" in shown_to_people
    cost = subprocess.run(
        [f"{BIN}/costgov", "cost", "--by", "label:slurm_account", "--config", str(work / "costgov.toml")],
        env={**os.environ, "HOME": str(work), "COLUMNS": "200"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert any(line.split()[:1] == ["nlp"] for line in cost.stdout.splitlines()), cost.stdout + cost.stderr


def assert_whole(incident: dict[str, Any], ranks: int) -> None:
    """Every rank has saved the agreed step, and what lies there is what its manifest says."""
    saved = incident["checkpoint"]
    assert saved is not None, incident["timeline"]
    assert saved["step"] == incident["agreed_step"]
    told = [entry["detail"] for entry in incident["timeline"] if entry["what"] in ("saved", "rank_saved")]
    assert sorted((one["rank"], one["step"]) for one in told) == [(rank, saved["step"]) for rank in range(ranks)]
    with contextlib.closing(DiskCheckpoints()) as disk:
        look = disk.read(saved["path"], saved["manifest"], uid=0, gid=0)
    assert look.whole, look


def test_before_the_time_limit_the_ranks_save_and_the_job_ends(cluster: Cluster, short_tmp: Path) -> None:
    """`--signal=B:USR1@90` sends this to the script 90 s before the end; `scancel --batch` sends it now."""
    work = short_tmp / "w"
    job = submitted(cluster, work, ranks=1, STEPS="100000000")
    until(lambda: any(work.glob("checkpoints/ddp/*")), "it has saved once, so it trains", 90)
    assert cluster.run("scancel", "--signal=USR1", "--batch", job).returncode == 0
    until(lambda: cluster.states(job) == {"CANCELLED"}, f"job {job} is ended", 20)
    incident, _ = shown(work, cluster.environ)
    assert (incident["operator_uid"], incident["checkpoint"]["kind"]) == (0, "good")
    assert_whole(incident, ranks=1)
    seen = {entry["what"]: entry["mono_ns"] for entry in incident["timeline"]}
    assert seen["saved"] - seen["verdict"] < WARNED_S * 1e9


def test_prolog_and_epilog_tell_of_each_job_and_drain_nothing(cluster: Cluster) -> None:
    job = cluster.submit("true", runs=False)
    log = cluster.root / "told"
    until(lambda: log.exists() and f"slurm job {job} of uid 0 has ended on n1" in log.read_text(), "the epilog tells")
    assert f"slurm job {job} of uid 0 begins on n1" in log.read_text()
    until(lambda: cluster.said("sinfo", "-h", "-o", "%T") == "idle", "the node is free")
