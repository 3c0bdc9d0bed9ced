"""Many logs on several cores: the same lines in the same order, and nobody is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from governor.cli.policy.played import load_each
from governor.replay.one_log import Terms
from governor.replay.workers import AHEAD, WorkerEnded, Workers
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from tests.unit.replayed import run

LOGS = 3 * AHEAD


@pytest.fixture
def found(tmp_path: Path) -> list[Path]:
    """Healthy ones, some that break, and some that cannot be read."""
    paths = []
    for n in range(LOGS):
        path = tmp_path / f"{n:02}.jsonl"
        losses = [2.0, 2.0, float("nan") if n % 3 == 0 else 2.0]
        records = [{"t": 10.0 * at, "step": at, "loss": loss} for at, loss in enumerate(losses)]
        meta = {"meta": {"role": "troubled" if n % 3 == 0 else "healthy", "onset_t": 15.0}}
        lines = [json.dumps(record) for record in (meta, *records)]
        path.write_text("\n".join(lines if n % 7 else [*lines, "{"]) + "\n")
        paths.append(path)
    return paths


@pytest.mark.parametrize("form", ["--json", "--price=20"])
def test_what_comes_out_is_the_same_on_one_core_and_on_three(found: list[Path], form: str) -> None:
    one, three = (run(*found, form, "--jobs", jobs) for jobs in (1, 3))
    assert (three.exit_code, three.stdout, three.stderr) == (one.exit_code, one.stdout, one.stderr)
    assert sum("nonfinite" in line for line in one.stdout.splitlines()) == LOGS // 3, "it judged them"


def test_pages_and_pictures_are_drawn_by_whoever_plays(found: list[Path], tmp_path: Path) -> None:
    pages = []
    for jobs in (1, 2):
        page = tmp_path / f"{jobs}.html"
        assert run(*found[1:4], "--plot", page, "--jobs", jobs).exit_code == 0
        pages.append(page.read_text())
    assert pages[0] == pages[1]
    assert all(pages[0].count(path.name) for path in found[1:4])
    assert run(*found[1:3], "--plot", tmp_path / "none" / "a.png", "--jobs", 2).exit_code == 1


def test_standard_input_is_read_among_the_others(found: list[Path]) -> None:
    told = run(found[1], "-", found[2], "--json", "--jobs", 2, stdin=found[3].read_bytes())
    assert [json.loads(line)["log"] for line in told.stdout.splitlines() if '"records"' in line] == [
        str(found[1]), "-", str(found[2]),
    ]  # fmt: skip


def test_who_leaves_early_leaves_no_process_behind(found: list[Path]) -> None:
    before = set(multiprocessing.active_children())
    with Workers(Terms(load_each([])), 2) as workers:
        assert next(workers.play(found)).path == found[0]
        assert set(multiprocessing.active_children()) - before
    assert set(multiprocessing.active_children()) == before


def test_a_log_that_is_still_played_is_not_waited_for(tmp_path: Path, found: list[Path]) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text('{"t": 1, "step": 1, "loss": 2.0}\n' * 300_000)
    before = set(multiprocessing.active_children())
    with Workers(Terms(load_each([])), 2) as workers:
        next(workers.play([found[0], long, long]))
        children = set(multiprocessing.active_children()) - before
    assert -signal.SIGTERM in {child.exitcode for child in children}


def test_a_worker_that_is_killed_is_one_line(found: list[Path]) -> None:
    before = set(multiprocessing.active_children())
    with Workers(Terms(load_each([])), 2) as workers:
        told = workers.play(found * 20)
        next(told)
        for child in set(multiprocessing.active_children()) - before:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(WorkerEnded, match="--jobs 1"):
            list(told)
    assert set(multiprocessing.active_children()) == before


def test_workers_read_under_the_map_that_the_user_gave(tmp_path: Path) -> None:
    """A field map is told from the default one by identity: a copy of it would be nobody's word."""
    total = "".join(f'{{"t": {n}, "step": {n}, "loss": 2.0, "tokens": {1000 * n}}}\n' for n in range(1, 40))
    logs = []
    for n in range(2):
        logs.append(tmp_path / f"{n}.jsonl")
        logs[-1].write_text(total)
    for fields in (DEFAULT_FIELDS, field_map({"tokens_total": "tokens"})):
        terms = Terms(load_each([]), fields=fields, is_drawn=True)
        with Workers(terms, 1) as alone, Workers(terms, 2) as both:
            assert [one.section for one in both.play(logs)] == [one.section for one in alone.play(logs)]
