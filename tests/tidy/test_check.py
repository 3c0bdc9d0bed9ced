"""The check keeps every core busy."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.tidy.sources import ROOT


def _jobs(threads: str) -> str:
    """How many jobs `make check` runs side by side where OpenMP is told to use so many threads."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("JOBS", "MAKEFLAGS", "MFLAGS")}
    return subprocess.run(
        ["make", "--no-print-directory", "--eval=show: ; @echo $(JOBS)", "show"],
        cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_openmp_does_not_decide_how_many_jobs_run() -> None:
    """nproc answers with OMP_NUM_THREADS where it is set; the Makefile sets it to 1 for the trainers of the drills."""
    assert _jobs("1") == _jobs("3")
    assert int(_jobs("1")) >= 1


def test_no_link_of_the_tree_leads_out_of_it() -> None:
    """Git puts such a link in the place of a directory of that name and removes that, ignored or not: `.venv`, say."""
    listed = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    links = [entry.split("\t", 1)[1] for entry in listed.stdout.split("\0") if entry.startswith("120000 ")]
    assert links, "the packaged policy is one"
    for link in links:
        to = os.readlink(ROOT / link)
        assert not os.path.isabs(to), f"{link} -> {to}"
        assert not os.path.normpath(os.path.join(os.path.dirname(link), to)).startswith(".."), f"{link} -> {to}"


def test_every_drill_can_be_imported() -> None:
    """The type checker does not read tests, and the drills run long after: a name that has moved shows here."""
    folders = ("tests/drills", "tests/fuzz", "tests/real_runs")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3_000:]
