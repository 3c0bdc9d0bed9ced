"""What a governor keeps in memory for as long as it lives, and does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOADS = """
import sys
from governor.cli.run import command
with command.without_rich():
    import governor.cli.run.supervise
assert "structlog" in sys.modules
assert "rich" not in sys.modules, "not even its absence is left"
import rich
assert rich.IS_STUB
with command.without_rich():
    import rich
assert rich.IS_STUB, "who has it keeps it"
"""


def test_a_governor_does_not_load_rich_where_it_is_installed(tmp_path: Path) -> None:
    package = tmp_path / "rich"
    package.mkdir()
    (package / "__init__.py").write_text("IS_STUB = True\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", LOADS], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0
