"""`costgov goodput` of an export of which files are gone, or are no files any more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from governor.cli.common import ExitCode
from governor.cli.main import cli
from governor.core.attribution.rows import RETOLD
from governor.exports.found import GONE, STEPS_CHANGED
from governor.exports.owned import MARKER
from tests.unit.exports.exported import RUN
from tests.unit.exports.test_export import document
from tests.unit.exports.test_export_retold import cut, goodput, healthy, leave

GONE_BY: Mapping[str, Callable[[Path], Any]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.exists,  # It was before.
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link that dangles": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("how", GONE_BY.values(), ids=GONE_BY)
def test_an_account_that_is_gone_is_told_as_that(state: Path, tmp_path: Path, how: Callable[[Path], None]) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    path = tmp_path / "to/causes.jsonl"
    path.unlink()
    how(path)
    named = [str(tmp_path / "to")], sorted(str(one) for one in (tmp_path / "to").glob("*.jsonl") if one.is_file())
    for words in (*named, [str(tmp_path / "to/performance_metrics.jsonl")]):
        result = CliRunner().invoke(cli, ("goodput", "--json", *words))
        (log,) = json.loads(result.stdout)["logs"]
        assert (result.exit_code, log["steps"], log["problem"] is None) == (ExitCode.FAILED, 40, False)
        assert len([line for line in log["missing"] if GONE in line]) == 1
    shown = CliRunner().invoke(cli, ("goodput", str(tmp_path / "to"))).stdout
    assert f"not told: the account of its run, as {GONE}" in shown


@pytest.mark.parametrize("is_named", [True, False])
def test_an_account_that_was_never_exported_is_not_gone(state: Path, tmp_path: Path, *, is_named: bool) -> None:
    """Of steps alone that somebody names, and of a run without a recording."""
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    steps = tmp_path / "to/performance_metrics.jsonl"
    if not is_named:
        told_steps = steps.read_bytes()
        shutil.rmtree(state / "recordings")
        assert CliRunner().invoke(cli, ("export", RUN, "--jsonl", str(tmp_path / "to"))).exit_code == 0
        steps.write_bytes(told_steps)
        marker = tmp_path / "to" / MARKER
        marked = json.loads(marker.read_text())
        marked["files"][steps.name] = [hashlib.sha256(told_steps).hexdigest()]
        marker.write_text(json.dumps(marked))
    log = goodput(str(steps if is_named else tmp_path / "to"))
    assert (log["steps"], log["problem"]) == (40, None)
    assert not any("the account of its run" in line for line in log["missing"])


@pytest.mark.parametrize("has_causes", [True, False])
def test_steps_that_were_cut_are_told_as_that(state: Path, tmp_path: Path, *, has_causes: bool) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    cut(tmp_path / "to/performance_metrics.jsonl", 20)
    if not has_causes:
        (tmp_path / "to/causes.jsonl").unlink()
    result = CliRunner().invoke(cli, ("goodput", "--json", str(tmp_path / "to")))
    (log,) = json.loads(result.stdout)["logs"]
    assert (log["steps"] < 40, result.exit_code, STEPS_CHANGED in log["missing"]) == (True, ExitCode.FAILED, True)
    assert (log["problem"] is None, result.stderr.count(STEPS_CHANGED)) == (False, 1)
    assert all(one["evidence"].startswith(RETOLD) for one in log["causes"]) is has_causes


def test_files_that_are_links_to_what_was_exported_are_that(state: Path, tmp_path: Path) -> None:
    leave(state, list(healthy()), 0)
    document(RUN, "--jsonl", str(tmp_path / "to"))
    (tmp_path / "store").mkdir()
    for path in [*(tmp_path / "to").glob("*.jsonl")]:
        path.rename(tmp_path / "store" / path.name)
        path.symlink_to(tmp_path / "store" / path.name)
    log = goodput(str(tmp_path / "to"))
    assert (log["steps"], log["problem"], len(log["missing"])) == (40, None, 1)
