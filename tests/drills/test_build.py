"""What is built of a checkout is what the checkout holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def test_a_trigger_that_an_earlier_build_left_behind_is_in_no_wheel(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "governor", tree / "governor", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "deploy" / "man", tree / "deploy" / "man")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    left = tree / "build" / "lib" / "governor" / "core" / "rules" / "triggers" / "gone.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=tree, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "governor").rglob("*.py")}
