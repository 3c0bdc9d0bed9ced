"""What drills with processes of other users need: an interpreter, the sources and a directory that those may reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# DeepSpeed decorates a function with torch.compile, for which each rank imports the compiler: two seconds of processor.
# The drill of compiled loops has it.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
TOGETHER = ("tests/drills/systemd/",)  # One box for all of its files, in their order.
# What lasts longest begins first, or a worker has it alone in the end.
LONGEST = (
    "tests/drills/shim/test_agreement.py",
    "tests/drills/systemd/",
    "tests/drills/halt/test_node_stop.py",
    "tests/real_runs/",
    "tests/drills/test_demo.py",
    "tests/drills/test_readme.py",
    "tests/drills/packages/",
    "tests/drills/attribution/",
    "tests/drills/trainers/",
    "tests/drills/shim_engines/test_deepspeed_engine.py",
    "tests/drills/fleet/",
    "tests/drills/shim/test_hf.py",
    "tests/drills/shim/test_apart.py",
    "tests/drills/planner/test_configs_train.py",
    "tests/drills/shim_engines/",
    "tests/drills/shim/",
    "tests/drills/monitoring/test_rules.py",
    "tests/drills/cli/test_help_and_mistakes.py",
    "tests/drills/cli/test_policy_doctor_run.py",
    "tests/drills/cli/test_budget_live.py",
    "tests/drills/halt/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((at for at, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes whole files, whose fixtures are then made once."""
    from xdist.scheduler import LoadFileScheduling  # Here: without xdist the drills run one after another.

    class WholeFiles(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((directory for directory in TOGETHER if path.startswith(directory)), path)

    return WholeFiles(config, log)


def is_reachable_by_everyone(path: Path) -> bool:
    return path.exists() and all(directory.stat().st_mode & 0o001 for directory in path.resolve().parents)


@pytest.fixture
def interpreter() -> str:
    """An interpreter that other users may run, too: ours may lie under a private directory."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if is_reachable_by_everyone(Path(candidate)):
            version = subprocess.run([candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"])
            if version.returncode == 0:
                return candidate
    pytest.skip("no Python 3.11 that other users may run (apt-get install python3)")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="costgov-drill-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture
def public_source(public: Path) -> str:
    """The sources where other users may read them."""
    for package in ("governor", "trainer_shim"):
        shutil.copytree(ROOT / package, public / package, ignore=shutil.ignore_patterns("__pycache__"))
    return str(public)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an install or a package needs, for where no network is: for the interpreter it will choose there."""
    directory = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [one for one in project["project"]["dependencies"] if not one.startswith("costgov-shim")]
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "download"]
    found = subprocess.run(
        [*pip, "--dest", str(directory), *wanted, *project["build-system"]["requires"]],
        env={**os.environ, "PIP_CONSTRAINT": str(ROOT / "deploy" / "constraints.txt")},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return directory
