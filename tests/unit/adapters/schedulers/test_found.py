"""Which scheduler is asked: never Kubernetes by chance, and a wrong table is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.adapters.plugins import ConfigError
from governor.adapters.schedulers import found
from trainer_shim.launch import scheduler_job

POD = {"PATH": "/nowhere", "POD_NAMESPACE": "ml", "POD_NAME": "llm-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "token").write_text("t")
    return {"kubernetes": {"token_file": str(tmp_path / "token")}}


def name_of(use: str, tables: dict[str, Any], job: str = "", **environ: str | None) -> str | None:
    given = {name: value for name, value in {**POD, **environ}.items() if value is not None}
    scheduler = found(use, tables, job, given)
    return scheduler.name if scheduler is not None else None


def test_a_pod_with_a_token_that_knows_its_names_asks_kubernetes(tables: dict[str, Any]) -> None:
    assert name_of("auto", tables) == "kubernetes"
    assert name_of("auto", tables, "kubernetes:ml/llm-0", POD_NAME=None) == "kubernetes"


def test_no_other_process_asks_it_by_itself(tables: dict[str, Any], tmp_path: Path) -> None:
    assert name_of("auto", tables, POD_NAME=None) is None
    assert name_of("auto", tables, POD_NAMESPACE="Not_A_Name") is None
    assert name_of("auto", tables, KUBERNETES_SERVICE_HOST=None) is None
    assert name_of("auto", {"kubernetes": {"token_file": str(tmp_path / "none")}}) is None
    assert name_of("auto", tables, "slurm:4711") is None
    assert name_of("off", tables) is None
    assert name_of("slurm", tables) == "slurm"


def test_a_nodes_governor_asks_it_where_its_table_says_so(tables: dict[str, Any]) -> None:
    assert name_of("kubernetes", tables, POD_NAME=None, POD_NAMESPACE=None) == "kubernetes"


@pytest.mark.parametrize(
    ("use", "tables"),
    [
        ("auto", {"nomad": {}}),
        ("auto", {"kubernetes": {"endpiont": "x"}}),
        ("kubernetes", {"kubernetes": {"endpoint": "http://example.org"}}),
        ("off", {"kubernetes": {"timeout_s": -1}}),
    ],
)
def test_a_wrong_table_is_named(use: str, tables: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="scheduler"):
        found(use, tables, "", POD)


def test_a_rank_names_its_job_with_its_scheduler() -> None:
    assert scheduler_job({"SLURM_JOB_ID": "4711", **POD}) == "4711"
    assert scheduler_job(POD) == "kubernetes:ml/llm-0"
    assert scheduler_job({**POD, "POD_NAME": "a/../../b"}) == ""
    assert scheduler_job({**POD, "POD_NAME": "llm-0\n"}) == ""
    assert scheduler_job({}) == ""
