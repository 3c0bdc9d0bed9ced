"""W&B's and MLflow's own packages write their forms, offline, and read them back."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from governor.exports.forms.mlflow import EXPERIMENT, RUN_TAG
from governor.exports.forms.wandb import run_id
from governor.replay.readers import wandb as reader
from tests.unit.exports.exported import LINES, RUN, leave_recording, step
from tests.unit.exports.test_export import document, export, files


def test_an_offline_run_is_read_back_by_wandb_itself(left: Path, tmp_path: Path) -> None:
    told = document(RUN, str(tmp_path), "--to", "wandb")
    (path,) = told["paths"]
    assert path == str(tmp_path / f"offline-run-{RUN}" / f"run-{run_id(RUN)}.wandb")
    rows = [row for _, row in reader.records(Path(path)) if isinstance(row, dict)]
    spend = [(row["step"], row["_timestamp"], row["cost/spend_usd"]) for row in rows if "cost/spend_usd" in row]
    assert spend == [(1, 1_800_000_010, 1), (2, 1_800_000_020, 2), (3, 1_800_000_030, 2.5)]
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [2, 2, "NaN"]
    assert [row["events/halt"] for row in rows if "events/halt" in row] == ["llama.n.1: ARMED to ASKED (DECIDED)"]
    assert [row["gpu/0/busy_frac"] for row in rows if "gpu/0/busy_frac" in row] == [0.5]
    spent = [sum(row[name] for name in row if re.fullmatch("cause/.*_usd", name)) for row in rows]
    assert max(spent) == pytest.approx(2.5), "all that was charged between the recording's first and last moment"


def test_wandb_would_sync_what_was_written(left: Path, tmp_path: Path) -> None:
    document(RUN, str(tmp_path), "--to", "wandb")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wandb", "sync", "--dry-run", str(tmp_path / f"offline-run-{RUN}")],
        env={**os.environ, **reader.OFFLINE, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"run-{run_id(RUN)}.wandb" in done.stdout + done.stderr


def test_an_offline_run_of_the_same_is_left_alone_and_of_more_replaced(left: Path, tmp_path: Path) -> None:
    document(RUN, str(tmp_path), "--to", "wandb")
    before = files(tmp_path)
    assert document(RUN, str(tmp_path), "--to", "wandb")["unchanged"] is True
    assert files(tmp_path) == before
    leave_recording(left, [*LINES, step(40, 4)])
    assert document(RUN, str(tmp_path), "--to", "wandb")["unchanged"] is False
    assert files(tmp_path).keys() == before.keys()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "mlruns"


def test_mlflows_client_reads_the_run_back(left: Path, store: Path) -> None:
    from mlflow.tracking import MlflowClient

    told = document(RUN, str(store), "--to", "mlflow")
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{RUN}'")
    assert told["paths"] == [f"{store.as_uri()}, run {run.info.run_id}"]
    assert (run.info.status, run.info.run_name, run.data.params["points"]) == ("FINISHED", RUN, "3")

    def history(name: str) -> list[tuple[int, int, float]]:
        return [(one.step, one.timestamp, one.value) for one in client.get_metric_history(run.info.run_id, name)]

    assert history("cost/spend_usd") == [
        (1, 1_800_000_010_000, 1.0), (2, 1_800_000_020_000, 2.0), (3, 1_800_000_030_000, 2.5),
    ]  # fmt: skip
    assert [value for _, _, value in history("train/loss")][:2] == [2.0, 2.0]
    assert math.isnan(history("train/loss")[2][2])
    assert [step for step, _, _ in history("cause/start_up_s")][-1] == 3
    assert history("events/rule_slow") == [(2, 1_800_000_025_000, 1.0)]
    events = client.download_artifacts(run.info.run_id, "events.jsonl", str(store.parent))
    assert [json.loads(line)["event"] for line in Path(events).read_text().splitlines()][-1] == "ended"


def test_a_run_of_the_same_is_left_alone_and_of_more_replaced(left: Path, store: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.as_uri())
    foreign = client.create_run(client.create_experiment(EXPERIMENT), run_name=RUN)
    first = document(RUN, str(store), "--to", "mlflow")
    assert document(RUN, str(store), "--to", "mlflow") == first | {"unchanged": True}
    leave_recording(left, [*LINES, step(40, 4)])
    second = document(RUN, str(store), "--to", "mlflow")
    runs = client.search_runs([foreign.info.experiment_id])
    assert {f"{store.as_uri()}, run {run.info.run_id}" for run in runs} == {
        *second["paths"], f"{store.as_uri()}, run {foreign.info.run_id}",
    }  # fmt: skip


def test_a_folder_of_something_else_is_no_store(left: Path, store: Path) -> None:
    store.mkdir()
    (store / "thesis.txt").write_text("x")
    code, _, err = export(RUN, str(store), "--to", "mlflow")
    assert (code, err) == (
        ExitCode.FAILED, f"{store}: holds something else than MLflow's store; name another directory"
    )  # fmt: skip


def test_a_server_that_is_not_there_is_one_line_without_its_password(left: Path) -> None:
    code, _, err = export(RUN, "http://ada:S3CRET@127.0.0.1:9/", "--to", "mlflow")
    assert (code, err.startswith("http://127.0.0.1:9: MLflow refuses: "), "\n" in err) == (ExitCode.FAILED, True, False)
    assert "S3CRET" not in err


@pytest.mark.parametrize(("form", "package"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_without_the_package_the_line_says_what_to_install(left: Path, tmp_path: Path, form: str, package: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None; from governor.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "export", RUN, str(tmp_path / "x"), "--to", form],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.FAILED, 1)
    assert f"pip install 'costgov[{form}]'" in done.stderr


def test_no_form_that_is_not_asked_for_loads_a_package() -> None:
    script = (
        "import sys; from governor.cli import main, export; from governor.exports.forms import form;"
        "[form(name) for name in ('jsonl', 'tensorboard', 'wandb', 'mlflow')];"
        "print({'wandb', 'mlflow', 'torch', 'tensorboard'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
