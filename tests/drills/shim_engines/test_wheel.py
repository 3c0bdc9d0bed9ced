"""The shim's wheel: pure, complete, without dependencies, and alive on Python 3.9. The governor's has its manual."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "trainer_shim"


def quiet(*argv: str | Path, cwd: Path) -> str:
    """Run and return stdout; what went wrong is the assertion's message."""
    done = subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: building leaves traces beside the sources."""
    place = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    shutil.copytree(SOURCE, place / "trainer_shim", ignore=unwanted)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    quiet(*pip, "-w", place / "out", place / "trainer_shim", cwd=place)
    (built,) = (place / "out").iterdir()
    return built


def test_it_is_pure_and_has_every_module_and_no_dependency(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        tags = archive.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    modules = {f"trainer_shim/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.py") if "build" not in path.parts}
    assert {name for name in names if name.endswith(".py")} == modules
    assert "trainer_shim/py.typed" in names
    assert "Root-Is-Purelib: true" in tags
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.9" in metadata


def test_installing_it_adds_exactly_one_line_to_pip_freeze(wheel: Path, tmp_path: Path) -> None:
    quiet(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    pip = (tmp_path / "venv" / "bin" / "python", "-m", "pip")
    before = quiet(*pip, "freeze", cwd=tmp_path).splitlines()
    quiet(*pip, "install", "-q", "--no-index", wheel, cwd=tmp_path)  # No index: a dependency would fail here.
    after = quiet(*pip, "freeze", cwd=tmp_path).splitlines()

    (added,) = set(after) - set(before)
    assert added.startswith("costgov-shim")
    assert len(after) == len(before) + 1
    everything = (
        "import trainer_shim, trainer_shim.watcher, trainer_shim.engines.select, sys; print('torch' in sys.modules)"
    )
    assert quiet(tmp_path / "venv" / "bin" / "python", "-c", everything, cwd=tmp_path).strip() == "False"


def test_it_is_python_3_9(wheel: Path, tmp_path: Path) -> None:
    for path in SOURCE.rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))
    candidates = [shutil.which("python3.9"), *map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"))]
    working = [
        path for path in candidates if path and subprocess.run([path, "-V"], capture_output=True).returncode == 0
    ]
    if not working:
        return  # The grammar was checked above; there is no interpreter to run it.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        names = [name[:-3].replace("/", ".") for name in archive.namelist() if name.endswith(".py")]
    modules = sorted(name.removesuffix(".__init__") for name in names)
    quiet(working[0], "-W", "error", "-c", "import " + ", ".join(modules), cwd=tmp_path)


def test_pip_puts_the_governors_manual_where_man_looks(tmp_path: Path) -> None:
    root = SOURCE.parent
    for name in ("governor", "deploy/man"):
        shutil.copytree(root / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path / "tree" / name)
    pip = (sys.executable, "-m", "pip")
    build = ("wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path / "out")
    quiet(*pip, *build, tmp_path / "tree", cwd=tmp_path)
    (built,) = (tmp_path / "out").iterdir()
    # Into an environment of its own: with --prefix alone, pip would remove the governor of the one that runs this test.
    quiet(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    own = (tmp_path / "venv" / "bin" / "python", "-m", "pip")
    quiet(*own, "install", "-q", "--no-deps", "--no-index", built, cwd=tmp_path)
    page = tmp_path / "venv" / "share" / "man" / "man1" / "costgov.1"
    assert page.read_bytes() == (root / "deploy/man/costgov.1").read_bytes()
